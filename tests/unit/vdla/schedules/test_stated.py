"""What operators state of an element, with constants decided."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import const
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import i32
from mlc.vdla.codegen.epilogue import read_epilogue
from mlc.vdla.isa.instruction import AluOp
from mlc.vdla.schedules.stated import stated

X = te.placeholder((8,), i32, "x")


def test_what_constants_decide_is_no_question() -> None:
    assert repr(stated("round_shift", X[3], const(0, i32))) == "x[3]"
    assert repr(stated("round_shift", X[3], const(5, i32))) == "(x[3] >> 5) + ((x[3] >> 4) & 1)"


def test_operands_may_be_expressions_and_the_same_twice() -> None:
    twice = stated("add", X[0] * 3, X[0] * 3)
    assert repr(twice) == "(x[0] * 3) + (x[0] * 3)"


@pytest.mark.parametrize("places", [1, 7, 31])
def test_a_shift_is_recognised_whatever_its_places(places: int) -> None:
    (op,) = read_epilogue(stated("round_shift", X[0], const(places, i32))).operations
    assert (op.op, op.immediate) == (AluOp.RSHR, places)


def test_results_are_the_operators() -> None:
    values = np.array([-(2**31), -9, -8, -1, 0, 7, 8, 2**31 - 1], np.int32)
    y = te.compute((8,), lambda i: stated("clip", stated("round_shift", X[i], const(4, i32)), lo=-128, hi=127), "y")
    (found,) = run_tensors([y], {X: values})
    assert found.tolist() == [-128, -1, 0, 0, 0, 0, 1, 127]
