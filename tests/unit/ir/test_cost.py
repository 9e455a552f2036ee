"""Counting operations."""

from __future__ import annotations

import pytest

from mlc.ir import te
from mlc.ir.cost import gathered, operations, products
from mlc.ir.expr import all_of, call, select, within
from mlc.ir.index import dynamic
from mlc.ir.types import f32, i64
from mlc.ops import get


def test_matrix_product_takes_two_operations_a_term() -> None:
    a, b = te.placeholder((5, 7), f32), te.placeholder((7, 3), f32)
    k = te.reduce_axis(7, "k")
    assert operations([te.compute((5, 3), lambda i, j: te.sum_of(a[i, k] * b[k, j], k))]) == 2 * 5 * 7 * 3


def test_every_stage_counts_once_and_comparisons_nothing() -> None:
    x = te.placeholder((10,), f32)
    e = te.compute((10,), lambda i: call("exp", x[i]) + 1.0)
    y = te.compute((10,), lambda i: select(within(i, 2, 5), e[i], 0.0))
    z = te.compute((10,), lambda i: y[i] * e[i])
    assert operations([z, y]) == 20 + 0 + 10


def test_of_several_ways_to_compute_an_element_the_dearest_counts() -> None:
    x = te.placeholder((10,), f32)
    y = te.compute(
        (10,), lambda i: select(within(i, 0, 3), x[i] + 1.0, select(within(i, 3, 6), x[i] * x[i] + 2.0, x[i]))
    )
    assert operations([y]) == 2 * 10


def test_what_is_read_where_data_say_is_no_more_than_that() -> None:
    table, other, words = te.placeholder((1000, 8), f32), te.placeholder((50, 8), f32), te.placeholder((3,), i64)
    rows = te.compute((3, 8), lambda i, j: table[dynamic(words[i], 0, 999), j] + other[dynamic(words[i], 0, 49), j])
    total = te.compute((3, 8), lambda i, j: rows[i, j] + other[i, j] + table[dynamic(words[2 - i], 0, 999), j])
    assert gathered([total]) == {table: 48}


def test_products_are_those_inside_of_a_border() -> None:
    """Windows of 3 over 4 numbers and a border: 10 of 12 terms, and neither what is added to them nor a maximum."""
    x, w = te.placeholder((2, 4), f32, "x"), te.placeholder((3,), f32, "w")
    r = te.reduce_axis(3, "r")
    inside = te.compute(
        (2, 4), lambda i, j: te.sum_of(select(within(j + r - 1, 0, 4), x[i, j + r - 1] * w[r], 0.0), r), "y"
    )
    k = te.reduce_axis(4, "k")
    greatest = te.compute((2,), lambda i: te.max_of(inside[i, k] * 2 + 1, k), "z")
    assert products([greatest]) == pytest.approx(2 * 10)


def test_a_border_that_another_stage_has_put_around_does_not_count_either() -> None:
    """Windows of 3 over 5 numbers and a border, every second one: 7 of 9 terms are inside."""
    x, w = te.placeholder((2, 5), f32, "x"), te.placeholder((3,), f32, "w")
    padded = te.compute((2, 7), lambda i, j: select(within(j - 1, 0, 5), x[i, j - 1], 0.0), "pad")
    r = te.reduce_axis(3, "r")
    conv = te.compute((2, 3), lambda i, j: te.sum_of(padded[i, 2 * j + r] * w[r], r), "y")
    assert products([conv]) == pytest.approx(2 * 7)
    ones = te.compute((2, 7), lambda i, j: select(within(j - 1, 0, 5), x[i, j - 1], 1.0), "ones")
    conv = te.compute((2, 3), lambda i, j: te.sum_of(ones[i, 2 * j + r] * w[r], r), "y")
    assert products([conv]) == pytest.approx(2 * 9)


@pytest.mark.parametrize(
    ("size", "taps", "stride", "dilation", "pad", "more"),
    [
        (4, 2, 1, 1, 0, 0),
        (4, 4, 2, 1, 1, 0),
        (5, 3, 2, 1, 1, 0),
        (5, 3, 2, 1, 1, 1),
        (4, 3, 3, 2, 1, 0),
        (3, 2, 3, 1, 0, 1),
    ],
)
def test_products_of_a_transposed_convolution_are_those_of_elements_and_taps_that_are_there(
    size: int, taps: int, stride: int, dilation: int, pad: int, more: int
) -> None:
    """Counted one by one: each element of the data meets each tap, unless what they add to is cut off."""
    out = (size - 1) * stride + (taps - 1) * dilation + 1 - 2 * pad + more
    one = sum(0 <= i * stride + k * dilation - pad < out for i in range(size) for k in range(taps))
    x, w = te.placeholder((2, 3, size, size), f32, "x"), te.placeholder((3, 5, taps, taps), f32, "w")
    attrs = {
        "strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (dilation,) * 2, "groups": 1,
        "output_shape": (out,) * 2,
    }  # fmt: skip
    found = products(get("conv_transpose").express([x, w], attrs))
    exact = 2 * 3 * 5 * one**2
    if out % stride:  # ends of phases that nobody reads may have no terms anyway
        assert 0 < found <= exact
    else:
        assert found == pytest.approx(exact)


def test_conditions_with_variables_in_common_are_looked_at_together() -> None:
    x = te.placeholder((12,), f32, "x")
    r = te.reduce_axis(3, "r")
    y = te.compute(
        (4,),
        lambda i: te.sum_of(
            select(all_of([within(i + r, 1, 4), within(i // 2 + r % 2, 0, 2)]), x[i + r] * x[i], 0.0), r
        ),
    )
    wanted = sum(1 <= i + r < 4 and i // 2 + r % 2 < 2 for i in range(4) for r in range(3))
    assert products([y]) == pytest.approx(wanted)
