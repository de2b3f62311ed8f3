"""The extension, and a source distribution that contains the core. FEDZERO_CLIENT_PURE=1 leaves the extension out."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PURE = bool(os.environ.get("FEDZERO_CLIENT_PURE"))


class WithCore(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [file for file in files if not file.startswith("..")])
        core = next(path for path in (HERE / "core", HERE.parent / "core") if (path / "src").is_dir())
        for part in ("src", "include"):
            shutil.copytree(core / part, Path(base_dir) / "core" / part)


setup(
    cmdclass={"sdist": WithCore},
    cffi_modules=[] if PURE else ["build_core.py:ffi"],
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
