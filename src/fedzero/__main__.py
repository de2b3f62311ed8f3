"""`python -m fedzero`: the same as `fedzero`, where its folder is not on the path."""

from fedzero.cli import main

main()
