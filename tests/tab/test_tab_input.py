"""What comes into a tab: CSV files, plans, tickets, texts of a gateway. What is wrong is refused in a sentence."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.fleet import made, recipe_of
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.ticket import address
from tab.tabs import Node

TASK: dict[str, Any] = {"widths": [2, 3], "mean": [0.0], "deviation": [1.0], "labels": [], "columns": [], "least": 1}
NAMED = TASK | {"columns": ["Height", "width"], "labels": ["low", "middle", "high"]}

TAKEN = [
    (TASK, "1,2,0\n3,4,2\n", [1, 2, 3, 4], [0, 2]),
    (TASK, "\ufeff1;2;0\r\n-3;.5;2\r\n", [1, 2, -3, 0.5], [0, 2]),
    (TASK, "1\t2e1\t1", [1, 20], [1]),
    (TASK, "a,b,c\n1,2,0\n\n \n3,4,1\n", [1, 2, 3, 4], [0, 1]),
    (TASK, "label,a,b\n2,1,0\n", [1, 0], [2]),
    (TASK, "1,2,0\r3,4,1\r", [1, 2, 3, 4], [0, 1]),
    (TASK, '"1"," 2 ","1.0"\n', [1, 2], [1]),
    (NAMED, "width,other,height,label\n1,x,2,high\n3,y,4,0\n", [2, 1, 4, 3], [2, 0]),
    (NAMED, '"HEIGHT","Width","class"\n1,2,middle\n', [1, 2], [1]),
    (TASK | {"mean": [1.0, 2.0], "deviation": [2.0, 4.0]}, "3,10,1\n", [1, 2], [1]),
]

REFUSED = [
    (TASK, "", "no rows"),
    (TASK, "a,b,label\n", "no rows"),
    (TASK, "1,2\n", "first line has 2 fields"),
    (TASK, "1,2,3,0\n", "first line has 4 fields"),
    (TASK, "1,2,0\n1,2\n", "Line 2: 2 fields where there should be 3"),
    (TASK, "1,2,0\n1,x,2\n", "Line 2: column 2 is not a number: “x”"),
    (TASK, "1,2,0\n1,,2\n", "column 2 is not a number: “”"),
    (TASK, "1,2,0\nNaN,2,0\n", "Line 2: column 1 is not a number: “NaN”"),
    (TASK, "1,2,0\n1,Infinity,0\n", "column 2 is not a number"),
    (TASK, "1,2,0\n1,0x10,0\n", "column 2 is not a number"),
    (TASK, "1;2;0\n1,5;2;0\n", "Line 2: column 1 is not a number: “1,5”"),
    (TASK, "1,2,0\n1e39,2,0\n", "Line 2: column 1 is too large for float32"),
    (TASK | {"deviation": [1e-30]}, "1e10,2,0\n", "too large for float32"),
    (TASK, "1,2,3\n", "Line 1: the label “3” is none of 0 to 2"),
    (TASK, "1,2,-1\n", "the label “-1” is none"),
    (TASK, "1,2,1.5\n", "the label “1.5” is none"),
    (TASK, "1,2,\n", "the label “” is none"),
    (NAMED, "1,2,tall\n", "none of low, middle, high, or 0 to 2"),
    (NAMED, "height,label\n1,0\n", "no column “width”"),
    (NAMED, "height,label,width\n1,0,\u202e9\n", "column “width” is not a number: “9”"),
    (NAMED, "label,height,width,height\n", "Two columns have the name “height”"),
    (TASK, "1,2,9\n" * 1200, "And 1,194 or more other lines"),
    (TASK, "<img src=x>,2,0\n1,<script>,0\n", "column 1 is not a number: “<img src=x>”"),
    (TASK, "1" * (5 << 20), "a line of more than 4 MB"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "text", "x", "y"), TAKEN)
def test_tables(node: Node, task: dict[str, Any], text: str, x: list[float], y: list[int]) -> None:
    assert node.ask("table", task=task, text=text) == {"count": len(y), "x": x, "y": y}


@pytest.mark.parametrize(("task", "text", "why"), REFUSED)
def test_tables_that_are_refused(node: Node, task: dict[str, Any], text: str, why: str) -> None:
    with pytest.raises(ValueError, match="Hopeless: ") as refused:
        node.ask("table", task=task, text=text)
    assert why in str(refused.value)


def test_files_that_are_no_text_are_refused(node: Node) -> None:
    for data in (b"\xff\xfe1\x00,\x00", b"PK\x03\x04\xb5\xb5", bytes(100)):
        with pytest.raises(ValueError, match="Hopeless: "):
            node.ask("table", task=TASK, data=data.hex())


def test_a_table_whose_bytes_come_in_pieces(node: Node) -> None:
    """A stream of 64 KB at once, in the middle of lines and of characters."""
    rows = 30_000
    text = "".join(f"{i / 8},{-i},{'é' if i % 3 else 'è'}\r\n" for i in range(rows))
    found = node.ask("table", task=NAMED | {"columns": [], "labels": ["è", "é", "x"]}, text=text)
    assert found["count"] == rows and found["x"][-2:] == [(rows - 1) / 8, 1 - rows]
    assert found["y"] == [int(bool(i % 3)) for i in range(rows)]


@pytest.mark.slow
def test_a_million_rows(node: Node) -> None:
    found = node.ask("table", task=TASK, text="1.5,2.25,1\n" * 1_000_000)
    assert found["count"] == 1_000_000
    with pytest.raises(ValueError, match="this page has no room"):
        node.ask("table", task=TASK, text="1,2,1\n" * ((1 << 20) + 1))


@given(st.text(max_size=60))
@settings(max_examples=100)
def test_any_text_is_a_table_or_is_refused(node: Node, text: str) -> None:
    try:
        assert node.ask("table", task=TASK, text=text)["count"] > 0
    except ValueError as error:
        assert str(error).startswith("Hopeless: ")


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2))
@settings(max_examples=60)
def test_nine_digits_are_the_float_itself(node: Node, row: list[float]) -> None:
    found = node.ask("table", task=TASK, text=",".join(f"{value:.9g}" for value in row) + ",0")
    assert [float(each) for each in found["x"]] == row


# ---- plans


def changed(plan: plans.DevicePlan, **changes: Any) -> str:
    """Fields of the plan, of its method or its task."""
    parts = {}
    for name in ("method", "task"):
        part = getattr(plan, name)
        own = {key: value for key, value in changes.items() if key in part.__struct_fields__}
        parts[name] = msgspec.structs.replace(part, **own)
    top = {key: value for key, value in changes.items() if key in plan.__struct_fields__}
    return plans.encode(msgspec.structs.replace(plan, **(parts | top))).hex()


def wide(*widths: int) -> dict[str, Any]:
    shapes = [shape for i, o in pairwise(widths) for shape in ((o, i), (o,))]
    tensors = tuple(plans.PlannedTensor(1, shape, 1.0, b"x") for shape in shapes)
    return {"widths": widths, "tensors": tensors, "mean": (0.0,), "deviation": (1.0,), "labels": (), "columns": ()}


HOSTILE = [
    ({"version": 2}, "another version"),
    ({"stream": 9}, "another version"),
    (wide(1 << 20, 1 << 20), "a model of 1,099,512,676,352 numbers"),
    (wide(*[1 << 62] * 3), "2⁵³|a model of"),
    (wide(6, *[2] * 9), "9 layers|10 layers"),
    (wide(6, 1), "1 labels"),
    (wide(6, 257), "257 labels"),
    (wide(0, 3), "columns of another number"),
    ({"tensors": ()}, "not those of a perceptron"),
    ({"widths": (6, 5, 4)}, "not those of a perceptron"),
    ({"distribution": 1}, "directions of kind 1"),
    ({"rule": 7}, "the rule 7"),
    ({"rule": 1}, "momentum without"),
    ({"difference": 0}, "differences of kind 0"),
    ({"samples": 3}, "samples of kind 3"),
    ({"directions": 0}, "0 directions"),
    ({"directions": 1 << 40}, "directions"),
    ({"directions": 1 << 16, "steps": 1 << 12}, "MB"),
    ({"steps": 0}, "0 local steps"),
    ({"batch": 0}, "a batch of 0 rows"),
    ({"batch": 1 << 40}, "a batch of"),
    ({"radius": float("nan")}, "not float"),
    ({"radius": 0.0}, "a radius"),
    ({"rate": float("inf")}, "not float"),
    ({"clip": -1.0}, "a radius or a clip"),
    ({"deviation": (0.0,)}, "a deviation that is not above 0"),
    ({"deviation": (1e-60,)}, "a deviation that is not above 0"),
    ({"mean": (0.0, 1.0)}, "columns of another number"),
    ({"labels": ("a",)}, "1 names for 3 labels"),
    ({"columns": ("a",)}, "1 names for 6 columns"),
    ({"root": bytes(31)}, "not 32"),
]  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> plans.DevicePlan:
    folder = tmp_path_factory.mktemp("plan")
    return plans.plan_of(made(recipe_of(folder), folder))


@pytest.mark.parametrize(("changes", "why"), HOSTILE)
def test_plans_that_are_refused(node: Node, plan: plans.DevicePlan, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        node.ask("model", data=changed(plan, **changes))
    assert str(refused.value).startswith(("Hopeless: ", "Broken: "))


def test_the_plan_itself_is_taken(node: Node, plan: plans.DevicePlan) -> None:
    assert node.ask("model", data=changed(plan)) == 6 * 5 + 5 + 5 * 3 + 3


@given(st.data())
@settings(max_examples=100)
def test_a_plan_with_other_bytes_is_taken_or_refused(node: Node, plan: plans.DevicePlan, data: st.DataObject) -> None:
    found = bytearray(plans.encode(plan))
    for _ in range(data.draw(st.integers(1, 4))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    try:
        node.ask("plan", data=bytes(found).hex())
    except ValueError as error:
        assert str(error).startswith(("Hopeless: ", "Broken: "))


def test_names_are_one_line_of_plain_text(node: Node, plan: plans.DevicePlan) -> None:
    assert (
        node.ask("plan", data=changed(plan, name="a\n\u202eb\0\u200f\ud7ff" + "x" * 500)) == "a  b  \ud7ff" + "x" * 193
    )
    assert node.ask("printable", text="<b>x</b>") == "<b>x</b>"  # shown as text, see the test in a browser


@pytest.mark.parametrize("text", ["", "x", "A" * 66, "_" * 66, "AX" * 33 + "=", "../../join", "%41" * 22])
def test_what_is_no_ticket(node: Node, text: str) -> None:
    assert node.ask("ticket", text=text) is None


def test_a_ticket(node: Node) -> None:
    text = address("http://x", bytes(range(16)), bytes(16), bytes(16)).partition("#")[2]
    assert node.ask("ticket", text=text) == bytes(range(16)).hex()
