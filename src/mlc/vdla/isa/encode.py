"""Instructions to 128-bit words and back, and micro-ops to 32-bit words and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlc.errors import ProgramError
from mlc.vdla.isa.fields import FORMAT_OF, FORMATS, Format, layout, uop_layout
from mlc.vdla.isa.instruction import Instruction, Opcode
from mlc.vdla.isa.legal import first_illegal

if TYPE_CHECKING:
    from mlc.vdla.config import VdlaConfig

Words = npt.NDArray[np.uint64]
Uops = npt.NDArray[np.uint32]


def encode(instructions: Sequence[Instruction], config: VdlaConfig) -> Words:
    """The words of a stream.

    Returns:
        uint64[n, 2]: of each instruction the low word, then the high word.
    Raises:
        ProgramError: an instruction is illegal; the message has its number, opcode and fault.
    """
    words = np.zeros((len(instructions), 2), np.uint64)
    faults: list[tuple[int, Format, str]] = []
    for form, where, columns in columns_of(instructions, config):
        if illegal := first_illegal(form, columns, config):
            faults.append((int(where[illegal[0]]), form, illegal[1]))
            continue
        for slot in layout(form, config):
            bits = columns[slot.field.name].astype(np.uint64) & np.uint64((1 << slot.width) - 1)
            words[where, slot.word] |= bits << np.uint64(slot.low)
    _raise_first(faults)
    return words


def decode(words: Words, config: VdlaConfig) -> list[Instruction]:
    """The stream that the words stand for; ``decode(encode(s)) == s``.

    Args:
        words: uint64[n, 2].
        config: the record that the words were made for.
    Raises:
        ProgramError: an unknown opcode, a reserved bit that is set, a value or combination that is not legal.
    """
    result: list[Any] = [None] * len(words)
    faults: list[tuple[int, Format | None, str]] = []
    opcodes = words[:, 0] & np.uint64(7)
    unknown = ~np.isin(opcodes, [int(opcode) for opcode in Opcode])
    if unknown.any():
        at = int(unknown.argmax())
        faults.append((at, None, f"opcode {opcodes[at]} is unknown"))
    for form in FORMATS:
        (where,) = np.nonzero(opcodes == form.opcode)
        if not len(where):
            continue
        if form.missing(config):  # whose fields may have no place
            faults.append((int(where[0]), form, f"the configuration lacks {form.extension}"))
            continue
        mine, used = words[where], [0, 0]
        columns: dict[str, npt.NDArray[np.int64]] = {}
        for slot in layout(form, config):
            mask = (1 << slot.width) - 1
            used[slot.word] |= mask << slot.low
            values = ((mine[:, slot.word] >> np.uint64(slot.low)) & np.uint64(mask)).astype(np.int64)
            if slot.field.signed:
                values -= (values >> (slot.width - 1)) << slot.width
            columns[slot.field.name] = values
        reserved = (mine & ~np.array(used, np.uint64)).any(axis=1)
        if reserved.any():
            faults.append((int(where[reserved.argmax()]), form, "a reserved bit is set"))
        if illegal := first_illegal(form, columns, config):
            faults.append((int(where[illegal[0]]), form, illegal[1]))
        if faults:
            continue
        del columns["opcode"]
        names = tuple(columns)
        kinds = {slot.field.name: slot.field.kind for slot in layout(form, config)}
        for at, row in zip(
            where.tolist(), zip(*(_typed(columns[n], kinds[n]) for n in names), strict=True), strict=True
        ):
            result[at] = form.record(**dict(zip(names, row, strict=True)))
    _raise_first(faults)
    return result


def columns_of(
    instructions: Sequence[Instruction], config: VdlaConfig
) -> list[tuple[Format, npt.NDArray[np.intp], dict[str, npt.NDArray[np.int64]]]]:
    """A stream as arrays: for every opcode in it, where it occurs and one array for each of its fields.

    Raises:
        ProgramError: something in the stream is not an instruction, or a value is beyond 64 bits.
    """
    kinds = list(map(type, instructions))
    result = []
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    number_of = np.fromiter(map(numbers.__getitem__, kinds), np.intp, len(kinds))
    for kind, number in numbers.items():
        where = np.flatnonzero(number_of == number)
        places = where.tolist()
        form = FORMAT_OF.get(kind)
        if form is None:
            raise ProgramError(f"instruction {places[0]} is {instructions[places[0]]!r}, not an instruction")
        names = [slot.field.name for slot in layout(form, config) if slot.field.name != "opcode"]
        # Number after number, without a list of them: a hundred thousand tuples would keep the garbage collector busy.
        rows = map(attrgetter(*names), map(instructions.__getitem__, places))
        try:
            table = np.fromiter(chain.from_iterable(rows), np.int64, len(names) * len(places))
        except (OverflowError, TypeError, ValueError) as error:
            raise ProgramError(f"a field of {form.opcode.name} is not a number of an instruction: {error}") from None
        columns = dict(zip(names, np.ascontiguousarray(table.reshape(len(places), -1).T), strict=True))
        columns["opcode"] = np.full(len(places), int(form.opcode), np.int64)
        result.append((form, where, columns))
    return result


def pack_uop(
    dst: npt.ArrayLike, src: npt.ArrayLike, wgt: npt.ArrayLike, first: npt.ArrayLike, config: VdlaConfig
) -> Uops:
    """Micro-ops from their fields, which broadcast against each other.

    Returns:
        uint32 of the common shape.
    Raises:
        ProgramError: an index does not fit its field, or ``first`` is set without ``ext_gemm_set``.
    """
    values = np.broadcast_arrays(*(np.asarray(v, np.int64) for v in (dst, src, wgt, first)))
    word = np.zeros(values[0].shape, np.uint32)
    for slot, value in zip(uop_layout(config), values, strict=True):
        high = (1 << slot.width) - 1
        if value.size and (value.min() < 0 or value.max() > high):
            bad = value[(value < 0) | (value > high)].flat[0]
            raise ProgramError(f"a micro-op's {slot.field.name} is {bad}; expected 0 to {high}")
        word |= (value << slot.low).astype(np.uint32)
    return word


def unpack_uop(uops: npt.ArrayLike, config: VdlaConfig) -> tuple[npt.NDArray[np.int64], ...]:
    """The fields ``(dst, src, wgt, first)`` of micro-ops, int64 of their shape.

    Raises:
        ProgramError: a reserved bit is set.
    """
    words = np.asarray(uops, np.uint32).astype(np.int64)
    slots = uop_layout(config)
    used = sum(slot.width for slot in slots)
    if (words >> used).any():
        raise ProgramError(f"micro-op {int(np.argmax(words >> used != 0))} has a reserved bit set")
    return tuple((words >> slot.low) & ((1 << slot.width) - 1) for slot in slots)


def _typed(values: npt.NDArray[np.int64], kind: type) -> list[Any]:
    numbers: list[int] = values.tolist()
    if kind is int:
        return numbers
    known = {number: kind(number) for number in set(numbers)}
    return [known[number] for number in numbers]


def _raise_first(faults: Sequence[tuple[int, Format | None, str]]) -> None:
    if faults:
        at, form, what = min(faults, key=lambda fault: fault[0])
        raise ProgramError(f"instruction {at}{f' ({form.opcode.name})' if form else ''}: {what}")
