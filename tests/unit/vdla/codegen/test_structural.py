"""Virtual threads on the accelerator: tokens by structure are valid, results equal, and units overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir.index import Var
from mlc.ir.interp import run_function
from mlc.ir.loop import Evaluate, For, ForKind, Function
from mlc.ir.types import i32
from mlc.lower.pipeline import lower
from mlc.lower.schedule import Schedule
from mlc.lower.tensorize import tensorize
from mlc.lower.vthread import vthread
from mlc.vdla.check import check
from mlc.vdla.codegen.assemble import Dram, Task, assemble
from mlc.vdla.codegen.constants import Constants
from mlc.vdla.codegen.emit import Emitter
from mlc.vdla.codegen.statements import Binding, emit
from mlc.vdla.codegen.structural import UNITS
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.intrinsics import ACC, INP, WGT
from mlc.vdla.program import Program
from mlc.vdla.sim import Report
from tests.fuzz import examples
from tests.unit.vdla.codegen.layers import Conv, executed, schedule_sums, sums_of, tiled

SLOTS = {ACC: 1, INP: 1, WGT: 1}  # threads bring their own


def threaded(conv: Conv, config: VdlaConfig, threads: int, *, blocks: bool = False) -> Function:
    """A convolution that stores its sums, whose tiles of rows (or of blocks of channels) threads share."""
    data, weights, pad, sums = sums_of(conv)
    s = Schedule([sums])
    acc = s.cache_write(sums, ACC)
    tiles = s.cache_read(weights, WGT, [acc])
    stage = s[sums]
    at = tiled(s, sums, conv)
    oo, yo, xo = stage.leaves[:3]
    assert xo is at
    _, thread = stage.split(oo if blocks else yo, threads)
    stage.vthread(thread)
    outer = [a for a in stage.leaves[:4] if a is not thread]
    stage.reorder(*outer, thread)
    s[acc].compute_at(stage, thread)
    schedule_sums(s, conv, acc, pad, tiles, config)
    passes = (("tensorize", tensorize), ("vthread", lambda body: vthread(body, UNITS)))
    return lower(s, [data, weights, sums], "conv", passes=passes)


def program_of(fn: Function, conv: Conv, config: VdlaConfig, *, structural: bool) -> Program:
    packed = Constants()
    emitter = Emitter(config, packed, structural=structural)
    kinds = ("in", "const", "out")
    buffers = [Dram(b.name, kind, b.nbytes) for b, kind in zip(fn.params, kinds, strict=True)]
    emit(emitter, fn, [Binding(0), Binding(1, conv.arrays()[1]), Binding(2)], SLOTS)
    return assemble(config, emitter.steps, buffers, packed, [Task(fn.name, 0, 0)], emitter.given)


def run(conv: Conv, config: VdlaConfig, threads: int, *, blocks: bool = False, structural: bool = True) -> Report:
    """Compile, check, run and compare; what the simulator says."""
    fn = threaded(conv, config, threads, blocks=blocks)
    program = program_of(fn, conv, config, structural=structural)
    result, report = executed(program, {"data": conv.arrays()[0]}, (conv.o, *conv.space, 16), i32, "sums")
    np.testing.assert_array_equal(result, conv.sums())
    return report


CONVOLUTIONS = {
    "product": Conv(c=4, o=2, h=8, w=4, tile=(1, 2, 4, 1)),
    "product, blocks of channels": Conv(c=3, o=5, h=4, w=4, tile=(1, 4, 4, 2)),
    "3x3": Conv(c=2, o=2, h=8, w=8, window=3, pad=1, tile=(1, 2, 8, 1)),
    "3x3, stride 2, ragged": Conv(c=3, o=3, h=14, w=13, window=3, stride=2, pad=1, tile=(2, 2, 7, 2)),
    "one tile for several threads": Conv(h=4, w=4, tile=(1, 4, 4, 1)),
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_streams_are_valid_and_right(name: str, profile: str, threads: int) -> None:
    run(CONVOLUTIONS[name], PROFILES[profile], threads, blocks="blocks" in name)


@given(data=st.data())
@examples(30)
def test_any_convolution(data: st.DataObject) -> None:
    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    window = data.draw(st.sampled_from([1, 2, 3]))
    conv = Conv(
        draw(1, 4), draw(1, 4), draw(4, 9), draw(4, 7), window, draw(1, 2), pad=draw(0, window // 2),
        tile=(draw(1, 2), draw(1, 4), draw(2, 7), draw(1, 2)),
    )  # fmt: skip
    config = PROFILES[data.draw(st.sampled_from(sorted(PROFILES)))]
    run(conv, config, draw(1, 3), blocks=data.draw(st.booleans()))


def test_interpreter_agrees_with_the_simulator() -> None:
    conv, config = CONVOLUTIONS["3x3"], PROFILES["full"]
    fn = threaded(conv, config, 2)
    arrays = [*conv.arrays(), np.zeros((conv.o, *conv.space, 16), np.int32)]
    run_function(fn, arrays)
    np.testing.assert_array_equal(arrays[2], conv.sums())


# loads and products take about as long
EVEN = Conv(c=8, o=2, h=16, w=14, window=3, pad=1, tile=(1, 4, 14, 1))


def test_threads_hide_latency() -> None:
    config = PROFILES["full"]
    one, two = run(EVEN, config, 1), run(EVEN, config, 2)
    assert one.total is not None
    assert two.total is not None
    assert two.total.mac_cycles == one.total.mac_cycles
    assert two.cycles < 0.75 * one.cycles


def test_exact_tokens_are_no_slower_than_structural_ones() -> None:
    config = PROFILES["full"]
    for threads in (1, 2):
        assert run(EVEN, config, threads, structural=False).cycles <= run(EVEN, config, threads).cycles


def test_a_dropped_token_is_noticed() -> None:
    conv, config = CONVOLUTIONS["product"], PROFILES["full"]
    program = program_of(threaded(conv, config, 2), conv, config, structural=True)
    for insn in program.instructions:
        for flag in ("push_prev", "push_next"):
            if getattr(insn, flag):
                setattr(insn, flag, False)
                assert check(program), f"{insn} without {flag}"
                setattr(insn, flag, True)
    assert not check(program)


def test_tokens_have_to_stand_beside_instructions() -> None:
    config, conv = PROFILES["full"], CONVOLUTIONS["product"]
    fn = threaded(conv, config, 1)
    alone = For(Var("i", 0, 1), 2, ForKind.SERIAL, Evaluate("push", ("ld", "cmp")))
    with pytest.raises(ScheduleError, match="a token alone in a loop"):
        program_of(Function("f", fn.params, 1, alone), conv, config, structural=True)
    far = Evaluate("push", ("ld", "st"))
    with pytest.raises(ScheduleError, match="there is no queue between these units"):
        program_of(Function("f", fn.params, 1, far), conv, config, structural=True)
