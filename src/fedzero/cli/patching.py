"""Commands about fine-tunes as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedzero.cli.common import Data, Folder, Secret, app, environment_of, err, expect_file, out
from fedzero.errors import FedzeroError

patches = typer.Typer(help="A fine-tune as a file of kilobytes.", no_args_is_help=True)
app.add_typer(patches, name="patch", rich_help_panel="Runs")


@patches.command("export")
def patch_export(
    folder: Folder,
    out_: Annotated[Path, typer.Option("--out", help="The patch to write.")],
    round_: Annotated[
        int | None,
        typer.Option("--round", help="The model after so many rounds, where it was evaluated.", show_default=False),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The model whose evaluation was best.")] = False,
    data: Data = None,
    secret: Secret = None,
) -> None:
    """Write a run's fine-tune as a small file: as it was at the end, or on the way there.

    Example: fedzero patch export runs/sentiment --best --out sentiment.patch
    """
    from fedzero.report.units import human_bytes
    from fedzero.run.patches import export_patch

    if best and round_ is not None:
        raise FedzeroError("--round and --best: choose one")
    content = export_patch(
        folder, environment_of(data, secret), "best" if best else "last" if round_ is None else round_
    )
    expect_file(out_)
    out_.parent.mkdir(parents=True, exist_ok=True)
    out_.write_bytes(content)
    out.print(f"patch of {human_bytes(len(content))}: {out_}")


@patches.command("apply")
def patch_apply(
    patch: Annotated[Path, typer.Argument(help="A file from `fedzero patch export`.")],
    base: Annotated[
        str,
        typer.Option(
            "--base",
            help="What the run started from: a safetensors file, or a language model (folder, GGUF file, hub name).",
        ),
    ],
    out_: Annotated[
        Path, typer.Option("--out", help="Where to write: a safetensors file; of a language model, a folder.")
    ],
    tokenizer: Annotated[str | None, typer.Option(help="Where the tokenizer is, if not with the model.")] = None,
    merge: Annotated[bool, typer.Option(help="Merge LoRA adapters into the weights.")] = False,
) -> None:
    """Base + patch = fine-tuned model, checked against the digest in the patch.

    Example: fedzero patch apply sentiment.patch --base smollm2-135m --out tuned, and then
    AutoModelForCausalLM.from_pretrained("tuned").
    """
    from fedzero.run.patches import apply_patch
    from fedzero.run.progress import Replaying

    params = apply_patch(patch, base, out_, tokenizer, merge, Replaying(err, "applying"))
    out.print(f"model {params.digest().hex()} → {out_}")
