"""Times of small streams, worked out by hand from the specification's rules."""

from __future__ import annotations

from mlc.vdla.config import VdlaConfig, with_fields
from mlc.vdla.isa import Instruction, Load, Mem
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.timing import Timeline, simulate
from mlc.vdla.sim.work import work_of
from tests.unit.vdla.sim.machines import SMALL

# Whole numbers: 8 bytes a cycle, latency 48, issue 4, fill 12.
WHOLE = with_fields(SMALL, {"dram_bytes_per_cycle": 8.0, "inp_bytes": 4096, "acc_bytes": 16 * 64})


def run(config: VdlaConfig, *stream: Instruction) -> Timeline:
    return simulate(work_of(stream, config, Dram()), config, stream)


def inputs(count: int, **flags: bool) -> Load:
    """A load of so many input elements (4 bytes each) in one row."""
    return Load(Mem.INP, 0, 0, 1, count, count, **flags)


def test_a_transfer_takes_issue_latency_and_its_bytes() -> None:
    time = run(WHOLE, inputs(100))
    # Fetched at 2, issued at 6, first byte at 54, then 400 bytes at 8 a cycle, but no faster than an element a cycle.
    assert (time.begin[0], time.data[0], time.end[0]) == (2, 54, 154)
