"""Regular expressions in linear time: the answers of `re.fullmatch`, and expressions that it never ends with."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.tasks.language.expressions import Expression, NotRegular
from fedzero.tasks.language.rewards import Regex

TEXTS = ["", "a", "b", "aa", "ab", "aab", "abab", "A", "7", "12 apples", "٣", "é", "é-", "ß", "ss", "İ", "i", "ı", "I"]
TEXTS += ["ſ", "s", "S", "\u212a", "k", "σ", "ς", "Σ", "a\nb", "\n", "a\n", "\ud800", "😀", "a b", " ", "\u2003", "_"]
TEXTS += ["•", "-1.5e3", "2024-02-30", "x=1;y=2", "aaaaaaaaaa", "foo bar", "foo", "\x00", "^", "a.b", "ǅ", "ǆ", "]a"]
PATTERNS = r"""
a¦b*¦(a*)*¦(a*)+b¦(?:a?){3}¦a{2}¦a{1,3}¦a{,2}¦a{2,}¦(a{1,2}){1,2}¦a??b¦(a+?)+¦x*?y?¦\d+¦\D+¦\w+¦\W¦\s¦\S+¦\w+[\w-]*
[^\W\d]+¦[\d٣]+¦[a-c]+¦[^a-c]+¦[]a]+¦[\]a]¦[-a]+¦[^\n]¦.¦(?s:.)+¦\x61¦\u00e9¦\101¦\N{BULLET}¦(?i)i¦(?i)ss¦(?i)ſ
(?i)k¦(?i)σ¦(?i)ǆ¦(?i)[a-z]+¦(?i)[^a-z]+¦(?i)é¦(?i:a)b¦(?i)(?-i:a)b¦(?i)ΐ¦(?i)ß¦(?ia)k¦(?ai)[^s]¦(?a)\w+¦(?a:\d)¦^a
a$¦^$¦\Aa\Z¦a\b¦\ba¦\Ba¦a\B¦\b¦\B¦(?m)^a$\n?^b$¦(?m)a$.¦a$\n¦(?s)a.b¦\bfoo\b.\bbar\b¦(a\b)*¦(?a)\bé¦(?x) a  b # c
(?P<n>a)(b)?¦(?:(?:(?:a)))¦a(?#comment)b¦()¦(|a)¦(a|)¦a||b¦(?:)¦[a][b]¦-?\d+(\.\d+)?(e-?\d+)?¦\d{4}-\d{2}-\d{2}
(\w=\d;?)+¦(.*)(.*)(.*)¦(a?b?)*¦(?:a{0}b)*¦a{0}¦(?:\Ba)*¦[\s\S]*¦[^\s\S]¦\\|\^¦\.¦a|b¦(a|b)*abb¦(?:a|b|)c?¦(?i)İ|ı
a|¦|a
"""
PATTERNS = [pattern for line in PATTERNS.strip().splitlines() for pattern in line.split("¦")]


def compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def agrees(pattern: str, text: str) -> None:
    wanted = compiled(pattern)
    if wanted is None:
        with pytest.raises(FedzeroError):
            Expression(pattern)
        return
    try:
        found = Expression(pattern)
    except NotRegular:
        return
    assert found.matches(text) == (wanted.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_answers_of_re(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if compiled(pattern) is not None:
            expression = Expression(pattern)  # every one of them is regular
        for text in TEXTS:
            agrees(pattern, text)
            if compiled(pattern) is not None:
                assert expression.matches(text) == expression.matches(text), "the second time from what is kept"


def test_a_table_that_says_both() -> None:
    """That the comparison is not of nothing: patterns here compile, and match some texts and not others."""
    good = [pattern for pattern in PATTERNS if compiled(pattern) is not None]
    assert len(good) == len(PATTERNS) > 80
    matched = [any(Expression(pattern).matches(text) for text in TEXTS) for pattern in good]
    missed = [any(not Expression(pattern).matches(text) for text in TEXTS) for pattern in good]
    assert sum(matched) > 70 and sum(missed) > 70


LETTERS = st.sampled_from("ab-_ \n1éſKsiİ٣")
ATOMS = st.sampled_from(
    [
        r"a ",
        r"b",
        r"é",
        r"i",
        r"s",
        r"k",
        r".",
        r"\d",
        r"\w",
        r"\W",
        r"\s",
        r"\b",
        r"\B",
        r"^",
        r"$",
        r"\A",
        r"\Z",
        r"[ab]",
        r"[^a]",
        r"[\w-]",
        r"[^\s1]",
        r"[a-é]",
        r"",
        r"\n",
        r"1",
        r"_",
    ]
)
FLAGS = st.sampled_from(["", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?im)"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    suffix = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{,2}?"])
    group = st.sampled_from(["(?:", "(", "(?i:", "(?s:", "(?m:", "(?a:", "(?-i:"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(?:" + "|".join(parts) + ")"),
        st.tuples(group, inner, suffix).map(lambda parts: f"{parts[0]}{parts[1]}){parts[2]}"),
    )


@settings(max_examples=500)
@given(
    st.tuples(
        st.sampled_from(["", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?im)"]), st.recursive(ATOMS, larger, max_leaves=6)
    ),
    st.text(LETTERS, max_size=7),
)
def test_expressions_of_chance(parts: tuple[str, str], text: str) -> None:
    agrees("".join(parts), text)


@given(st.text(st.sampled_from(r"ab1.*+?|()[]{},\dwsbBAZ^$-:=!<>#imxP0\n"), max_size=9), st.text(LETTERS, max_size=5))
@settings(max_examples=1500)
def test_characters_of_chance(pattern: str, text: str) -> None:
    """Whatever `re` refuses is refused; what it takes has its answers, or is said not to be regular."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(pattern, text)


ENDLESS = ["(a+)+$", "(a|a)*b", "(a*)*b", "(a|aa)+b", "(.*a){20}", "(a?){40}a{40}b", r"(\w+\s?)+!", "(x+x+)+y"]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_what_takes_re_for_ever(pattern: str) -> None:
    text = ("x" if "x" in pattern else "a") * 20_000 + "-"
    began = time.process_time()
    assert not Expression(pattern).matches(text)
    assert time.process_time() - began < 30, "2^n steps would not end in the age of the universe"


def test_re_does_take_for_ever() -> None:
    code = "import re; re.fullmatch('(a+)+$', 'a' * 60 + '-')"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code], timeout=3)


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        (r"(a)\1", "reference"),
        ("(?P<n>a)(?P=n)", "reference"),
        ("(a)?(?(1)b|c)", "condition"),
        ("(?=a)a", "look-around"),
        ("(?!a)b", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        ("(?!)", "look-around"),
        ("(?>a)b", "atomic"),
        ("a*+b", "possessive"),
        ("((a{50}){50}){50}", "too large"),
        ("(){4294967294}", "too large"),
        ("(){0,4294967294}", "too large"),
        ("x" * 10_001, "characters"),
        ("(?:" * 150 + "a" + ")*" * 150, "nested"),
        ("(?:" * 100 + "a|b" + ")?" * 100, "nested"),
    ],
)
def test_what_is_not_regular_is_said_when_a_recipe_is_read(pattern: str, word: str, tiny) -> None:
    with pytest.raises(NotRegular, match=word):
        Expression(pattern)
    reward = {"kind": "regex", "pattern": pattern}
    with pytest.raises(FedzeroError, match=word) as caught:
        recipes.load(tiny, task={"kind": "language", "measure": "reward", "reward": reward})
    assert "task.reward.pattern" in str(caught.value) and 'kind = "function"' in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_expression_of_an_old_ledger_that_is_not_regular() -> None:
    """With trust Python matches it; without, nothing does."""
    from fedzero.tasks.language import TEXTS as KNOWN

    old, row = Regex(pattern=r"(a)\1"), {}
    with pytest.raises(FedzeroError, match="--trust"):
        old.open(KNOWN["addition"], {}, foreign=True)
    assert list(old.open(KNOWN["addition"], {})([(row, "aa"), (row, "ab")])) == [1, 0]
    assert list(Regex(pattern="a+").open(KNOWN["addition"], {}, foreign=True)([(row, "aa"), (row, "ab")])) == [1, 0]
