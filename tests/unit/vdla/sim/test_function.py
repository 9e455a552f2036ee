"""Every instruction, vectorised, against the plain Python reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Alu, AluOp, Gemm, GemmMode, Instruction, Load, Mem, Store, pack_uop
from mlc.vdla.sim.function import alu_lanes
from mlc.vdla.sim.scalar import alu_lane, requantise, wrap
from tests.unit.vdla.sim.machines import BATCH, SMALL, Pair, random_instructions, random_pair

FULL = PROFILES["full"]


@pytest.mark.parametrize("config", [SMALL, BATCH], ids=["square", "batch of 2, 4 by 3"])
@pytest.mark.parametrize("seed", range(8))
def test_random_instructions_change_the_same_state(config: VdlaConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = random_pair(config, rng)
    for instruction in random_instructions(config, rng, 60):
        pair.step(instruction)
        pair.compare()


def lanes(rng: np.random.Generator, count: int) -> np.ndarray:
    """int32 values, the extreme ones among them."""
    values = rng.integers(-(1 << 31), 1 << 31, count)
    values[: count // 2] >>= rng.integers(0, 31, count // 2)
    values[:4] = [-(1 << 31), (1 << 31) - 1, -1, 0]
    return rng.permutation(values)


@pytest.mark.parametrize("op", list(AluOp))
def test_alu_operations_are_exact_and_cut_to_32_bits(op: AluOp) -> None:
    rng = np.random.default_rng(int(op))
    a, b = lanes(rng, 200), lanes(rng, 200)
    if op in (AluOp.SHR, AluOp.RSHR):
        b[::2] = rng.integers(-40, 40, 100)
    expected = [wrap(alu_lane(op, x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert alu_lanes(op, a.astype(np.int32), b.astype(np.int32)).tolist() == expected
    for imm in (-32768, -33, -32, -1, 0, 1, 31, 32, 33, 34, 32767):
        expected = [wrap(alu_lane(op, x, imm)) for x in a.tolist()]
        assert alu_lanes(op, a.astype(np.int32), np.int32(imm)).tolist() == expected


def test_halves_are_rounded_up() -> None:
    assert [requantise(v, 1, False) for v in (-3, -1, 1, 3)] == [-1, 0, 1, 2]
    assert [wrap(alu_lane(AluOp.RSHR, v, 2)) for v in (-6, -2, 2, 6)] == [-1, 0, 1, 2]
    assert requantise((1 << 31) - 1, 31, False) == 1
    assert [requantise(v, 0, True) for v in (-5, 200)] == [0, 127]
    assert requantise(-1000, 0, False) == -128


def filled(config: VdlaConfig, byte: int) -> Pair:
    """Both machines with inputs, weights and sums full of one byte."""
    pair = random_pair(config, np.random.default_rng(0))
    for machine in (pair.scalar, pair.function):
        machine.dram.write(0, bytes([byte]) * machine.dram.room(0))
    pair.step(Load(Mem.INP, 0, 0, 1, config.inp_depth, config.inp_depth))
    pair.step(Load(Mem.WGT, 0, 0, 1, config.wgt_depth, config.wgt_depth))
    return pair


def with_uops(pair: Pair, uops: np.ndarray) -> None:
    for machine in (pair.scalar, pair.function):
        machine.dram.write(0, uops)
    pair.step(Load(Mem.UOP, 0, 0, 1, len(uops), len(uops)))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_long_sums_of_the_largest_products_are_exact(count: int) -> None:
    config = dataclasses.replace(FULL, inp_bytes=16 * 64, wgt_bytes=256 * 2, acc_bytes=64 * 8, uop_bytes=4 * 256)
    pair = filled(config, 0x80)
    with_uops(pair, pack_uop(np.zeros(count, int), np.arange(count) % 64, 0, np.arange(count) == 0, config))
    pair.step(Gemm(GemmMode.SET, 0, count, 1, 1, 0, 0, 0, 0, 0, 0))
    assert pair.function.acc[0, 0, 0] == count * 16 * 128 * 128
    pair.compare()


def test_sums_wrap_around() -> None:
    pair = filled(SMALL, 0x80)
    with_uops(pair, pack_uop(0, 0, 0, 0, SMALL).reshape(1))
    grow = Gemm(GemmMode.ACC, 0, 1, 200, 170, 0, 0, 0, 0, 0, 0)
    start = int(pair.function.acc[0, 0, 0])
    pair.function.step(grow)
    assert pair.function.acc[0, 0, 0] == wrap(start + 200 * 170 * 4 * 128 * 128)


def test_a_sum_that_starts_anew_forgets_what_was_added_before() -> None:
    rng = np.random.default_rng(3)
    pair = random_pair(SMALL, rng)
    with_uops(pair, pack_uop([0, 0, 1, 0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 0, 0, 1, 0], SMALL))
    pair.step(Gemm(GemmMode.SET, 0, 5, 2, 2, 0, 2, 1, 1, 0, 0))
    pair.compare()


def test_alu_steps_see_what_earlier_steps_wrote() -> None:
    rng = np.random.default_rng(4)
    pair = random_pair(SMALL, rng)
    # acc[d] += acc[d - 1] along the memory, then back onto itself.
    with_uops(pair, pack_uop([1, 0], [0, 1], 0, 0, SMALL))
    pair.step(Alu(AluOp.ADD, False, 0, 0, 1, 1, 20, 0, 1, 0, 1))
    pair.compare()
    pair.step(Alu(AluOp.MUL, False, 0, 0, 2, 3, 4, 1, 0, 0, 1))
    pair.compare()


def test_stored_rows_may_overlap() -> None:
    pair = random_pair(SMALL, np.random.default_rng(5))
    for x in (Store(Mem.ACC, 0, 3, 4, 4, 2), Store(Mem.OUT, 1, 3, 4, 3, 0, 5)):
        pair.step(x)
        pair.compare()


@pytest.mark.parametrize(
    "instruction, message",
    [
        (Load(Mem.INP, 30, 0, 1, 3, 3), "elements 30 to 32 lie outside the 32 of the inp memory"),
        (Load(Mem.ACC, 20, 0, 1, 3, 3, 1, 1, 1, 1), "elements 20 to 34 lie outside the 32 of the acc memory"),
        (Load(Mem.WGT, 8, 0, 1, 1, 1), "element 8 lies outside the 8 of the wgt memory"),
        (Store(Mem.OUT, 31, 0, 1, 2, 2), "elements 31 to 32 lie outside the 32 of the acc memory"),
        (Load(Mem.INP, 0, 1 << 20, 1, 2, 2), "DRAM bytes 4194304 to 4194312 lie outside"),
        (Store(Mem.ACC, 0, 1 << 20, 1, 1, 1), "DRAM bytes 16777216 to 16777232 lie outside"),
        (Gemm(GemmMode.ZERO, 0, 2, 9, 1, 4, 0, 0, 0, 0, 0), "outside the 32 of the acc memory"),
        (Gemm(GemmMode.ACC, 0, 2, 9, 1, 0, 0, 4, 0, 0, 0), "outside the 32 of the inp memory"),
        (Gemm(GemmMode.ACC, 0, 2, 9, 1, 0, 0, 0, 0, 1, 0), "outside the 8 of the wgt memory"),
        (Gemm(GemmMode.ACC, 60, 70, 1, 1, 0, 0, 0, 0, 0, 0), "elements 60 to 69 lie outside the 64 of the uop memory"),
        (Alu(AluOp.ADD, False, 0, 0, 2, 1, 9, 0, 0, 0, 4), "outside the 32 of the acc memory"),
    ],
)
def test_indices_outside_a_memory_are_refused_by_both(instruction: Instruction, message: str) -> None:
    pair = random_pair(SMALL, np.random.default_rng(6))
    with_uops(pair, pack_uop([0, 1], [0, 1], [0, 1], 0, SMALL))
    before = pair.function.acc.copy()
    for attempt in range(2):  # a failed plan is not kept
        with pytest.raises(DeviceError, match=rf"^instruction 0 \(.*\): .*{message}"):
            pair.function.run([instruction])
        assert attempt or np.array_equal(pair.function.acc, before)
    with pytest.raises(DeviceError):
        pair.scalar.step(instruction)


def test_an_instruction_of_absurd_length_is_refused() -> None:
    pair = random_pair(SMALL, np.random.default_rng(7))
    with pytest.raises(DeviceError, match="268402689 steps in one instruction; the simulator takes at most 4194304"):
        pair.function.step(Gemm(GemmMode.ACC, 0, 1, (1 << 14) - 1, (1 << 14) - 1, 0, 0, 0, 0, 0, 0))


def test_plans_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.vdla.sim.function._MOST_PLANS", 2)
    rng = np.random.default_rng(8)
    pair = random_pair(SMALL, rng)
    for instruction in random_instructions(SMALL, rng, 40):
        pair.step(instruction)
    pair.compare()


def test_reset_clears_every_memory() -> None:
    pair = random_pair(SMALL, np.random.default_rng(9))
    pair.function.reset()
    for name in ("inp", "wgt", "acc", "uop"):
        assert not getattr(pair.function, name).any()
