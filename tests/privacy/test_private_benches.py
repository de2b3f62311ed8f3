"""The benches of private training at small sizes: what they compare, and that noise is all that privacy adds."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.privacy import mnist, peers, sst2

from fedzero.gatherings.private import central
from fedzero.recipe import recipe as recipes

SMALL = ["--clients=30", "--rounds=8", "--delta=1e-3", "--directions=10", "--seeds=0", "--epsilon=1", "--device=cpu"]
ASKED = (("e1-mnist-private", "client", 0.05), ("e3-sst2-private", "example", 512 / 65_800))


def common(out: Path, clients: int = 30, rounds: int = 20) -> mnist.Common:
    return mnist.Common(None, str(out), clients, rounds, 1e-3, "rademacher", "central", "cpu")


def test_a_peer_without_noise_sends_gradients_of_norm_one() -> None:
    """One round of every client, against autograd of a module."""
    clients = mnist.dealt(common(Path()), mnist.Part("fedsgd", 0, math.inf, 0))
    x, y = clients.x[:3], clients.y[:3]
    module = peers.perceptron(x.shape[-1], 0)
    w = peers.flat(module)
    found = peers.gradients(w, x, y)
    for i in range(3):
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(x[i]), y[i]).backward()
        theirs = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        assert torch.allclose(found[i], theirs, atol=1e-5)
    settings = peers.Settings("fedsgd", "rms", 0.01, 1, 1.0)
    mean = peers.noisy_mean(settings, found, 3.0, torch.Generator())
    assert torch.allclose(mean, sum((g / g.norm() for g in found), torch.zeros_like(w)) / 3, atol=1e-5)
    none = peers.noisy_mean(settings, found[:0], 3.0, torch.Generator())
    assert not none.any(), "nobody took part"


def test_noise_of_peers_has_the_deviation_that_is_accounted_for() -> None:
    settings = peers.Settings("fedsgd", "rms", 0.01, 1, 0.05, sigma=3.0)
    noise = peers.noisy_mean(settings, torch.zeros(4, 50_000), 50.0, torch.Generator().manual_seed(0))
    assert abs(float(noise.std()) * 50 / 3 - 1) < 5 / math.sqrt(2 * 50_000)


def test_a_local_epoch_goes_downhill_and_a_trial_is_tested_on_clients_who_are_kept_from_training() -> None:
    part = mnist.Part("fedavg", 0, math.inf, 1000, "rms", 0.01, kept=True)
    kept, every = (mnist.dealt(common(Path()), p) for p in (part, mnist.Part("fedavg", 0, math.inf, 1000)))
    assert len(kept) == 27 and len(every) == 30
    assert torch.equal(kept.test[0], every.x[27:].flatten(0, 1)) and torch.equal(kept.x, every.x[:27])
    w = peers.flat(peers.perceptron(784, 0))
    after = w + peers.changes(w, kept.x[:2], kept.y[:2])
    for i in range(2):
        assert peers.loss(after[i], kept.x[i], kept.y[i]) < peers.loss(w, kept.x[i], kept.y[i])


@pytest.mark.slow
def test_without_noise_private_runs_are_as_good_as_plain_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clients, clipped to one norm: by sums of integers without noise, and by the plain method. Cohorts are
    other draws, so three runs of each have one mean within three standard errors, of 10 points at least (a class)."""
    monkeypatch.setattr(central, "rounded_gaussian", lambda deviation, count, entropy: np.zeros(count, np.int64))
    parts = [mnist.Part("fedzero", 20, e, s, "rms", 0.02) for e in (1.0, math.inf) for s in range(3)]
    found = [mnist.played(common(tmp_path), p, 0.0 if p.epsilon == math.inf else 2.0) for p in parts]
    private, plain = np.reshape([one["accuracy"] for one in found], (2, 3))
    error = math.hypot(private.std(ddof=1), plain.std(ddof=1)) / math.sqrt(3)
    assert abs(private.mean() - plain.mean()) < max(0.1, 3 * error)
    assert min(private.mean(), plain.mean()) > 0.3
    control = mnist.played(common(tmp_path), mnist.Part("gradient", 20, math.inf, 0, "rms", 0.02), 0.0)
    assert control["accuracy"] > 0.3


@pytest.mark.slow
def test_mnist_chooses_rates_once_compares_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--out", str(tmp_path), *SMALL, "--methods", "fedzero,gradient,fedavg"]
    mnist.main(argv)
    table = capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text())
    assert len(found) == 3 and "fedzero, P 10" in table
    ours, theirs = found[0], found[-1]
    assert ours["part"]["rate"] == found[1]["part"]["rate"], "the choice is that of the control"
    assert theirs["bytes_up_turn"] == 4 * 50_890 > 100 * ours["bytes_up_turn"]
    assert len(list((tmp_path / "tune").iterdir())) == 3 + 6
    mnist.main(argv)
    assert "seed0:" not in capsys.readouterr().out, "parts that are done are only read"
    with pytest.raises(SystemExit, match="other settings"):
        mnist.main([*argv, "--rounds", "9"])


def test_private_sst2_is_tuned_on_held_out_rows_and_compared(
    tmp_path: Path, small_model, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"sentence": f"a {w} film , {n}", "label": int(w == "great")} for n in range(40) for w in ("great", "bad")]
    (tmp_path / "sst2").mkdir()
    for part, some in (("train", rows), ("dev", rows[:10])):
        text = "".join(json.dumps(row) + "\n" for row in some)
        (tmp_path / "sst2" / f"{part}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    less = {
        "task.training": 40, "task.dtype": "float32", "federation.clients": 2, "federation.cohort": 2,
        "privacy.population": 40, "privacy.probability": 0.5, "privacy.delta": 1e-3, "algorithm.directions": 4,
    }  # fmt: skip
    argv = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(small_model("smollm"))]
    argv += ["--set", json.dumps(less), "--quiet", "--seeds", "1"]
    sst2.main(["norms", *argv])
    lengths = json.loads((tmp_path / "out" / "norms.json").read_text())
    assert len(lengths) == 40 and min(lengths) > 0
    trials = [{"clip": 5.0, "rate": 1e-3, "rounds": 4}, {"clip": 0.0, "rate": 2e-3, "rounds": 3}]
    sst2.main(["tune", *argv, "--trials", json.dumps(trials)])
    assert json.loads((tmp_path / "out" / "chosen.json").read_text()) == {"private": trials[0], "plain": trials[1]}
    sst2.main(["run", *argv, "--only", "eps2-*,plain-*"])
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(found) == {"eps2-1", "plain-1"}
    assert found["eps2-1"]["clip"] == 5.0 and found["eps2-1"]["epsilon"] == pytest.approx(2.0, rel=1e-2)
    assert found["plain-1"]["rounds"] == 3 and found["plain-1"]["epsilon"] is None
    assert "beside plain" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "unit", "q"), ASKED)
def test_packaged_recipes_ask_for_two(name: str, unit: str, q: float) -> None:
    recipe = recipes.load(name)
    assert recipe.privacy
    assert (recipe.privacy.epsilon, recipe.privacy.unit) == (2.0, unit)
    assert recipe.privacy.q(recipe.federation) == pytest.approx(q, rel=1e-12)
    assert recipe.privacy.n(recipe.federation) * recipe.privacy.delta_of(recipe.federation) <= 0.1
