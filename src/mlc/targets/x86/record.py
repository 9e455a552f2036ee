"""The table of x86 processors: vectors, caches and ports by name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mlc.errors import UsageError
from mlc.targets.cpu.dot import stored_pairs
from mlc.targets.cpu.record import Cpu
from mlc.targets.x86.amx import matrices_of
from mlc.targets.x86.dot import bf16_dot_of, bit_counter_of, dot_of, narrow_dot_of, taps_dot_of, word_dot_of
from mlc.targets.x86.features import needed_features

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


# What differs from the defaults of Cpu. Server parts with AVX-512: sustained bandwidths measured on a Skylake-SP core
# (100, 23 and 11 GB/s at 2.35 GHz). Zen: measured on Zen 3. The rest: cache sizes and ports as the vendors state them.
_SERVER: dict[str, Any] = {
    "l2": 1 << 20, "l3": 16 << 20, "l2_bandwidth": 43, "l3_bandwidth": 10, "memory_bandwidth": 4.7, "cores": 8
}  # fmt: skip
_ZEN: dict[str, Any] = {
    "l2": 512 << 10, "l3": 16 << 20, "l2_bandwidth": 26, "l3_bandwidth": 20, "memory_bandwidth": 6.5, "issue": 6,
    "cores": 8,
}  # fmt: skip
_FACTS: dict[str, dict[str, Any]] = {
    "skylake-avx512": _SERVER,
    "cascadelake": _SERVER,
    "cooperlake": _SERVER,
    "x86-64-v4": _SERVER,
    "icelake-server": {**_SERVER, "l1": 48 << 10, "l2": 5 << 18, "issue": 5},
    "sapphirerapids": {**_SERVER, "l1": 48 << 10, "l2": 2 << 20, "issue": 6},
    "emeraldrapids": {**_SERVER, "l1": 48 << 10, "l2": 2 << 20, "issue": 6},
    "graniterapids": {**_SERVER, "l1": 48 << 10, "l2": 2 << 20, "issue": 6},
    "graniterapids-d": {**_SERVER, "l1": 48 << 10, "l2": 2 << 20, "issue": 6},
    "icelake-client": {"l1": 48 << 10, "l2": 512 << 10, "fmas": 1, "issue": 5},
    "rocketlake": {"l1": 48 << 10, "l2": 512 << 10, "fmas": 1, "issue": 5, "l3": 16 << 20, "cores": 8},
    "tigerlake": {"l1": 48 << 10, "l2": 5 << 18, "fmas": 1, "issue": 5, "l3": 12 << 20},
    # two halves of 256 bits
    "znver4": {**_ZEN, "l2": 1 << 20, "l3": 32 << 20, "l2_bandwidth": 30, "fmas": 1, "loads": 1, "halves": True},
    "znver5": {**_ZEN, "l1": 48 << 10, "l2": 1 << 20, "l3": 32 << 20, "l2_bandwidth": 50, "issue": 8},
    "haswell": {"fma_latency": 5},
    "core-avx2": {"fma_latency": 5},
    "broadwell": {"fma_latency": 5},
    "znver1": {**_ZEN, "l3": 8 << 20, "loads": 1, "fmas": 1, "fma_latency": 5, "cores": 4},
    "znver2": {**_ZEN, "fma_latency": 5},
    "znver3": {**_ZEN, "l3": 32 << 20},
    "alderlake": {"l1": 48 << 10, "l2": 5 << 18, "l3": 24 << 20, "issue": 6, "cores": 8},
    "raptorlake": {"l1": 48 << 10, "l2": 2 << 20, "l3": 32 << 20, "issue": 6, "cores": 8},
    "meteorlake": {"l1": 48 << 10, "l2": 2 << 20, "l3": 24 << 20, "issue": 6, "cores": 6},
    "arrowlake": {"l1": 48 << 10, "l2": 3 << 20, "l3": 32 << 20, "issue": 8, "cores": 8},
    "arrowlake-s": {"l1": 48 << 10, "l2": 3 << 20, "l3": 32 << 20, "issue": 8, "cores": 8},
    "lunarlake": {"l1": 48 << 10, "l2": 5 << 19, "l3": 12 << 20, "issue": 8},
    "pantherlake": {"l1": 48 << 10, "l2": 3 << 20, "l3": 18 << 20, "issue": 8},
}
# a copy of the broadcast, a multiplication and an addition
_NO_FMA: dict[str, Any] = {
    "fmas": 1, "fma_latency": 4, "fma_operations": 3, "l2_bandwidth": 20, "l3_bandwidth": 10, "memory_bandwidth": 4,
}  # fmt: skip


def record_for(cpu: str, features: tuple[str, ...] = ()) -> Cpu:
    """The record of a named processor.

    Raises:
        UsageError: LLVM's x86 back end has no such processor, or none that we know the vectors of.
    """
    facts = {"memory_operand": True, **_FACTS.get(cpu, {})}
    if cpu in _AVX512 or "+avx512f" in features:
        facts = {"broadcast_operand": True, **(facts if cpu in _FACTS else {**_SERVER, **facts})}
        return _with_dot(Cpu(cpu, (*features, "-prefer-256-bit"), 16, 32, **facts))
    if cpu in _AVX2 or "+avx2" in features:
        return _with_dot(Cpu(cpu, features, 8, 16, **facts))
    if cpu in _SSE or "+sse2" in features:
        return _with_dot(Cpu(cpu, features, 4, 16, **{**_NO_FMA, **facts}))
    raise UsageError(f"unknown processor {cpu!r}", hint="known: " + ", ".join((*_SSE, *_AVX2, *_AVX512)))


def host_name(name: str, present: Collection[str]) -> str:
    """The processor that a machine is: LLVM's name for it, or one that has more of what the machine has.

    LLVM goes by the numbers of family and model, and some hypervisors make those up: a server that calls itself a
    Rocket Lake would be taken for a processor of one multiply-add a cycle.

    Args:
        name: by LLVM.
        present: the features that the machine reports.

    >>> host_name("rocketlake", known_features("sapphirerapids")), host_name("rocketlake", known_features("rocketlake"))
    ('sapphirerapids', 'rocketlake')
    """
    here = set(present)
    known = {each: known_features(each) for each in (*_SSE, *_AVX2, *_AVX512)}
    best = max((each for each, features in known.items() if here.issuperset(features)), key=lambda e: len(known[e]))
    return best if len(known[best]) > len(known.get(name, ())) else name


def known_features(cpu: str) -> list[str]:
    """What every processor of a name has."""
    return needed_features(record_for(cpu))


def _with_dot(record: Cpu) -> Cpu:
    """The record with its processor's instructions for products of narrow numbers."""
    features = needed_features(record)
    lanes = record.lanes
    return replace(
        record,
        dot=dot_of(lanes, features),
        word_dot=word_dot_of(lanes, features),
        narrow_dot=narrow_dot_of(lanes, features),
        taps_dot=taps_dot_of(lanes, features),
        bf16_dot=bf16_dot_of(lanes, features),
        stored_dot=stored_pairs(lanes),
        bit_counter=bit_counter_of(lanes, features),
        matrices=matrices_of(lanes, features),
        permutes_bytes=lanes == 16 and "avx512vbmi" in features,
    )
