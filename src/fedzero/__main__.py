"""`python -m fedzero`: the same as `fedzero`, where its folder is not on the path.

Python puts the current folder first on the path of modules. A folder that somebody else sent may hold modules, or the
records of installed distributions, that stand in for those which the command imports: it comes off, as `-P` has it.
"""

import os  # loaded already, as sys is: what else is imported before the folder is off might come from there
import sys

if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109
    del sys.path[0]

from fedzero.cli import main

main()
