"""Whether the project can be installed on machines that are not this one: resolves, and installs nothing.

    python tools/check_install.py

For every platform and Python: the checkout with the extra `dev` under constraints.txt, as `make` installs it, and the
wheels without extras, as a user does. Takes uv, which resolves for other platforms and sees no local builds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "x86_64-pc-windows-msvc", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13")


def resolve(platform: str, python: str, *requirements: str) -> str:
    """Empty if the requirements can be had together, else what uv says."""
    command = ["uv", "pip", "compile", "--no-config", "--quiet", "--python-platform", platform]
    command += ["--python-version", python, "--output-file", os.devnull, *requirements]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0", "PATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def cases(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what is installed, arguments of uv)"""
    yield "checkout[dev]", ("-c", "constraints.txt", "--extra", "dev", "pyproject.toml")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
    )
    for wheel in sorted(folder.glob("*.whl")):
        wanted = folder / f"{wheel.stem}.in"
        wanted.write_text(f"{wheel.name.split('-')[0]} @ {wheel.as_uri()}\n")
        yield wheel.name, (str(wanted),)


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        for what, arguments in cases(Path(folder)):
            places = [(platform, python) for platform in PLATFORMS for python in PYTHONS]
            answers = pool.map(lambda place, given=arguments: resolve(*place, *given), places)
            for (platform, python), complaint in zip(places, answers, strict=True):
                failed += bool(complaint)
                print(f"{'no' if complaint else 'ok':3} {what:40} {platform:24} Python {python}", flush=True)
                if complaint:
                    print(complaint, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
