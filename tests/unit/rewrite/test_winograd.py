"""Which convolutions become Winograd's, and that they keep their names and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.winograd import use_winograd


def convolution(taps: int = 3, constant: bool = True, **attrs: Any) -> Graph:
    b = Builder()
    x = b.input("x", TensorType((1, 4, 9, 9), f32))
    groups = attrs.get("groups", 1)
    array = np.random.default_rng(0).standard_normal((8, 4 // groups, taps, taps)).astype(np.float32)
    w = b.constant(array, "w") if constant else b.input("w", TensorType(array.shape, f32))
    settings = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), **attrs}
    (y,) = b.add(get("conv"), [x, w], settings)
    (out,) = b.add(get("relu"), [y])
    return b.finish([out])


def test_a_convolution_with_constant_weights_is_replaced() -> None:
    graph = convolution()
    new = use_winograd(graph, lambda node: Algorithm.WINOGRAD_2)
    assert [n.op.name for n in new.nodes] == ["conv_winograd", "relu"]
    assert [v.type.shape for v in new.constants] == [(4, 4, 4, 8)]
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 9, 9)).astype(np.float32)}
    (got,), (want,) = run_graph(new, feeds).values(), run_graph(graph, feeds).values()
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_target_decides() -> None:
    graph = convolution()
    assert use_winograd(graph, lambda node: Algorithm.DIRECT) is graph


@pytest.mark.parametrize(
    "changes",
    [{"taps": 5}, {"constant": False}, {"strides": (2, 2)}, {"dilations": (2, 2)}, {"groups": 2}, {"taps": 1}],
    ids=str,
)
def test_other_convolutions_stay(changes: dict[str, Any]) -> None:
    graph = convolution(**changes)
    assert use_winograd(graph, lambda node: Algorithm.WINOGRAD_4) is graph
