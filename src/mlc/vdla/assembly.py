"""Programs as text: a listing that reads back to the same bytes.

```text
.config full dram_latency=60
.meta {"layers": []}
.buffer x in 25088 align=256
.buffer w const 4096 align=256 offset=0
.const 0: 00010203...
.uop 0: 0,0,0 f
0000 LD.UOP s=0 d=@u+0 y=1 x=18 st=18
0001 LD.INP s=64 d=@x+128 y=16 x=14 st=56 pad=1,0,1,0 {<n >n}
```

Buffers are numbered in their order, constants and micro-ops by what stands before the colon, which must go up without
gaps. Text after ``#`` is a comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from mlc.errors import MlcError, ProgramError
from mlc.vdla.config import VdlaConfig, load_config, spelling
from mlc.vdla.isa import Instruction, pack_uop, unpack_uop
from mlc.vdla.isa.text import format_instruction, parse_instruction, parse_number
from mlc.vdla.program import BufferKind, BufferSpec, Program

_BYTES_A_LINE = 64


def disassemble(program: Program) -> str:
    """The whole program as text; ``assemble(disassemble(p)) == p``."""
    profile, changed = spelling(program.config)
    lines = [" ".join([".config", profile, *(f"{key}={value}" for key, value in changed.items())])]
    if program.meta:
        lines.append(f".meta {json.dumps(program.meta, sort_keys=True)}")
    for spec in program.buffers:
        offset = f" offset={spec.offset}" if spec.kind == "const" else ""
        lines.append(f".buffer {spec.name} {spec.kind} {spec.nbytes} align={spec.alignment}{offset}")
    for at in range(0, len(program.constants), _BYTES_A_LINE):
        lines.append(f".const {at}: {program.constants[at : at + _BYTES_A_LINE].hex()}")
    fields = [field.tolist() for field in unpack_uop(program.uops, program.config)]
    for at, (dst, src, wgt, first) in enumerate(zip(*fields, strict=True)):
        lines.append(f".uop {at}: {dst},{src},{wgt}{' f' if first else ''}")
    lines.extend(listing(program))
    return "\n".join(lines) + "\n"


def listing(program: Program) -> Iterator[str]:
    """The instructions alone, numbered, a line each."""
    for at in range(len(program.instructions)):
        yield f"{at:04} {line_of(program, at)}"


def line_of(program: Program, at: int) -> str:
    """One instruction of a program as text, its address with its buffer's name."""
    number = program.relocations.get(at)
    return format_instruction(program.instructions[at], None if number is None else program.buffers[number].name)


def assemble(text: str) -> Program:
    """The program that a text stands for.

    Raises:
        ProgramError: the line and what is wrong with it, or what the finished program breaks.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            reader.read(line)
        except MlcError as error:
            raise ProgramError(f"line {number}: {error.message}", hint=error.hint) from None
    program = reader.finish()
    program.verify()
    return program


class _Reader:
    """What has been read so far."""

    def __init__(self) -> None:
        self.config: VdlaConfig | None = None
        self.meta: dict[str, Any] | None = None
        self.buffers: list[BufferSpec] = []
        self.constants = bytearray()
        self.uops: list[tuple[int, int, int, int]] = []
        self.instructions: list[Instruction] = []
        self.relocations: dict[int, int] = {}
        self.directives = {
            ".config": self._config,
            ".meta": self._meta,
            ".buffer": self._buffer,
            ".const": self._const,
            ".uop": self._uop,
        }

    def read(self, line: str) -> None:
        """Takes one line."""
        if line.startswith(".meta "):  # JSON may have a '#' of its own
            return self._meta(line.removeprefix(".meta "))
        line = line.partition("#")[0].strip()
        if not line:
            return None
        if not line.startswith("."):
            return self._instruction(line)
        name, _, rest = line.partition(" ")
        if name not in self.directives:
            raise ProgramError(f"no directive is called {name!r}; expected one of {', '.join(self.directives)}")
        return self.directives[name](rest.strip())

    def finish(self) -> Program:
        """The program, once all lines are read."""
        if self.config is None:
            raise ProgramError("the text has no .config line", hint="for example: .config full")
        dst, src, wgt, first = np.array(self.uops, np.int64).reshape(-1, 4).T
        return Program(
            self.config,
            self.instructions,
            pack_uop(dst, src, wgt, first, self.config),
            bytes(self.constants),
            self.buffers,
            self.relocations,
            self.meta or {},
        )

    def _config(self, rest: str) -> None:
        if self.config is not None:
            raise ProgramError(".config is given twice")
        profile, *changes = rest.split() or [""]
        self.config = load_config(profile, overrides=changes)

    def _meta(self, rest: str) -> None:
        if self.meta is not None:
            raise ProgramError(".meta is given twice")
        try:
            meta = json.loads(rest)
        except (ValueError, RecursionError) as error:
            raise ProgramError(f".meta is not JSON: {error}") from None
        if not isinstance(meta, dict):
            raise ProgramError(".meta is not a JSON object")
        self.meta = meta

    def _buffer(self, rest: str) -> None:
        words = rest.split()
        if len(words) < 3:
            raise ProgramError("expected .buffer NAME KIND BYTES, then align= and offset=")
        name, kind, nbytes, *options = words
        spec = BufferSpec(name, _kind(kind), parse_number(nbytes, "bytes"))
        for option in options:
            key, _, value = option.partition("=")
            if key not in ("align", "offset"):
                raise ProgramError(f".buffer has no {key!r}; expected align= or offset=")
            setattr(spec, {"align": "alignment"}.get(key, key), parse_number(value, key))
        if name in {other.name for other in self.buffers}:
            raise ProgramError(f"buffer {name!r} is declared twice")
        self.buffers.append(spec)

    def _const(self, rest: str) -> None:
        data = self._numbered(rest, len(self.constants), ".const")
        try:
            self.constants += bytes.fromhex(data)
        except ValueError:
            raise ProgramError(".const expects pairs of hexadecimal digits") from None

    def _uop(self, rest: str) -> None:
        words = self._numbered(rest, len(self.uops), ".uop").split()
        parts = words[0].split(",") if words else []
        if len(parts) != 3 or words[1:] not in ([], ["f"]):
            raise ProgramError("expected .uop N: dst,src,wgt and f where it starts a sum")
        dst, src, wgt = (parse_number(part, ".uop") for part in parts)
        self.uops.append((dst, src, wgt, len(words) - 1))

    def _instruction(self, line: str) -> None:
        instruction, buffer = parse_instruction(line)
        if buffer is not None:
            numbers = [number for number, spec in enumerate(self.buffers) if spec.name == buffer]
            if not numbers:
                raise ProgramError(f"no buffer is called {buffer!r}", hint="declare it above with .buffer")
            self.relocations[len(self.instructions)] = numbers[0]
        self.instructions.append(instruction)

    @staticmethod
    def _numbered(rest: str, expected: int, what: str) -> str:
        number, colon, data = rest.partition(":")
        if not colon or number.strip() != str(expected):
            raise ProgramError(f"expected {what} {expected}: next")
        return data.strip()


def _kind(text: str) -> BufferKind:
    match text:
        case "in" | "out" | "const" | "temp" | "uop":
            return text
        case _:
            raise ProgramError(f"no kind of buffer is called {text!r}; expected in, out, const, temp or uop")
