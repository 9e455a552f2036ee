from __future__ import annotations

import numpy as np

from mlc.frontend.common import folding
from mlc.frontend.common.folding import Folder, work
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32, i64
from mlc.ops import get


def node_of(op, *shapes, dtype=f32, **attrs):
    builder = Builder()
    builder.add(get(op), [builder.input(f"x{k}", TensorType(s, dtype)) for k, s in enumerate(shapes)], attrs)
    return builder.nodes[-1]


def test_small_operators_are_folded():
    (out,) = Folder().fold(node_of("add", (2,), (2,)), [np.float32([1, 2]), np.float32([3, 4])])
    assert out.tolist() == [4, 6]


def test_work_counts_the_points_of_all_loops():
    assert work(node_of("add", (5, 7), (7,))) == 35
    assert work(node_of("matmul", (4, 8), (8, 16))) == 4 * 8 * 16


def test_work_of_routines_counts_their_steps():
    short = work(node_of("top_k", (10,), k=5, axis=0))
    assert short > 10 * folding.STEP_WORK
    assert work(node_of("top_k", (1000,), k=500, axis=0)) > 50 * short


def test_large_operands_and_much_work_are_left_alone():
    folder = Folder()
    big = np.zeros((1024, 1024), np.float32)
    assert folder.fold(node_of("relu", big.shape), [big]) is None
    row = np.zeros((1, 100_000), np.float32)
    assert folder.fold(node_of("matmul", (100, 300), (300, 500)), [np.zeros((100, 300)), np.zeros((300, 500))]) is None
    assert folder.fold(node_of("top_k", row.shape, k=50_000, axis=1), [row]) is None


def test_the_budget_is_spent_in_the_end(monkeypatch):
    monkeypatch.setattr(folding, "TOTAL_WORK", 100)
    folder = Folder()
    x = np.arange(40)
    folds = [folder.fold(node_of("neg", (40,), dtype=i64), [x]) is not None for _ in range(4)]
    assert folds == [True, True, False, False]
