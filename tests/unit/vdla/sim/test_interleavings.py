"""A valid stream computes the same however its units interleave, and its times obey the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mlc.vdla.check import check
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Instruction, Unit
from mlc.vdla.program import Program
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.function import Functional
from mlc.vdla.sim.report import Figures, make_report
from mlc.vdla.sim.timing import simulate
from mlc.vdla.sim.work import QUEUES, work_of
from tests.unit.vdla.streams import random_program

INTERLEAVINGS = 5


def legal_order(stream: Sequence[Instruction], config: VdlaConfig, rng: np.random.Generator) -> Iterator[int]:
    """One of the orders in which three units, held back by nothing but tokens and full queues, may execute a stream."""
    waiting = {unit: [i for i, x in enumerate(stream) if x.unit is unit] for unit in Unit}
    tokens = {(producer, consumer): 0 for _, producer, consumer in QUEUES}
    while any(waiting.values()):
        able = [unit for unit in Unit if waiting[unit] and _can_run(stream[waiting[unit][0]], tokens, config)]
        unit = able[rng.integers(len(able))]
        i = waiting[unit].pop(0)
        for step, flags in ((-1, ("pop_prev", "pop_next")), (1, ("push_prev", "push_next"))):
            for queue in _queues(stream[i], flags):
                tokens[queue] += step
        yield i


def _can_run(x: Instruction, tokens: dict[tuple[Unit, Unit], int], config: VdlaConfig) -> bool:
    pops, pushes = _queues(x, ("pop_prev", "pop_next")), _queues(x, ("push_prev", "push_next"))
    return all(tokens[q] > 0 for q in pops) and all(tokens[q] < config.dep_queue_depth for q in pushes)


def _queues(x: Instruction, flags: tuple[str, str]) -> list[tuple[Unit, Unit]]:
    """The queues, as (producer, consumer), that an instruction's flags of one kind are about."""
    others = [Unit(x.unit + step) for step, flag in zip((-1, 1), flags, strict=True) if getattr(x, flag)]
    return [(other, x.unit) if flags[0] == "pop_prev" else (x.unit, other) for other in others]


def outcome(machine: Functional, stream: Sequence[Instruction], order: Sequence[int], memory: np.ndarray) -> tuple:
    """Everything that is left in the machine after executing a stream in some order."""
    machine.reset()
    machine.dram.write(0, memory)
    for i in order:
        machine.step(stream[i])
    return machine.dram.read(0, len(memory)), machine.inp, machine.wgt, machine.acc.copy(), machine.uop.copy()


def placed(program: Program, rng: np.random.Generator) -> tuple[list[Instruction], Dram, np.ndarray]:
    """The stream with addresses, and a memory with random content around the constants."""
    dram = Dram()
    places = [dram.alloc(spec.nbytes) for spec in program.buffers]
    size = places[-1] + program.buffers[-1].nbytes
    memory = rng.integers(0, 256, size, np.uint8)
    for spec, place in zip(program.buffers, places, strict=True):
        content = program.contents(spec)
        if content is not None:
            memory[place : place + spec.nbytes] = np.frombuffer(content, np.uint8)
    dram.write(0, memory)
    return program.bound(places), dram, memory


def examine(seed: int) -> None:
    """One random stream: six orders, the same outcome; its times within the bounds."""
    rng = np.random.default_rng(seed)
    config = list(PROFILES.values())[seed % len(PROFILES)]
    program = random_program(rng, config)
    assert check(program) == []
    stream, dram, memory = placed(program, rng)
    work = work_of(stream, config, dram)
    timeline = simulate(work, config, stream)
    machine = Functional(config, dram)
    expected = outcome(machine, stream, range(len(stream)), memory)
    # The order in which the timing simulator begins them is one more.
    orders = [np.argsort(timeline.begin, kind="stable").tolist()]
    orders += [list(legal_order(stream, config, rng)) for _ in range(INTERLEAVINGS)]
    for order in orders:
        for found, wanted in zip(outcome(machine, stream, order, memory), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    check_bounds(stream, config, make_report(config, stream, work, timeline, {}).total)


def check_bounds(stream: Sequence[Instruction], config: VdlaConfig, total: Figures) -> None:
    """What no machine of these speeds can beat, and what must add up."""
    moved = sum(total.bytes.values())
    assert total.cycles >= max(total.mac_cycles, moved / config.bytes_per_cycle, 2 * len(stream))
    assert total.compulsory_bytes <= moved
    assert total.port_busy == pytest.approx(moved / config.bytes_per_cycle)
    for unit in Unit:
        assert total.busy[unit.name] + sum(total.stalls[unit.name].values()) <= total.cycles * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(45))
def test_a_valid_stream_computes_the_same_in_every_legal_order(seed: int) -> None:
    examine(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_thousand_valid_streams_compute_the_same_in_every_legal_order(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        examine(1000 + seed)
