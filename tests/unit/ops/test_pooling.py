"""Pools against onnxruntime and numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, boolean, f32, i32
from mlc.ops.window import span
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node, onnxruntime_output, stages


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@st.composite
def pools(draw, max_dilation=2):
    """A window over 1 to 3 axes, its output shape with the last windows hanging over or not."""
    rank = draw(st.integers(1, 3))
    per_axis = lambda s: tuple(draw(s) for _ in range(rank))  # noqa: E731
    kernel, strides = per_axis(st.integers(1, 3)), per_axis(st.integers(1, 3))
    dilations = per_axis(st.integers(1, max_dilation))
    pads = tuple(draw(st.integers(0, k - 1)) for _ in range(2) for k in kernel)
    space = per_axis(st.integers(1, 7))
    rooms = [n + pads[d] + pads[rank + d] - span(kernel[d], dilations[d]) for d, n in enumerate(space)]
    assume(all(r >= 0 for r in rooms))
    ceil = draw(st.booleans())
    out = []
    for d, r in enumerate(rooms):
        n = (-(-r // strides[d]) if ceil else r // strides[d]) + 1
        # ONNX drops a last window that starts beyond the input and its leading pad
        out.append(n - 1 if ceil and (n - 1) * strides[d] >= space[d] + pads[d] else n)
    attrs = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    return space, attrs, tuple(out), ceil


def touches_everywhere(space, attrs, out):
    """Whether no window holds padding alone, where onnxruntime gives the least finite number rather than infinity."""
    for d, n in enumerate(space):
        for i in range(out[d]):
            start = i * attrs["strides"][d] - attrs["pads"][d]
            taps = range(start, start + span(attrs["kernel"][d], attrs["dilations"][d]), attrs["dilations"][d])
            if not any(0 <= t < n for t in taps):
                return False
    return True


def onnx_attrs(attrs, ceil):
    names = {"kernel": "kernel_shape"}
    return {"ceil_mode": int(ceil), **{names.get(k, k): list(v) for k, v in attrs.items()}}


@examples(50)
@given(pools())
def test_max_pool_is_onnx_max_pool(pool):
    space, attrs, out, ceil = pool
    assume(touches_everywhere(space, attrs, out))
    x = normal((2, 3, *space))
    expected = onnxruntime_output("MaxPool", x, **onnx_attrs(attrs, ceil))
    np.testing.assert_array_equal(evaluate("max_pool", x, output_shape=out, **attrs), expected)


@examples(30)
@given(pools(), st.booleans())
def test_positions_are_those_of_onnx_max_pool(pool, column_major):
    space, attrs, out, ceil = pool
    assume(touches_everywhere(space, attrs, out))
    x = np.random.default_rng(0).integers(0, 4, (2, 3, *space)).astype(np.float32)  # with ties
    expected, where = onnxruntime_output(
        "MaxPool", x, outputs=2, storage_order=int(column_major), **onnx_attrs(attrs, ceil)
    )
    got = evaluate("max_pool_with_indices", x, output_shape=out, column_major=column_major, **attrs)
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(got[1], where)


@examples(40)
@given(pools(), st.booleans())
def test_avg_pool_counts_every_tap(pool, include_pad):
    space, attrs, out, _ = pool
    x = normal((2, 3, *space))
    rank = len(space)
    pads = attrs["pads"]
    # the definition, over an explicitly padded input: 1 where an element counts, NaN-free elsewhere
    room = [(o - 1) * s + span(k, d) for o, s, k, d in zip(
        out, attrs["strides"], attrs["kernel"], attrs["dilations"], strict=True)]  # fmt: skip
    sums, counts = np.zeros((2, 3, *room)), np.zeros(room)
    place = tuple(slice(p, p + n) for p, n in zip(pads, space, strict=False))
    cut = tuple(slice(0, r) for r in room)
    wide_shape = [max(r, n + pads[d] + pads[rank + d]) for d, (r, n) in enumerate(zip(room, space, strict=True))]
    full, mask = np.zeros((2, 3, *wide_shape)), np.zeros(wide_shape)
    full[(..., *place)] = x
    inside = tuple(slice(0, n + pads[d] + pads[rank + d]) for d, n in enumerate(space)) if include_pad else place
    mask[inside] = 1
    sums, counts = full[(..., *cut)], mask[cut]
    expected = np.zeros((2, 3, *out))
    for at in np.ndindex(*out):
        window = tuple(
            slice(i * s, i * s + span(k, d), d)
            for i, s, k, d in zip(at, attrs["strides"], attrs["kernel"], attrs["dilations"], strict=True)
        )
        total = sums[(..., *window)].sum(axis=tuple(range(2, 2 + rank)))
        expected[(..., *at)] = total / max(1, counts[window].sum())
    got = evaluate("avg_pool", x, output_shape=out, count_include_pad=include_pad, **attrs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@examples(30)
@given(pools(max_dilation=1), st.booleans())
def test_avg_pool_is_onnx_average_pool(pool, include_pad):
    space, attrs, out, ceil = pool
    assume(not ceil)
    x = normal((2, 3, *space))
    expected = onnxruntime_output("AveragePool", x, count_include_pad=int(include_pad), **onnx_attrs(attrs, ceil))
    got = evaluate("avg_pool", x, output_shape=out, count_include_pad=include_pad, **attrs)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_is_the_norm_of_each_window(p):
    x = normal((2, 3, 7, 5))
    attrs = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1)}
    expected = onnxruntime_output("LpPool", x, p=p, **onnx_attrs(attrs, False))
    np.testing.assert_allclose(evaluate("lp_pool", x, p=p, **attrs), expected, rtol=1e-5)


UNIT = {"kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16])
def test_max_pool_of_other_types(dtype):
    x = np.random.default_rng(0).integers(0, 100, (1, 2, 4, 4)).astype(dtype) - (100 if dtype == np.int8 else 0)
    expected = np.max([x[:, :, i : i + 3, j : j + 3] for i in (0, 1) for j in (0, 1)], axis=0)
    np.testing.assert_array_equal(evaluate("max_pool", x, **UNIT), expected)


def test_sixteen_bit_averages_are_summed_in_f32():
    x = np.full((1, 1, 64, 64), 1000, np.float16)
    attrs = {"kernel": (64, 64), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    assert evaluate("avg_pool", x, **attrs).item() == 1000


def test_a_window_of_constant_count_divides_by_a_number():
    average = stages("avg_pool", TensorType((1, 1, 8, 8), f32), **UNIT)[-1]
    assert repr(average).endswith("window_sum[0, 0, h, w] / 4.0")


def test_padding_is_a_stage_of_its_own():
    pad, pool = stages("max_pool", TensorType((1, 1, 8, 8), f32), **{**UNIT, "pads": (1, 1, 0, 0)})
    assert "-inf" in repr(pad)
    assert pool.tag == "max_pool"


@pytest.mark.parametrize(
    "shape, attrs, message",
    [
        ((1, 3), {}, "x has rank 2"),
        ((1, 3, 8, 8), {"kernel": (2,)}, r"kernel \(2,\) for 2 spatial axes"),
        ((1, 3, 1, 8), {}, "spans 2 on axis 2, the padded input only 1"),
        ((1, 3, 8, 8), {"output_shape": (1,)}, r"output_shape \(1,\) for 2"),
        ((1, 3, 8, 8), {"output_shape": (0, 3)}, r"spatial shape \(0, 3\)"),
    ],
)
@pytest.mark.parametrize("op", ["max_pool", "max_pool_with_indices", "avg_pool", "lp_pool"])
def test_pools_refuse(op, shape, attrs, message):
    with pytest.raises(VerifyError, match=f"{op}: .*{message}"):
        one_node(op, TensorType(shape, f32), **{**UNIT, **attrs})


def test_pools_refuse_types():
    with pytest.raises(VerifyError, match="x is i32, a float type is needed"):
        one_node("avg_pool", TensorType((1, 3, 8, 8), i32), **UNIT)
    with pytest.raises(VerifyError, match="x is bool"):
        one_node("max_pool", TensorType((1, 3, 8, 8), boolean), **UNIT)
    with pytest.raises(VerifyError, match="p is 0"):
        one_node("lp_pool", TensorType((1, 3, 8, 8), f32), **UNIT, p=0)
