"""What is folded lies as what it is computed from, so that reductions see which of their axes walks memory."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.layout import blocked
from mlc.ir.types import f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.targets.groups.group import Group
from mlc.targets.groups.rows import along_memory, rows_in_memory

SHAPE = (1, 32, 6, 5)


def squares_over_space() -> tuple[te.Tensor, te.Tensor]:
    x = te.placeholder(SHAPE, f32, "x")
    multiply, fold = get("mul").express, get("reduce_sum").express
    assert multiply is not None
    assert fold is not None
    (square,) = multiply([x, x], {})
    (out,) = fold([square], {"axes": (2, 3), "keepdims": True})
    return x, out


def test_squares_of_a_blocked_operand_are_folded_across_memory() -> None:
    x, out = squares_over_space()
    layouts = {t: blocked(t.shape, 1, 16) for t in (x, out)}
    (op,) = rows_in_memory(Group((x,), (out,), None, layouts, Knobs())).reductions
    assert op.inputs[0].shape == (1, 2, 6, 5, 16)
    assert along_memory(op) is None


def test_squares_of_a_row_major_operand_are_folded_along_memory() -> None:
    x, out = squares_over_space()
    (op,) = rows_in_memory(Group((x,), (out,), None, {}, Knobs())).reductions
    assert along_memory(op) is op.reduce_axes[-1]


def test_windows_of_all_there_is_lie_alike_in_both_results() -> None:
    """Largest elements and where they are, of windows as small as what they are taken from."""
    x = te.placeholder((2, 3, 1, 1), f32, "x")
    find = get("max_pool_with_indices").express
    assert find is not None
    ones = {"kernel": (1, 1), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "output_shape": (1, 1)}
    outs = find([x], {**ones, "column_major": False})
    p = rows_in_memory(Group((x,), tuple(outs), None, {}, Knobs()))
    for op in p.computes:
        assert len({t.shape for t in op.outputs}) == 1
        for body in op.bodies:
            assert all(len(ld.indices) == len(ld.source.shape) for ld in loads(body))


def test_sums_over_examples_and_space_fold_rows_of_space() -> None:
    """As in a batch norm's statistics: what belongs to channels is read beside."""
    x, m = te.placeholder((4, 3, 6, 5), f32, "x"), te.placeholder((3,), f32, "m")
    n, h, w = (te.reduce_axis(size, name) for size, name in ((4, "n"), (6, "h"), (5, "w")))
    squares = te.compute((3,), lambda c: te.sum_of((x[n, c, h, w] - m[c]) * (x[n, c, h, w] - m[c]), (n, h, w)), "s")
    (op,) = rows_in_memory(Group((x, m), (squares,), None, {}, Knobs())).reductions
    assert [a.hi + 1 for a in op.reduce_axes] == [4, 30]
    assert along_memory(op) is op.reduce_axes[-1]


def test_what_is_read_over_one_axis_of_a_row_keeps_them_apart() -> None:
    x, scale = te.placeholder((4, 6, 5), f32, "x"), te.placeholder((5,), f32, "scale")
    n, h, w = (te.reduce_axis(size, name) for size, name in ((4, "n"), (6, "h"), (5, "w")))
    total = te.compute((1,), lambda _: te.sum_of(x[n, h, w] * scale[w], (n, h, w)), "s")
    (op,) = rows_in_memory(Group((x, scale), (total,), None, {}, Knobs())).reductions
    assert len(op.reduce_axes) == 3
