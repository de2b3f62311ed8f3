"""Wheel and source distribution as users get them: built, looked into, installed, run.

    python tools/dist.py [--out dist] [--borrow]

The wheel is installed into a fresh environment, outside of the checkout, with what it needs under constraints.txt.
There `fedzero doctor`, a few rounds of the demo and `fedzero verify` must succeed. --borrow: the environment sees the
packages of this one instead of installing its own; the test of this file does that, since torch takes minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedzero"
ROUNDS = 3
LARGEST = 8 << 20
"""Bytes of a wheel: more would be something that was not meant to be in it."""
BUILD = "import sys; from setuptools import build_meta as b; print(b.build_wheel({0!r}), b.build_sdist({0!r}))"
NEVER = ("__pycache__", ".pyc", "ledger.db", ".venv")
FOLDERS = ("tests/", "runs/", "papers/", "clients/")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")


def tracked() -> list[str]:
    """Files of the package that are under version control, as the wheel must have them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/fedzero"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted(line.removeprefix("src/") for line in listed.splitlines() if (ROOT / line).is_file())


def build(out: Path) -> tuple[Path, Path]:
    """Wheel and source distribution in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(str(out.resolve()))], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"the build failed:\n{done.stderr[-4000:]}")
    wheel, source = done.stdout.split()[-2:]
    return out / wheel, out / source


def complaints(wheel: Sequence[str], source: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """What is missing in the names of both, or should not be there. source: without its first folder."""
    found = [f"the wheel lacks {name}" for name in wanted if name not in wheel and not name.endswith(".md")]
    found += [f"the source distribution lacks src/{name}" for name in wanted if f"src/{name}" not in source]
    found += [f"the source distribution lacks {name}" for name in BESIDE if name not in source]
    odd = [name for name in wheel if not name.startswith(("fedzero/", "fedzero-"))]
    found += [f"the wheel has {name}" for name in odd]
    both = (*wheel, *source)
    found += [f"there is {name}" for name in both if name.startswith(FOLDERS) or any(part in name for part in NEVER)]
    if not any(name.endswith("licenses/LICENSE") for name in wheel):
        found.append("the wheel has no licence")
    return found


def names_of(wheel: Path, source: Path) -> tuple[list[str], list[str]]:
    with zipfile.ZipFile(wheel) as packed, tarfile.open(source) as rolled:
        inside = [member.name.partition("/")[2] for member in rolled.getmembers() if member.isfile()]
        return packed.namelist(), inside


def clean() -> dict[str, str]:
    """This process's environment without what would show the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDZERO"))}


def installed(wheel: Path, folder: Path, borrow: bool) -> Path:
    """The programs of a fresh environment that has the wheel."""
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    command = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    more = ["--no-deps", "--no-index"] if borrow else ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *more, str(wheel.resolve())], env=clean(), check=True)
    if borrow:
        (packages,) = folder.glob("[Ll]ib/**/site-packages")
        (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
    return programs


def tried(programs: Path, folder: Path) -> str:
    """What the installed package says of itself, after a run in an empty folder; an error ends the program."""
    folder.mkdir()
    where = "import fedzero, pathlib; print(pathlib.Path(fedzero.__file__).resolve())"
    changes = ["--set", "algorithm.directions=2", "--rounds", str(ROUNDS)]
    said = ""
    for command in (
        [str(programs / "python"), "-c", where],
        [str(programs / "fedzero"), "doctor"],
        [str(programs / "fedzero"), "run", "demo", *changes, "--out", "run"],
        [str(programs / "fedzero"), "verify", "run"],
    ):
        done = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        if command[-1] == where and not Path(done.stdout.strip()).is_relative_to(programs.parent.resolve()):
            raise SystemExit(f"another fedzero was imported: {done.stdout.strip()}")
        said = done.stdout.strip()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--borrow", action="store_true")
    chosen = parser.parse_args()
    wheel, source = build(chosen.out)
    if found := complaints(*names_of(wheel, source), tracked()):
        raise SystemExit("\n".join(found))
    if wheel.stat().st_size > LARGEST:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB")
    with tempfile.TemporaryDirectory() as place:
        said = tried(installed(wheel, Path(place) / "environment", chosen.borrow), Path(place) / "empty")
    for made in (wheel, source):
        print(f"{made.name}: {made.stat().st_size / 1e6:.2f} MB")
    print(f"installed and run: {said}")


if __name__ == "__main__":
    main()
