"""What GEMM and ALU touch, against their loops run one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.vdla.check.access import accesses
from mlc.vdla.check.places import nth, read
from mlc.vdla.config import PROFILES
from mlc.vdla.isa import Alu, AluOp, Gemm, GemmMode, pack_uop
from tests.fuzz import examples

# Small memories, so that indices repeat and reach the end.
CONFIG = replace(PROFILES["full"], inp_bytes=20 * 16, wgt_bytes=12 * 256, acc_bytes=16 * 64)

few, factor = st.integers(0, 3), st.integers(0, 4)
micro_ops = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.integers(0, 1)), max_size=4)


def listed(found) -> set[tuple[str, int]]:
    return {
        (memory, nth(places, position))
        for memory, places in found
        for position in range(read(np.zeros(64, np.int32), places).size)
    }


@examples(300)
@given(st.sampled_from(GemmMode), micro_ops, few, few, st.lists(factor, min_size=6, max_size=6))
def test_gemm_touches_what_its_loops_touch(mode, uops, iter_out, iter_in, factors) -> None:
    gemm = Gemm(mode, 0, len(uops), iter_out, iter_in, *factors)
    reads, writes = set(), set()
    beyond = False
    for i, j, (dst, src, wgt, first) in product(range(iter_out), range(iter_in), uops):
        d = dst + i * gemm.dst_out + j * gemm.dst_in
        s = src + i * gemm.src_out + j * gemm.src_in
        w = wgt + i * gemm.wgt_out + j * gemm.wgt_in
        beyond |= d >= 16
        if mode is not GemmMode.ZERO:
            reads |= {("inp", s), ("wgt", w)}
            beyond |= s >= 20 or w >= 12
        if ("acc", d) not in writes and (mode is GemmMode.ACC or (mode is GemmMode.SET and not (first and i == 0))):
            reads.add(("acc", d))
        writes.add(("acc", d))
    plan = accesses(gemm, pack_uop(*np.array(uops, np.int64).reshape(-1, 4).T, config=CONFIG), CONFIG)
    assert bool(plan.beyond) == beyond
    assume(not beyond)
    assert listed(plan.reads) == reads
    assert listed(plan.writes) == writes


@examples(200)
@given(st.booleans(), micro_ops, few, few, st.lists(factor, min_size=4, max_size=4))
def test_alu_touches_what_its_loops_touch(use_imm, uops, iter_out, iter_in, factors) -> None:
    alu = Alu(AluOp.ADD, use_imm, 0, 0, len(uops), iter_out, iter_in, *factors)
    dsts, srcs = set(), set()
    for i, j, (dst, src, _, _) in product(range(iter_out), range(iter_in), uops):
        dsts.add(("acc", dst + i * alu.dst_out + j * alu.dst_in))
        srcs.add(("acc", src + i * alu.src_out + j * alu.src_in))
    plan = accesses(alu, pack_uop(*np.array(uops, np.int64).reshape(-1, 4).T, config=CONFIG), CONFIG)
    beyond = any(index >= 16 for _, index in (dsts if use_imm else dsts | srcs))
    assert bool(plan.beyond) == beyond
    assume(not beyond)
    assert listed(plan.reads) == (dsts if use_imm else dsts | srcs)
    assert listed(plan.writes) == dsts


def test_what_leaves_a_memory_is_named() -> None:
    gemm = Gemm(GemmMode.ACC, 0, 1, 4, 1, 0, 0, 0, 0, 4, 0)
    assert accesses(gemm, pack_uop(0, 0, [3], 0, CONFIG), CONFIG).beyond == "wgt[15] of 12 elements"


@pytest.mark.parametrize("mode", list(GemmMode))
def test_the_widest_loops_take_no_time(mode: GemmMode) -> None:
    gemm = Gemm(mode, 0, 8192, 16383, 16383, 0, 0, 0, 0, 0, 0)
    plan = accesses(gemm, pack_uop(np.arange(8192) % 16, 0, 0, 1, CONFIG), CONFIG)
    assert listed(plan.writes) == {("acc", d) for d in range(16)}
