"""A program for the accelerator, and its file.

A file is little-endian: a header (magic, version, number of sections, hash of the configuration, CRC-32 of the whole
file with that field zero), a table of sections, then the sections, each at a multiple of 16 bytes:

| tag  | holds                                                                                                    |
|------|----------------------------------------------------------------------------------------------------------|
| INSN | two 64-bit words an instruction; ``dram_base`` is 0 where a relocation supplies it                         |
| UOPS | micro-ops, 32 bits each                                                                                    |
| CNST | the constants' bytes                                                                                       |
| BUFS | an entry a buffer: kind u8, 0 u8, name's length u16, alignment u32, bytes u64, CNST offset u64, name        |
| RELO | instruction u32, buffer u16, 0 u16, addend i32 in elements; in the order of instructions                   |
| META | JSON: what the maker says about the program, and under ``config`` the whole configuration                  |
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, get_args, overload

import numpy as np
import numpy.typing as npt

from mlc.errors import ProgramError, UsageError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Instruction, Load, Mem, Store, decode, element_bytes, encode, unpack_uop

MAGIC = b"VDLA"
VERSION = 1
ALIGNMENT = 256  # of buffers, bytes
DRAM_BYTES = 1 << 32  # what all buffers together may take

BufferKind = Literal["in", "out", "const", "temp", "uop"]
_KINDS: tuple[BufferKind, ...] = get_args(BufferKind)
_TAGS = (b"INSN", b"UOPS", b"CNST", b"BUFS", b"RELO", b"META")

_HEADER = struct.Struct("<4sHHQI")
_CRC_AT = 16
_ENTRY = struct.Struct("<4sIQQ")
_BUFFER = struct.Struct("<BBHIQQ")
_RELOCATION = struct.Struct("<IHHi")
_NAMES = "names are unique and printable, at most 65535 bytes, without spaces, '#' and braces"
_PLACE = 16  # sections begin at multiples of this


@dataclass(slots=True)
class BufferSpec:
    """A range of DRAM that a program names.

    ``in`` and ``out`` are bound by the caller, ``const`` is filled from the constants at ``offset``, ``uop`` from the
    micro-ops, ``temp`` holds what one instruction stores and a later one loads.
    """

    name: str
    kind: BufferKind
    nbytes: int
    alignment: int = ALIGNMENT
    offset: int = 0


@dataclass(eq=False)
class Program:
    """A stream of instructions with its micro-ops, constants, and the buffers that it refers to.

    Attributes:
        config: the accelerator it is for.
        instructions: the stream; where ``relocations`` has an entry, ``dram_base`` is an addend in elements.
        uops: uint32[m], what ``LOAD UOP`` loads from the buffer of kind ``uop``.
        constants: the bytes of all ``const`` buffers.
        buffers: what must lie in DRAM.
        relocations: from an instruction's index to the index of its buffer.
        meta: JSON values: layer ranges, schedules, ...; the key ``config`` is taken.
    """

    config: VdlaConfig
    instructions: list[Instruction]
    uops: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    constants: bytes = b""
    buffers: list[BufferSpec] = field(default_factory=list)
    relocations: dict[int, int] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return np.array_equal(self.uops, other.uops) and all(
            getattr(self, name) == getattr(other, name)
            for name in ("config", "instructions", "constants", "buffers", "relocations", "meta")
        )

    def buffer(self, name: str) -> BufferSpec:
        """The buffer of a name.

        Raises:
            ProgramError: there is none.
        """
        for spec in self.buffers:
            if spec.name == name:
                return spec
        raise ProgramError(
            f"no buffer is called {name!r}; buffers: {', '.join(b.name for b in self.buffers) or 'none'}"
        )

    def contents(self, spec: BufferSpec) -> bytes | None:
        """What a buffer holds before the program runs, or None where the caller or the program fills it."""
        if spec.kind == "const":
            return self.constants[spec.offset : spec.offset + spec.nbytes]
        return self.uops.astype("<u4").tobytes() if spec.kind == "uop" else None

    def default_places(self) -> list[int]:
        """A byte address for every buffer: one after another, at multiples of 256 at least, as the driver allocates.

        Nothing lies at address 0, so that an instruction whose relocation was forgotten hits no buffer.
        """
        places, end = [], ALIGNMENT
        for spec in self.buffers:
            alignment = max(spec.alignment, ALIGNMENT)
            place = -(-end // alignment) * alignment
            places.append(place)
            end = place + spec.nbytes
        return places

    def bound(self, places: Sequence[int]) -> Bound:
        """The stream with absolute addresses.

        Args:
            places: the byte address of every buffer.
        Raises:
            ProgramError: an address is not a multiple of what an instruction moves, or beyond 32 bits of elements.
        """
        # Columns of the relocated instructions: a network has thousands.
        count = len(self.relocations)
        at = np.fromiter(self.relocations, np.int64, count)
        buffer = np.fromiter(self.relocations.values(), np.int64, count)
        relocated = [self.instructions[number] for number in self.relocations]
        mem = np.fromiter(map(attrgetter("mem"), relocated), np.int64, count)
        sizes = np.array([element_bytes(mem, self.config) for mem in Mem], np.int64)[mem]
        base, rest = np.divmod(np.array(places, np.int64)[buffer], sizes)
        base += np.fromiter(map(attrgetter("dram_base"), relocated), np.int64, count)
        for wrong in np.flatnonzero((rest != 0) | (base >= 1 << 32))[:1].tolist():
            spec, place = self.buffers[buffer[wrong]], places[buffer[wrong]]
            if rest[wrong]:
                raise ProgramError(
                    f"instruction {at[wrong]}: buffer {spec.name!r} lies at {place}, "
                    f"which is no multiple of the {sizes[wrong]} bytes of an element of {Mem(mem[wrong]).name}"
                )
            raise ProgramError(f"instruction {at[wrong]}: buffer {spec.name!r} lies too high")
        addresses = np.full(len(self.instructions), -1, np.int64)
        addresses[at] = base
        return Bound(self.instructions, addresses)

    def verify(self) -> None:
        """Checks what a file must satisfy apart from the stream itself (see `check` for that).

        Raises:
            ProgramError: the first thing that is wrong.
        """
        _verify_buffers(self)
        _verify_relocations(self)
        encode(self.instructions, self.config)
        unpack_uop(self.uops, self.config)
        if "config" in self.meta:
            raise ProgramError("meta has an entry 'config', which the file needs for the configuration")

    def to_bytes(self) -> bytes:
        """The file's bytes, the same for equal programs.

        Raises:
            ProgramError: the program is illegal.
        """
        self.verify()
        sections = {
            b"INSN": encode(_without_addends(self), self.config).astype("<u8").tobytes(),
            b"UOPS": self.uops.astype("<u4").tobytes(),
            b"CNST": self.constants,
            b"BUFS": b"".join(_pack_buffer(spec) for spec in self.buffers),
            b"RELO": b"".join(
                _RELOCATION.pack(at, number, 0, _addend(self, at)) for at, number in sorted(self.relocations.items())
            ),
            b"META": _json({**self.meta, "config": self.config.to_dict()}),
        }
        table, body = b"", b""
        start = _padded(_HEADER.size + _ENTRY.size * len(sections))
        for tag, data in sections.items():
            table += _ENTRY.pack(tag, 0, start + len(body), len(data))
            body += data + b"\0" * (_padded(len(data)) - len(data))
        head = _HEADER.pack(MAGIC, VERSION, len(sections), self.config.hash, 0) + table
        blob = bytearray(head + b"\0" * (start - len(head)) + body)
        struct.pack_into("<I", blob, _CRC_AT, zlib.crc32(blob))
        return bytes(blob)

    @classmethod
    def from_bytes(cls, data: bytes, config: VdlaConfig | None = None) -> Program:
        """The program in a file.

        Args:
            data: the file.
            config: the accelerator at hand; without one, the configuration that the file carries.
        Raises:
            ProgramError: the file is damaged, illegal, of another version, or for another configuration.
        """
        stated, sections = _read_sections(data)
        meta = _read_meta(sections[b"META"])
        facts = meta.pop("config", None)
        if config is None:
            config = _read_config(facts)
        if config.hash != stated:
            raise ProgramError(
                f"the program is for configuration {stated:016x}, not for {config.hash:016x}",
                hint="name the profile or configuration that it was compiled for",
            )
        instructions = decode(_array(sections[b"INSN"], "<u8", "INSN", 16).reshape(-1, 2), config)
        relocations: dict[int, int] = {}
        last = -1
        for at, number, zero, addend in _records(_RELOCATION, sections[b"RELO"], "RELO"):
            if at >= len(instructions) or not isinstance(target := instructions[at], Load | Store):
                raise ProgramError(f"RELO names instruction {at}, which is no load or store of the program")
            if zero or target.dram_base or at <= last:
                raise ProgramError(f"RELO: the entry for instruction {at} is malformed")
            relocations[at], last = number, at
            target.dram_base = addend
        program = cls(
            config,
            instructions,
            _array(sections[b"UOPS"], "<u4", "UOPS", 4).astype(np.uint32),
            sections[b"CNST"],
            _read_buffers(sections[b"BUFS"]),
            relocations,
            meta,
        )
        program.verify()
        return program


class Bound(Sequence[Instruction]):
    """A program's stream with absolute addresses; an instruction is made when it is asked for.

    Attributes:
        instructions: the program's own.
        addresses: int64[n], ``dram_base`` of those that are relocated, -1 of those that stay as they are.
    """

    def __init__(self, instructions: Sequence[Instruction], addresses: npt.NDArray[np.int64]) -> None:
        self.instructions = instructions
        self.addresses = addresses

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Instruction]:
        return map(_at, self.instructions, self.addresses.tolist())

    @overload
    def __getitem__(self, at: int) -> Instruction: ...

    @overload
    def __getitem__(self, at: slice) -> Bound: ...

    def __getitem__(self, at: int | slice) -> Instruction | Bound:
        if isinstance(at, slice):
            return Bound(self.instructions[at], self.addresses[at])
        return _at(self.instructions[at], int(self.addresses[at]))


def _at(instruction: Instruction, address: int) -> Instruction:
    """The instruction at another place of DRAM, or itself where that is -1."""
    if address < 0:
        return instruction
    assert isinstance(instruction, Load | Store)
    return instruction.at(address)


def legal_names(texts: Sequence[str]) -> list[str]:
    """Names for buffers that a model calls by texts of any kind: legal, distinct, and as near as can be."""
    names: dict[str, None] = {}
    for text in texts:
        name = "".join(c if _legal_name(c) else "_" for c in text[:200]) or "_"
        count = 1
        while (found := name if count == 1 else f"{name}.{count}") in names:
            count += 1
        names[found] = None
    return list(names)


def _without_addends(program: Program) -> list[Instruction]:
    """The stream with 0 for the addresses that relocations supply."""
    result = list(program.instructions)
    for at in program.relocations:
        instruction = program.instructions[at]
        assert isinstance(instruction, Load | Store)
        result[at] = instruction.at(0)
    return result


def _addend(program: Program, at: int) -> int:
    instruction = program.instructions[at]
    assert isinstance(instruction, Load | Store)
    return instruction.dram_base


def _verify_buffers(program: Program) -> None:
    names = Counter(spec.name for spec in program.buffers)
    for spec in program.buffers:
        if names[spec.name] > 1 or not _legal_name(spec.name):
            raise ProgramError(f"a buffer's name is {spec.name!r}; {_NAMES}")
        if spec.kind not in _KINDS:
            raise ProgramError(f"buffer {spec.name!r} has kind {spec.kind!r}; kinds: {', '.join(_KINDS)}")
        if spec.nbytes <= 0 or spec.alignment <= 0 or spec.alignment & (spec.alignment - 1) or spec.offset < 0:
            raise ProgramError(f"buffer {spec.name!r}: sizes are positive and alignments powers of two")
        if spec.offset and spec.kind != "const":
            raise ProgramError(f"buffer {spec.name!r}: only constants have an offset")
        if spec.kind == "const" and spec.offset + spec.nbytes > len(program.constants):
            raise ProgramError(f"buffer {spec.name!r} ends beyond the {len(program.constants)} bytes of constants")
        if spec.kind == "uop" and spec.nbytes != 4 * len(program.uops):
            raise ProgramError(f"buffer {spec.name!r} has {spec.nbytes} bytes for {len(program.uops)} micro-ops")
    end = max((p + b.nbytes for p, b in zip(program.default_places(), program.buffers, strict=True)), default=0)
    if end > DRAM_BYTES:
        raise ProgramError(f"the buffers take {end} bytes; the most is {DRAM_BYTES}")


def _verify_relocations(program: Program) -> None:
    for at, number in program.relocations.items():
        if not (0 <= at < len(program.instructions) and isinstance(program.instructions[at], Load | Store)):
            raise ProgramError(f"instruction {at} is relocated and no load or store of the program")
        if not 0 <= number < len(program.buffers):
            raise ProgramError(f"instruction {at} is relocated to buffer {number} of {len(program.buffers)}")
        if not 0 <= _addend(program, at) < 1 << 31:
            raise ProgramError(f"instruction {at}: its offset in {program.buffers[number].name!r} is not legal")


def _legal_name(name: str) -> bool:
    return name.isprintable() and not any(c.isspace() or c in "#{}" for c in name) and 0 < len(name.encode()) < 1 << 16


def _pack_buffer(spec: BufferSpec) -> bytes:
    name = spec.name.encode()
    return _BUFFER.pack(_KINDS.index(spec.kind), 0, len(name), spec.alignment, spec.nbytes, spec.offset) + name


def _read_buffers(data: bytes) -> list[BufferSpec]:
    buffers: list[BufferSpec] = []
    at = 0
    while at < len(data):
        if at + _BUFFER.size > len(data):
            raise ProgramError("section BUFS is cut off")
        kind, zero, length, alignment, nbytes, offset = _BUFFER.unpack_from(data, at)
        name = data[at + _BUFFER.size : at + _BUFFER.size + length]
        at += _BUFFER.size + length
        if at > len(data):
            raise ProgramError("section BUFS is cut off")
        if kind >= len(_KINDS) or zero:
            raise ProgramError(f"BUFS: entry {len(buffers)} is malformed")
        try:
            buffers.append(BufferSpec(name.decode(), _KINDS[kind], nbytes, alignment, offset))
        except UnicodeDecodeError:
            raise ProgramError(f"BUFS: the name of entry {len(buffers)} is not UTF-8") from None
    return buffers


def _read_sections(data: bytes) -> tuple[int, dict[bytes, bytes]]:
    """The configuration's hash and every section, after the checks that need no configuration."""
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise ProgramError("not a VDLA program: it does not begin with 'VDLA'")
    _, version, count, stated, crc = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ProgramError(f"the program has format version {version}; this is version {VERSION}")
    zeroed = data[:_CRC_AT] + bytes(4) + data[_CRC_AT + 4 :]
    if zlib.crc32(zeroed) != crc:
        raise ProgramError("the program is damaged: its CRC-32 does not match")
    if _HEADER.size + count * _ENTRY.size > len(data):
        raise ProgramError("the table of sections is cut off")
    if count != len(_TAGS):
        raise ProgramError(f"the program has {count} sections; expected {len(_TAGS)}")
    sections: dict[bytes, bytes] = {}
    end = _HEADER.size + count * _ENTRY.size
    for index in range(count):
        tag, flags, offset, size = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        if flags or tag != _TAGS[index]:
            raise ProgramError(f"section {index} is {tag!r}; expected {_TAGS[index].decode()}")
        start = _padded(end)
        if offset != start or any(data[end:start]):
            raise ProgramError(f"section {tag.decode()} does not follow the one before it")
        end = offset + size
        if end > len(data):
            raise ProgramError(f"section {tag.decode()} is cut off")
        sections[tag] = data[offset:end]
    if len(data) != _padded(end) or any(data[end:]):
        raise ProgramError("something follows the last section")
    return stated, sections


def _read_meta(data: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"section META is not JSON: {error}") from None
    if not isinstance(meta, dict) or _json(meta) != data:
        raise ProgramError("section META is not a JSON object in its normal form (keys in order, no spare spaces)")
    return meta


def _read_config(facts: object) -> VdlaConfig:
    if not isinstance(facts, dict):
        raise ProgramError("the program carries no configuration", hint="name its profile or configuration")
    try:
        return VdlaConfig(**facts)
    except (TypeError, UsageError) as error:
        raise ProgramError(f"the configuration in the program is not one: {error}") from None


def _json(facts: dict[str, Any]) -> bytes:
    """One spelling for equal facts, so that equal programs are equal files."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


def _array(data: bytes, dtype: str, tag: str, unit: int) -> npt.NDArray[Any]:
    if len(data) % unit:
        raise ProgramError(f"section {tag} has {len(data)} bytes, no multiple of {unit}")
    return np.frombuffer(data, dtype)


def _records(form: struct.Struct, data: bytes, tag: str) -> list[tuple[Any, ...]]:
    if len(data) % form.size:
        raise ProgramError(f"section {tag} has {len(data)} bytes, no multiple of {form.size}")
    return list(form.iter_unpack(data))


def _padded(size: int) -> int:
    return -(-size // _PLACE) * _PLACE
