"""Instructions that add up products of bytes, and of bf16; see :mod:`mlc.targets.cpu.dot`.

All are exact for all operands of their types: ``vpmaddubsw``, whose sums of two saturate at 16 bits, is for weights of
i7.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from mlc.ir.types import bf16, f32, i7, i16, i32, u8
from mlc.targets.cpu.bits import BitCounter, Widen
from mlc.targets.cpu.dot import Dot, everywhere
from mlc.targets.llvm.intrinsic import Address, VectorSink
from mlc.targets.llvm.text import splat

# LLVM's functions by lanes of the sums
_VPDPBUSD = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}
_VDPBF16PS = {16: "llvm.x86.avx512bf16.dpbf16ps.512", 8: "llvm.x86.avx512bf16.dpbf16ps.256"}
_VPMADDUBSW = {
    16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw", 4: "llvm.x86.ssse3.pmadd.ub.sw.128"
}  # fmt: skip
_VPMADDWD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_LOGIC = 2  # instructions of logic on vectors that begin in the time of a multiply-add


def dot_of(lanes: int, features: Collection[str]) -> Dot | None:
    """The best instruction of a processor for vectors of so many sums: all have one but those of AVX-512 without BW.

    >>> dot_of(16, {"avx512vnni"}).intrinsic.name, dot_of(8, {"avx2"}).intrinsic.name, dot_of(16, {"avx512f"})
    ('vpdpbusd.16', 'vpmaddwd.8', None)
    """
    if _has_vnni(lanes, features):
        return _vnni(lanes)
    return _pairs(lanes) if _has_words(lanes, features) else None


def taps_dot_of(lanes: int, features: Collection[str]) -> Dot | None:
    """The instruction for data of each lane's own: it takes four terms, or turning them costs more than it saves.

    >>> taps_dot_of(16, {"avx512vnni"}).intrinsic.name, taps_dot_of(8, {"avx2"})
    ('vpdpbusd.taps.16', None)
    """
    return _vnni_of_taps(lanes) if _has_vnni(lanes, features) else None


def _has_vnni(lanes: int, features: Collection[str]) -> bool:
    have = set(features)
    vnni = "avx512vnni" in have and (lanes == 16 or "avx512vl" in have)
    return lanes in _VPDPBUSD and (vnni or (lanes == 8 and "avxvnni" in have))


def _has_words(lanes: int, features: Collection[str]) -> bool:
    """Whether vectors hold words, not only numbers of 32 bits."""
    return lanes < 16 or "avx512bw" in features


def word_dot_of(lanes: int, features: Collection[str]) -> Dot | None:
    """The instruction for bytes that have been widened to 16 bits, where that is faster than to leave it to ``dot_of``.

    >>> word_dot_of(16, {"avx512vnni"}), word_dot_of(8, {"avx2"}).intrinsic.name
    (None, 'vpmaddwd.words.8')
    """
    return _words(lanes) if _has_words(lanes, features) and not _has_vnni(lanes, features) else None


def narrow_dot_of(lanes: int, features: Collection[str]) -> Dot | None:
    """The instructions for bytes by weights of i7, where those are faster than any for weights of i8.

    >>> narrow_dot_of(8, {"avx2", "ssse3"}).intrinsic.name, narrow_dot_of(16, {"avx512vnni", "ssse3"})
    ('vpmaddubsw.8', None)
    """
    return _narrow(lanes) if "ssse3" in features and word_dot_of(lanes, features) is not None else None


def bf16_dot_of(lanes: int, features: Collection[str]) -> Dot | None:
    """The instruction for products of bf16, where a processor has one.

    >>> bf16_dot_of(16, {"avx512bf16"}).intrinsic.name, bf16_dot_of(8, {"avx2"})
    ('vdpbf16ps.16', None)
    """
    have = set(features)
    fits = "avx512bf16" in have and lanes in _VDPBF16PS and (lanes == 16 or "avx512vl" in have)
    return _bf16_pairs(lanes) if fits else None


def bit_counter_of(lanes: int, features: Collection[str]) -> BitCounter | None:
    """How a processor counts bits: VPOPCNTDQ in lanes, or ``vpshufb`` as a table of nibbles.

    >>> bit_counter_of(16, {"avx512vpopcntdq"}).name, bit_counter_of(8, {"avx2", "ssse3"}).name
    ('vpopcntd', 'vpshufb')
    """
    have = set(features)
    if "avx512vpopcntdq" in have and (lanes == 16 or (lanes in _VPMADDUBSW and "avx512vl" in have)):
        return BitCounter("vpopcntd", lanes, per_operation=_LOGIC, scratch=6)
    if lanes not in _VPMADDUBSW or "ssse3" not in have or (lanes == 16 and "avx512bw" not in have):
        return None
    # six instructions, of which the two look-ups find one unit: like eight of logic (measured on Zen 4 as a Haswell)
    return BitCounter(
        "vpshufb", lanes, per_operation=_LOGIC, counting=8, widen=_widener(lanes), widening=3, scratch=8
    )  # fmt: skip


@lru_cache
def _widener(lanes: int) -> Widen:
    """Totals of every four bytes without a sign: of two, then of two of these."""
    octets, words, sums = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    pairs, quads = _VPMADDUBSW[lanes], _VPMADDWD[lanes]

    def write(sink: VectorSink, counts: str) -> str:
        sink.declare(f"declare {words} @{pairs}({octets}, {octets})")
        sink.declare(f"declare {sums} @{quads}({words}, {words})")
        two = sink.pure(f"call {words} @{pairs}({octets} {counts}, {octets} splat (i8 1))")
        return sink.pure(f"call {sums} @{quads}({words} {two}, {words} splat (i16 1))")

    return write


@lru_cache
def _bf16_pairs(lanes: int) -> Dot:
    """AVX-512 BF16: two bf16 of ``x`` in every lane, times two of ``w`` each.

    The second term is added before the first, each with one rounding to nearest; what is denormal counts as zero.
    """
    name, sums, data = _VDPBF16PS[lanes], f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {sums} @{name}({sums}, {data}, {data})")
        pairs = sink.pure(f"bitcast <{lanes} x i32> {everywhere(sink, x, 'i32', lanes)} to {data}")
        return sink.pure(f"call {sums} @{name}({sums} {total}, {data} {pairs}, {data} {sink.read(w, data)})")

    return Dot.declare("vdpbf16ps", lanes, 2, write, (bf16, bf16, f32))


@lru_cache
def _vnni(lanes: int) -> Dot:
    """AVX-512 VNNI, AVX-VNNI: four bytes of ``x`` in every lane, times four of ``w`` each."""
    name, words, data = _VPDPBUSD[lanes], f"<{lanes} x i32>", f"<{4 * lanes} x i8>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {words} @{name}({words}, {data}, {data})")
        spread = sink.pure(f"bitcast {words} {everywhere(sink, x, 'i32', lanes)} to {data}")
        return sink.pure(f"call {words} @{name}({words} {total}, {data} {spread}, {data} {sink.read(w, data)})")

    return Dot.declare("vpdpbusd", lanes, 4, write)


@lru_cache
def _vnni_of_taps(lanes: int) -> Dot:
    """AVX-512 VNNI, AVX-VNNI: four vectors of bytes of ``x``, turned so that each lane has its four side by side."""
    name, words, data = _VPDPBUSD[lanes], f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    turned = ", ".join(f"i32 {k * lanes + j}" for j in range(lanes) for k in range(4))

    def added(sink: VectorSink, total: str, x: Address, taps: str) -> str:
        sink.declare(f"declare {words} @{name}({words}, {data}, {data})")
        own = sink.pure(f"shufflevector {data} {sink.read(x, data)}, {data} poison, <{4 * lanes} x i32> <{turned}>")
        return sink.pure(f"call {words} @{name}({words} {total}, {data} {own}, {data} {taps})")

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        return added(sink, total, x, sink.read(w, data))

    def write_next(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        four = sink.pure(f"bitcast {data} {sink.read(w, data)} to {words}")
        moved = sink.pure(f"shl {words} {four}, {splat(8, i32, lanes)}")
        return added(sink, total, x, sink.pure(f"bitcast {words} {moved} to {data}"))

    return Dot.declare("vpdpbusd.taps", lanes, 4, write, apart=True, write_next=write_next)


@lru_cache
def _pairs(lanes: int) -> Dot:
    """SSE2, AVX2, AVX-512BW: two bytes of each, widened to 16 bits; no sum of two products overflows 32."""
    name, words, data = _VPMADDWD[lanes], f"<{lanes} x i32>", f"<{2 * lanes} x i8>"
    wide = f"<{2 * lanes} x i16>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {words} @{name}({wide}, {wide})")
        pairs = sink.pure(f"bitcast <{lanes} x i16> {everywhere(sink, x, 'i16', lanes)} to {data}")
        left = sink.pure(f"zext {data} {pairs} to {wide}")
        right = sink.pure(f"sext {data} {sink.read(w, data)} to {wide}")
        return sink.pure(f"add {words} {total}, {sink.pure(f'call {words} @{name}({wide} {left}, {wide} {right})')}")

    return Dot.declare("vpmaddwd", lanes, 2, write, operations=2, held=1)


@lru_cache
def _words(lanes: int) -> Dot:
    """The same of operands in 16 bits: nothing is left to widen.

    More units add than multiply (on Zen 4, 12 pairs of both take 2.05 ns, 12 multiply-adds of floats 1.65).
    """
    name, words, data = _VPMADDWD[lanes], f"<{lanes} x i32>", f"<{2 * lanes} x i16>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {words} @{name}({data}, {data})")
        pairs = sink.pure(f"bitcast {words} {everywhere(sink, x, 'i32', lanes)} to {data}")
        products = sink.pure(f"call {words} @{name}({data} {pairs}, {data} {sink.read(w, data)})")
        return sink.pure(f"add {words} {total}, {products}")

    return Dot.declare("vpmaddwd.words", lanes, 2, write, (i16, i16, i32), operations=4 / 3, held=1)


@lru_cache
def _narrow(lanes: int) -> Dot:
    """SSSE3, AVX2, AVX-512BW: products of two bytes each added up in 16 bits, and of these two in 32.

    255 * (64 + 64) is 32640, so no sum of two saturates for weights of i7.

    In registers it is twice as fast as multiply-adds of floats on Zen 4, with loads 1.9 times.
    """
    narrow, name, words = _VPMADDUBSW[lanes], _VPMADDWD[lanes], f"<{lanes} x i32>"
    data, pairs = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {pairs} @{narrow}({data}, {data})")
        sink.declare(f"declare {words} @{name}({pairs}, {pairs})")
        spread = sink.pure(f"bitcast {words} {everywhere(sink, x, 'i32', lanes)} to {data}")
        twos = sink.pure(f"call {pairs} @{narrow}({data} {spread}, {data} {sink.read(w, data)})")
        fours = sink.pure(f"call {words} @{name}({pairs} {twos}, {pairs} splat (i16 1))")
        return sink.pure(f"add {words} {total}, {fours}")

    return Dot.declare("vpmaddubsw", lanes, 4, write, (u8, i7, i32), operations=2, held=2)
