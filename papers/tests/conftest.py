"""The fixtures of fedzero's own tests: small recipes, the command line in process, the folder with the datasets."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

# Both files are called conftest, so an import statement would find this one.
_spec = spec_from_file_location("fedzero_fixtures", Path(__file__).parents[2] / "tests" / "conftest.py")
assert _spec is not None and _spec.loader is not None
_shared = module_from_spec(_spec)
sys.modules[_spec.name] = _shared
_spec.loader.exec_module(_shared)
globals().update({name: value for name, value in vars(_shared).items() if not name.startswith("_")})
