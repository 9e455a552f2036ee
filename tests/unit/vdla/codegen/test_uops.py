from __future__ import annotations

import dataclasses

import numpy as np

from mlc.vdla.codegen.kernels import Axis, Kernels
from mlc.vdla.codegen.stream import Step
from mlc.vdla.codegen.uops import place_uops
from mlc.vdla.config import PROFILES
from mlc.vdla.isa import Gemm, GemmMode, Load

FULL = PROFILES["full"]


def gemm(kernels: Kernels, dst: int, uops: int, layer: int) -> Step:
    """An instruction with that many micro-ops: no counter runs a loop of an odd kind."""
    axes = (Axis(3, 1, 1), Axis(uops, 7, 3)) if uops > 1 else ()
    plan = kernels.product(axes, dst, 0, 0, True)
    return Step(Gemm(GemmMode.ACC, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0), -1, plan.kernel, plan.touched, layer)


def test_micro_ops_are_in_memory_when_they_are_used() -> None:
    rng = np.random.default_rng(0)
    config = dataclasses.replace(FULL, uop_bytes=4 * 32)
    kernels = Kernels(config)
    variants = [gemm(kernels, int(d), 1 + int(n), 0) for d, n in zip(range(20), rng.integers(1, 11, 20), strict=True)]
    steps = [
        Step(dataclasses.replace(v.insn), -1, v.kernel, v.touched, int(k // 7))  # type: ignore[type-var]
        for k, v in enumerate(variants[i] for i in rng.integers(0, 20, 120))
    ]
    placed, uops = place_uops(steps, config, 3)
    memory = np.zeros(32, np.uint32)
    done = 0
    for step in placed:
        if isinstance(step.insn, Load):
            insn = step.insn
            assert step.buffer == 3
            memory[insn.sram_base : insn.sram_base + insn.x_size] = uops[insn.dram_base : insn.dram_base + insn.x_size]
            continue
        assert isinstance(step.insn, Gemm)
        assert step.kernel is not None
        assert memory[step.insn.uop_bgn : step.insn.uop_end].tolist() == step.kernel.uops.tolist()
        done += 1
    assert done == 120


def test_a_layer_whose_micro_ops_fit_loads_them_at_once() -> None:
    kernels = Kernels(FULL)
    steps = [gemm(kernels, d, 9, 0) for d in (0, 1, 0, 2)]
    placed, uops = place_uops(steps, FULL, 0)
    (load,) = [s.insn for s in placed if isinstance(s.insn, Load)]
    assert load.x_size == len(uops)
    assert load is placed[0].insn
