"""What an x86 processor offers to a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.errors import UsageError


@dataclass(frozen=True)
class X86:
    """The target record: every tile size below follows from it.

    Args:
        cpu: LLVM processor name.
        features: LLVM feature flags, each with its sign.
        lanes: f32 lanes of a vector register.
        registers: number of vector registers.
        l1: bytes of first-level data cache.
        l2: bytes of second-level cache.
    """

    cpu: str
    features: tuple[str, ...]
    lanes: int
    registers: int
    l1: int = 32 << 10
    l2: int = 1 << 20

    @property
    def vector_bits(self) -> int:
        return self.lanes * 32


# processors by the vectors they run well; names are LLVM's
_AVX512 = (
    "skylake-avx512", "cascadelake", "cooperlake", "cannonlake", "icelake-client", "icelake-server", "tigerlake",
    "rocketlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "knl", "knm", "znver4",
    "znver5", "x86-64-v4",
)  # fmt: skip
_AVX2 = (
    "haswell", "core-avx2", "broadwell", "skylake", "alderlake", "raptorlake", "meteorlake", "arrowlake", "arrowlake-s",
    "lunarlake", "gracemont", "pantherlake", "znver1", "znver2", "znver3", "x86-64-v3",
)  # fmt: skip
_SSE = (
    "x86-64", "x86-64-v2", "nehalem", "corei7", "westmere", "silvermont", "goldmont", "goldmont-plus", "tremont",
    "core2", "penryn", "btver2", "sandybridge", "corei7-avx", "ivybridge", "core-avx-i", "bdver2", "bdver4",
)  # fmt: skip


def record_for(cpu: str, features: tuple[str, ...] = ()) -> X86:
    """The record of a named processor.

    Raises:
        UsageError: LLVM's x86 back end has no such processor, or none that we know the vectors of.
    """
    if cpu in _AVX512 or "+avx512f" in features:
        return X86(cpu, (*features, "-prefer-256-bit"), 16, 32)
    if cpu in _AVX2 or "+avx2" in features:
        return X86(cpu, features, 8, 16, l2=256 << 10)
    if cpu in _SSE or "+sse2" in features:
        return X86(cpu, features, 4, 16, l2=256 << 10)
    raise UsageError(f"unknown processor {cpu!r}", hint="known: " + ", ".join((*_SSE, *_AVX2, *_AVX512)))
