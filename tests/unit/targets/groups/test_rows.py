"""What is folded lies as what it is computed from, so that reductions see which of their axes walks memory."""

from __future__ import annotations

from mlc.ir import te
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
