"""Examples run, and do what they say; the code of the README is an example."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def code_of(text: str, first: str) -> list[str]:
    """The indented block of a page that begins with a line."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line == f"    {first}")
    block = []
    for line in lines[start:]:
        if line and not line.startswith("    "):
            break
        block.append(line[4:])
    return [line for line in block if line.strip()]


def test_the_digits_of_the_readme(tmp_path: Path, monkeypatch) -> None:
    """Twelve lines, at least 90 % on held-out digits."""
    block = code_of((ROOT / "README.md").read_text(), "import fedzero, torch")
    assert len(block) <= 12
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(compile("\n".join(block), "README.md", "exec"), found)
    run = found["run"]
    assert run.history["accuracy"][-1] >= 0.9  # type: ignore[attr-defined]
    assert run.summary.seconds < 300  # type: ignore[attr-defined]  # a hang, not a benchmark


def test_the_example_is_the_readmes() -> None:
    """Apart from how imports are written."""
    block = code_of((ROOT / "README.md").read_text(), "import fedzero, torch")
    example = (ROOT / "examples" / "digits.py").read_text().replace("  # fmt: skip", "")
    for line in block[2:]:
        assert line.split("  #")[0].rstrip() in example


@pytest.mark.slow
def test_transformers(tmp_path: Path, small_model) -> None:
    transformers = pytest.importorskip("transformers")
    example = runpy.run_path(str(ROOT / "examples" / "transformers_trainer.py"))
    torch.manual_seed(0)
    folder = small_model("smollm")
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=2, pad_token_id=0)
    model = transformers.AutoModelForSequenceClassification.from_config(config).float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [{"text": "great fun" if i % 2 else "a terrible mess", "label": i % 2} for i in range(60)]
    run = example["train"](model, tokenizer, rows, tmp_path / "run", rounds=8)
    assert run.history["loss"][-1] < 0.9 * run.history["loss"][0]
    run.model.save_pretrained(tmp_path / "saved")


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    run = runpy.run_path(str(ROOT / "examples" / "lightning_module.py"))["train"](tmp_path / "run")
    assert run.history["loss"][-1] < 0.1 < run.history["loss"][0]
