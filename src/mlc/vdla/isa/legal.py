"""What an instruction may not be although its fields fit: memories, extensions, flags toward nobody.

Range checks follow from the table of fields; what a table of widths cannot say is the table of rules here. Both work on
*columns*, all instructions of one opcode at once, so that a stream of a hundred thousand takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlc.vdla.isa.fields import MEMORIES, Format, enum_values, layout
from mlc.vdla.isa.instruction import GemmMode, Mem, Opcode, Unit

if TYPE_CHECKING:
    from mlc.vdla.config import VdlaConfig

Columns = Mapping[str, npt.NDArray[np.int64]]  # one array a field
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """Something that no instruction of these opcodes may be; ``broken`` marks those that are."""

    opcodes: tuple[Opcode, ...]
    broken: Callable[[Columns, VdlaConfig], Mask]
    says: str


def _moved_by(unit: Unit | None, *, storing: bool) -> tuple[int, ...]:
    return tuple(int(mem) for mem, info in MEMORIES.items() if (info.store if storing else info.load) is unit)


def _without_extension(c: Columns, config: VdlaConfig) -> Mask:
    off = [int(m) for m, info in MEMORIES.items() if info.extension and not getattr(config, info.extension)]
    return np.isin(c["mem"], off)


def _padded(c: Columns) -> Mask:
    return np.asarray((c["pad_top"] | c["pad_bottom"] | c["pad_left"] | c["pad_right"]) != 0)


RULES: tuple[Rule, ...] = (
    Rule(
        (Opcode.LOAD,), lambda c, _: np.isin(c["mem"], _moved_by(None, storing=False)), "this memory cannot be loaded"
    ),
    Rule(
        (Opcode.STORE,), lambda c, _: np.isin(c["mem"], _moved_by(None, storing=True)), "this memory cannot be stored"
    ),
    Rule((Opcode.LOAD, Opcode.STORE), _without_extension, "the configuration lacks the extension for this memory"),
    Rule(
        (Opcode.LOAD,),
        lambda c, _: _padded(c) & np.isin(c["mem"], (int(Mem.UOP), int(Mem.WGT))),
        "micro-ops and weights are loaded without padding",
    ),
    Rule((Opcode.LOAD,), lambda c, _: _padded(c) & (c["x_size"] == 0), "a transfer of nothing has no padding"),
    Rule(
        (Opcode.STORE,),
        lambda c, _: ((c["shift"] | c["relu"]) != 0) & (c["mem"] != Mem.OUT),
        "only a store of OUT has a shift or ReLU",
    ),
    Rule(
        (Opcode.LOAD,),
        lambda c, _: ((c["pop_prev"] | c["push_prev"]) != 0) & np.isin(c["mem"], _moved_by(Unit.LD, storing=False)),
        "LD has no previous unit to exchange tokens with",
    ),
    Rule(
        (Opcode.STORE,),
        lambda c, _: (c["pop_next"] | c["push_next"]) != 0,
        "ST has no next unit to exchange tokens with",
    ),
    Rule(
        (Opcode.GEMM,),
        lambda c, config: (c["mode"] == GemmMode.SET) & (not config.ext_gemm_set),
        "the configuration lacks ext_gemm_set",
    ),
    Rule((Opcode.ALU,), lambda c, _: (c["imm"] != 0) & (c["use_imm"] == 0), "an immediate that is not used must be 0"),
    Rule((Opcode.GEMM, Opcode.ALU), lambda c, _: c["uop_bgn"] > c["uop_end"], "the micro-ops end before they begin"),
    Rule(
        (Opcode.GEMM, Opcode.ALU),
        lambda c, config: c["uop_end"] > config.uop_depth,
        "the micro-ops end beyond their buffer",
    ),
)


def first_illegal(form: Format, columns: Columns, config: VdlaConfig) -> tuple[int, str] | None:
    """The first illegal instruction among those of one format, as (position in the columns, what is wrong), or None."""
    if form.missing(config):
        return 0, f"the configuration lacks {form.extension}"
    found: list[tuple[int, str]] = []
    for slot in layout(form, config):
        name, values = slot.field.name, columns[slot.field.name]
        if issubclass(slot.field.kind, IntEnum):
            bad = ~np.isin(values, enum_values(slot.field))
            expected = "one of " + ", ".join(f"{int(m)} {m.name}" for m in slot.field.kind)
        else:
            low, high = slot.limits
            bad = (values < low) | (values > high)
            expected = f"{low} to {high}"
        if bad.any():
            at = int(bad.argmax())
            found.append((at, f"{name} is {values[at]}; expected {expected}"))
    for rule in RULES:
        if form.opcode in rule.opcodes:
            broken = rule.broken(columns, config)
            if broken.any():
                found.append((int(broken.argmax()), rule.says))
    return min(found, key=lambda pair: pair[0], default=None)
