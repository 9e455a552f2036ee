from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.vdla.codegen.kernels import Axis, Kernels, Planned, divide, merge, place_uops
from mlc.vdla.codegen.stream import Step
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Gemm, GemmMode, Load, unpack_uop

FULL, PLAIN = PROFILES["full"], PROFILES["osdi18"]


def iterations(axes: tuple[Axis, ...], base: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """(dst, src, wgt) of every iteration of a nest."""
    at = [base]
    for a in axes:
        at = [(d + k * a.dst, s + k * a.src, w + k * a.wgt) for d, s, w in at for k in range(a.extent)]
    return at


def executed(plan: Planned, config: VdlaConfig) -> list[tuple[int, int, int, bool]]:
    """(dst, src, wgt, whether the sum starts here) of every step of the instruction, in its order."""
    dst, src, wgt, first = unpack_uop(plan.kernel.uops, config) if config.ext_gemm_set else (
        *unpack_uop(plan.kernel.uops, config)[:3], np.zeros(len(plan.kernel.uops), int))  # fmt: skip
    o, i = plan.shape.outer, plan.shape.inner
    return [
        (d + a * o.dst + b * i.dst, s + a * o.src + b * i.src, w + a * o.wgt + b * i.wgt, bool(f) and a == 0)
        for a in range(o.extent)
        for b in range(i.extent)
        for d, s, w, f in zip(dst.tolist(), src.tolist(), wgt.tolist(), first.tolist(), strict=True)
    ]


@st.composite
def products(draw: st.DrawFn) -> tuple[Axis, ...]:
    """Loops of a convolution's tile in any order: distinct accumulators, sums over any inputs."""
    dst = 1
    out = []
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.integers(1, 4))
        out.append(Axis(n, dst, draw(st.integers(0, 5)), draw(st.integers(0, 2))))
        dst *= n
    out += [Axis(draw(st.integers(1, 4)), 0, draw(st.integers(0, 9)), 1) for _ in range(draw(st.integers(0, 3)))]
    return tuple(draw(st.permutations(out)))


@settings(max_examples=200, deadline=None)
@given(products(), st.sampled_from([FULL, PLAIN]))
def test_an_instruction_does_what_its_nest_does(axes: tuple[Axis, ...], config: VdlaConfig) -> None:
    plan = Kernels(config).product(merge(axes), 3, 5, 1)
    steps = executed(plan, config)
    assert sorted(s[:3] for s in steps) == sorted(iterations(axes, (3, 5, 1)))
    assert set(np.arange(2048)[plan.touched.acc_written].tolist()) == {s[0] for s in steps}
    if config.ext_gemm_set:
        seen: set[int] = set()
        for dst, _, _, starts in steps:
            assert starts == (dst not in seen)  # a sum starts exactly where its accumulator is first met
            seen.add(dst)


def test_loops_that_go_on_evenly_become_one() -> None:
    assert merge([Axis(14, 14, 14), Axis(14, 1, 1)]) == (Axis(196, 1, 1),)
    assert merge([Axis(14, 14, 16), Axis(14, 1, 1)]) == (Axis(14, 14, 16), Axis(14, 1, 1))


def test_the_counters_run_a_reduction_and_the_longest_other_loop() -> None:
    axes = Axis(4, 0, 256, 9), Axis(3, 0, 16, 3), Axis(3, 0, 1, 1), Axis(14, 14, 16), Axis(12, 1, 1)
    shape = divide(axes, FULL, True)
    assert (shape.outer, shape.inner) == (axes[0], axes[3])
    assert shape.uops == 9 * 12
    assert shape.rest[-1] == axes[4]  # neighbours in time have different accumulators


def test_too_many_micro_ops_are_refused() -> None:
    small = dataclasses.replace(FULL, uop_bytes=256)
    sums = [Axis(4, 0, 4**k, 0) for k in (1, 2, 3, 4)]
    axes = (*sums, Axis(5, 1, 1, 0), Axis(3, 7, 17, 0))
    with pytest.raises(ScheduleError, match="needs 320 micro-ops, the memory holds 64"):
        Kernels(small).product(axes, 0, 0, 0)


def test_addresses_beyond_a_memory_are_refused() -> None:
    with pytest.raises(ScheduleError, match="reaches wgt 130 of 128"):
        Kernels(FULL).product((Axis(4, 1, 1, 10),), 0, 0, 100)


def test_equal_micro_ops_are_one_kernel() -> None:
    kernels = Kernels(FULL)
    a, b = (kernels.product((Axis(4, 1, step, 0),), 0, 0, 0) for step in (1, 2))
    assert a.kernel is b.kernel
    assert a.shape != b.shape


@pytest.mark.parametrize("accumulators", [[5], [4, 5, 6], [0, 1, 2, 8, 9, 10], [1, 2, 7], [1, 3, 9]], ids=str)
def test_any_accumulators_can_be_cleared(accumulators: list[int]) -> None:
    plan = Kernels(FULL).clear(np.array(accumulators))
    assert sorted(s[0] for s in executed(plan, FULL)) == accumulators
    assert plan.touched.mask == sum(1 << a for a in accumulators)


def gemm(kernels: Kernels, dst: int, uops: int, layer: int) -> Step:
    """An instruction with that many micro-ops: no counter runs a loop of an odd kind."""
    axes = (Axis(3, 1, 1), Axis(uops, 7, 3)) if uops > 1 else ()
    plan = kernels.product(axes, dst, 0, 0)
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
