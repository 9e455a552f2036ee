"""Grouped convolutions of integers with zeros between groups: which, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, u8
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.dense import use_dense
from mlc.targets.base import get_target


def convolution(groups: int = 3, channels: int = 4, filters: int = 20, taps: int = 3, **attrs: Any) -> Graph:
    b = Builder()
    x = b.input("x", TensorType((2, groups * channels, 5, 6), u8))
    shape = (groups * filters, channels, taps, taps)
    w = b.constant(np.random.default_rng(0).integers(-128, 128, shape, np.int8), "w")
    settings = {"strides": (2, 1), "pads": (1, 0, 1, 2), "dilations": (1, 1), "groups": groups, **attrs}
    return b.finish(b.add(get("conv"), [x, w], settings))


def test_zeros_between_groups() -> None:
    graph = convolution()
    new = use_dense(graph, lambda node: Algorithm.DENSE)
    (node,) = new.nodes
    assert node.attrs["groups"] == 1
    assert node.inputs[1].type.shape == (60, 12, 3, 3)
    feeds = {"x": np.random.default_rng(1).integers(0, 256, (2, 12, 5, 6), np.uint8)}
    (got,), (want,) = run_graph(new, feeds).values(), run_graph(graph, feeds).values()
    np.testing.assert_array_equal(got, want)


def test_the_target_decides() -> None:
    graph = convolution()
    assert use_dense(graph, lambda node: Algorithm.DIRECT) is graph
    assert use_dense(convolution(groups=1), lambda node: Algorithm.DENSE).nodes[0].attrs["groups"] == 1


@pytest.mark.parametrize(
    "cpu, groups, channels, filters, dense",
    [
        ("znver4", 3, 80, 20, True),
        ("znver4", 3, 20, 32, False),  # whole instructions, whole blocks
        ("znver4", 4, 80, 20, False),  # as many zeros as an instruction sums up
        ("znver4", 40, 1, 1, False),
        ("haswell", 3, 80, 20, True),
        ("haswell", 4, 80, 20, False),
    ],
)
def test_where_it_pays(cpu: str, groups: int, channels: int, filters: int, dense: bool) -> None:
    (node,) = convolution(groups, channels, filters, 1).nodes
    (chosen,) = get_target(f"x86 -mcpu={cpu}").algorithms(node)
    assert (chosen is Algorithm.DENSE) == dense
