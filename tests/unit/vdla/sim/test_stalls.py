"""Stalls of GEMMs that use an accumulator again too early, against the time of every single step."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.vdla.config import VdlaConfig, with_fields
from mlc.vdla.isa import Gemm, GemmMode, Load, Mem, pack_uop
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.stalls import Loops, stalls_of
from mlc.vdla.sim.work import work_of
from tests.unit.vdla.sim.machines import SMALL


def stalls(x: Gemm, uops: np.ndarray, config: VdlaConfig = SMALL) -> float:
    """What an instruction takes beyond its steps, its fill and one."""
    dram = Dram()
    dram.write(0, uops)
    work = work_of([Load(Mem.UOP, 0, 0, 1, len(uops), len(uops)), x], config, dram)
    return work.cycles[1] - 1 - config.gemm_fill - x.iter_out * x.iter_in * len(uops)


def naive_stalls(x: Gemm, uops: np.ndarray, latency: int) -> int:
    """Step by step, the time at which each one can begin."""
    written: dict[int, int] = {}
    now = steps = 0
    for i in range(x.iter_out):
        for j in range(x.iter_in):
            for uop in uops.tolist():
                d, first = uop % 32 + i * x.dst_out + j * x.dst_in, uop >> 13
                if not (x.mode is GemmMode.SET and first and i == 0):
                    now = max(now, written.get(d, -latency) + latency)
                written[d] = now
                now += 1
                steps += 1
    return now - steps


@pytest.mark.parametrize("seed", range(40))
def test_reuse_of_an_accumulator_within_the_latency_stalls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    uops = pack_uop(rng.integers(0, 3, count), 0, 0, rng.integers(0, 2, count), SMALL)
    extents = (int(rng.integers(1, 4)), int(rng.integers(1, 9)))
    mode = GemmMode(int(rng.integers(2)) * 2)
    x = Gemm(mode, 0, count, *extents, int(rng.integers(0, 4)), int(rng.integers(0, 3)), 0, 0, 0, 0)
    latency = int(rng.choice([1, 2, 3, 4, 5, 40]))
    config = with_fields(SMALL, {"acc_latency": latency})
    assert stalls(x, uops, config) == naive_stalls(x, uops, latency)


def test_known_patterns_of_reuse() -> None:
    one = pack_uop(0, 0, 0, 0, SMALL).reshape(1)
    same = Gemm(GemmMode.ACC, 0, 1, 1, 10, 0, 0, 0, 0, 0, 0)
    assert stalls(same, one) == 9 * 3
    assert stalls(Gemm(GemmMode.ZERO, 0, 1, 1, 10, 0, 0, 0, 0, 0, 0), one) == 0
    four = pack_uop(np.arange(4), 0, 0, 0, SMALL)
    assert stalls(Gemm(GemmMode.ACC, 0, 4, 5, 5, 0, 0, 0, 0, 0, 0), four) == 0


def test_kernels_side_by_side_wait_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    loops, uops = [], []
    for _ in range(200):
        starts, *rest = rng.integers(0, [2, 4, 9, 4, 3]).tolist()
        loops.append(Loops(bool(starts), *rest))
        uops.append(pack_uop(rng.permutation(16)[: rng.integers(0, 16)], 0, 0, rng.integers(2), SMALL))
    together = stalls_of(loops, uops, SMALL).tolist()
    assert together == [stalls_of([loop], [words], SMALL)[0] for loop, words in zip(loops, uops, strict=True)]
    assert 0 < np.count_nonzero(together) < 200
    modes = [GemmMode.SET if loop.starts else GemmMode.ACC for loop in loops]
    assert together == [
        naive_stalls(Gemm(mode, 0, len(words), *loop[1:], 0, 0, 0, 0), words, SMALL.acc_latency)
        for mode, loop, words in zip(modes, loops, uops, strict=True)
    ]


def test_no_kernels_no_stalls() -> None:
    assert stalls_of([], [], SMALL).tolist() == []
    assert stalls_of([Loops(False, 2, 2, 0, 0)], [pack_uop([], 0, 0, 0, SMALL)], SMALL).tolist() == [0]
