"""Instructions that add up products of bytes, and of bf16; see :mod:`mlc.targets.cpu.dot`. All of bytes are exact."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from mlc.ir.types import bf16, f32
from mlc.targets.cpu.dot import Dot, everywhere
from mlc.targets.llvm.intrinsic import Address, VectorSink

_LANES = 4
_SUMS = f"<{_LANES} x i32>"


def dot_of(features: Collection[str]) -> Dot:
    """The best instruction of a processor: every AArch64 processor has one.

    >>> dot_of({"neon", "i8mm"}).intrinsic.name, dot_of({"neon"}).intrinsic.name
    ('usdot.4', 'mul_sadalp.4')
    """
    return _usdot() if "i8mm" in features else _pairs()


def bf16_dot_of(features: Collection[str]) -> Dot | None:
    """The instruction for products of bf16, where a processor has one.

    >>> bf16_dot_of({"neon", "bf16"}).intrinsic.name, bf16_dot_of({"neon"})
    ('bfdot.4', None)
    """
    return _bfdot() if "bf16" in features else None


@lru_cache
def _usdot() -> Dot:
    """I8MM: four unsigned bytes of ``x`` in every lane, times four signed ones of ``w`` each."""
    name, data = "llvm.aarch64.neon.usdot.v4i32.v16i8", f"<{4 * _LANES} x i8>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {_SUMS} @{name}({_SUMS}, {data}, {data})")
        spread = sink.pure(f"bitcast {_SUMS} {everywhere(sink, x, 'i32', _LANES)} to {data}")
        return sink.pure(f"call {_SUMS} @{name}({_SUMS} {total}, {data} {spread}, {data} {sink.read(w, data)})")

    return Dot.declare("usdot", _LANES, 4, write)


@lru_cache
def _pairs() -> Dot:
    """NEON: two bytes of each, widened to 16 bits, in which a product of them fits; neighbours added to 32 bits."""
    name, data, wide = "llvm.aarch64.neon.saddlp.v4i32.v8i16", f"<{2 * _LANES} x i8>", f"<{2 * _LANES} x i16>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        sink.declare(f"declare {_SUMS} @{name}({wide})")
        pairs = sink.pure(f"bitcast <{_LANES} x i16> {everywhere(sink, x, 'i16', _LANES)} to {data}")
        left = sink.pure(f"zext {data} {pairs} to {wide}")
        right = sink.pure(f"sext {data} {sink.read(w, data)} to {wide}")
        product = sink.pure(f"mul {wide} {left}, {right}")
        return sink.pure(f"add {_SUMS} {total}, {sink.pure(f'call {_SUMS} @{name}({wide} {product})')}")

    return Dot.declare("mul_sadalp", _LANES, 2, write, operations=2)


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
