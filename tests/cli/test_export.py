"""The curves of a run as CSV and JSON agree with its ledger and its summary."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from fedzero.ledger import Ledger
from fedzero.ledger.records import Evaluation, Round
from fedzero.ledger.replay import read
from fedzero.results.export import Row, as_csv, as_json

OLD = Path(__file__).parents[1] / "ledger" / "v0_1"


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_round_has_a_row_with_what_was_known_then(fedzero, digits: Path, tmp_path: Path) -> None:
    sets = ["--set", "evaluate_every=2", "--rounds", "3"]
    summary = fedzero("run", digits, "--out", tmp_path / "run", "--json", *sets).json
    outcome = fedzero("export", tmp_path / "run", "--csv")
    assert outcome.code == 0
    rows = table(outcome.out)
    assert [int(row["round"]) for row in rows] == [0, 1, 2, 3]
    assert [bool(row["test_loss"]) for row in rows] == [True, False, True, True], "after rounds 0, 2 and 3"
    assert [bool(row["train_loss"]) for row in rows] == [True, True, True, False]
    first, last = rows[0], rows[-1]
    assert (first["queries"], float(first["bytes_up_per_client"])) == ("0", 0.0)
    for name in ("queries", "bytes_up_per_client", "bytes_down_per_client"):
        assert float(last[name]) == summary[name]
    assert (float(last["test_loss"]), float(last["accuracy"])) == (summary["final_loss"], summary["final_accuracy"])
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds[0] > 0 and seconds == sorted(seconds) and seconds[-1] <= summary["seconds"] + 1e-3
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    entries = read(ledger).entries
    ledger.close()
    times = {e.record.round: e.seconds for e in entries if isinstance(e.record, Round | Evaluation)}
    assert seconds[1] == times[1]
    assert [float(row["train_loss"]) for row in rows[:3]] == [
        e.record.loss for e in entries if isinstance(e.record, Round)
    ]

    assert fedzero("export", tmp_path / "run", "--json", "--out", tmp_path / "x" / "run.json").code == 0
    same = json.loads((tmp_path / "x" / "run.json").read_text())
    assert [row["seconds"] for row in same] == seconds
    assert (same[1]["test_loss"], same[2]["accuracy"]) == (None, float(rows[2]["accuracy"]))


def test_what_else_was_measured_has_its_column_and_what_is_no_number_is_null() -> None:
    plain = {"queries": 0, "bytes_up_per_client": 0.0, "bytes_down_per_client": 0.0}
    rows = [
        Row(round=0, seconds=0.5, **plain, test_loss=float("nan")),
        Row(round=1, seconds=1.0, **plain, others={"success, rate": 0.25}),
    ]
    found = table(as_csv(rows))
    assert [row["success, rate"] for row in found] == ["", "0.25"]
    assert found[0]["test_loss"] == "nan"
    first, second = json.loads(as_json(rows), parse_constant=pytest.fail)
    assert (first["test_loss"], second["others"]) == (None, {"success, rate": 0.25})


def test_ledgers_of_0_1_have_curves(fedzero, tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes((OLD / "fedavg.db").read_bytes())
    rows = table(fedzero("export", tmp_path).out)
    assert len(rows) == 13 and float(rows[-1]["seconds"]) >= float(rows[1]["seconds"]) > 0


def test_export_refuses(fedzero, tmp_path: Path) -> None:
    fedzero("export", tmp_path / "nowhere").refused("nowhere", "fedzero run")
