"""What the cost model chooses is always a configuration that the templates accept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from tests.fuzz import examples

TARGETS = {cpu: get_target(f"x86 -mcpu={cpu}") for cpu in ("x86-64", "haswell", "skylake-avx512")}
SIZES = st.sampled_from((1, 2, 3, 5, 7, 8, 16, 31, 40, 64, 130))


def _lower_all(g: Builder, output: object, level: int) -> None:
    graph = g.finish([output])  # type: ignore[list-item]
    for target in TARGETS.values():
        options = CompileOptions("m", "test", "", opt_level=level)
        (part,) = parts_of(optimise(graph, target, options, Observer()), target)
        for node in lay_out(part, options, Observer()).nodes:
            target.kernel(node, "k")


@examples(25)
@given(st.lists(st.integers(1, 3), max_size=2), SIZES, SIZES, SIZES, st.booleans(), st.sampled_from((0, 3)))
def test_products(batch: list[int], m: int, n: int, k: int, constant: bool, level: int) -> None:
    g = Builder("product")
    a = g.input("a", TensorType((*batch, m, k), f32))
    shape = (k, n) if constant else (*batch, k, n)
    b = g.constant(np.ones(shape, np.float32), "b") if constant else g.input("b", TensorType(shape, f32))
    (y,) = g.add(get("matmul"), [a, b], names=["y"])
    _lower_all(g, y, level)


@pytest.mark.parametrize("batch", [(1,), (1, 1)])
def test_one_matrix_with_a_ragged_panel_and_axes_in_front(batch: tuple[int, ...]) -> None:
    g = Builder("product")
    a, b = g.input("a", TensorType((*batch, 5, 7), f32)), g.input("b", TensorType((*batch, 7, 9), f32))
    (y,) = g.add(get("matmul"), [a, b], names=["y"])
    _lower_all(g, y, 0)


@examples(30)
@given(
    st.integers(1, 2), SIZES, SIZES, st.sampled_from((1, 3, 7, 14, 29)), st.sampled_from((1, 3, 5)),
    st.sampled_from((1, 2)), st.sampled_from((1, 2, 4)), st.sampled_from((0, 3)),
)  # fmt: skip
def test_convolutions(n: int, c: int, o: int, size: int, taps: int, stride: int, groups: int, level: int) -> None:
    g = Builder("convolution")
    x = g.input("x", TensorType((n, c * groups, size, size), f32))
    w = g.constant(np.ones((o * groups, c, taps, taps), np.float32), "w")
    attrs = {"strides": (stride, stride), "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": groups}
    (y,) = g.add(get("conv"), [x, w], attrs, names=["y"])
    _lower_all(g, y, level)


@examples(20)
@given(
    st.integers(1, 3), SIZES, st.sampled_from((1, 3, 7, 14, 29)), st.sampled_from((2, 3, 5)), st.sampled_from((1, 2)),
    st.sampled_from((0, 3)),
)  # fmt: skip
def test_windows(n: int, c: int, size: int, taps: int, stride: int, level: int) -> None:
    g = Builder("window")
    x = g.input("x", TensorType((n, c, size, size), f32))
    w = g.constant(np.ones((c, 1, taps, taps), np.float32), "w")
    attrs = {"strides": (stride, stride), "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": c}
    (y,) = g.add(get("conv"), [x, w], attrs, names=["y"])
    _lower_all(g, y, level)


@examples(20)
@given(
    SIZES, SIZES, st.sampled_from((1, 3, 8, 13)), st.sampled_from((2, 3, 4)), st.sampled_from((1, 2, 3)),
    st.sampled_from((0, 3)),
)  # fmt: skip
def test_transposed_convolutions(c: int, o: int, size: int, taps: int, stride: int, level: int) -> None:
    g = Builder("transposed")
    x = g.input("x", TensorType((1, c, size, size), f32))
    w = g.constant(np.ones((c, o, taps, taps), np.float32), "w")
    attrs = {"strides": (stride,) * 2, "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    (y,) = g.add(get("conv_transpose"), [x, w], attrs, names=["y"])
    _lower_all(g, y, level)


@examples(15)
@given(st.lists(st.integers(1, 3), max_size=2), SIZES, SIZES, SIZES, SIZES)
def test_attention(batch: list[int], m: int, n: int, e: int, d: int) -> None:
    g = Builder("attention")
    q, k, v = (g.input(name, TensorType((*batch, rows, width), f32)) for name, rows, width in
               (("q", m, e), ("k", n, e), ("v", n, d)))  # fmt: skip
    (y,) = g.add(get("attention"), [q, k, v], {"scale": 0.5}, names=["y"])
    _lower_all(g, y, 3)
