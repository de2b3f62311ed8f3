"""Methods and filters that cannot work as a recipe has them: exit status 2 and one sentence with the field, what was
found and the mend; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

RECIPE = """
name = "tiny"
rounds = 3

[algorithm]
kind = "fedzo"
rate = 0.01
directions = 3

[task]
kind = "quadratic"
dimension = 16

[federation]
clients = 5
cohort = 3
"""


def method(kind: str, fields: str = "") -> str:
    return f'algorithm={{kind="{kind}",rate=0.01{"," if fields else ""}{fields}}}'


def edges(*pairs: tuple[int, int]) -> str:
    return method("dzopa", f'graph={{kind="edges",pairs={[list(pair) for pair in pairs]}}}')


ALL, ONE, TWO = ("federation.cohort=5", "federation.cohort=1", "federation.cohort=2")
DENSE, SEEDED = ("algorithm.form=dense", "algorithm.form=seeded")
MEDIAN, TRIMMED = ('filters=[{kind="median"}]', 'filters=[{kind="trimmed-mean"}]')

# By name: the overrides, and words of the sentence.
METHODS: dict[str, tuple[list[str], list[str]]] = {
    "alpha one": ([method("zofedht", "alpha=1.0")], ["algorithm.alpha", "1.0", "< 1"]),
    "alpha above one": ([method("zofedht", "alpha=1.5")], ["algorithm.alpha", "1.5", "< 1"]),
    "alpha negative": ([method("zofedht", "alpha=-0.1")], ["algorithm.alpha", "-0.1", ">= 0"]),
    "no history": ([method("zofedht", "tau=0")], ["algorithm.tau", "0", ">= 1"]),
    "half a history": ([method("zofedht", "tau=2.5")], ["algorithm.tau", "2.5", "int"]),
    "directions of another kind": (
        [method("zofedht", 'distribution="rademacher"')],
        ["algorithm.distribution", "rademacher"],
    ),
    "beta1 one": ([method("zo-adafl", "beta1=1.0")], ["algorithm.beta1", "1.0", "< 1"]),
    "beta1 negative": ([method("zo-adafl", "beta1=-0.5")], ["algorithm.beta1", "-0.5", ">= 0"]),
    "beta2 one": ([method("zo-adafl", "beta2=1.0")], ["algorithm.beta2", "1.0", "< 1"]),
    "beta2 negative": ([method("zo-adafl", "beta2=-1.0")], ["algorithm.beta2", "-1.0", ">= 0"]),
    "epsilon negative": ([method("zo-adafl", "epsilon=-1.0")], ["algorithm.epsilon", "-1.0", ">= 0"]),
    "server rate zero": ([method("zo-adafl", "server_rate=0.0")], ["algorithm.server_rate", "0.0", "> 0"]),
    "unknown rule": ([method("zo-adafl", 'rule="adamw"')], ["algorithm.rule", "adamw"]),
    "unknown type": ([method("scaffold-zo", 'type="III"')], ["algorithm.type", "III"]),
    "gamma negative": ([method("fedprox-zo", "gamma=-1.0")], ["algorithm.gamma", "-1.0", ">= 0"]),
    "unknown form": (["algorithm.form=sparse"], ["algorithm.form", "sparse"]),
    "graph in two parts": (
        [edges((0, 1), (2, 3), (3, 4)), ALL],
        ["algorithm.graph", "not connected", "client 2", "add an edge"],
    ),
    "graph without edges": ([edges(), ALL], ["algorithm.graph", "not connected", "client 1", "add an edge"]),
    "edge to a stranger": (
        [edges((0, 1), (1, 2), (2, 3), (3, 4), (4, 5)), ALL],
        ["algorithm.graph.pairs", "[4, 5]", "0 to 4"],
    ),
    "edge to nobody": ([edges((0, -1)), ALL], ["algorithm.graph.pairs[0][1]", "-1", ">= 0"]),
    "edge to itself": ([edges((2, 2)), ALL], ["algorithm.graph.pairs", "[2, 2]", "different"]),
    "unknown graph": ([method("dzopa", 'graph={kind="star"}'), ALL], ["algorithm.graph.kind", "star"]),
    "no mixing": ([method("dzopa", "gamma=0.0"), ALL], ["algorithm.gamma", "0.0", "> 0"]),
    "dzopa with a sample": ([method("dzopa")], ["federation.cohort = 5", "not 3"]),
    "dzopa with replacement": ([method("dzopa"), ALL, "federation.replacement=true"], ["replacement = false"]),
    "zone-s with two": ([method("zone-s"), TWO], ["federation.cohort = 1", "2"]),
    "zone-s whose rate ends": (
        ['algorithm={kind="zone-s",rate={kind="piecewise",points=[[0,0.1],[9,0.0]]}}', ONE],
        ["algorithm.rate", "0", "above 0"],
    ),
    "mezo with five": ([method("mezo")], ["federation.clients = 1", "not 5"]),
    "secret of a server with a model": (["federation.private=true"], ["federation.private", "decomfl"]),
    "replacement maybe": (["federation.replacement=maybe"], ["federation.replacement", "maybe", "bool"]),
    "more draws than clients": (
        ["federation.replacement=true", "federation.cohort=6"],
        ["federation.cohort = 6", "federation.clients = 5", "at most"],
    ),
}
FILTERS: dict[str, tuple[list[str], list[str]]] = {
    "unknown filter": (['filters=[{kind="sorcery"}]'], ["filters[0].kind", "sorcery", "fedzero list"]),
    "filter without a kind": (["filters=[{fraction=0.1}]"], ["filters[0].kind", "missing", "add it"]),
    "filter by name": (['filters=["top-k"]'], ["filters[0]", "top-k", "object"]),
    "one filter, no list": (['filters={kind="top-k"}'], ["filters", "top-k", "array"]),
    "key of no filter": (['filters=[{kind="sign",norm=1.0}]'], ["filters[0].norm", "unknown key", "remove it"]),
    "top nothing": (['filters=[{kind="top-k",fraction=0.0}]'], ["filters[0].fraction", "0.0", "> 0"]),
    "top minus": (['filters=[{kind="top-k",fraction=-0.1}]'], ["filters[0].fraction", "-0.1", "> 0"]),
    "top too much": (['filters=[{kind="top-k",fraction=1.5}]'], ["filters[0].fraction", "1.5", "<= 1"]),
    "feedback in words": (['filters=[{kind="top-k",feedback="yes"}]'], ["filters[0].feedback", "yes", "bool"]),
    "clip without a norm": (['filters=[{kind="clip"}]'], ["filters[0].norm", "missing", "add it"]),
    "clip to nothing": (['filters=[{kind="clip",norm=0.0}]'], ["filters[0].norm", "0.0", "> 0"]),
    "clip to infinity": (['filters=[{kind="clip",norm=inf}]'], ["filters[0].norm", "inf", "finite"]),
    "four bits": (['filters=[{kind="quantise",bits=4}]'], ["filters[0].bits", "4"]),
    "trim nothing": (['filters=[{kind="trimmed-mean",fraction=0.0}]', DENSE], ["filters[0].fraction", "0.0", "> 0"]),
    "trim half": (
        ['filters=[{kind="quantise"},{kind="trimmed-mean",fraction=0.5}]', DENSE],
        ["filters[1].fraction", "0.5", "< 0.5"],
    ),
    "top-k behind quantise": (
        ['filters=[{kind="quantise"},{kind="top-k"}]'],
        ["filters", "'top-k' cannot follow 'quantise'", "put clip and top-k first"],
    ),
    "clip behind median": (
        ['filters=[{kind="median"},{kind="clip",norm=1.0}]', DENSE],
        ["filters", "'clip' cannot follow 'median'", "put clip and top-k first"],
    ),
    "sign behind median": (
        ['filters=[{kind="median"},{kind="sign"}]', DENSE],
        ["filters", "'sign' cannot follow 'median'", "then quantise or sign"],
    ),
    "two coders": (['filters=[{kind="quantise"},{kind="sign"}]'], ["filters", "'quantise' and 'sign'", "keep one"]),
    "the same coder twice": (['filters=[{kind="sign"},{kind="sign"}]'], ["filters", "'sign' and 'sign'", "keep one"]),
    "two combiners": (
        ['filters=[{kind="median"},{kind="trimmed-mean"}]', DENSE],
        ["filters", "'median' and 'trimmed-mean'", "keep one"],
    ),
    "median of scalars of different directions": (
        [MEDIAN, SEEDED],
        ["filters", "'median'", "fedzo", "form = 'dense'", "drop the filter"],
    ),
    "median where auto means seeded": (
        [MEDIAN, "task.dimension=1000"],
        ["filters", "'median'", "fedzo", "form = 'dense'", "drop the filter"],
    ),
    "median of different models": (
        [MEDIAN, method("dzopa", 'form="dense"'), ALL],
        ["filters", "'median'", "dzopa", "drop the filter"],
    ),
    "median of control variates": (
        [MEDIAN, method("scaffold-zo", 'form="dense"')],
        ["filters", "'median'", "scaffold-zo", "type = 'I'"],
    ),
    "median of one": ([MEDIAN, DENSE, ONE], ["filters", "'median'", "at least 2", "federation.cohort = 1"]),
    "trimmed mean of two": (
        [TRIMMED, DENSE, TWO],
        ["filters", "'trimmed-mean'", "at least 3", "federation.cohort = 2"],
    ),
}


@pytest.mark.parametrize(("overrides", "words"), (METHODS | FILTERS).values(), ids=(METHODS | FILTERS).keys())
def test_refused(fedzero, tmp_path: Path, overrides, words) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    sets = [word for override in overrides for word in ("--set", override)]
    fedzero("run", recipe, "--out", tmp_path / "out", *sets).refused(*words)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


# The same with the mend: what is refused above is refused for the reason given, and for no other.
MENDED: dict[str, list[str]] = {
    "alpha": [method("zofedht", "alpha=0.99")],
    "no alpha": [method("zofedht", "alpha=0.0")],
    "tau": [method("zofedht", "tau=1")],
    "betas": [method("zo-adafl", "beta1=0.0,beta2=0.0")],
    "connected graph": [edges((0, 1), (1, 2), (2, 3), (3, 4)), ALL],
    "dzopa with all": [method("dzopa"), ALL],
    "zone-s with one": [method("zone-s"), ONE],
    "mezo alone": [method("mezo"), "federation.clients=1", ONE],
    "top all": ['filters=[{kind="top-k",fraction=1.0}]'],
    "trim nearly half": ['filters=[{kind="quantise"},{kind="trimmed-mean",fraction=0.49}]', DENSE],
    "chain in order": ['filters=[{kind="clip",norm=1.0},{kind="top-k"},{kind="sign"},{kind="median"}]', DENSE],
    "median of two": [MEDIAN, DENSE, TWO],
    "trimmed mean of three": [TRIMMED, DENSE],
    "median of type I": [MEDIAN, method("scaffold-zo", 'form="dense",type="I"')],
    "replacement": ["federation.replacement=true", ALL],
}


@pytest.mark.parametrize("overrides", MENDED.values(), ids=MENDED.keys())
def test_mended(fedzero, tmp_path: Path, overrides) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    sets = [word for override in overrides for word in ("--set", override)]
    outcome = fedzero("run", recipe, "--out", tmp_path / "out", "--json", *sets)
    assert outcome.code == 0, outcome.err
    assert outcome.json["rounds"] == 3
    assert outcome.json["refused"] == 0
    assert fedzero("verify", tmp_path / "out").code == 0
