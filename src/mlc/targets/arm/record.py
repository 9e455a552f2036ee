"""The table of AArch64 processors: caches and ports by name. Vectors are those of NEON: 128 bits, 32 registers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlc.errors import UsageError
from mlc.targets.arm.dot import bf16_dot_of, bit_counter, block_dots_of, dot_of
from mlc.targets.arm.features import needed_features
from mlc.targets.cpu.record import Cpu

_LANES, _REGISTERS = 4, 32

# What differs from the defaults of Cpu. Multiply-adds and loads of 128 bits a cycle are from Arm's software
# optimisation guides, sizes of caches from its technical reference manuals (where a licensee chooses, what is common);
# bandwidths beyond the first level are estimates, since no such board was at hand.
_LITTLE: dict[str, Any] = {
    "l2": 512 << 10, "l3": 512 << 10, "l2_bandwidth": 8, "l3_bandwidth": 4, "memory_bandwidth": 2, "loads": 1,
    "fmas": 1, "issue": 2, "in_order": True,
}  # fmt: skip
_MIDDLE: dict[str, Any] = {**_LITTLE, "l2_bandwidth": 16, "fma_latency": 7, "issue": 3, "in_order": False}
_BIG: dict[str, Any] = {
    "l1": 64 << 10, "l2": 512 << 10, "l3": 2 << 20, "l2_bandwidth": 20, "l3_bandwidth": 10, "memory_bandwidth": 5,
    "loads": 2, "fmas": 2, "issue": 4,
}  # fmt: skip
_WIDE: dict[str, Any] = {**_BIG, "l2": 1 << 20, "l3": 4 << 20, "l2_bandwidth": 32, "fmas": 4, "issue": 8}
_FACTS: dict[str, dict[str, Any]] = {
    "generic": _MIDDLE,
    "cortex-a53": _LITTLE,
    "cortex-a55": {**_LITTLE, "l2": 256 << 10, "l3": 1 << 20},
    "cortex-a72": {**_MIDDLE, "l2": 1 << 20, "l3": 1 << 20},
    "cortex-a76": _BIG,
    "cortex-x1": _WIDE,
    "neoverse-n1": {**_BIG, "l2": 1 << 20, "l3": 8 << 20},
    "neoverse-v1": {**_WIDE, "l3": 16 << 20},
    "apple-m1": {**_WIDE, "l1": 128 << 10, "l2": 12 << 20, "l3": 12 << 20, "loads": 3},
}


NAMES = tuple(_FACTS)
"""The processors of the table, by LLVM's names."""


def record_for(cpu: str, features: tuple[str, ...] = ()) -> Cpu:
    """The record of a named processor.

    Raises:
        UsageError: a processor that the table does not have.
    """
    if cpu not in NAMES:
        raise UsageError(f"target arm: unknown processor {cpu!r}", hint="known: " + ", ".join(NAMES))
    record = Cpu(cpu, features, _LANES, _REGISTERS, **_FACTS[cpu])
    have = needed_features(record)
    elements = (2, 4, 8) if "fullfp16" in have else record.elements
    return replace(
        record,
        dot=dot_of(have, in_order=record.in_order),
        bf16_dot=bf16_dot_of(have),
        block_dots=block_dots_of(have),
        bit_counter=bit_counter(),
        elements=elements,
    )
