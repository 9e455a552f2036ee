"""Which instruction sets code for a processor may use: what a machine must have to run it.

LLVM uses whatever it knows a processor to have, and tells nobody; so the sets are listed here, as far as instructions
of generated code can come from them. Names are LLVM's.
"""

from __future__ import annotations

from mlc.targets.cpu.record import Cpu

_V8 = ("neon",)
_V81 = (*_V8, "lse", "rdm")
_V82 = (*_V81, "fullfp16", "dotprod")
_V84 = (*_V82, "fp16fml", "i8mm", "bf16")
_M1 = (*_V82, "fp16fml")

_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("generic", "cortex-a53", "cortex-a72"), _V8),
    **dict.fromkeys(("cortex-a55", "cortex-a76", "cortex-x1", "neoverse-n1"), _V82),
    "neoverse-v1": _V84,
    "apple-m1": _M1,
}
KNOWN = frozenset(feature for features in _OF.values() for feature in features)
"""Features that code of some processor may need."""


def needed_features(record: Cpu) -> list[str]:
    """What a machine must have to run code for a processor: what the processor has, changed by the record's flags.

    >>> from mlc.targets.arm.record import record_for
    >>> needed_features(record_for("cortex-a72", ("+dotprod",)))
    ['dotprod', 'neon']
    """
    needed = set(_OF[record.cpu])
    for flag in record.features:
        if flag[1:] in KNOWN:
            (needed.add if flag[0] == "+" else needed.discard)(flag[1:])
    return sorted(needed)
