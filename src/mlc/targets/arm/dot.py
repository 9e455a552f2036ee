"""Instructions that add up products of bytes, and of bf16; see :mod:`mlc.targets.cpu.dot`. All of bytes are exact."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from mlc.ir.types import bf16, f32, i8, i32
from mlc.targets.cpu.bits import BitCounter
from mlc.targets.cpu.dot import NEIGHBOURS, Dot, Write, at_byte, everywhere
from mlc.targets.llvm.intrinsic import Address, VectorSink

_LANES = 4
_SUMS = f"<{_LANES} x i32>"


def dot_of(features: Collection[str], *, in_order: bool) -> Dot:
    """The best instruction of a processor: every AArch64 processor has one.

    >>> dot_of({"neon", "dotprod"}, in_order=True).intrinsic.name, dot_of({"neon"}, in_order=True).intrinsic.name
    ('sdot.4', 'smull_sadalp.4')
    """
    return _sdot() if "dotprod" in features else _pairs(2 if in_order else 1)


def bf16_dot_of(features: Collection[str]) -> Dot | None:
    """The instruction for products of bf16, where a processor has one.

    >>> bf16_dot_of({"neon", "bf16"}).intrinsic.name, bf16_dot_of({"neon"})
    ('bfdot.4', None)
    """
    return _bfdot() if "bf16" in features else None


def block_dots_of(features: Collection[str]) -> tuple[Dot, ...]:
    """The instructions that multiply blocks of two rows by two columns.

    >>> [d.intrinsic.name for d in block_dots_of({"neon", "dotprod", "i8mm", "bf16"})], block_dots_of({"neon"})
    (['smmla', 'bfmmla'], ())
    """
    return (*((_smmla(),) if "i8mm" in features else ()), *((_bfmmla(),) if "bf16" in features else ()))


def bit_counter() -> BitCounter:
    """How every AArch64 processor counts bits: ``cnt`` in bytes, ``uaddlp`` and ``uadalp`` to widen the counts."""
    return BitCounter("cnt", _LANES, per_operation=1, widen=_widened, widening=1, scratch=12)


def _widened(sink: VectorSink, counts: str) -> str:
    pairs, quads = "llvm.aarch64.neon.uaddlp.v8i16.v16i8", "llvm.aarch64.neon.uaddlp.v4i32.v8i16"
    sink.declare(f"declare <8 x i16> @{pairs}(<16 x i8>)")
    sink.declare(f"declare {_SUMS} @{quads}(<8 x i16>)")
    two = sink.pure(f"call <8 x i16> @{pairs}(<16 x i8> {counts})")
    return sink.pure(f"call {_SUMS} @{quads}(<8 x i16> {two})")


@lru_cache
def _sdot() -> Dot:
    """Dot products: four signed bytes of ``x`` in every lane, times four of ``w`` each."""
    name, data = "llvm.aarch64.neon.sdot.v4i32.v16i8", f"<{4 * _LANES} x i8>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {_SUMS} @{name}({_SUMS}, {data}, {data})")
        spread = sink.pure(f"bitcast {_SUMS} {everywhere(sink, x, 'i32', _LANES)} to {data}")
        return sink.pure(f"call {_SUMS} @{name}({_SUMS} {total}, {data} {spread}, {data} {sink.read(w, data)})")

    return Dot.declare("sdot", _LANES, 4, write, (i8, i8, i32))


@lru_cache
def _pairs(operations: int) -> Dot:
    """NEON: two signed bytes of each, whose products fit 16 bits; neighbours are added to the sums of 32 bits.

    A Cortex-A72 does either in one of its two pipes, which both are needed for a multiply-add of floats: ``llvm-mca``
    grants it an iteration of 24 in 27 cycles. A Cortex-A53 takes two turns.

    A second product added in 16 bits before that would overflow where all four bytes are -128.
    """
    multiply, add = "llvm.aarch64.neon.smull.v8i16", "llvm.aarch64.neon.saddlp.v4i32.v8i16"
    data, wide = f"<{2 * _LANES} x i8>", f"<{2 * _LANES} x i16>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {wide} @{multiply}({data}, {data})")
        sink.declare(f"declare {_SUMS} @{add}({wide})")
        pairs = sink.pure(f"bitcast <{_LANES} x i16> {everywhere(sink, x, 'i16', _LANES)} to {data}")
        products = sink.pure(f"call {wide} @{multiply}({data} {pairs}, {data} {sink.read(w, data)})")
        return sink.pure(f"add {_SUMS} {total}, {sink.pure(f'call {_SUMS} @{add}({wide} {products})')}")

    return Dot.declare("smull_sadalp", _LANES, 2, write, (i8, i8, i32), operations, held=1)


@lru_cache
def _smmla() -> Dot:
    """I8MM: two rows of eight signed bytes by two columns of as many; twice the products of ``sdot`` in its time."""
    return Dot.declare_block("smmla", 8, _blocks("llvm.aarch64.neon.smmla.v4i32.v16i8", "i32", "i8"), (i8, i8, i32))


@lru_cache
def _bfmmla() -> Dot:
    """BF16: two rows of four bf16 by two columns of as many.

    Sums of two are rounded to odd before they are added, as by ``bfdot``, and what is denormal counts as zero.
    """
    return Dot.declare_block("bfmmla", 4, _blocks("llvm.aarch64.neon.bfmmla", "float", "bfloat"), (bf16, bf16, f32))


def _blocks(name: str, sum_type: str, type: str) -> Write:
    """How an instruction on blocks of 16 bytes of each operand is written; it is called ``name`` in LLVM."""
    sums, both = f"<4 x {sum_type}>", f"<8 x {sum_type}>"
    data = f"<{16 if type == 'i8' else 8} x {type}>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {sums} @{name}({sums}, {data}, {data})")
        rows = sink.pure(f"bitcast {_SUMS} {_two_rows(sink, x)} to {data}")
        found = []
        for k in range(2):
            part = ", ".join(f"i32 {4 * k + lane}" for lane in range(4))
            held = sink.pure(f"shufflevector {both} {total}, {both} poison, <4 x i32> <{part}>")
            columns = sink.read(at_byte(sink, w, 16 * k), data)
            found.append(sink.pure(f"call {sums} @{name}({sums} {held}, {data} {rows}, {data} {columns})"))
        joined = ", ".join(f"i32 {k}" for k in range(8))
        return sink.pure(f"shufflevector {sums} {found[0]}, {sums} {found[1]}, <8 x i32> <{joined}>")

    return write


def _two_rows(sink: VectorSink, x: Address) -> str:
    """Eight bytes of a row, and as many of the next, as ``<4 x i32>``."""
    size = x.buffer.dtype.itemsize
    row, run, _ = (step * size for step in x.strides)
    if run == NEIGHBOURS or row == NEIGHBOURS:  # eight neighbours belong to one row, or to two
        first, second = (sink.read(at_byte(sink, x, k * max(row, run)), "<2 x i32>") for k in range(2))
        order = (0, 1, 2, 3) if run == NEIGHBOURS else (0, 2, 1, 3)
        mask = ", ".join(f"i32 {k}" for k in order)
        return sink.pure(f"shufflevector <2 x i32> {first}, <2 x i32> {second}, <4 x i32> <{mask}>")
    found = "poison"
    for k, at in enumerate((0, run, row, row + run)):
        one = sink.read(at_byte(sink, x, at), "i32")
        found = sink.pure(f"insertelement {_SUMS} {found}, i32 {one}, i64 {k}")
    return found


@lru_cache
def _bfdot() -> Dot:
    """BF16: two bf16 of ``x`` in every lane, times two of ``w`` each.

    Sums of two are rounded to odd before they are added, and what is denormal counts as zero.
    """
    name, sums, data = "llvm.aarch64.neon.bfdot.v4f32.v8bf16", f"<{_LANES} x float>", f"<{2 * _LANES} x bfloat>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {sums} @{name}({sums}, {data}, {data})")
        pairs = sink.pure(f"bitcast {_SUMS} {everywhere(sink, x, 'i32', _LANES)} to {data}")
        return sink.pure(f"call {sums} @{name}({sums} {total}, {data} {pairs}, {data} {sink.read(w, data)})")

    return Dot.declare("bfdot", _LANES, 2, write, (bf16, bf16, f32))
