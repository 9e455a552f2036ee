"""Instructions and words: positions of fields, round trips, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.errors import ProgramError
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    GemmMode,
    Instruction,
    Load,
    Mem,
    Store,
    Unit,
    decode,
    encode,
    is_nop,
    nop,
    pack_uop,
    unpack_uop,
)

FULL = PROFILES["full"]


def test_words_have_the_fields_where_the_specification_puts_them() -> None:
    load = Load(Mem.INP, 0x1234, 0x89ABCDEF, 7, 9, 11, 1, 2, 3, 4, pop_next=True)
    store = Store(Mem.OUT, 5, 6, 7, 8, 9, 10, True, pop_prev=True, push_prev=True)
    gemm = Gemm(GemmMode.SET, 3, 21, 14, 2, 15, 1, 16, 17, 18, 19, push_prev=True, push_next=True)
    alu = Alu(AluOp.RSHR, True, -2, 1, 2, 3, 4, 5, 6, 7, 8)
    expected = [
        (0 | 1 << 4 | 2 << 7 | 0x1234 << 10 | 0x89ABCDEF << 26, 7 | 9 << 16 | 11 << 32 | 0x4321 << 48),
        (1 | 1 << 3 | 1 << 5 | 4 << 7 | 5 << 10 | 6 << 26 | 10 << 58 | 1 << 63, 7 | 8 << 16 | 9 << 32),
        (
            2 | 1 << 5 | 1 << 6 | 2 << 7 | 3 << 9 | 21 << 22 | 14 << 36 | 2 << 50,
            15 | 1 << 11 | 16 << 22 | 17 << 33 | 18 << 44 | 19 << 51,
        ),
        (
            4 | 1 << 9 | 2 << 22 | 3 << 36 | 4 << 50,
            5 | 6 << 11 | 7 << 22 | 8 << 33 | 5 << 44 | 1 << 47 | 0xFFFE << 48,
        ),
        (3 | 1 << 4, 0),
    ]
    stream: list[Instruction] = [load, store, gemm, alu, Finish(pop_next=True)]
    words = encode(stream, FULL)
    assert words.tolist() == [list(pair) for pair in expected]
    assert decode(words, FULL) == stream


def test_micro_ops_have_the_fields_where_the_specification_puts_them() -> None:
    words = pack_uop([1, 2047], 3, [5, 127], [1, 0], FULL)
    assert words.tolist() == [1 | 3 << 11 | 5 << 22 | 1 << 29, 2047 | 3 << 11 | 127 << 22]
    assert [field.tolist() for field in unpack_uop(words, FULL)] == [[1, 2047], [3, 3], [5, 127], [1, 0]]


def test_widths_follow_the_memories() -> None:
    wide = VdlaConfig(wgt_bytes=256 * 1024)
    gemm = Gemm(GemmMode.ACC, 0, 1, 1, 1, 0, 0, 0, 0, 1023, 1022)
    assert decode(encode([gemm], wide), wide) == [gemm]
    with pytest.raises(ProgramError, match=r"instruction 0 \(GEMM\): wgt_out is 1023; expected 0 to 127"):
        encode([gemm], FULL)


def test_memories_of_any_depth_that_fits() -> None:
    deep = VdlaConfig(inp_bytes=64 * 1024, acc_bytes=256 * 1024, ext_gemm_set=True)
    gemm = Gemm(GemmMode.ACC, 0, 1, 1, 1, 4095, 4094, 4093, 4092, 127, 126)
    assert decode(encode([gemm], deep), deep) == [gemm]
    with pytest.raises(ProgramError, match=r"instruction 1 \(ALU\): the configuration lacks ext_alu"):
        decode(np.array([[3, 0], [4, 0]], np.uint64), deep)
    alu = Alu(AluOp.ADD, False, 0, 0, 1, 1, 1, 2047, 2046, 2045, 2044)
    full = VdlaConfig(inp_bytes=64 * 1024, ext_alu=True)
    assert decode(encode([alu], full), full) == [alu]


@pytest.mark.parametrize("unit", list(Unit))
def test_a_nop_runs_on_its_unit(unit: Unit) -> None:
    assert is_nop(nop(unit))
    assert nop(unit).unit is unit


def load(mem: Mem = Mem.INP, **fields: Any) -> Load:
    return Load(**{"mem": mem, "sram_base": 0, "dram_base": 0, "y_size": 1, "x_size": 1, "x_stride": 1, **fields})


def gemm(**fields: Any) -> Gemm:
    loops = dict.fromkeys(("dst_out", "dst_in", "src_out", "src_in", "wgt_out", "wgt_in"), 0)
    return Gemm(**{"mode": GemmMode.ACC, "uop_bgn": 0, "uop_end": 1, "iter_out": 1, "iter_in": 1, **loops, **fields})


@pytest.mark.parametrize(
    "instruction, profile, message",
    [
        (load(sram_base=1 << 16), "full", "sram_base is 65536; expected 0 to 65535"),
        (load(dram_base=-1), "full", "dram_base is -1"),
        (load(Mem.OUT), "full", "this memory cannot be loaded"),
        (load(7), "full", "mem is 7; expected one of 0 UOP, 1 WGT"),
        (load(Mem.ACC8), "osdi18_i8", "lacks the extension for this memory"),
        (load(Mem.WGT, pad_left=1), "full", "without padding"),
        (load(x_size=0, pad_top=1), "full", "a transfer of nothing has no padding"),
        (load(push_prev=True), "full", "LD has no previous unit"),
        (Store(Mem.INP, 0, 0, 1, 1, 1), "full", "this memory cannot be stored"),
        (Store(Mem.OUT, 0, 0, 1, 1, 1), "osdi18", "lacks the extension for this memory"),
        (Store(Mem.ACC, 0, 0, 1, 1, 1, shift=1), "full", "only a store of OUT has a shift"),
        (Store(Mem.ACC, 0, 0, 1, 1, 1, pop_next=True), "full", "ST has no next unit"),
        (gemm(mode=GemmMode.SET), "osdi18", "lacks ext_gemm_set"),
        (gemm(mode=3), "full", "mode is 3; expected one of 0 ACC, 1 ZERO, 2 SET"),
        (gemm(uop_bgn=2), "full", "end before they begin"),
        (gemm(uop_end=8193), "full", "end beyond their buffer"),
        (gemm(iter_in=1 << 70), "full", "a field of GEMM is not a number"),
        (Alu(AluOp.ADD, False, 0, 0, 1, 1, 1, 0, 0, 0, 0), "osdi18_i8", "lacks ext_alu"),
        (Alu(AluOp.ADD, False, 5, 0, 1, 1, 1, 0, 0, 0, 0), "full", "an immediate that is not used must be 0"),
        (Alu(AluOp.ADD, True, 1 << 15, 0, 1, 1, 1, 0, 0, 0, 0), "full", "imm is 32768; expected -32768 to 32767"),
        ("text", "full", "not an instruction"),
    ],
)
def test_illegal_instructions_are_not_encoded(instruction: Any, profile: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        encode([Finish(), instruction], PROFILES[profile])


@pytest.mark.parametrize(
    "low, high, message",
    [
        (5, 0, "instruction 0: opcode 5 is unknown"),
        (3, 1, r"instruction 0 \(FINISH\): a reserved bit is set"),
        (1 << 58, 0, r"\(LOAD\): a reserved bit is set"),
        (2, 1 << 58, r"\(GEMM\): a reserved bit is set"),
        (2 | 3 << 7, 0, "mode is 3"),
        (4 | 1 << 7, 0, r"\(ALU\): a reserved bit is set"),
        (4, 7 << 44, "op is 7"),
        (6 << 7, 0, "mem is 6"),
    ],
)
def test_illegal_words_are_not_decoded(low: int, high: int, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        decode(np.array([[low, high], [7, 0]], np.uint64), FULL)


def test_the_first_fault_of_a_stream_is_reported() -> None:
    with pytest.raises(ProgramError, match=r"instruction 1 \(GEMM\)"):
        encode([Finish(), gemm(mode=9), load(Mem.OUT)], FULL)


@pytest.mark.parametrize("fields", [(2048, 0, 0, 0), (0, -1, 0, 0), (0, 0, 128, 0), (0, 0, 0, 2)])
def test_micro_ops_that_do_not_fit_are_refused(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ProgramError, match="a micro-op's"):
        pack_uop(*fields, FULL)


def test_the_first_bit_is_reserved_where_nothing_reads_it() -> None:
    with pytest.raises(ProgramError, match="first is 1"):
        pack_uop(0, 0, 0, 1, PROFILES["osdi18"])
    with pytest.raises(ProgramError, match="micro-op 1 has a reserved bit set"):
        unpack_uop([0, 1 << 29], PROFILES["osdi18"])
