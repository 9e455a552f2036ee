"""Bodies of recurrences: what they take in, what they lose, and how they are reached."""

from __future__ import annotations

import numpy as np

from mlc.ir.graph import Builder, Graph, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.scan import SCAN
from mlc.rewrite.fold import fold_constants
from mlc.rewrite.recurrence import body_of_scan, graphs, is_scan, map_bodies, settle_bodies

ROW = TensorType((3,), f32)


def recurrence(rounds: int = 4, *, start: np.ndarray | None = None) -> Graph:
    """``state = state * factor + row`` with a constant factor; rows are gathered twice, once for nobody."""
    b = Builder("round")
    state, row, factor = b.input("state", ROW), b.input("row", ROW), b.input("factor", ROW)
    (scaled,) = b.add(get("mul"), [state, factor])
    (new,) = b.add(get("add"), [scaled, row])
    body = b.finish([new, scaled, new], ["after", "unread", "kept"])
    b = Builder()
    first = b.input("start", ROW) if start is None else b.constant(start, "start")
    rows = TensorType((rounds, 3), f32)
    stacked = b.input("rows", rows) if start is None else b.constant(np.ones(rows.shape, np.float32), "rows")
    operands = [first, stacked, b.constant(np.float32([1, 2, 3]), "factor")]
    attrs = {"body": body, "rounds": rounds, "carried": 1, "scanned": 1, "backwards": (False, True, False)}
    last, _, kept = b.add(SCAN, operands, attrs)
    return b.finish([last, kept], ["last", "kept"])


def test_constants_go_in_and_rows_that_nobody_reads_go_away() -> None:
    graph = recurrence()
    settled = settle_bodies(graph)
    verify(settled)
    (node,) = settled.nodes
    body = body_of_scan(node)
    assert [v.name for v in node.inputs] == ["start", "rows"]
    assert [v.name for v in body.constants] == ["factor"]
    assert not settled.constants
    assert body.output_names == ("after", "kept")
    assert node.attrs["backwards"] == (False, False)
    feeds = {"start": np.float32([1, 1, 1]), "rows": np.ones((4, 3), np.float32)}
    for name, want in run_graph(graph, feeds).items():
        np.testing.assert_array_equal(run_graph(settled, feeds)[name], want)


def test_a_graph_without_recurrences_stays_itself() -> None:
    b = Builder()
    graph = b.finish(b.add(get("relu"), [b.input("x", ROW)]))
    assert settle_bodies(graph) is graph
    assert map_bodies(graph, settle_bodies) is graph


def test_bodies_are_reached_at_any_depth_with_how_often_they_run() -> None:
    inner = settle_bodies(recurrence(3))
    outer = Builder("outer")
    start, rows = outer.input("start", ROW), outer.input("rows", TensorType((3, 3), f32))
    attrs = {"body": inner, "rounds": 5, "carried": 1, "scanned": 0, "backwards": (False,)}
    graph = outer.finish(outer.add(SCAN, [start, rows], attrs))
    assert [(g.name, times) for g, times in graphs(graph)] == [("outer", 1), ("main", 5), ("round", 15)]


def test_recurrences_over_constants_are_folded_where_that_is_little_work() -> None:
    few, many = recurrence(3, start=np.float32([0, 0, 0])), recurrence(100_000, start=np.float32([0, 0, 0]))
    assert not fold_constants(few).nodes
    assert any(map(is_scan, fold_constants(many).nodes))
