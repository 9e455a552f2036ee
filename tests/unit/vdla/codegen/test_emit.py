from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.expr import Load
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, Stmt, Store, seq
from mlc.ir.types import i8, i32
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.intrinsics import ACC, INP, WGT
from mlc.vdla.isa import Alu, AluOp, Gemm, GemmMode
from mlc.vdla.program import Program
from tests.fuzz import examples
from tests.unit.vdla.codegen.layers import Conv, Finish, executed, finished, plain, program_of

CONVOLUTIONS = {
    "1x1": Conv(),
    "1x1, several tiles": Conv(c=4, o=6, tile=(2, 4, 8, 2)),
    "1x1, stride 2": Conv(c=2, o=2, h=9, w=9, stride=2, tile=(2, 3, 5, 2)),
    "3x3": Conv(c=2, o=2, window=3, pad=1, tile=(1, 4, 8, 1)),
    "3x3, stride 2, ragged": Conv(c=3, o=3, h=14, w=13, window=3, stride=2, pad=1, tile=(2, 3, 7, 2)),
    "3x3, dilated": Conv(c=1, o=2, h=10, w=9, window=3, dilation=2, pad=2, tile=(2, 4, 4, 1)),
    "3x3, columns in ragged tiles": Conv(c=2, o=1, h=7, w=11, window=3, pad=1, tile=(1, 3, 4, 2)),
    "5x5, more border than data": Conv(h=4, w=3, window=5, pad=4, tile=(1, 2, 3, 1)),
    "7x7, stride 2": Conv(h=15, w=15, window=7, stride=2, pad=3, tile=(1, 4, 8, 1)),
    "one place a buffer": Conv(c=4, o=4, tile=(2, 2, 8, 2), slots={INP: 1, WGT: 1, ACC: 1}),
    "two places a buffer": Conv(c=4, o=4, tile=(2, 2, 8, 2), slots={INP: 2, WGT: 2, ACC: 2}),
    "any place": Conv(c=4, o=4, tile=(2, 2, 8, 2), slots={}),
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sums_of_convolutions(name: str, profile: str) -> None:
    conv, config = CONVOLUTIONS[name], PROFILES[profile]
    x, w = conv.arrays()
    program = program_of(plain(conv, config), config, {1: w}, conv.slots)
    result, _ = executed(program, {"data": x}, (conv.o, *conv.space, 16), i32, "sums")
    np.testing.assert_array_equal(result, conv.sums())


def narrowed(conv: Conv, finish: Finish, config: VdlaConfig) -> Program:
    """Compile a layer, check it, run it, compare it."""
    fn, known = finished(conv, finish, config)
    program = program_of(fn, config, known, conv.slots)
    arrays = {"data": conv.arrays()[0]}
    if finish.residual:
        arrays["other"] = finish.other(conv)
    result, _ = executed(program, arrays, (conv.o, *conv.space, 16), i8, "out")
    np.testing.assert_array_equal(result, finish.result(conv))
    return program


FINISHES = {
    "shift": Finish(shift=9),
    "no shift": Finish(shift=0),
    "relu": Finish(relu=True),
    "residual": Finish(residual=True, shift=8),
    "residual moved up, relu": Finish(residual=True, up=5, relu=True, shift=9),
}
WITH_ALU = {
    "bias": Finish(bias=True, shift=10),
    "a shift a channel": Finish(shifts=True),
    "everything": Finish(bias=True, shifts=True, residual=True, up=6, relu=True, most=30000),
    "a residual that the product is added to": Finish(residual=True, up=9, ahead=True, shift=11),
    "clipped above": Finish(relu=True, most=3000, shift=5),
}
LAYERS = [(p, n) for p in ("osdi18_i8", "full") for n in FINISHES] + [("full", n) for n in WITH_ALU]


@pytest.mark.parametrize(("profile", "name"), LAYERS)
def test_layers_stored_as_i8(profile: str, name: str) -> None:
    conv = Conv(c=2, o=3, h=6, w=7, window=3, pad=1, tile=(2, 4, 7, 1))
    narrowed(conv, {**FINISHES, **WITH_ALU}[name], PROFILES[profile])


def test_a_product_is_added_to_what_was_loaded() -> None:
    conv = Conv(c=2, o=2, h=4, w=8, window=3, pad=1, tile=(2, 4, 8, 2))
    finish = Finish(residual=True, up=9, ahead=True, shift=11)
    program = narrowed(conv, finish, PROFILES["full"])
    assert [(x.op, x.imm) for x in program.instructions if isinstance(x, Alu)] == [(AluOp.SHR, -9)]
    assert {x.mode for x in program.instructions if isinstance(x, Gemm)} == {GemmMode.ACC}


def test_sums_start_in_the_first_product() -> None:
    program = narrowed(Conv(c=4, tile=(1, 8, 8, 1)), Finish(), PROFILES["full"])
    assert [x.mode for x in program.instructions if isinstance(x, Gemm)] == [GemmMode.SET, *[GemmMode.ACC] * 3]


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    """Any small convolution, in tiles that need not divide it, with any number of places for each buffer."""
    window, dilation = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 2))
    reach = dilation * (window - 1) + 1
    pad = draw(st.integers(0, reach - 1))
    least = max(1, reach - 2 * pad)
    conv = Conv(
        draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(least, 9)), draw(st.integers(least, 9)),
        window, draw(st.integers(1, 3)), dilation, pad,
        seed=draw(st.integers(0, 9)),
        slots={scope: n for scope in (INP, WGT, ACC) if (n := draw(st.integers(0, 3)))},
    )  # fmt: skip
    extents = (conv.o, *conv.space, conv.c)
    a, b, c, d = (draw(st.integers(1, n)) for n in extents)
    return replace(conv, tile=(a, b, c, d))


@examples(40)
@given(convolutions(), st.sampled_from(list(PROFILES)))
def test_any_convolution_in_any_tiles(conv: Conv, profile: str) -> None:
    config = PROFILES[profile]
    x, w = conv.arrays()
    program = program_of(plain(conv, config), config, {1: w}, conv.slots)
    result, _ = executed(program, {"data": x}, (conv.o, *conv.space, 16), i32, "sums")
    np.testing.assert_array_equal(result, conv.sums())


def run_function(body: Stmt, params: Sequence[Buffer], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The last parameter after a kernel over 20 accumulators, int32."""
    fn = Function("f", tuple(params), 1, body)
    program = program_of(fn, replace(PROFILES["full"], acc_bytes=20 * 64), {}, {})
    return executed(program, arrays, params[-1].shape, i32, params[-1].name)[0]


def test_a_buffer_that_is_filled_in_parts_does_not_lie_on_another() -> None:
    x, out = Buffer("x", (8, 16), i32), Buffer("out", (8, 16), i32)
    whole, part, small = (Buffer(name, (n, 16), i32, ACC) for name, n in (("whole", 8), ("part", 8), ("small", 1)))

    def rows(n: int, to: Buffer, source: Buffer, first: Linear, begin: Linear) -> Stmt:
        i, j = Var("i", 0, n - 1), Var("j", 0, 15)
        move = Store(to, (first + i, as_index(j)), Load(source, (begin + i, as_index(j))))
        return For(i, n, ForKind.SERIAL, For(j, 16, ForKind.SERIAL, move))

    zero, k = as_index(0), Var("k", 0, 1)
    # both halves of ``part`` are what the first half of ``whole`` is
    between = Allocate(small, rows(1, small, x, zero, zero))
    halves = For(k, 2, ForKind.SERIAL, seq([rows(4, part, x, as_index(k) * 4, zero), between]))
    body = Allocate(
        whole, seq([rows(8, whole, x, zero, zero), Allocate(part, halves), rows(8, out, whole, zero, zero)])
    )
    given = np.arange(128, dtype=np.int32).reshape(8, 16)
    np.testing.assert_array_equal(run_function(body, [x, out], {"x": given}), given)
