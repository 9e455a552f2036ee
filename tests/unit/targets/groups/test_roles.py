"""What computes do, told from their axes and accesses."""

from __future__ import annotations

import doctest

import pytest

from mlc.ir import te
from mlc.ir.expr import call, select, within
from mlc.ir.index import Linear, as_index
from mlc.ir.types import f32
from mlc.ops import get
from mlc.targets.groups import roles
from mlc.targets.groups.roles import (
    Contraction,
    Convolution,
    PhasedConvolution,
    Window,
    canonical,
    is_border,
    is_exponential,
    keeps_rows,
    role_of,
)


def reductions(name: str, shapes: list[tuple[int, ...]], **attrs: object) -> list[te.Compute]:
    operands = [te.placeholder(s, f32, f"p{k}") for k, s in enumerate(shapes)]
    operator = get(name)
    assert operator.express is not None
    outputs = operator.express(operands, {**operator.attrs, **attrs})
    return [op for op in te.topological(outputs) if op.combiner is not None]


def window(stride: int, pad: int, dilation: int = 1, **more: object) -> dict[str, object]:
    return {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (dilation,) * 2, **more}


def test_doctests() -> None:
    assert doctest.testmod(roles).failed == 0


@pytest.mark.parametrize("stride, dilation, groups, taps", [(1, 1, 1, 3), (2, 1, 1, 3), (1, 2, 2, 3), (3, 1, 4, 1)])
def test_convolutions_tell_their_strides_dilations_and_groups(
    stride: int, dilation: int, groups: int, taps: int
) -> None:
    shapes = [(2, 8, 19, 19), (16, 8 // groups, taps, taps)]
    (op,) = reductions("conv", shapes, **window(stride, 1, dilation, groups=groups))
    role = role_of(op)
    assert isinstance(role, Convolution)
    assert (role.strides, role.groups, role.taps) == ((stride,) * 2, groups, (taps,) * 2)
    assert role.dilations == (dilation if taps > 1 else 1,) * 2
    assert [t.shape[1] for t in (role.data, role.weights)] == [8, 8 // groups]
    assert canonical(op) is op


@pytest.mark.parametrize("multiplier", [1, 3])
def test_a_channel_each_makes_a_window(multiplier: int) -> None:
    (op,) = reductions("conv", [(1, 6, 9, 9), (6 * multiplier, 1, 3, 3)], **window(2, 1, groups=6))
    role = role_of(op)
    assert isinstance(role, Window)
    assert role.weights is not None
    assert role.strides == (2, 2)


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "lp_pool"])
def test_pools_are_windows_without_weights(name: str) -> None:
    (op,) = reductions(name, [(1, 6, 9, 9)], **window(2, 0, kernel=(3, 2)))
    role = role_of(op)
    assert isinstance(role, Window)
    assert (role.weights, role.taps, role.strides) == (None, (3, 2), (2, 2))


def test_pools_may_compare_what_they_read_with_an_element_of_the_result_s_place() -> None:
    """As the place of the greatest element does, for its derivative."""
    x, y = te.placeholder((1, 6, 9, 9), f32, "x"), te.placeholder((1, 6, 4, 4), f32, "y")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(3, "s")

    def equal(beside: Linear | int) -> te.Tensor:
        def count(n: Linear, c: Linear, h: Linear, w: Linear) -> te.Reduction:
            read = x[n, c, as_index(h) * 2 + r, as_index(w) * 2 + s]
            return te.sum_of(read * y[n, c, h, as_index(w) * beside], (r, s))

        return te.compute((1, 6, 4, 4), count, "count")

    role = role_of(equal(1).op)  # type: ignore[arg-type]
    assert isinstance(role, Window)
    assert (role.data, role.weights, role.taps, role.strides) == (x, None, (3, 3), (2, 2))
    assert role_of(equal(0).op) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (2, 3), (4, 2)])
def test_phases_of_transposed_convolutions_tell_their_steps(stride: int, dilation: int) -> None:
    shapes = [(1, 4, 5, 5), (4, 6, 3, 3)]
    (op,) = reductions("conv_transpose", shapes, **window(stride, 0, dilation))
    role = role_of(op)
    assert isinstance(role, PhasedConvolution)
    assert role.strides == (stride,) * 2
    assert role.steps == ({(1, 1): 1, (2, 1): 2, (2, 3): 2, (4, 2): 2}[stride, dilation],) * 2


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shapes", [((4, 8), (8, 6)), ((3, 4, 8), (8, 6)), ((3, 1, 8), (3, 8, 1)), ((4, 1), (1, 6))])
def test_products_tell_whether_the_right_operand_is_transposed(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], transposed: bool
) -> None:
    a, b = shapes
    right = (*b[:-2], b[-1], b[-2]) if transposed else b
    (op,) = reductions("matmul", [a, right], transpose_b=transposed)
    role = role_of(op)
    assert isinstance(role, Contraction)
    assert (role.left.shape, role.right.shape, role.transposed) == (a, right, transposed)


def test_products_written_the_other_way_round_become_canonical() -> None:
    a, b = te.placeholder((4, 8), f32, "a"), te.placeholder((8, 6), f32, "b")
    k = te.reduce_axis(8, "k")
    op = te.compute((4, 6), lambda i, j: te.sum_of(b[k, j] * a[i, k], k)).op
    assert op is not None
    assert role_of(op) == Contraction(a, b, False)
    assert canonical(op).inputs == [a, b]


def test_convolutions_in_any_order_become_canonical() -> None:
    x, w = te.placeholder((1, 4, 9), f32, "x"), te.placeholder((6, 4, 3), f32, "w")
    c, s = te.reduce_axis(4, "c"), te.reduce_axis(3, "s")
    op = te.compute((1, 6, 7), lambda n, o, i: te.sum_of(w[o, c, s] * x[n, c, i + as_index(s)], (s, c))).op
    assert op is not None
    found = canonical(op)
    assert found.inputs == [x, w]
    assert found.reduce_axes == (c, s)
    assert isinstance(role_of(found), Convolution)


@pytest.mark.parametrize(
    "name, shapes, attrs",
    [
        ("reduce_sum", [(2, 3, 4, 5)], {"axes": (2, 3), "keepdims": True}),
        ("reduce_sum", [(2, 3, 4, 5)], {"axes": (1,), "keepdims": False}),
        ("lrn", [(1, 8, 5, 5)], {"size": 3}),
        ("softmax", [(4, 9)], {"axis": 1}),
        ("layer_norm", [(4, 9), (9,), (9,)], {"axis": 1}),
        ("einsum", [(4, 9), (4, 9)], {"equation": "ij,ij->i"}),
        ("einsum", [(4, 9, 3), (4, 9, 3)], {"equation": "ijk,ajk->ia"}),
    ],
)
def test_other_reductions_have_no_role(name: str, shapes: list[tuple[int, ...]], attrs: dict[str, object]) -> None:
    assert [role_of(op) for op in reductions(name, shapes, **attrs)] == [None] * len(reductions(name, shapes, **attrs))


def test_the_square_of_an_only_number_is_no_product_of_two() -> None:
    x, k = te.placeholder((1, 1), f32, "x"), te.reduce_axis(1, "k")

    def square(i: Linear, j: Linear) -> te.Reduction:
        number = x[i, k]
        return te.sum_of(number * number, k)

    y = te.compute((1, 1), square, "y")
    assert y.op is not None
    assert role_of(y.op) is None


def test_borders_exponentials_and_rows_are_told_from_their_like() -> None:
    x = te.placeholder((2, 3, 5, 7), f32, "x")

    def compute(fn: object, shape: tuple[int, ...] = x.shape) -> te.Compute:
        op = te.compute(shape, fn).op  # type: ignore[arg-type]
        assert op is not None
        return op

    padded = compute(lambda n, c, i, j: select(within(i - 1, 0, 5), x[n, c, i - 1, j], 0), (2, 3, 7, 7))
    triangle = compute(lambda n, c, i, j: select(within(i - j, 0, 5), x[n, c, i, j], 0))
    assert [is_border(op) for op in (padded, triangle)] == [True, False]
    power = compute(lambda *at: call("exp", x[at]))
    assert [is_exponential(op) for op in (power, padded)] == [True, False]
    turned = compute(lambda n, c, i, j: x[n, (c + 1) % 3, i, j])
    mirrored = compute(lambda n, c, i, j: x[n, c, i, 6 - j])
    assert [keeps_rows(op) for op in (turned, mirrored, padded)] == [True, False, False]
