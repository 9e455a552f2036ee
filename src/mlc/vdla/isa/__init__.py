"""The instruction set: records, the table of fields, words and text."""

from mlc.vdla.isa.encode import columns_of, decode, encode, pack_uop, unpack_uop
from mlc.vdla.isa.fields import element_bytes, handlers, memory_depth
from mlc.vdla.isa.instruction import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    GemmMode,
    Instruction,
    Load,
    Mem,
    Opcode,
    Store,
    Unit,
    is_nop,
    nop,
)

__all__ = [
    "Alu",
    "AluOp",
    "Finish",
    "Gemm",
    "GemmMode",
    "Instruction",
    "Load",
    "Mem",
    "Opcode",
    "Store",
    "Unit",
    "columns_of",
    "decode",
    "element_bytes",
    "encode",
    "handlers",
    "is_nop",
    "memory_depth",
    "nop",
    "pack_uop",
    "unpack_uop",
]
