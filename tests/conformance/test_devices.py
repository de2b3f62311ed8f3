"""Given a ledger, the same model bits on CPU and GPU, for every method and every form of update."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from cases import VARIANTS, label

from fedzero.ledger import replay
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.testing.trial import recipe_of, trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("algorithm", VARIANTS, ids=label)
def test_a_ledger_made_on_a_cpu_replays_on_a_gpu(tmp_path: Path, algorithm) -> None:
    run = trial(tmp_path, recipe_of(algorithm))
    run.play(13)
    engine = msgspec.structs.replace(run.setup.recipe.engine, device="cuda")
    there = prepare(msgspec.structs.replace(run.setup.recipe, engine=engine), Environment()).replica()
    replay.rebuild(run.ledger, replay.read(run.ledger), there)
    assert there.state.params.device.type == "cuda"
    assert there.digest() == run.replica.digest()
