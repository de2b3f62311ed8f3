"""`fedzero conformance` as people call it: our own client passes, and a copy of it with a fault is found out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from devices.fleet import CLIENT
from fedzero.testing.devices.model import FOLDING
from fedzero.testing.devices.turn import TURNS

PATIENCE = 60


def conformance(client: Path, names: Sequence[str], *words: str, patience: float = PATIENCE) -> tuple[int, list[dict]]:
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, "-m", "fedzero", "conformance", "--json", "--patience", str(patience), *only]
    environment = [f"PYTHONPATH={client}", "OPENBLAS_NUM_THREADS=1"]
    started = ["env", *environment, sys.executable, "-m", "fedzero_client", "join", "{url}", "--data", "{data}"]
    done = subprocess.run([*command, "--", *started, *words], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def test_our_client_passes_where_it_computes_and_where_it_is_killed() -> None:
    status, found = conformance(CLIENT, ["everything", "another-order-killed"])
    assert [each["state"] for each in found] == ["passed", "passed"] and status == 0, found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["socket", "poll"])
def test_our_client_passes(way: str) -> None:
    status, found = conformance(CLIENT, [], "--way", way)
    assert not [each for each in found if each["state"] != "passed" or each["remarks"]] and status == 0


FAULTS = {
    "wrong digest": ("forward", "model.py", 'person=b"fedzero-model"', 'person=b"fedzero-mode"', "has the digest"),
    "key of the batch": (
        "linear",
        "stream.py",
        'derived(root, "batch", round, step, place)',
        'derived(root, "batch", step, round, place)',
        TURNS["the key of the batch in another order"],
    ),
    "rounding of coefficients": (
        "hidden-layers",
        "model.py",
        "(factor * g.astype(np.float64)).astype(np.float32)",
        "np.float32(factor) * g",
        FOLDING["coefficients in float32"],
    ),
    "forgets answers": (
        "another-order-killed",
        "store.py",
        "CREATE TABLE IF NOT EXISTS answers",
        "CREATE TEMPORARY TABLE answers",
        "also after a restart: its answers are on disk",
    ),
    "signs another hash": (
        "forward",
        "statements.py",
        "sha256(order).digest() + body",
        "sha256(body).digest() + body",
        "with the SHA-256 of the answer's body, not of the order's",
    ),
    "believes every gateway": (
        "forged-order",
        "signing.py",
        "    except (InvalidSignature, ValueError):\n        return False\n",
        "    except (InvalidSignature, ValueError):\n        return True\n",
        "the signature of the order is 64 zeros",
    ),
    "μ is not rounded": (
        "forward",
        "turn.py",
        "(key, np.float32(s * method.radius))",
        "(key, np.float64(s * method.radius))",
        TURNS["points in float64"],
    ),
    "clips in float32": (
        "clip",
        "turn.py",
        "return (v.astype(np.float64) * (norm / length)).astype(np.float32)",
        "return v * (np.float32(norm) / np.sqrt(np.square(v).sum(dtype=np.float32)))",
        TURNS["clipped in float32"],
    ),
    "momentum begins with the first G": (
        "momentum",
        "model.py",
        "    M = [beta * m + rest * each for m, each in zip(M, G, strict=True)]\n",
        "    M = [beta * m + rest * each for m, each in zip(M, G, strict=True)] if any(m.any() for m in M) else G\n",
        FOLDING["M begins with the first G"],
    ),
    "ignores rates": (
        "momentum",
        "plan.py",
        "return self._rates[bisect_right(self._rounds, round)]",
        "return self._rates[0]",
        FOLDING["the rate of the plan"],
    ),
    "takes elements of a later version for its own": (
        "trailing-fields",
        "session.py",
        "obey(*frame[1 : 1 + fields])",
        "obey(*frame[1:])",
        "an element behind their last field",
    ),
    "long integers": (
        "enrolment",
        "packing.py",
        '(None, 7, "B"), (0xCC, 8, "B"), ',
        '(None, 0, "B"), (0xCC, 8, "B"), ',
        "is not in the shortest form",
    ),
}


def planted(folder: Path, file: str, before: str, after: str) -> Path:
    shutil.copytree(CLIENT / "fedzero_client", folder / "fedzero_client")
    path = folder / "fedzero_client" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file} has changed: {before!r}"
    path.write_text(text.replace(before, after), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(tmp_path: Path, fault: str) -> None:
    scenario, *change, named = FAULTS[fault]
    status, (found,) = conformance(planted(tmp_path, *change), [scenario])
    assert status == 1 and found["state"] == "wrong"
    assert named in found["said"]
    assert found["section"].startswith("docs/device-protocol.md#")
