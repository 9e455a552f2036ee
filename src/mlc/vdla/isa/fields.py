"""The one table of the instruction set: fields in bit order, opcodes, memories.

The encoder, the decoder, the assembler, the disassembler and the simulators' dispatch are all made from it. A field's
width is a number of bits or the name of the record's property that says it; positions follow, lowest bit first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Protocol

from mlc.errors import UsageError
from mlc.vdla.isa.instruction import Alu, AluOp, Finish, Gemm, GemmMode, Instruction, Load, Mem, Opcode, Store, Unit

WORD_BITS = 64
UOP_BITS = 32
_IMMEDIATE_BITS = 16
IMMEDIATES = range(-(1 << (_IMMEDIATE_BITS - 1)), 1 << (_IMMEDIATE_BITS - 1))  # what ALU instructions hold themselves


class Architecture(Protocol):
    """What the table asks of a hardware record, by the names that stand in it; ``VdlaConfig`` says what each means."""

    @property
    def dst_bits(self) -> int: ...
    @property
    def inp_bits(self) -> int: ...
    @property
    def src_bits(self) -> int: ...
    @property
    def wgt_bits(self) -> int: ...
    @property
    def uop_bits(self) -> int: ...
    @property
    def uop_end_bits(self) -> int: ...
    @property
    def first_bits(self) -> int: ...
    @property
    def inp_element(self) -> int: ...
    @property
    def wgt_element(self) -> int: ...
    @property
    def acc_element(self) -> int: ...
    @property
    def out_element(self) -> int: ...
    @property
    def uop_element(self) -> int: ...
    @property
    def inp_depth(self) -> int: ...
    @property
    def wgt_depth(self) -> int: ...
    @property
    def acc_depth(self) -> int: ...
    @property
    def uop_depth(self) -> int: ...
    @property
    def ext_alu(self) -> bool: ...
    @property
    def ext_store_requant(self) -> bool: ...
    @property
    def ext_gemm_set(self) -> bool: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Field:
    """One field; without a name it is reserved and must be zero.

    Attributes:
        name: the record's attribute.
        width: bits, or the property of the configuration that says how many.
        kind: the Python type of its value: ``int``, ``bool`` or an enumeration.
        signed: two's complement.
        key: how assembly text calls it, as ``key=value`` or, for a bool, the bare key. Neighbours with one key share
            it, their values joined by ``join``. Without a key it is part of the mnemonic.
        shown: where text may leave it out: ``""`` nowhere, ``"nonzero"`` where its key has only zeros, or the name of
            the bool that it depends on.
    """

    name: str
    width: int | str
    kind: type = int
    signed: bool = False
    key: str = ""
    join: str = ","
    shown: str = ""


@dataclass(frozen=True)
class Format:
    """One opcode: its record, its mnemonic's first part, and its two 64-bit words after the fields that all have.

    The fields named in ``suffix`` end the mnemonic: an enumeration by its member's name, a bool by an ``I`` where set.
    ``extension`` names the configuration's switch without which there is no such instruction.
    """

    opcode: Opcode
    record: type
    mnemonic: str
    suffix: tuple[str, ...]
    words: tuple[tuple[Field, ...], tuple[Field, ...]]
    extension: str = ""

    def missing(self, config: Architecture) -> bool:
        """Whether a configuration lacks the instruction."""
        return bool(self.extension) and not getattr(config, self.extension)


@dataclass(frozen=True)
class Slot:
    """A field of one record's formats: its word, its lowest bit, its width."""

    field: Field
    word: int
    low: int
    width: int

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value."""
        if self.field.signed:
            return -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1
        return 0, (1 << self.width) - 1


@dataclass(frozen=True)
class MemoryInfo:
    """One memory id: the on-chip memory, the DRAM element's size as a property of the record, who may move it."""

    sram: str
    element: str
    load: Unit | None
    store: Unit | None
    extension: str = ""


MEMORIES: dict[Mem, MemoryInfo] = {
    Mem.UOP: MemoryInfo("uop", "uop_element", Unit.CMP, None),
    Mem.WGT: MemoryInfo("wgt", "wgt_element", Unit.LD, None),
    Mem.INP: MemoryInfo("inp", "inp_element", Unit.LD, None),
    Mem.ACC: MemoryInfo("acc", "acc_element", Unit.CMP, Unit.ST),
    Mem.OUT: MemoryInfo("acc", "out_element", None, Unit.ST, "ext_store_requant"),
    Mem.ACC8: MemoryInfo("acc", "out_element", Unit.CMP, None, "ext_alu"),
}

COMMON = (
    Field("opcode", 3, Opcode),
    Field("pop_prev", 1, bool, key="<p"),
    Field("pop_next", 1, bool, key="<n"),
    Field("push_prev", 1, bool, key=">p"),
    Field("push_next", 1, bool, key=">n"),
)

_ADDRESS = (Field("mem", 3, Mem), Field("sram_base", 16, key="s"), Field("dram_base", 32, key="d"))
_SHAPE = (Field("y_size", 16, key="y"), Field("x_size", 16, key="x"), Field("x_stride", 16, key="st"))
_PADS = tuple(Field(name, 4, key="pad", shown="nonzero") for name in ("pad_top", "pad_bottom", "pad_left", "pad_right"))
_LOOPS = (
    Field("uop_bgn", "uop_bits", key="u", join=":"),
    Field("uop_end", "uop_end_bits", key="u", join=":"),
    Field("iter_out", 14, key="o"),
    Field("iter_in", 14, key="i"),
)
_TARGETS = (Field("dst_out", "dst_bits", key="dst"), Field("dst_in", "dst_bits", key="dst"))


def _sources(width: str) -> tuple[Field, Field]:
    """The factors of the sources: inputs for GEMM, the accumulator for ALU."""
    return Field("src_out", width, key="src"), Field("src_in", width, key="src")


FORMATS: tuple[Format, ...] = (
    Format(Opcode.LOAD, Load, "LD", ("mem",), ((*_ADDRESS, Field("", 6)), (*_SHAPE, *_PADS))),
    Format(
        Opcode.STORE,
        Store,
        "ST",
        ("mem",),
        ((*_ADDRESS, Field("shift", 5, key="sh", shown="nonzero"), Field("relu", 1, bool, key="relu")), _SHAPE),
    ),
    Format(
        Opcode.GEMM,
        Gemm,
        "GEMM",
        ("mode",),
        (
            (Field("mode", 2, GemmMode), *_LOOPS),
            (
                *_TARGETS,
                *_sources("inp_bits"),
                Field("wgt_out", "wgt_bits", key="wgt"),
                Field("wgt_in", "wgt_bits", key="wgt"),
            ),
        ),
    ),
    Format(
        Opcode.ALU,
        Alu,
        "ALU",
        ("op", "use_imm"),
        (
            (Field("", 2), *_LOOPS),
            (
                *_TARGETS,
                *_sources("dst_bits"),
                Field("op", 3, AluOp),
                Field("use_imm", 1, bool),
                Field("imm", _IMMEDIATE_BITS, signed=True, key="imm", shown="use_imm"),
            ),
        ),
        "ext_alu",
    ),
    Format(Opcode.FINISH, Finish, "FINISH", (), ((), ())),
)

FORMAT_OF: dict[type, Format] = {f.record: f for f in FORMATS}

# A micro-op is one 32-bit word.
UOP_FIELDS = (
    Field("dst", "dst_bits"),
    Field("src", "src_bits"),
    Field("wgt", "wgt_bits"),
    Field("first", "first_bits", bool, key="f"),
)


@lru_cache(maxsize=256)
def layout(form: Format, config: Architecture) -> tuple[Slot, ...]:
    """The named fields of a format for one record, in bit order, those that all formats have first."""
    return (*_place((*COMMON, *form.words[0]), 0, config), *_place(form.words[1], 1, config))


@lru_cache(maxsize=64)
def uop_layout(config: Architecture) -> tuple[Slot, ...]:
    """The fields of a micro-op for one record, in bit order; ``word`` is 0. A field may have no bits."""
    return _place(UOP_FIELDS, 0, config)


def check_widths(config: Architecture) -> None:
    """Refuses a record whose fields do not fit 64-bit instruction words and 32-bit micro-ops.

    Raises:
        UsageError: which word is too narrow, and for what.
    """
    for memory in sorted({info.sram for info in MEMORIES.values()}):
        if getattr(config, f"{memory}_depth") > 1 << 16:
            raise UsageError(f"{memory}_bytes is {getattr(config, f'{memory}_bytes')}: an address has only 16 bits")
    for form in (form for form in FORMATS if not form.missing(config)):
        for number, fields in enumerate(((*COMMON, *form.words[0]), form.words[1])):
            _check_fits(f"word {number} of {form.opcode.name}", fields, WORD_BITS, config)
    _check_fits("a micro-op", UOP_FIELDS, UOP_BITS, config)


def memory_depth(mem: Mem, config: Architecture) -> int:
    """Elements of the on-chip memory behind a memory id."""
    return int(getattr(config, f"{MEMORIES[mem].sram}_depth"))


def element_bytes(mem: Mem, config: Architecture) -> int:
    """Bytes that one element of a memory id takes in DRAM."""
    return int(getattr(config, MEMORIES[mem].element))


def handlers(owner: object, prefix: str = "") -> dict[type, Callable[..., Any]]:
    """One method of ``owner`` for every instruction's class: ``load``, ``store``, ``gemm``, ``alu``, ``finish``.

    This is how whatever executes or inspects instructions finds what to do with one, so that a new opcode cannot be
    forgotten: a missing method is an AttributeError when the object is made.

    Args:
        owner: has the methods.
        prefix: put before each name.
    """
    return {form.record: getattr(owner, prefix + form.opcode.name.lower()) for form in FORMATS}


def format_of(instruction: Instruction) -> Format:
    """The format of an instruction."""
    return FORMAT_OF[type(instruction)]


def _place(fields: tuple[Field, ...], word: int, config: Architecture) -> tuple[Slot, ...]:
    slots, low = [], 0
    for field in fields:
        width = _width(field, config)
        if field.name:
            slots.append(Slot(field, word, low, width))
        low += width
    return tuple(slots)


def _width(field: Field, config: Architecture) -> int:
    return field.width if isinstance(field.width, int) else int(getattr(config, field.width))


def _check_fits(what: str, fields: tuple[Field, ...], bits: int, config: Architecture) -> None:
    needed = sum(_width(field, config) for field in fields)
    if needed > bits:
        widths = ", ".join(f"{field.name or 'reserved'} {_width(field, config)}" for field in fields)
        raise UsageError(
            f"{what} would need {needed} bits ({widths}); it has {bits}",
            hint="choose smaller on-chip memories, or leave out an extension",
        )


def enum_values(field: Field) -> tuple[int, ...]:
    """The values that a field of an enumeration may have."""
    assert issubclass(field.kind, IntEnum)
    return tuple(int(member) for member in field.kind)
