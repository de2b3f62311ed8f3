"""Every code block of README and docs, from an empty folder and by the page's text alone."""

from __future__ import annotations

import os
import secrets
import sys
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import LANGUAGES, NOTES, REASONS, ROOT, Block, blocks, pages
from doc_player import Player, commands, declared_extras, extras

from forked import Warm

PAGES = {name: blocks(path.read_text(encoding="utf-8")) for name, path in pages().items()}
TUTORIALS = [name for name in PAGES if name.startswith("tutorials/")]
QUICK = [
    name
    for name, found in PAGES.items()
    if name not in TUTORIALS and any(block.runs and not block.slow for block in found)
]
SLOW = [name for name, found in PAGES.items() if name in TUTORIALS or any(block.runs and block.slow for block in found)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A virtual environment of its own that sees what this one has installed."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))
    command = folder / "bin" / "fedzero"
    command.write_text(f"#!{folder / 'bin' / 'python'}\nfrom fedzero.cli import main\nmain()\n")
    command.chmod(0o755)
    device = folder / "bin" / "fedzero-client"
    found = f"import sys; sys.path.insert(0, {str(ROOT / 'clients' / 'python')!r})"
    program = f"{found}\nfrom fedzero_client.cli import main\nsys.exit(main())\n"
    device.write_text(f"#!{folder / 'bin' / 'python'}\n{program}")
    device.chmod(0o755)
    token = tmp_path / "ray-token"  # of the test's own clusters, not the user's
    token.write_text(secrets.token_hex(32))
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "RAY_AUTH_TOKEN_PATH": str(token)}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    streams = tmp_path_factory.mktemp("streams")
    with Warm(sys.executable, streams, ["fedzero.api", "fedzero.cli"], cwd=streams) as found:
        yield found


def play(name: str, chosen: list[Block], tmp_path: Path, environment: dict[str, str], warm: Warm | None = None) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    Player(name, folder, environment, warm).play(chosen)
    assert name not in TUTORIALS or list(folder.glob("*.html")), "every tutorial ends with a page to look at"


@pytest.mark.parametrize("name", QUICK)
def test_a_page(name: str, tmp_path: Path, environment: dict[str, str], warm: Warm) -> None:
    play(name, [block for block in PAGES[name] if not block.slow], tmp_path, environment, warm)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_page_with_its_slow_blocks(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    play(name, PAGES[name], tmp_path, environment)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_ones_that_can_be_run(name: str) -> None:
    """No block escapes: each names a language, `text` holds no program, and a file is used by a block after it."""
    for place, block in enumerate(PAGES[name]):
        where = f"{name}:{block.line}"
        assert block.language in LANGUAGES, where
        assert set(block.notes) <= set(NOTES), where
        assert set(extras(block)) <= declared_extras(), where
        later = "\n".join(other.text for other in PAGES[name][place + 1 :])
        if block.title and not block.title.endswith("local/fedzero.toml"):
            path = Path(block.title)
            assert path.name in later or path.stem in later or path.parts[0] in later, (
                f"{where}: no block uses this file"
            )
        if block.language == "text":
            begun = ("$ ", "fedzero ", "pip ", "python ", "import ", "from ", "[task", "[algorithm")
            assert not any(line.startswith(begun) for line in block.text.splitlines()), where
        if block.language == "console" and "not run" not in block.notes:
            assert commands(block) or list(extras(block)) or "pip install" in block.text, f"{where}: no command"


def test_what_is_not_run_has_a_reason() -> None:
    reasons = Counter(block.notes["not run"] for found in PAGES.values() for block in found if "not run" in block.notes)
    assert set(reasons) <= set(REASONS)
    runnable = sum(block.language != "text" and not block.hidden for found in PAGES.values() for block in found)
    assert sum(reasons.values()) <= runnable / 5, reasons
