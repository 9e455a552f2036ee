from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.lower.knobs import Knobs
from mlc.vdla.config import PROFILES, with_fields
from mlc.vdla.schedules.conv import Threads
from mlc.vdla.schedules.elementwise import Plan, Work, ask, best_plan, cycles, fit, fits, refusal
from mlc.vdla.schedules.predict import bandwidth
from tests.fuzz import examples
from tests.unit.vdla.schedules.layers import make_elementwise

FULL, NARROW = PROFILES["full"], PROFILES["osdi18_i8"]
ADDITION = make_elementwise((1, 64, 56, 56), residual=3, relu=True)


@examples(25)
@given(st.integers(1, 70), st.integers(1, 30), st.integers(1, 30), st.booleans())
def test_the_best_plan_fits_and_is_near_the_port(channels: int, high: int, wide: int, added: bool) -> None:
    layer = make_elementwise((1, channels, high, wide), residual=3 if added else None)
    plan = best_plan(layer, FULL)
    work = Work.of(layer, FULL, plan.matrix)
    assert refusal(work, plan, FULL) == ""
    moved = -(-channels // 16) * 16 * high * wide * (3 if added else 2) / bandwidth(FULL)
    assert moved <= cycles(work, plan, FULL) <= 1.4 * moved + 700


def test_large_tensors_are_added_by_the_matrix_unit() -> None:
    best = best_plan(ADDITION, FULL)
    assert best.matrix
    assert best == best_plan(ADDITION, NARROW)


def test_knobs_default_to_the_best_plan() -> None:
    best = best_plan(ADDITION, FULL)
    assert ask(ADDITION, FULL, Knobs()) == best
    chosen = Plan(2, 14, matrix=False, blocks_outer=False, slots=3, threads=Threads.BLOCKS)
    assert ask(ADDITION, FULL, Knobs(chosen.config)) == chosen
    knobs = Knobs()
    ask(ADDITION, NARROW, knobs)
    (adder,) = (k for k in knobs.space().knobs if k.name == "adder")
    assert len(adder.values) == 1


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(4, 56, slots=2), ""),
        (Plan(4, 286), "2288 elements of input do not fit, the memory holds 2048"),
        (Plan(4, 224, matrix=False, slots=3), "5376 accumulators do not fit, the memory holds 2048"),
        (Plan(1, 3136, threads=Threads.ROWS), "two threads have one tile of pixels to share"),
        (Plan(4, 1, threads=Threads.BLOCKS), "two threads have one tile of blocks to share"),
    ],
)
def test_what_does_not_fit(plan: Plan, reason: str) -> None:
    assert refusal(Work.of(ADDITION, FULL, plan.matrix), plan, FULL) == reason
    found = fit(Work.of(ADDITION, FULL, plan.matrix), plan, FULL)
    assert (found == plan) == (not reason)
    assert not refusal(Work.of(ADDITION, FULL, plan.matrix), found, FULL)


def test_memories_may_be_too_small_for_any_tile() -> None:
    small = with_fields(FULL, {"acc_bytes": 128, "inp_bytes": 32})
    assert fits(ADDITION, small)
    layer = make_elementwise((1, 16, 4, 4), residual="vector", lift="vector", shift="vector")
    assert not fits(layer, small)
    with pytest.raises(ScheduleError, match="no tile of the layer fits the memories"):
        best_plan(layer, small)


def test_biases_take_tiles_of_weights() -> None:
    layer = make_elementwise((1, 1040, 1, 1), bias=1_900_000, shift=20)
    plan = best_plan(layer, FULL)
    passes = Work.of(layer, FULL, plan.matrix).epilogue.passes
    assert passes == 8
    assert plan.blocks * passes < FULL.wgt_depth
