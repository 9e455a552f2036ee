"""Instructions that add up products of bytes; see :mod:`mlc.targets.cpu.dot`.

All here are exact for all operands: ``vpmaddubsw``, whose sums of two saturate at 16 bits, is not among them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from mlc.targets.cpu.dot import Dot
from mlc.targets.llvm.intrinsic import Address, VectorSink

# LLVM's functions by lanes of the sums
_VPDPBUSD = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}
_VPMADDWD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}


def dot_of(lanes: int, features: Collection[str]) -> Dot:
    """The best instruction of a processor for vectors of so many sums: every x86-64 processor has one.

    >>> dot_of(16, {"avx512vnni"}).intrinsic, dot_of(8, {"avx2"}).intrinsic
    (vpdpbusd.16, vpmaddwd.8)
    """
    have = set(features)
    vnni = "avx512vnni" in have and (lanes == 16 or "avx512vl" in have)
    return _vnni(lanes) if lanes in _VPDPBUSD and (vnni or (lanes == 8 and "avxvnni" in have)) else _pairs(lanes)


@lru_cache
def _vnni(lanes: int) -> Dot:
    """AVX-512 VNNI, AVX-VNNI: four bytes of ``x`` in every lane, times four of ``w`` each."""
    name, words, data = _VPDPBUSD[lanes], f"<{lanes} x i32>", f"<{4 * lanes} x i8>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {words} @{name}({words}, {data}, {data})")
        spread = sink.pure(f"bitcast {words} {_everywhere(sink, x, 'i32', lanes)} to {data}")
        return sink.pure(f"call {words} @{name}({words} {total}, {data} {spread}, {data} {sink.read(w, data)})")

    return Dot.declare("vpdpbusd", lanes, 4, write)


@lru_cache
def _pairs(lanes: int) -> Dot:
    """SSE2, AVX2, AVX-512BW: two bytes of each, widened to 16 bits; no sum of two products overflows 32."""
    name, words, data = _VPMADDWD[lanes], f"<{lanes} x i32>", f"<{2 * lanes} x i8>"
    wide = f"<{2 * lanes} x i16>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {words} @{name}({wide}, {wide})")
        pairs = sink.pure(f"bitcast <{lanes} x i16> {_everywhere(sink, x, 'i16', lanes)} to {data}")
        left = sink.pure(f"zext {data} {pairs} to {wide}")
        right = sink.pure(f"sext {data} {sink.read(w, data)} to {wide}")
        return sink.pure(f"add {words} {total}, {sink.pure(f'call {words} @{name}({wide} {left}, {wide} {right})')}")

    return Dot.declare("vpmaddwd", lanes, 2, write)


def _everywhere(sink: VectorSink, at: Address, type: str, lanes: int) -> str:
    """What lies at an address, in all lanes."""
    vector = f"<{lanes} x {type}>"
    one = sink.pure(f"insertelement {vector} poison, {type} {sink.read(at, type)}, i64 0")
    return sink.pure(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")
