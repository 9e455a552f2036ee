"""The recurrence as an operator: its type rule and its meaning."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.graph import Builder, Graph, Node
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.scan import SCAN

ROW = TensorType((3,), f32)


def body() -> Graph:
    """``carried = carried * captured + row``, which is gathered, too."""
    b = Builder("round")
    state, row, factor = b.input("state", ROW), b.input("row", ROW), b.input("factor", ROW)
    (scaled,) = b.add(get("mul"), [state, factor])
    (new,) = b.add(get("add"), [scaled, row])
    return b.finish([new, new], ["after", "kept"])


def scan(rounds: int = 4, backwards: tuple[bool, ...] = (False, False), **changes: object) -> Graph:
    b = Builder()
    operands = [b.input("start", ROW), b.input("rows", TensorType((4, 3), f32)), b.input("factor", ROW)]
    attrs = {"body": body(), "rounds": rounds, "carried": 1, "scanned": 1, "backwards": backwards, **changes}
    return b.finish(b.add(SCAN, operands, attrs), ["last", "all"])


@pytest.mark.parametrize("backwards", [(False, False), (True, False), (False, True), (True, True)])
def test_rounds_follow_each_other(backwards: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(0)
    start, rows, factor = (rng.standard_normal(s).astype(np.float32) for s in ((3,), (4, 3), (3,)))
    state, kept = start, []
    for row in rows[::-1] if backwards[0] else rows:
        state = state * factor + row
        kept.append(state)
    got = run_graph(scan(backwards=backwards), {"start": start, "rows": rows, "factor": factor})
    np.testing.assert_allclose(got["last"], state, rtol=1e-6)
    np.testing.assert_allclose(got["all"], np.stack(kept[::-1] if backwards[1] else kept), rtol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rounds": 0}, "scan: 0 rounds"),
        ({"rounds": 2.0}, "scan: counts are integers"),
        ({"rounds": 5}, r"scan: operands are .*f32\[4,3\].*, the body takes .*f32\[5,3\]"),
        ({"carried": 3}, "scan: too few operands or results"),
        ({"scanned": 0}, "scan: a direction is needed"),
        ({"carried": 0, "scanned": 1, "backwards": (False,) * 3}, "scan: operands are"),
    ],
)
def test_mistakes_are_found(changes: dict[str, object], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        scan(**changes)


def test_what_is_carried_keeps_its_type() -> None:
    b = Builder("round")
    state = b.input("state", ROW)
    (wide,) = b.add(get("concat"), [state, state], {"axis": 0})
    attrs = {"body": b.finish([wide]), "rounds": 2, "carried": 1, "scanned": 0, "backwards": ()}
    with pytest.raises(VerifyError, match=r"scan: carries \(f32\[3\]\), the body gives \(f32\[6\]\)"):
        SCAN.infer([ROW], attrs)


def test_it_prints_with_its_body() -> None:
    node: Node = scan().nodes[0]
    assert repr(node).endswith("scan(%start, %rows, %factor, rounds=4, carried=1, scanned=1, backwards=(False, False))")
    assert "@graph round(%state: f32[3], %row: f32[3], %factor: f32[3])" in repr(scan())
