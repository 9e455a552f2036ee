"""Which instruction sets code for a processor may use: what a machine must have to run it.

LLVM uses whatever it knows a processor to have, and tells nobody; so the sets are listed here, as far as vector and bit
instructions can come from generated code. Names are LLVM's.
"""

from __future__ import annotations

from mlc.targets.cpu.record import Cpu

_SSE42 = ("sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_AVX = (*_SSE42, "avx")
_AVX2 = (*_AVX, "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")
_VNNI = (*_AVX512, "avx512vnni")
_CANNON_LAKE = (*_AVX512, "avx512ifma", "avx512vbmi")
_ICE_LAKE = (*_CANNON_LAKE, "avx512vnni", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "gfni")
_SAPPHIRE_RAPIDS = (*_ICE_LAKE, "avx512bf16", "avx512fp16", "avxvnni", "amx-tile", "amx-int8", "amx-bf16")
_ALDER_LAKE = (*_AVX2, "gfni", "avxvnni")
_ARROW_LAKE = (*_ALDER_LAKE, "avxifma", "avxneconvert", "avxvnniint8")
_LUNAR_LAKE = (*_ARROW_LAKE, "avxvnniint16")
_ZEN = (*_AVX2, "sse4a")
_ZEN_4 = (*_ICE_LAKE, "sse4a", "avx512bf16")
_ZEN_5 = (*_ZEN_4, "avxvnni", "avx512vp2intersect")

# processors that have more, or less, than the smallest of their vectors' width (see ``_SMALLEST``)
_OF: dict[str, tuple[str, ...]] = {
    "core2": ("sse2", "sse3", "ssse3"),
    "penryn": ("sse2", "sse3", "ssse3", "sse4.1"),
    **dict.fromkeys(("nehalem", "corei7", "westmere", "x86-64-v2", "silvermont", "goldmont", "goldmont-plus"), _SSE42),
    "tremont": (*_SSE42, "gfni"),
    **dict.fromkeys(("sandybridge", "corei7-avx"), _AVX),
    **dict.fromkeys(("ivybridge", "core-avx-i"), (*_AVX, "f16c")),
    "btver2": (*_AVX, "f16c", "bmi", "lzcnt", "movbe", "sse4a"),
    "bdver2": (*_AVX, "f16c", "fma", "bmi", "lzcnt", "sse4a", "fma4", "xop", "tbm"),
    "bdver4": (*_AVX2, "sse4a", "fma4", "xop", "tbm"),
    **dict.fromkeys(("alderlake", "raptorlake", "meteorlake", "gracemont"), _ALDER_LAKE),
    "arrowlake": _ARROW_LAKE,
    **dict.fromkeys(("arrowlake-s", "lunarlake", "pantherlake"), _LUNAR_LAKE),
    **dict.fromkeys(("znver1", "znver2", "znver3"), _ZEN),
    **dict.fromkeys(("knl", "knm"), (*_AVX2, "avx512f", "avx512cd")),
    "cascadelake": _VNNI,
    "cooperlake": (*_VNNI, "avx512bf16"),
    "cannonlake": _CANNON_LAKE,
    **dict.fromkeys(("icelake-client", "icelake-server", "rocketlake"), _ICE_LAKE),
    "tigerlake": (*_ICE_LAKE, "avx512vp2intersect"),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"), _SAPPHIRE_RAPIDS),
    "znver4": _ZEN_4,
    "znver5": _ZEN_5,
}  # fmt: skip
_SMALLEST = {16: _AVX512, 8: _AVX2, 4: ("sse2",)}
KNOWN = frozenset(feature for features in (*_OF.values(), *_SMALLEST.values()) for feature in features)
"""Features that code of some processor may need."""


def needed_features(record: Cpu) -> list[str]:
    """What a machine must have to run code for a processor: what the processor has, changed by the record's flags.

    >>> from mlc.targets.x86.record import record_for
    >>> needed_features(record_for("x86-64", ("+sse3",)))
    ['sse2', 'sse3']
    """
    needed = set(_OF.get(record.cpu, _SMALLEST[record.lanes]))
    for flag in record.features:
        if flag[1:] in KNOWN:
            (needed.add if flag[0] == "+" else needed.discard)(flag[1:])
    return sorted(needed)
