"""The test of the documentation itself: it finds the blocks of a page, and what is wrong in one makes it fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doc_blocks import Block, blocks
from doc_player import Player, commands

from fedzero.errors import FedzeroError

PAGE = """# A page

<!-- python
x = 1
-->

<!-- slow -->
<!-- run with: --rounds 2 -->
```console
$ fedzero run demo     # a comment
said by the command
$ pip install 'fedzero[ray]'
```

```python title="a.py"
print(1)
```

<!-- not run: needs a GPU -->

    fedzero run demo

    fedzero verify runs/demo

Text.

    x ← x + Σ c z

    [task]
    kind = "mnist"
"""


def test_blocks_of_a_page() -> None:
    hidden, console, file, indented, equation = blocks(PAGE)
    assert (hidden.language, hidden.hidden, hidden.text, hidden.line) == ("python", True, "x = 1\n", 4)
    assert console.notes == {"slow": "", "run with": "--rounds 2"} and console.slow
    assert commands(console) == ["fedzero run demo"], "no comment, no output, not the package itself"
    assert file.title == "a.py"
    assert indented.notes == {"not run": "needs a GPU"} and not indented.runs
    assert commands(indented) == ["fedzero run demo", "fedzero verify runs/demo"]
    assert equation.language == "text"


def test_a_page_that_is_slow_as_a_whole() -> None:
    assert all(block.slow for block in blocks("# A page\n\n<!-- slow -->\n\n```python\n1\n```\n\n```python\n2\n```\n"))


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (Block("python", "undefined\n", 1), NameError),
        (Block("console", "$ false\n", 1), AssertionError),
        (Block("console", "$ true\n", 1, notes={"interrupt after": "0.5"}), AssertionError),
        (Block("toml", "[task]\nkind = 'mnist'\nbatches = 3\n", 1, notes={"not run": ""}), FedzeroError),
        (Block("toml", "batch = 'three'\n", 1, notes={"each line in": "task"}), FedzeroError),
        (Block("toml", "[terms]\nmethod = ['decomfl']\n", 1, "kit/local/fedzero.toml"), FedzeroError),
        (Block("json", "{'a': 1}", 1), ValueError),
        (Block("sql", "CREATE TABLE t (a INTEGER) STRIKT\n", 1), Exception),
    ],
)
def test_what_is_wrong_is_found(block: Block, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        Player("page", tmp_path, dict(os.environ)).play([block])


def test_names_and_files_are_there_in_later_blocks(tmp_path: Path) -> None:
    before = Path.cwd()
    first = Block("python", "x = 2\n", 1)
    file = Block("python", "def double(x):\n    return 2 * x\n", 3, "doubling.py")
    last = Block("python", "from doubling import double\n\nassert double(x) == 4\nopen('seen', 'w').close()\n", 7)
    Player("page", tmp_path, dict(os.environ)).play([first, file, last])
    assert (tmp_path / "seen").exists() and Path.cwd() == before
