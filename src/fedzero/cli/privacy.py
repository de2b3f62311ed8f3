"""The command about the privacy statement of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedzero.cli import options
from fedzero.cli.common import app, expect_file, tell
from fedzero.errors import FedzeroError


@app.command(rich_help_panel="Runs")
def privacy(
    folder: Annotated[Path | None, options.argument(help="Folder of a run (it holds ledger.db).")] = None,
    journal: Annotated[
        Path | None,
        options.optional("--journal", help="Print what all runs have spent that name this folder as theirs."),
    ] = None,
    as_json: Annotated[bool, options.optional("--json", help="Print the statement's canonical JSON.")] = False,
    check: Annotated[
        Path | None, options.optional("--check", help="Make the statement of this file again from the ledger.")
    ] = None,
    signer: Annotated[
        str | None, options.optional("--signer", metavar="HEX", help="With --check: the public key that signed it.")
    ] = None,
    key: Annotated[Path | None, options.optional("--key", help="Sign with the Ed25519 key in this file.")] = None,
    new_key: Annotated[
        Path | None, options.optional("--new-key", help="Make a key, write it to this file, and sign with it.")
    ] = None,
    out_: Annotated[
        Path | None, options.optional("--out", help="The signed file; default: privacy-signed.json in the folder.")
    ] = None,
) -> None:
    """Print what a run with [privacy] promises; sign it, or check a statement of somebody else.

    It is made from the ledger alone. Exit status 1 if the file of --check says anything else. With --journal: what is
    spent on each data set, by all runs.

    Example: fedzero privacy runs/private --new-key privacy.key
    """
    import typer

    from fedzero.cli.common import err
    from fedzero.errors import Refused
    from fedzero.ledger.folder import folder_of
    from fedzero.lines import print_line
    from fedzero.privacy.statement import public_key
    from fedzero.runs import statement

    if journal is not None:
        if folder is not None:
            raise FedzeroError("--journal is of all runs: leave out the folder of a run")
        _print_spent(journal)
        return
    if folder is None:
        raise FedzeroError("name the folder of a run, or --journal FOLDER")
    if key is not None and new_key is not None:
        raise FedzeroError("--key and --new-key: choose one")
    if check is not None:
        try:
            said, by = statement.read(check, signer)
            found = statement.checked(folder, said)
        except Refused as error:
            print_line(err, str(error), head="not confirmed: ")
            raise typer.Exit(1) from error
        tell(f"confirmed: {check} follows from the ledger")
        if by is None:
            tell("it is not signed")
        elif signer is None:
            tell(f"signed by {by}; compare this key with the one that you were given, or name it with --signer")
    else:
        found = statement.statement_in(folder)
    if as_json:
        print(found.encode().decode())
    else:
        for line in statement.words(found).splitlines():
            tell(line)
    if key is None and new_key is None:
        return
    target = out_ or folder_of(folder) / statement.SIGNED
    expect_file(target)
    private = statement.new_key(new_key) if new_key is not None else statement.key_in(key or Path())
    statement.sign(found, private, target)
    tell(f"signed: {target}; public key {public_key(private)}")


def _print_spent(folder: Path) -> None:
    from fedzero.runs.spending import budget, here

    found = budget.lines(folder, here.policy_in(folder))
    for line in found:
        tell(line)
    if not found:
        tell(f"{folder} has no journal: nothing was counted there")
