"""Program files: they read back, equal programs are equal bytes, and nothing damaged or foreign is accepted."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ExitCode, ProgramError
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Finish, Load, Mem, Store, pack_uop
from mlc.vdla.program import BufferSpec, Program, legal_names
from tests.fuzz import examples
from tests.unit.vdla.strategies import programs

FULL = PROFILES["full"]


def sample() -> Program:
    return Program(
        FULL,
        [
            Load(Mem.UOP, 0, 0, 1, 2, 2),
            Load(Mem.INP, 0, 4, 1, 8, 8, push_next=True),
            Store(Mem.ACC, 0, 1, 1, 4, 4, push_prev=True),
            Finish(pop_prev=True, pop_next=True),
        ],
        pack_uop([0, 1], 0, 0, 1, FULL),
        bytes(range(16)),
        [
            BufferSpec("x", "in", 300),
            BufferSpec("u", "uop", 8),
            BufferSpec("w", "const", 8, 16, 8),
            BufferSpec("y", "out", 512),
        ],
        {0: 1, 1: 0, 2: 3},
        {"layers": ["a"]},
    )


def sealed(data: bytearray) -> bytes:
    """A file whose CRC is right again after an edit."""
    struct.pack_into("<I", data, 16, 0)
    struct.pack_into("<I", data, 16, zlib.crc32(data))
    return bytes(data)


def find(data: bytes, part: bytes) -> tuple[int, int]:
    """Where some bytes are in a file."""
    return data.index(part), data.index(part) + len(part)


def section(data: bytes, index: int) -> tuple[int, int]:
    """Where a section lies and its size."""
    offset, size = struct.unpack_from("<QQ", data, 20 + 24 * index + 8)
    return offset, size


@examples(100)
@given(programs())
def test_a_file_reads_back(program: Program) -> None:
    data = program.to_bytes()
    assert Program.from_bytes(data) == program
    assert Program.from_bytes(data, program.config) == program


@examples(200)
@given(st.data())
def test_an_altered_file_is_refused_or_is_the_file_of_what_was_read(data: st.DataObject) -> None:
    whole = bytearray(sample().to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    altered = sealed(whole)
    try:
        program = Program.from_bytes(altered)
    except ProgramError:
        return
    assert program.to_bytes() == altered


def test_any_flipped_bit_is_noticed() -> None:
    data = sample().to_bytes()
    for at in range(0, len(data)):
        with pytest.raises(ProgramError):
            Program.from_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])


def test_any_truncation_is_noticed() -> None:
    data = sample().to_bytes()
    for size in range(len(data)):
        with pytest.raises(ProgramError):
            Program.from_bytes(data[:size])
        with pytest.raises(ProgramError):
            Program.from_bytes(sealed(bytearray(data[:size].ljust(20, b"\0"))))


def test_another_configuration_is_refused_with_both_hashes() -> None:
    with pytest.raises(ProgramError, match=f"for configuration {FULL.hash:016x}, not for") as caught:
        Program.from_bytes(sample().to_bytes(), PROFILES["osdi18"])
    assert caught.value.exit_code is ExitCode.BAD_MODEL


def test_times_are_no_part_of_what_a_program_is_for() -> None:
    slow = VdlaConfig(ext_alu=True, ext_store_requant=True, ext_gemm_set=True, dram_latency=100)
    assert Program.from_bytes(sample().to_bytes(), slow).config.dram_latency == 100


def test_the_configuration_in_the_file_must_be_the_one_of_its_hash() -> None:
    data = bytearray(sample().to_bytes())
    data[8] ^= 1
    with pytest.raises(ProgramError, match="the program is for configuration"):
        Program.from_bytes(sealed(data))


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda d: d.__setitem__(0, 65), "does not begin with 'VDLA'"),
        (lambda d: d.__setitem__(4, 9), "format version 9; this is version 1"),
        (lambda d: d.__setitem__(6, 5), "has 5 sections; expected 6"),
        (lambda d: d.__setitem__(slice(20, 24), b"NEWS"), "section 0 is b'NEWS'; expected INSN"),
        (lambda d: d.__setitem__(28, d[28] + 16), "section INSN does not follow the one before it"),
        (lambda d: d.__setitem__(38, 1), "section INSN is cut off"),
        (lambda d: d.__delitem__(slice(100, None)), "the table of sections is cut off"),
        (lambda d: d.__setitem__(20 + 24 * 3 + 16, 110), "section BUFS is cut off"),
        (lambda d: d.__setitem__(section(d, 3)[0] + 75 + 2, 5), "section BUFS is cut off"),
        (lambda d: d.__setitem__(20 + 24 * 4 + 16, 35), "section RELO has 35 bytes, no multiple of 12"),
        (lambda d: d.__setitem__(20 + 24 * 1 + 16, 10), "section UOPS has 10 bytes, no multiple of 4"),
        (lambda d: d.extend(b"\0" * 16), "something follows the last section"),
        (lambda d: d.__setitem__(section(d, 0)[0], 5), "instruction 0: opcode 5 is unknown"),
        (
            lambda d: d.__setitem__(section(d, 0)[0] + 16 * 3 + 15, 1),
            r"instruction 3 \(FINISH\): a reserved bit is set",
        ),
        (lambda d: d.__setitem__(section(d, 1)[0] + 3, 255), "micro-op 0 has a reserved bit set"),
        (lambda d: d.__setitem__(section(d, 3)[0], 9), "BUFS: entry 0 is malformed"),
        (lambda d: d.__setitem__(section(d, 3)[0] + 24, 255), "BUFS: the name of entry 0 is not UTF-8"),
        (lambda d: d.__setitem__(section(d, 3)[0] + 24, ord("u")), "names are unique and printable"),
        (lambda d: d.__setitem__(section(d, 4)[0], 3), "RELO names instruction 3, which is no load or store"),
        (lambda d: d.__setitem__(section(d, 4)[0], 1), "RELO: the entry for instruction 1 is malformed"),
        (lambda d: d.__setitem__(section(d, 4)[0] + 4, 9), "relocated to buffer 9 of 4"),
        (lambda d: d.__setitem__(section(d, 4)[0] + 11, 255), "its offset in 'u' is not legal"),
        (lambda d: d.__setitem__(section(d, 5)[0], ord(" ")), "section META is not JSON"),
        (lambda d: d.__setitem__(slice(*find(d, b'["a"]')), b"[ 12]"), "META is not a JSON object in its normal form"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(edit: Callable[[bytearray], Any], message: str) -> None:
    data = bytearray(sample().to_bytes())
    edit(data)
    with pytest.raises(ProgramError, match=message):
        Program.from_bytes(sealed(data) if message[:11] != "format" else bytes(data))


def test_a_program_without_its_configuration_needs_one() -> None:
    data = sample().to_bytes()
    offset, _ = section(data, 5)
    table = bytearray(data[:offset] + b"{}".ljust(16, b"\0"))
    struct.pack_into("<Q", table, 20 + 24 * 5 + 16, 2)
    with pytest.raises(ProgramError, match="the program carries no configuration"):
        Program.from_bytes(sealed(table))
    assert Program.from_bytes(sealed(table), FULL).meta == {}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: p.buffers.append(BufferSpec("x", "in", 1)), "a buffer's name is 'x'"),
        (lambda p: p.buffers.append(BufferSpec("a b", "in", 1)), "a buffer's name is 'a b'"),
        (lambda p: p.buffers.append(BufferSpec("b", "tmp", 1)), "has kind 'tmp'"),
        (lambda p: p.buffers.append(BufferSpec("b", "in", 1, 3)), "alignments powers of two"),
        (lambda p: p.buffers.append(BufferSpec("b", "in", 1, 1, 1)), "only constants have an offset"),
        (
            lambda p: p.buffers.append(BufferSpec("b", "temp", 1 << 32)),
            "the buffers take 4294969088 bytes; the most is",
        ),
        (lambda p: p.buffers.append(BufferSpec("b", "const", 9, 1, 8)), "ends beyond the 16 bytes"),
        (lambda p: p.buffers.append(BufferSpec("b", "uop", 4)), "has 4 bytes for 2 micro-ops"),
        (lambda p: p.relocations.update({3: 0}), "instruction 3 is relocated and no load or store"),
        (lambda p: p.relocations.update({1: 4}), "relocated to buffer 4 of 4"),
        (lambda p: setattr(p.instructions[1], "dram_base", -1), "its offset in 'x' is not legal"),
        (lambda p: p.meta.update(config=1), "meta has an entry 'config'"),
    ],
)
def test_programs_that_no_file_can_hold(change: Callable[[Program], Any], message: str) -> None:
    program = sample()
    change(program)
    with pytest.raises(ProgramError, match=message):
        program.to_bytes()


def test_binding_adds_the_buffers_place_in_elements() -> None:
    program = sample()
    assert program.default_places() == [256, 768, 1024, 1280]
    bound = program.bound(program.default_places())
    assert [i.dram_base for i in bound[:3] if isinstance(i, Load | Store)] == [768 // 4, 256 // 16 + 4, 1280 // 64 + 1]
    assert bound[3] is program.instructions[3]
    assert list(bound) == [bound[at] for at in range(len(program.instructions))]
    assert program.instructions[1] == sample().instructions[1]
    with pytest.raises(ProgramError, match="lies at 1000, which is no multiple of the 64 bytes of an element of ACC"):
        program.bound([256, 768, 784, 1000])
    with pytest.raises(ProgramError, match="lies too high"):
        program.bound([1 << 40, 768, 784, 1024])


def test_names_from_anywhere_become_legal_and_distinct() -> None:
    texts = ["x", "a b", "a_b", "", "{é}#\n", "x", "x.2", "y" * 999]
    names = legal_names(texts)
    assert names == ["x", "a_b", "a_b.2", "_", "_é___", "x.2", "x.2.2", "y" * 200]
    program = sample()
    program.buffers += [BufferSpec(f"{name}'", "temp", 1) for name in names]
    assert Program.from_bytes(program.to_bytes()) == program


def test_contents_of_buffers() -> None:
    program = sample()
    assert program.contents(program.buffer("w")) == bytes(range(8, 16))
    assert program.contents(program.buffer("u")) == program.uops.tobytes()
    assert program.contents(program.buffer("x")) is None
    with pytest.raises(ProgramError, match="no buffer is called 'z'; buffers: x, u, w, y"):
        program.buffer("z")
