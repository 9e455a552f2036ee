"""Whole programs as text: ``asm(disasm(b)) == b``, and what a text may not say."""

from __future__ import annotations

import pytest
from hypothesis import given

from mlc.errors import ProgramError
from mlc.vdla.assembly import assemble, disassemble
from mlc.vdla.config import PROFILES
from mlc.vdla.isa import Load, Mem, pack_uop
from mlc.vdla.program import BufferSpec, Program
from tests.fuzz import examples
from tests.unit.vdla.strategies import programs


@examples(100)
@given(programs())
def test_assembling_a_listing_gives_the_same_bytes(program: Program) -> None:
    data = program.to_bytes()
    assert assemble(disassemble(Program.from_bytes(data))).to_bytes() == data


def test_a_listing_reads_as_specified() -> None:
    config = PROFILES["full"]
    program = Program(
        config,
        [Load(Mem.INP, 64, 128, 16, 14, 56, 1, 0, 1, 0, pop_next=True, push_next=True)],
        pack_uop([0, 1], 0, 0, [1, 0], config),
        b"\1\2\3",
        [BufferSpec("x", "in", 4096), BufferSpec("w", "const", 2, 64, 1), BufferSpec("u", "uop", 8)],
        {0: 0},
        {"layers": []},
    )
    assert disassemble(program) == (
        ".config full\n"
        '.meta {"layers": []}\n'
        ".buffer x in 4096 align=256\n"
        ".buffer w const 2 align=64 offset=1\n"
        ".buffer u uop 8 align=256\n"
        ".const 0: 010203\n"
        ".uop 0: 0,0,0 f\n"
        ".uop 1: 1,0,0\n"
        "0000 LD.INP s=64 d=@x+128 y=16 x=14 st=56 pad=1,0,1,0 {<n >n}\n"
    )


def test_text_may_have_comments_and_differences_from_a_profile() -> None:
    program = assemble(
        "# by hand\n\n.config osdi18 dram_latency=60 ext_alu=true  # a slow board\nFINISH # that is all\n"
    )
    assert program.config.dram_latency == 60
    assert program.config.ext_alu
    assert len(program.instructions) == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("FINISH", "no .config line"),
        (".config", "line 1: no profile is called ''"),
        (".config full dram=1", "line 1: the accelerator has no field 'dram'"),
        (".config full\n.config full", "line 2: .config is given twice"),
        (".config full\n.meta {\n", "line 2: .meta is not JSON"),
        (".config full\n.meta [1]\n", "line 2: .meta is not a JSON object"),
        (".config full\n.meta {}\n.meta {}\n", "line 3: .meta is given twice"),
        (".config full\n.buffer x in\n", "line 2: expected .buffer NAME KIND BYTES"),
        (".config full\n.buffer x inout 1\n", "line 2: no kind of buffer is called 'inout'"),
        (".config full\n.buffer x in 1 at=1\n", "line 2: .buffer has no 'at'"),
        (".config full\n.buffer x in 1\n.buffer x in 1\n", "line 3: buffer 'x' is declared twice"),
        (".config full\n.buffer x in 0\n", "buffer 'x': sizes are positive"),
        (".config full\n.const 1: 00\n", "line 2: expected .const 0: next"),
        (".config full\n.const 0: 0\n", "line 2: .const expects pairs"),
        (".config full\n.uop 0: 0,0\n", "line 2: expected .uop N: dst,src,wgt"),
        (".config full\n.uop 0: 2048,0,0\n", "a micro-op's dst is 2048"),
        (".config full\n.org 5\n", "line 2: no directive is called '.org'"),
        (".config full\nLD.INP s=0 d=@x+0 y=1 x=1 st=1\n", "line 2: no buffer is called 'x'"),
        (".config full\nLD.OUT s=0 d=0 y=1 x=1 st=1\n", r"instruction 0 \(LOAD\): this memory cannot be loaded"),
    ],
)
def test_texts_that_are_not_programs(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        assemble(text)
