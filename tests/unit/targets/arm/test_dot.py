"""Which instructions for narrow products a processor has, and what its vectors hold."""

from __future__ import annotations

import pytest

from mlc.ir.types import bf16, f16, f32, i8, u8
from mlc.targets.arm.record import record_for


@pytest.mark.parametrize(
    ("cpu", "bytes_", "halves", "gain"),
    [
        ("cortex-a53", "smull_sadalp.4", None, 1),
        ("cortex-a72", "smull_sadalp.4", None, 2),
        ("cortex-a76", "sdot.4", None, 4),
        ("neoverse-v1", "sdot.4", "bfdot.4", 4),
    ],
)
def test_instructions(cpu: str, bytes_: str, halves: str | None, gain: float) -> None:
    record = record_for(cpu)
    assert record.dot_of(i8, i8).intrinsic.name == bytes_
    dot = record.dot_of(bf16, bf16)
    assert (None if dot is None else dot.intrinsic.name) == halves
    assert record.dot_of(u8, i8) is None
    assert record.bytes_gain == gain


def test_vectors_of_half_precision_have_eight_lanes_where_there_is_arithmetic() -> None:
    assert [record_for(cpu).lanes_of(t) for cpu in ("cortex-a53", "cortex-a76") for t in (f16, f32)] == [4, 4, 8, 4]
