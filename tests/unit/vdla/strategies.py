"""Random legal instructions and programs for Hypothesis, drawn by the table of fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Alu, Gemm, GemmMode, Instruction, Load, Mem, Store, Unit, pack_uop
from mlc.vdla.isa.fields import FORMATS, MEMORIES, Format, layout
from mlc.vdla.program import BufferSpec, Program

CONFIGS = [
    *PROFILES.values(),
    VdlaConfig(wgt_bytes=256 * 1024, dram_latency=7, dram_bytes_per_cycle=0.1),
    VdlaConfig(inp_bytes=64 * 1024, acc_bytes=256 * 1024, uop_bytes=8 * 1024, ext_gemm_set=True),
]

names = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="#{}"), min_size=1, max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def instructions(draw: st.DrawFn, config: VdlaConfig) -> Instruction:
    """One legal instruction: every field over its whole range, then mended where a rule forbids the combination."""
    forms = [form for form in FORMATS if form.record is not Alu or config.ext_alu]
    form: Format = draw(st.sampled_from(forms))
    fields: dict[str, Any] = {}
    for slot in layout(form, config):
        if slot.field.name == "opcode":
            continue
        if slot.field.kind is bool:
            fields[slot.field.name] = draw(st.booleans())
        elif slot.field.kind is int:
            fields[slot.field.name] = draw(st.integers(*slot.limits))
        else:
            fields[slot.field.name] = draw(st.sampled_from(list(slot.field.kind)))
    if form.record in (Load, Store):
        fields["mem"] = draw(st.sampled_from(movable(form, config)))
    result: Instruction = form.record(**fields)
    if isinstance(result, Load) and (result.mem in (Mem.UOP, Mem.WGT) or not result.x_size):
        result.pad_top = result.pad_bottom = result.pad_left = result.pad_right = 0
    if isinstance(result, Store) and result.mem is not Mem.OUT:
        result.shift, result.relu = 0, False
    if isinstance(result, Gemm) and not config.ext_gemm_set and result.mode is GemmMode.SET:
        result.mode = GemmMode.ZERO
    if isinstance(result, Gemm | Alu):
        result.uop_bgn, end = sorted((result.uop_bgn, min(result.uop_end, config.uop_depth)))
        result.uop_bgn, result.uop_end = min(result.uop_bgn, config.uop_depth - 1), end
    if isinstance(result, Alu) and not result.use_imm:
        result.imm = 0
    if result.unit is Unit.LD:
        result.pop_prev = result.push_prev = False
    if result.unit is Unit.ST:
        result.pop_next = result.push_next = False
    return result


def movable(form: Format, config: VdlaConfig) -> list[Mem]:
    """The memories that loads, or stores, may move under a configuration."""
    return [
        mem
        for mem, info in MEMORIES.items()
        if (info.load if form.record is Load else info.store) is not None
        and (not info.extension or getattr(config, info.extension))
    ]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program that is legal as a file; what its stream does may make no sense."""
    config = draw(st.sampled_from(CONFIGS))
    stream = draw(st.lists(instructions(config), max_size=12))
    limits = (config.acc_depth, config.inp_depth, config.wgt_depth, 1 + config.ext_gemm_set)
    fields = draw(st.lists(st.tuples(*(st.integers(0, limit - 1) for limit in limits)), max_size=5))
    uops = pack_uop(*np.array(fields, np.int64).reshape(-1, 4).T, config=config)
    constants = draw(st.binary(max_size=200))
    buffers = []
    for name in draw(st.lists(names, max_size=4, unique=True)):
        kind = draw(st.sampled_from(["in", "out", "temp"] + ["uop"] * bool(fields) + ["const"] * bool(constants)))
        offset = draw(st.integers(0, len(constants) - 1)) if kind == "const" else 0
        size = {"const": len(constants) - offset, "uop": 4 * len(fields)}.get(kind) or draw(st.integers(1, 1 << 20))
        buffers.append(BufferSpec(name, kind, size, 1 << draw(st.integers(0, 12)), offset))
    relocations: dict[int, int] = {}
    for at, instruction in enumerate(stream):
        if isinstance(instruction, Load | Store) and buffers and draw(st.booleans()):
            relocations[at] = draw(st.integers(0, len(buffers) - 1))
            instruction.dram_base &= (1 << 31) - 1
    meta = draw(st.dictionaries(st.text(max_size=5).filter(lambda key: key != "config"), json_values, max_size=3))
    return Program(config, stream, uops, constants, buffers, relocations, meta)
