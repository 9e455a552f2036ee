"""Instructions as text: the specification's examples, round trips, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ProgramError
from mlc.vdla.config import PROFILES
from mlc.vdla.isa import Alu, AluOp, Finish, Gemm, GemmMode, Instruction, Load, Mem, Store, decode, encode
from mlc.vdla.isa.text import format_instruction, parse_instruction
from tests.fuzz import examples
from tests.unit.vdla.strategies import CONFIGS, instructions

EXAMPLES: list[tuple[str, Instruction, str | None]] = [
    (
        "LD.INP s=64 d=@x+128 y=16 x=14 st=56 pad=1,0,1,0 {<n >n}",
        Load(Mem.INP, 64, 128, 16, 14, 56, 1, 0, 1, 0, pop_next=True, push_next=True),
        "x",
    ),
    (
        "GEMM.SET u=0:18 o=14 i=2 dst=14,1 src=16,1 wgt=0,9 {<p >p >n}",
        Gemm(GemmMode.SET, 0, 18, 14, 2, 14, 1, 16, 1, 0, 9, pop_prev=True, push_prev=True, push_next=True),
        None,
    ),
    (
        "ST.OUT s=0 d=@y+0 y=1 x=64 st=64 sh=7 relu {<p >p}",
        Store(Mem.OUT, 0, 0, 1, 64, 64, 7, True, pop_prev=True, push_prev=True),
        "y",
    ),
    ("ALU.ADDI u=0:1 o=1 i=1 dst=0,0 src=0,0 imm=-3", Alu(AluOp.ADD, True, -3, 0, 1, 1, 1, 0, 0, 0, 0), None),
    ("ALU.MULH u=0:1 o=1 i=1 dst=0,0 src=0,0", Alu(AluOp.MULH, False, 0, 0, 1, 1, 1, 0, 0, 0, 0), None),
    ("FINISH {<n}", Finish(pop_next=True), None),
]


@pytest.mark.parametrize("text, instruction, buffer", EXAMPLES)
def test_text_of_the_specification(text: str, instruction: Instruction, buffer: str | None) -> None:
    assert format_instruction(instruction, buffer) == text
    assert parse_instruction(text) == (instruction, buffer)
    assert parse_instruction(f"  0012 {text}  ") == (instruction, buffer)


@examples(200)
@given(st.data())
def test_words_and_text_read_back(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(CONFIGS))
    instruction = data.draw(instructions(config))
    assert decode(encode([instruction], config), config) == [instruction]
    assert parse_instruction(format_instruction(instruction)) == (instruction, None)
    if isinstance(instruction, Load | Store):
        assert parse_instruction(format_instruction(instruction, "b+1")) == (instruction, "b+1")


def test_numbers_may_be_hexadecimal() -> None:
    instruction, _ = parse_instruction("ST.ACC s=0x10 d=0xFF y=1 x=1 st=1")
    assert instruction == Store(Mem.ACC, 16, 255, 1, 1, 1)


@pytest.mark.parametrize(
    "line, message",
    [
        ("load something", "is not an instruction"),
        ("FINISH {<n} FINISH", "is not an instruction"),
        ("LD.NONE s=0", "no instruction is called 'LD.NONE'; expected one of ALU.ADD, ALU.ADDI"),
        ("LD.INP s=0 s=1", "'s' is given twice"),
        ("LD.INP s=0 d=0 y=1 x=1", "LD.INP needs st="),
        ("LD.INP s=0 d=@x+a y=1 x=1 st=1", "d=@x.a: '@x.a' is not a number"),
        ("LD.INP s=0 d=0 y=1 x=1 st=1 pad=1,2", "expected pad=pad_top,pad_bottom,pad_left,pad_right"),
        ("LD.INP s=0 d=0 y=1 x=1 st=1 o=1", "LD.INP has no 'o'"),
        ("LD.INP s=0 d=0 y=1 x=1 st=1 {<q}", "'<q' is no token flag"),
        ("LD.INP s=0 d=0 y=1 x=1 st=1 {<n <n}", "'<n' is no token flag or there twice"),
        ("ST.OUT s=0 d=0 y=1 x=1 st=1 relu=1", "'relu' takes no value"),
        ("ALU.ADDI u=0:1 o=1 i=1 dst=0,0 src=0,0", "ALU.ADDI needs imm="),
        ("GEMM.ACC u=0,1 o=1 i=1 dst=0,0 src=0,0 wgt=0,0", "expected u=uop_bgn:uop_end"),
    ],
)
def test_lines_that_are_not_instructions(line: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        parse_instruction(line)


def test_values_are_checked_when_encoded() -> None:
    instruction, _ = parse_instruction("LD.INP s=70000 d=0 y=1 x=1 st=1")
    with pytest.raises(ProgramError, match="sram_base is 70000"):
        encode([instruction], PROFILES["full"])
