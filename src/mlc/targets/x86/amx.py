"""AMX: eight registers of sixteen rows of 64 bytes, and an instruction that multiplies them.

LLVM gives registers their numbers and their shapes, and configures them at the beginning of each function.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from mlc.ir.types import i8, i32, u8
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.matrix import MatrixUnit
from mlc.targets.llvm.intrinsic import Address, Matrix, VectorSink

FEATURES = ("amx-tile", "amx-int8")
_ROWS, _ROW = 16, 64  # of a register, and bytes of each
_TERMS = 64
_LANES = 16


def matrices_of(lanes: int, features: Collection[str]) -> MatrixUnit | None:
    """The unit of a processor that has one; cycles are Intel's, and as measured on a Sapphire Rapids.

    >>> matrices_of(16, {"amx-tile", "amx-int8"}).dot(14).intrinsic.name, matrices_of(16, {"avx512vnni"})
    ('tdpbusd.14', None)
    """
    if lanes != _LANES or not set(FEATURES) <= set(features):
        return None
    return MatrixUnit(_tdpbusd, rows=_ROWS, terms=_TERMS, registers=8, cycles=16, latency=52)


@lru_cache
def _tdpbusd(rows: int) -> Dot:
    """Bytes without a sign by bytes with one."""
    name = "llvm.x86.tdpbusd.internal"
    load, store, zero = (f"llvm.x86.tile{what}.internal" for what in ("loadd64", "stored64", "zero"))

    def at(sink: VectorSink, a: Address, high: int) -> str:
        sink.declare(f"declare x86_amx @{load}(i16, i16, ptr, i64)")
        return sink.fetch(a, f"call x86_amx @{load}(i16 {high}, i16 {_ROW}, ptr {a.text}, i64 {a.strides[0]})")

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare x86_amx @{name}(i16, i16, i16, x86_amx, x86_amx, x86_amx)")
        data, weights = at(sink, x, rows), at(sink, w, _TERMS // 4)
        operands = f"x86_amx {total}, x86_amx {data}, x86_amx {weights}"
        return sink.pure(f"call x86_amx @{name}(i16 {rows}, i16 {_ROW}, i16 {_TERMS}, {operands})")

    def zeros(sink: VectorSink) -> str:
        sink.declare(f"declare x86_amx @{zero}(i16, i16)")
        found = sink.fresh()  # a register cannot be copied, so each has zeros of its own
        sink.run(f"{found} = call x86_amx @{zero}(i16 {rows}, i16 {_ROW})")
        return found

    def kept(sink: VectorSink, value: str, pointer: str) -> None:
        sink.declare(f"declare void @{store}(i16, i16, ptr, i64, x86_amx)")
        sink.run(f"call void @{store}(i16 {rows}, i16 {_ROW}, ptr {pointer}, i64 {_ROW}, x86_amx {value})")

    matrix = Matrix("x86_amx", rows * _ROW, zeros, kept)
    return Dot.declare_matrix(f"tdpbusd.{rows}", rows, _LANES, _TERMS, write, (u8, i8, i32), matrix)
