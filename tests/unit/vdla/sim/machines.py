"""A small accelerator, machines in the same random state, and random instructions for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Alu, AluOp, Gemm, GemmMode, Load, Mem, Store, pack_uop
from mlc.vdla.isa.instruction import Instruction
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.function import Functional
from mlc.vdla.sim.scalar import ScalarMachine

# 32 inputs, 8 weights, 32 accumulators, 64 micro-ops of a 4 by 4 array: enough for every rule, quick in plain Python.
SMALL = dataclasses.replace(
    PROFILES["full"],
    block_in=4,
    block_out=4,
    inp_bytes=4 * 32,
    wgt_bytes=16 * 8,
    acc_bytes=16 * 32,
    uop_bytes=4 * 64,
)
BATCH = dataclasses.replace(SMALL, batch=2, block_out=3, inp_bytes=8 * 32, wgt_bytes=12 * 8, acc_bytes=24 * 32)

# Bytes of DRAM, from address 0, that random transfers use.
REGION = 4096


@dataclass
class Pair:
    """The reference and the functional simulator, each with its own memory, in the same state."""

    scalar: ScalarMachine
    function: Functional

    def step(self, instruction: Instruction) -> None:
        self.scalar.step(instruction)
        self.function.step(instruction)

    def compare(self) -> None:
        for name in ("inp", "wgt", "acc", "uop"):
            np.testing.assert_array_equal(getattr(self.function, name), getattr(self.scalar, name), err_msg=name)
        np.testing.assert_array_equal(self.function.dram.read(0, REGION), self.scalar.dram.read(0, REGION))


def random_pair(config: VdlaConfig, rng: np.random.Generator) -> Pair:
    """Both machines with every memory full of random content; extreme values are frequent."""
    content = rng.integers(0, 256, REGION, np.uint8)
    content[rng.random(REGION) < 0.2] = 0x80
    uops = random_uops(config, rng, 64)
    drams = [Dram(), Dram()]
    for dram in drams:
        dram.alloc(REGION)
        dram.write(0, content)
    pair = Pair(ScalarMachine(config, drams[0]), Functional(config, drams[1]))
    for mem, depth in ((Mem.INP, config.inp_depth), (Mem.WGT, config.wgt_depth), (Mem.ACC, config.acc_depth)):
        pair.step(Load(mem, 0, 0, 1, depth, depth))
    for dram in drams:
        dram.write(0, uops)
    pair.step(Load(Mem.UOP, 0, 0, 1, 64, 64))
    for dram in drams:
        dram.write(0, content)
    return pair


def random_uops(config: VdlaConfig, rng: np.random.Generator, count: int) -> np.ndarray:
    """Micro-ops in the lower half of every memory, so that extents and factors have room above."""
    return pack_uop(
        rng.integers(0, config.acc_depth // 2, count),
        rng.integers(0, config.inp_depth // 2, count),
        rng.integers(0, config.wgt_depth // 2, count),
        rng.integers(0, 2, count) * config.first_bits,
        config,
    )


def random_instruction(config: VdlaConfig, rng: np.random.Generator) -> Instruction:
    """An instruction that stays inside every memory; any opcode, memory, mode and operation."""
    draw = rng.integers
    kind = draw(4)
    if kind == 0:
        mem = Mem(rng.choice([Mem.INP, Mem.WGT, Mem.ACC, Mem.ACC8]))
        pads = [0] * 4 if mem is Mem.WGT else [int(p) for p in draw(0, 2, 4)]
        return Load(mem, int(draw(3)), int(draw(4)), int(draw(0, 3)), int(draw(0, 3)), int(draw(0, 5)), *pads)
    if kind == 1:
        mem = Mem(rng.choice([Mem.ACC, Mem.OUT]))
        shift, relu = (int(draw(0, 32)), bool(draw(2))) if mem is Mem.OUT else (0, False)
        return Store(mem, int(draw(16)), int(draw(30)), int(draw(0, 4)), int(draw(0, 5)), int(draw(0, 7)), shift, relu)
    begin = int(draw(60))
    end = begin + int(draw(0, 5))
    outer, inner = int(draw(0, 4)), int(draw(0, 4))
    factors = [int(f) for f in draw(0, 3, 4)]
    if kind == 2:
        mode = GemmMode(int(draw(3)))
        return Gemm(mode, begin, end, outer, inner, *factors, int(draw(0, 1)), int(draw(0, 2)))
    use_imm = bool(draw(2))
    imm = int(rng.choice([-(1 << 15), -33, -1, 0, 1, 2, 31, 32, 33, (1 << 15) - 1])) if use_imm else 0
    return Alu(AluOp(int(draw(7))), use_imm, imm, begin, end, outer, inner, *factors)


def random_instructions(config: VdlaConfig, rng: np.random.Generator, count: int) -> Iterator[Instruction]:
    for _ in range(count):
        yield random_instruction(config, rng)
