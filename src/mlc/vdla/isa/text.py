"""One instruction or micro-op as a line of text and back, by the table of fields.

``LD.INP s=64 d=@x+128 y=16 x=14 st=56 pad=1,0,1,0 {<n >n}``: mnemonic, fields by key, token flags in braces, where
``<`` pops and ``>`` pushes, ``p`` is the previous unit and ``n`` the next.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from mlc.errors import ProgramError
from mlc.vdla.isa.fields import COMMON, FORMATS, Field, Format, format_of
from mlc.vdla.isa.instruction import Instruction

_FLAGS = {field.key: field.name for field in COMMON if field.key}


@dataclass(frozen=True)
class Operand:
    """The fields that share one key in a format's text."""

    key: str
    fields: tuple[Field, ...]

    @property
    def bare(self) -> bool:
        """Whether the key alone stands for it."""
        return self.fields[0].kind is bool


@cache
def operands(form: Format) -> tuple[Operand, ...]:
    """What follows the mnemonic, in order: what is always there first."""
    fields = [field for word in form.words for field in word if field.key]
    fields.sort(key=lambda field: bool(field.shown) or field.kind is bool)
    return tuple(Operand(key, tuple(group)) for key, group in itertools.groupby(fields, key=lambda field: field.key))


def mnemonic(instruction: Instruction) -> str:
    """The mnemonic with its suffix, as ``LD.INP``, ``GEMM.SET``, ``ALU.ADDI``."""
    form = format_of(instruction)
    return _mnemonic(form, tuple(getattr(instruction, name) for name in form.suffix))


def format_instruction(instruction: Instruction, buffer: str | None = None) -> str:
    """An instruction as text.

    Args:
        instruction: a legal one.
        buffer: the name of the buffer that ``dram_base`` is relative to, if it is relative.
    """
    form = format_of(instruction)
    parts = [mnemonic(instruction)]
    for operand in operands(form):
        values = [getattr(instruction, field.name) for field in operand.fields]
        shown = operand.fields[0].shown
        if operand.bare:
            parts += [operand.key] * bool(values[0])
        elif shown == "" or (any(values) if shown == "nonzero" else getattr(instruction, shown)):
            text = operand.fields[0].join.join(str(value) for value in values)
            prefix = f"@{buffer}+" if operand.key == "d" and buffer is not None else ""
            parts.append(f"{operand.key}={prefix}{text}")
    flags = [key for key, name in _FLAGS.items() if getattr(instruction, name)]
    return " ".join([*parts, "{" + " ".join(flags) + "}"] if flags else parts)


_LINE = re.compile(r"(?:\d+\s+)?(?P<mnemonic>[A-Z][A-Z0-9.]*)(?P<operands>[^{}]*)(?:\{(?P<flags>[^{}]*)\})?")
_ADDRESS = re.compile(r"@(?P<buffer>\S+)\+(?P<addend>\d+)")


def parse_instruction(line: str) -> tuple[Instruction, str | None]:
    """The instruction that a line stands for, and the buffer that its address is relative to, if any.

    A number before the mnemonic is for the reader's eyes and ignored.

    Raises:
        ProgramError: what in the line cannot be understood. Values are not checked against widths; encoding does.
    """
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ProgramError(f"{line.strip()!r} is not an instruction")
    known = _mnemonics()
    if match["mnemonic"] not in known:
        raise ProgramError(
            f"no instruction is called {match['mnemonic']!r}; expected one of {', '.join(sorted(known))}"
        )
    form, values = known[match["mnemonic"]]
    fields: dict[str, Any] = dict(zip(form.suffix, values, strict=True))
    given: dict[str, str] = {}
    for word in match["operands"].split():
        key, _, value = word.partition("=")
        if key in given:
            raise ProgramError(f"{key!r} is given twice")
        given[key] = value
    buffer = None
    if address := _ADDRESS.fullmatch(given.get("d", "")):
        buffer, given["d"] = address["buffer"], address["addend"]
    for operand in operands(form):
        fields.update(_parse_operand(operand, given.pop(operand.key, None), fields, match["mnemonic"]))
    if given:
        raise ProgramError(f"{match['mnemonic']} has no {next(iter(given))!r}")
    for flag in (match["flags"] or "").split():
        if flag not in _FLAGS or fields.get(_FLAGS[flag]):
            raise ProgramError(f"{flag!r} is no token flag or there twice; flags: {' '.join(_FLAGS)}")
        fields[_FLAGS[flag]] = True
    instruction: Instruction = form.record(**fields)
    return instruction, buffer


def _parse_operand(
    operand: Operand, text: str | None, fields: dict[str, Any], name: str
) -> Iterator[tuple[str, int | bool]]:
    first = operand.fields[0]
    if operand.bare:
        if text:
            raise ProgramError(f"{operand.key!r} takes no value")
        yield first.name, text is not None
        return
    if text is None:
        if first.shown == "" or fields.get(first.shown):
            raise ProgramError(f"{name} needs {operand.key}=")
        yield from ((field.name, 0) for field in operand.fields)
        return
    parts = text.split(first.join)
    if len(parts) != len(operand.fields):
        form = first.join.join(field.name for field in operand.fields)
        raise ProgramError(f"{operand.key}={text}: expected {operand.key}={form}")
    for field, part in zip(operand.fields, parts, strict=True):
        yield field.name, parse_number(part, operand.key)


def parse_number(text: str, what: str) -> int:
    """A decimal number, or a hexadecimal one after ``0x``.

    Raises:
        ProgramError: it is neither.
    """
    if not re.fullmatch(r"-?(\d{1,20}|0x[0-9a-fA-F]{1,16})", text, re.ASCII):
        raise ProgramError(f"{what}={text}: {text!r} is not a number")
    return int(text, 0) if "x" in text else int(text)


@cache
def _mnemonics() -> dict[str, tuple[Format, tuple[Any, ...]]]:
    """Every mnemonic with its format and the values of the suffix's fields."""
    found: dict[str, tuple[Format, tuple[Any, ...]]] = {}
    for form in FORMATS:
        fields = {field.name: field for word in form.words for field in word}
        choices = [_members(fields[name]) for name in form.suffix]
        for values in itertools.product(*choices):
            found[_mnemonic(form, values)] = form, values
    return found


def _mnemonic(form: Format, values: tuple[Any, ...]) -> str:
    parts = [form.mnemonic]
    parts += ["." + value.name if isinstance(value, IntEnum) else "I" * value for value in values]
    return "".join(parts)


def _members(field: Field) -> list[Any]:
    return [False, True] if field.kind is bool else list(field.kind)  # type: ignore[call-overload]
