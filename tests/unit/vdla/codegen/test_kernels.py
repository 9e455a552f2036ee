from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.vdla.codegen.kernels import Axis, Kernels, Planned, cut, divide, merge
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import unpack_uop
from tests.fuzz import examples

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


@examples(200)
@given(products(), st.sampled_from([FULL, PLAIN]), st.booleans())
def test_an_instruction_does_what_its_nest_does(axes: tuple[Axis, ...], config: VdlaConfig, starts: bool) -> None:
    kernels = Kernels(config)
    plan = kernels.product(merge(axes), 3, 5, 1, starts)
    assert kernels.written(merge(axes), 3) == plan.touched.mask
    steps = executed(plan, config)
    assert sorted(s[:3] for s in steps) == sorted(iterations(axes, (3, 5, 1)))
    assert set(np.arange(2048)[plan.touched.acc_written].tolist()) == {s[0] for s in steps}
    if config.ext_gemm_set and starts:
        seen: set[int] = set()
        for dst, _, _, starts in steps:
            assert starts == (dst not in seen)  # a sum starts exactly where its accumulator is first met
            seen.add(dst)


def test_loops_that_go_on_evenly_become_one() -> None:
    assert merge([Axis(14, 14, 14), Axis(14, 1, 1)]) == (Axis(196, 1, 1),)
    assert merge([Axis(14, 14, 16), Axis(14, 1, 1)]) == (Axis(14, 14, 16), Axis(14, 1, 1))


def test_the_counters_run_a_reduction_and_the_longest_other_loop() -> None:
    axes = Axis(4, 0, 256, 9), Axis(3, 0, 16, 3), Axis(3, 0, 1, 1), Axis(14, 14, 16), Axis(12, 1, 1)
    shape = divide(axes, FULL, True, True)
    assert (shape.outer, shape.inner) == (axes[0], axes[3])
    assert shape.uops == 9 * 12
    assert shape.rest[-1] == axes[4]  # neighbours in time have different accumulators


def test_a_product_is_cut_where_that_saves_many_micro_ops() -> None:
    # 24 columns and 3 rows of results, whose rows cannot be the outer counter while sums start
    taps, pixels = (Axis(3, 0, 49, 3), Axis(3, 0, 1, 1)), (Axis(3, 24, 98), Axis(24, 1, 2))
    axes = *taps, *pixels
    assert divide(axes, FULL, True, True).uops == 72
    assert cut(axes, FULL, True) == 0
    assert divide((taps[1], *pixels), FULL, True, True).uops == 3
    assert cut((*taps, Axis(9, 1, 1)), FULL, True) is None
    small = dataclasses.replace(FULL, uop_bytes=64)
    assert cut((Axis(5, 0, 5), Axis(4, 5, 0), Axis(5, 20, 0), Axis(7, 100, 3)), small, True) == 3


def test_too_many_micro_ops_are_refused() -> None:
    small = dataclasses.replace(FULL, uop_bytes=256)
    sums = [Axis(4, 0, 4**k, 0) for k in (1, 2, 3, 4)]
    axes = (*sums, Axis(5, 1, 1, 0), Axis(3, 7, 17, 0))
    with pytest.raises(ScheduleError, match="needs 320 micro-ops, the memory holds 64"):
        Kernels(small).product(axes, 0, 0, 0, True)


def test_addresses_beyond_a_memory_are_refused() -> None:
    with pytest.raises(ScheduleError, match="reaches wgt 130 of 128"):
        Kernels(FULL).product((Axis(4, 1, 1, 10),), 0, 0, 100, True)


def test_equal_micro_ops_are_one_kernel() -> None:
    kernels = Kernels(FULL)
    a, b = (kernels.product((Axis(4, 1, step, 0),), 0, 0, 0, True) for step in (1, 2))
    assert a.kernel is b.kernel
    assert a.shape != b.shape


@pytest.mark.parametrize("accumulators", [[5], [4, 5, 6], [0, 1, 2, 8, 9, 10], [1, 2, 7], [1, 3, 9]], ids=str)
def test_any_accumulators_can_be_cleared(accumulators: list[int]) -> None:
    plan = Kernels(FULL).clear(np.array(accumulators))
    assert sorted(s[0] for s in executed(plan, FULL)) == accumulators
    assert plan.touched.mask == sum(1 << a for a in accumulators)


def test_what_starts_no_sum_takes_any_loop_as_the_outer_one() -> None:
    axes = Axis(16, 1, 0, 1), Axis(7, 16, 1, 0), Axis(7, 112, 16, 0)
    kernels = Kernels(FULL)
    assert kernels.product(axes, 0, 0, 0, False).shape.uops == 7
    assert kernels.product(axes, 1, 0, 0, True).shape.uops == 49
    # once there are micro-ops that start sums, they serve the others, too
    assert kernels.product(axes, 1, 0, 0, False) is kernels.product(axes, 1, 0, 0, True)
