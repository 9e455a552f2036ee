"""AMX: eight registers of sixteen rows of 64 bytes, and an instruction that multiplies them.

LLVM gives registers their numbers and their shapes, and configures them at the beginning of each function.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache, partial

from mlc.ir.types import DType, bf16, f32, i8, i32, u8
from mlc.targets.cpu.dot import NEIGHBOURS, Dot
from mlc.targets.cpu.matrix import MatrixUnit
from mlc.targets.llvm.intrinsic import Address, Matrix, VectorSink

_ROWS, _ROW = 16, 64  # of a register, and bytes of each
_LANES = 16
# LLVM's features and names of instructions, and the types of data, weights and sums
_PRODUCTS: tuple[tuple[str, str, tuple[DType, DType, DType]], ...] = (
    ("amx-int8", "tdpbusd", (u8, i8, i32)),
    ("amx-bf16", "tdpbf16ps", (bf16, bf16, f32)),
)


def matrices_of(lanes: int, features: Collection[str]) -> tuple[MatrixUnit, ...]:
    """The units of a processor; cycles are Intel's, and as measured on a Sapphire Rapids.

    >>> [unit.dot(14).intrinsic.name for unit in matrices_of(16, {"amx-tile", "amx-int8", "amx-bf16"})]
    ['tdpbusd.14', 'tdpbf16ps.14']
    """
    if lanes != _LANES or "amx-tile" not in features:
        return ()
    return tuple(
        MatrixUnit(partial(_product, name, types), types[:2], rows=_ROWS, terms=_ROW // types[0].itemsize, registers=8,
                   cycles=16, latency=52)
        for feature, name, types in _PRODUCTS
        if feature in features
    )  # fmt: skip


@lru_cache
def _product(instruction: str, types: tuple[DType, DType, DType], rows: int) -> Dot:
    """Matrices of so many rows by matrices of sixteen columns, whose terms are neighbours by four bytes."""
    name = f"llvm.x86.{instruction}.internal"
    load, store, zero = (f"llvm.x86.tile{what}.internal" for what in ("loadd64", "stored64", "zero"))

    def at(sink: VectorSink, a: Address, high: int, size: int) -> str:
        sink.declare(f"declare x86_amx @{load}(i16, i16, ptr, i64)")
        return sink.fetch(a, f"call x86_amx @{load}(i16 {high}, i16 {_ROW}, ptr {a.text}, i64 {a.strides[0] * size})")

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare x86_amx @{name}(i16, i16, i16, x86_amx, x86_amx, x86_amx)")
        data = at(sink, x, rows, types[0].itemsize)
        weights = at(sink, w, _ROW // NEIGHBOURS, types[1].itemsize)
        operands = f"x86_amx {total}, x86_amx {data}, x86_amx {weights}"
        return sink.pure(f"call x86_amx @{name}(i16 {rows}, i16 {_ROW}, i16 {_ROW}, {operands})")

    def zeros(sink: VectorSink) -> str:
        sink.declare(f"declare x86_amx @{zero}(i16, i16)")
        found = sink.fresh()  # a register cannot be copied, so each has zeros of its own
        sink.run(f"{found} = call x86_amx @{zero}(i16 {rows}, i16 {_ROW})")
        return found

    def kept(sink: VectorSink, value: str, pointer: str) -> None:
        sink.declare(f"declare void @{store}(i16, i16, ptr, i64, x86_amx)")
        sink.run(f"call void @{store}(i16 {rows}, i16 {_ROW}, ptr {pointer}, i64 {_ROW}, x86_amx {value})")

    matrix = Matrix("x86_amx", rows * _ROW, zeros, kept)
    return Dot.declare_matrix(f"{instruction}.{rows}", rows, _LANES, _ROW // types[0].itemsize, write, types, matrix)
