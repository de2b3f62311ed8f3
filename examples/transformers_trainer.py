"""A classifier of `transformers`, with the datasets and the collator that its Trainer takes.

    python examples/transformers_trainer.py MODEL DATA.jsonl

MODEL: name or folder of a model; DATA: lines with `text` and `label` (0, 1, …). `train` is what the tests call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

import fedzero


def accuracy(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    return fedzero.accuracy(model(**batch).logits, batch["labels"])


def train(model: Any, tokenizer: Any, rows: list[dict[str, Any]], out: Path, rounds: int = 200) -> fedzero.Run:
    """Every fifth row is held out; the others are dealt out to ten clients."""
    items = [{**tokenizer(row["text"], truncation=True), "labels": int(row["label"])} for row in rows]
    held_out, own = items[::5], [item for i, item in enumerate(items) if i % 5]
    return fedzero.train(
        model,
        clients=[own[i::10] for i in range(10)],
        test=[held_out],
        collate=DataCollatorWithPadding(tokenizer),
        objective=lambda model, batch: model(**batch).loss,
        metrics={"accuracy": accuracy},
        method=fedzero.DeComFL(rate=2e-3, directions=10, distribution="rademacher"),
        rounds=rounds,
        batch=16,
        out=out,
    )


if __name__ == "__main__":
    name, path = sys.argv[1:]
    data = [json.loads(line) for line in Path(path).read_text().splitlines()]
    labels = len({row["label"] for row in data})
    net = AutoModelForSequenceClassification.from_pretrained(name, num_labels=labels)
    run = train(net, AutoTokenizer.from_pretrained(name), data, Path("runs/classifier"))
    run.model.save_pretrained("classifier")
    print(run)
