"""Pools as ONNX describes them, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.errors import ImportModelError, UnsupportedError
from tests.fuzz import examples
from tests.unit.frontend.onnx.single import compare, imported, normal, ours, output_of

AUTO = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


@st.composite
def pools(draw, max_dilation):
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    mode = draw(st.sampled_from(AUTO))
    # with SAME, onnxruntime pads as if there were no dilation
    dilations = [draw(st.integers(1, 1 if mode.startswith("SAME") else max_dilation)) for _ in range(rank)]
    space = [draw(st.integers(1, 8)) for _ in range(rank)]
    assume(all(n >= d * (k - 1) + 1 for n, k, d in zip(space, kernel, dilations, strict=True)))
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    if mode.startswith("SAME"):
        # and where the stride exceeds the kernel, it pads by negative amounts
        assume(all(k >= s for k, s in zip(kernel, strides, strict=True)))
    attrs = {
        "kernel_shape": kernel,
        "strides": strides,
        "auto_pad": mode,
        "pads": [draw(st.integers(0, k - 1)) for _ in range(2) for k in kernel] if mode == "NOTSET" else None,
        "dilations": dilations,
        # with automatic pads onnxruntime rounds in its own way
        "ceil_mode": draw(st.integers(0, 1)) if mode == "NOTSET" else None,
    }
    return space, attrs


@examples(50)
@given(pools(2), st.integers(1, 2), st.integers(0, 1))
def test_max_pool(pool, outputs, storage_order):
    space, attrs = pool
    compare("MaxPool", [normal((2, 3, *space))], outputs=outputs, storage_order=storage_order, **attrs)


@examples(50)
@given(pools(2), st.integers(0, 1))
def test_average_pool(pool, include_pad):
    space, attrs = pool
    # onnxruntime counts taps beyond the padding where it should not, when windows hang over
    assume(not (attrs["ceil_mode"] and include_pad))
    compare("AveragePool", [normal((2, 3, *space))], count_include_pad=include_pad, **attrs)


@pytest.mark.parametrize("op", ["AveragePool", "LpPool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("extent, kernel, stride", [(8, 1, 3), (9, 1, 3), (7, 2, 4), (7, 1, 4), (12, 1, 4), (12, 1, 5)])
def test_windows_with_gaps_cut_off_the_ends(op, mode, extent, kernel, stride):
    compare(op, [normal((2, 3, extent, 5))], auto_pad=mode, kernel_shape=[kernel, 3], strides=[stride, 2])


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("extent, stride", [(6, 2), (9, 3), (12, 4), (7, 3)])
def test_maxima_of_windows_with_gaps_lie_where_averages_do(mode, extent, stride):
    """Of single elements, the two are the same; onnxruntime refuses these maxima."""
    x = normal((1, 2, extent, 6))
    options = dict(auto_pad=mode, kernel_shape=[1, 1], strides=[stride, 2], opset=19)
    np.testing.assert_array_equal(output_of("MaxPool", [x], **options), output_of("AveragePool", [x], **options))


def test_strided_pixels_are_those_of_tensorflow():
    x = normal((1, 1, 6, 8))
    got = output_of("MaxPool", [x], auto_pad="SAME_UPPER", kernel_shape=[1, 1], strides=[2, 2])
    np.testing.assert_array_equal(got, x[:, :, ::2, ::2])


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("include_pad", [0, 1])
@pytest.mark.parametrize("kernel, stride, dilation", [(3, 1, 2), (3, 2, 2), (2, 2, 3)])
def test_same_pads_count_with_dilations(mode, include_pad, kernel, stride, dilation):
    """As the specification says; onnxruntime and the reference leave dilations out of the pads."""
    x = normal((1, 2, 8))
    total = max(0, (-(-8 // stride) - 1) * stride + (kernel - 1) * dilation + 1 - 8)
    begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
    window = dict(
        kernel_shape=[kernel], strides=[stride], dilations=[dilation], count_include_pad=include_pad, opset=19
    )
    expected = output_of("AveragePool", [x], pads=[begin, total - begin], **window)
    np.testing.assert_array_equal(output_of("AveragePool", [x], auto_pad=mode, **window), expected)
    compare("AveragePool", [x], pads=[begin, total - begin], **window)
    assert expected.shape == (1, 2, -(-8 // stride))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("mode", ["VALID", "NOTSET"])
@pytest.mark.parametrize("extent, kernel, stride", [(2, 3, 2), (3, 5, 3), (2, 3, 1), (3, 5, 2)])
def test_window_larger_than_the_input(op, mode, extent, kernel, stride):
    """One output where it hangs over by less than a stride, none where it does by less than two."""
    compare(op, [normal((2, 3, extent))], auto_pad=mode, kernel_shape=[kernel], strides=[stride])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_window_much_larger_than_the_input_is_refused(op):
    with pytest.raises(ImportModelError, match="the window spans 4 on axis 2, the padded input only 2"):
        imported(op, [normal((1, 1, 2))], kernel_shape=[4])


@examples(20)
@given(pools(2), st.integers(1, 3))
def test_lp_pool(pool, p):
    space, attrs = pool
    attrs.pop("ceil_mode")
    compare("LpPool", [normal((2, 3, *space))], p=p, **attrs)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("space", [(5,), (4, 3), (2, 3, 4)])
def test_global_pools(op, space):
    compare(op, [normal((2, 3, *space))])


@pytest.mark.parametrize("p", [1, 3])
def test_global_lp_pool_of_any_order(p):
    compare("GlobalLpPool", [normal((2, 3, 4, 3))], p=p)


def test_max_unpool_undoes_max_pool():
    x = normal((1, 2, 6, 4))
    maxima, where = ours("MaxPool", [x], outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    compare("MaxUnpool", [maxima, where], kernel_shape=[2, 2], strides=[2, 2])
    padded = ours(
        "MaxUnpool", [maxima, where, np.array([1, 2, 7, 6])], kernel_shape=[2, 2], strides=[2, 2], constants=(2,)
    )
    plain = ours("MaxUnpool", [maxima, where], kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(padded[0], np.pad(plain[0], [(0, 0), (0, 0), (0, 1), (0, 2)]))


@pytest.mark.parametrize(
    "op, shape, attrs, message",
    [
        ("MaxPool", (1, 2, 5, 5), {"kernel_shape": [2]}, "a kernel of 1 axes over 2 spatial axes"),
        ("MaxPool", (1, 2), {"kernel_shape": [2]}, "X has rank 2"),
        ("GlobalMaxPool", (1, 2), {}, "X has rank 2"),
        ("GlobalLpPool", (1, 2, 3), {"p": 0}, "a norm of order 0"),
        ("LpPool", (1, 2, 3), {"p": 0, "kernel_shape": [2]}, "p is 0"),
    ],
)
def test_a_contradictory_pool_is_refused(op, shape, attrs, message):
    with pytest.raises(ImportModelError, match=message):
        imported(op, [normal(shape)], **attrs)


def test_pools_over_more_axes_are_not_supported():
    with pytest.raises(UnsupportedError, match="X has rank 6"):
        imported("MaxPool", [normal((1, 2, 2, 2, 2, 2))], kernel_shape=[1, 1, 1, 1])


def test_max_unpool_refuses():
    x, where = normal((1, 1, 2, 2)), np.zeros((1, 1, 2, 2), np.int64)
    with pytest.raises(ImportModelError, match="its indices"):
        imported("MaxUnpool", [x, where[..., :1]], kernel_shape=[2, 2])
    with pytest.raises(ImportModelError, match="the output would have shape"):
        imported("MaxUnpool", [x, where], kernel_shape=[1, 1], pads=[2, 2, 2, 2])
    with pytest.raises(ImportModelError, match=r"is smaller than \(1, 1, 3, 3\)"):
        imported("MaxUnpool", [x, where, np.array([1, 1, 2, 3])], kernel_shape=[2, 2], constants=(2,))
