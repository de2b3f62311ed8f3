"""Commands about fine-tunes as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedzero.cli import options
from fedzero.cli.common import app, environment_of, err, expect_file, tell
from fedzero.errors import FedzeroError

patches = typer.Typer(help="A fine-tune as a file of kilobytes.", no_args_is_help=True)
app.add_typer(patches, name="patch", rich_help_panel="Runs")


@patches.command("export")
def patch_export(
    folder: options.Folder,
    out_: Annotated[Path, typer.Option("--out", help="The patch to write.")],
    round_: Annotated[
        int | None,
        options.optional("--round", help="Export the model after this round, which must have been evaluated."),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Export the model with the best evaluation.")] = False,
    open_: Annotated[
        bool,
        typer.Option(
            "--open", help="Of a private run: a patch that needs no secret, but whoever has it knows the directions."
        ),
    ] = False,
    data: options.Data = None,
    secret: options.Secret = None,
    trust: options.Trust = False,
) -> None:
    """Write a run's fine-tune as a small file: of the final model, or of an earlier evaluated one.

    Example: fedzero patch export runs/sentiment --best --out sentiment.patch
    """
    from fedzero.ledger.patch import is_private
    from fedzero.model import files
    from fedzero.report.units import human_bytes
    from fedzero.runs.patches import export_patch

    if best and round_ is not None:
        raise FedzeroError("--round and --best: choose one")
    expect_file(out_)
    environment = environment_of(data, secret, trust=trust)
    content = export_patch(folder, environment, "best" if best else "last" if round_ is None else round_, open_)
    private = is_private(content)
    files.write(out_, content, private=private)
    how = "" if not private else "; it holds the run's directions" if open_ else "; it is applied with the secret"
    tell(f"patch of {human_bytes(len(content))}: {out_}{how}")


@patches.command("apply")
def patch_apply(
    patch: Annotated[Path, typer.Argument(help="A file from `fedzero patch export`.")],
    base: Annotated[
        str,
        typer.Option(
            "--base",
            help="The run's base model: a safetensors file, or a language model (folder, GGUF file, hub name).",
        ),
    ],
    out_: Annotated[
        Path, typer.Option("--out", help="The model to write: a safetensors file; for a language model, a folder.")
    ],
    tokenizer: Annotated[str | None, typer.Option(help="Path or name of the tokenizer, if not the model's.")] = None,
    merge: Annotated[bool, typer.Option(help="Merge LoRA adapters into the weights.")] = False,
    secret: options.Secret = None,
) -> None:
    """Apply a patch to its base model; the result is checked against the digest in the patch.

    Example: fedzero patch apply sentiment.patch --base smollm2-135m --out tuned, and then
    AutoModelForCausalLM.from_pretrained("tuned").
    """
    from fedzero.ledger import patch as patch_file
    from fedzero.runs.patches import apply_patch
    from fedzero.runs.progress import Replaying

    key = environment_of(None, secret).secret
    params = apply_patch(patch, base, out_, tokenizer, merge, Replaying(err, "applying"), key)
    tell(f"model {params.identity} → {out_}")
    if not patch_file.load(patch).base_identity.sha256:
        tell(
            "the base model was compared by its 64-bit sum only, because fedzero 0.2.0 or before made this patch: that "
            "finds accidents, not a model that somebody made to have the same sum"
        )
