from __future__ import annotations

import pytest

from mlc.errors import ScheduleError
from mlc.ir.expr import Expr, Load, binary, call, cast, const
from mlc.ir.index import ZERO
from mlc.ir.loop import Buffer
from mlc.ir.types import f32, i8, i32
from mlc.vdla.codegen.epilogue import Epilogue, read_epilogue
from mlc.vdla.isa import AluOp
from tests.unit.vdla.codegen.layers import rounded

ACC, OTHER, SHIFTS = (Load(Buffer(n, (16,), i32, "vdla.acc"), (ZERO,)) for n in ("acc", "other", "shifts"))


def clamped(e: Expr, swapped: bool = False) -> Expr:
    low, high = ("min", "max") if swapped else ("max", "min")
    return cast(binary(high, binary(low, e, 127 if swapped else -128), -128 if swapped else 127), i8)


def words(found: Epilogue) -> list[str]:
    return [
        f"{o.target.source.name} {o.op.name} {o.immediate if o.source is None else o.source.source.name}"
        for o in found.operations
    ]


def test_a_bare_load() -> None:
    found = read_epilogue(ACC)
    assert (found.root, found.operations, found.narrow) == (ACC, [], False)


@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_store_does_itself_needs_no_operation(swapped: bool) -> None:
    found = read_epilogue(clamped(rounded(binary("max", ACC, 0), 7), swapped))
    assert (found.operations, found.narrow, found.shift, found.relu) == ([], True, 7, True)


def test_relu_after_the_shift_is_the_same() -> None:
    found = read_epilogue(clamped(binary("max", rounded(ACC, 7), 0)))
    assert (found.operations, found.shift, found.relu) == ([], 7, True)


def test_a_relu_that_more_is_added_to_stays() -> None:
    found = read_epilogue(clamped(rounded(binary("max", ACC, 0) + OTHER, 7)))
    assert words(found) == ["acc MAX 0", "acc ADD other"]
    assert not found.relu


def test_operations_in_order() -> None:
    e = binary("min", binary("max", ACC + binary("shl", OTHER, 3) + 5, 0), 900)
    found = read_epilogue(clamped(rounded(e, SHIFTS)))
    assert words(found) == [
        "other SHR -3", "acc ADD other", "acc ADD 5", "acc MIN 900", "acc RSHR shifts",
    ]  # fmt: skip
    assert (found.shift, found.relu) == (0, True)


def test_arithmetic_without_a_narrow_end() -> None:
    e = binary("mul", binary("shr", ACC - 4, 2), OTHER)
    assert words(read_epilogue(e)) == ["acc ADD -4", "acc SHR 2", "acc MUL other"]
    assert [o.op for o in read_epilogue(rounded(ACC, 2)).operations] == [AluOp.RSHR]


@pytest.mark.parametrize(
    ("e", "says"),
    [
        (cast(ACC, i8), r"only what is clamped to \[-128, 127\] is narrowed"),
        (cast(binary("min", binary("max", ACC, -127), 127), i8), "only what is clamped"),
        (cast(ACC, f32), "accumulators are i32, this is f32"),
        (call("neg", ACC), "no such operation"),
        (binary("xor", ACC, OTHER), "no such operation"),
        (ACC + (1 << 20), "ADD by 1048576: constants of instructions have 16 bits"),
        (const(3, i32), "no such operation"),
    ],
)
def test_refused(e: Expr, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        read_epilogue(e)
