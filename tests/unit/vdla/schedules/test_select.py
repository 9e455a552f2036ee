from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.lower.knobs import Knobs
from mlc.vdla.config import PROFILES
from mlc.vdla.schedules.conv import At, Choice, piece_of
from mlc.vdla.schedules.predict import cycles, refusal, roofline, rooms
from mlc.vdla.schedules.select import Plan, ask, best_plan, likely_plans
from mlc.vdla.schedules.shape import Shape
from tests.fuzz import examples

FULL = PROFILES["full"]


def square(size: int, inputs: int, outputs: int, kernel: int, stride: int, narrow: bool = True) -> Shape:
    result = size // stride
    return Shape(
        1, inputs // 16, outputs // 16, size, size, result, result, (kernel, kernel), (stride, stride), (1, 1),
        (kernel // 2, kernel // 2), narrow, (16, 16),
    )  # fmt: skip


C2, C3, C5 = square(56, 64, 64, 3, 1), square(56, 64, 64, 1, 1), square(56, 64, 128, 1, 2)
C8, C11, C12 = square(28, 128, 256, 1, 2), square(14, 256, 512, 1, 2), square(7, 512, 512, 3, 1)


@pytest.mark.parametrize("shape", [C3, C5, C8, C11, C12], ids=["C3", "C5", "C8", "C11", "C12"])
def test_best_plans_are_expected_near_the_roofline(shape: Shape) -> None:
    plan = best_plan(shape, FULL)
    assert roofline(shape, FULL) >= 0.95 * cycles(shape, plan.choices(shape), FULL)


def test_what_runs_ahead_hides_latency() -> None:
    config, shape = PROFILES["osdi18"], replace(C12, narrow=False)
    alone, ahead = (likely_plans(shape, config, ahead=a)[0] for a in (False, True))
    assert alone.buffers == "single"
    slow = shape.macs / cycles(shape, alone.choices(shape), config, ahead=False)
    assert slow < 0.8 < 0.95 < shape.macs / cycles(shape, ahead.choices(shape), config)


@examples(20)
@given(st.integers(0, 2**32))
def test_parts_cover_the_result_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = replace(C8, rows=int(rng.integers(1, 9)), outputs=int(rng.integers(1, 9)))
    knobs = Knobs()
    ask(shape, FULL, knobs)
    space = knobs.space()
    plan = ask(shape, FULL, Knobs(space.config(space.sample(rng, 1)[0])))
    try:
        choices = plan.choices(shape)
    except ScheduleError:
        return
    done = np.zeros((shape.rows, shape.outputs), int)
    for c in choices:
        done[slice(*c.rows), slice(*c.blocks)] += 1
    assert (done == 1).all()
    assert cycles(shape, choices, FULL, ahead=plan.buffers == "ring") >= shape.macs


def test_knobs_default_to_the_best_plan() -> None:
    assert ask(C11, FULL, Knobs()) == best_plan(C11, FULL)
    assert ask(C11, FULL, Knobs(best_plan(C8, FULL).config | {"columns": 7})) == replace(
        best_plan(C8, FULL), tile=(4, 7, *best_plan(C8, FULL).tile[2:]), tiles_at=At.OWN
    )  # not all of its weights fit at once
    assert ask(C11, FULL, Knobs({"head": "none", "rows": 4, "order": "blocks"})) == replace(
        best_plan(C11, FULL), head="none", tile=(4, *best_plan(C11, FULL).tile[1:]), blocks_outer=True
    )


def test_biases_leave_less_room_for_weights() -> None:
    biased = replace(C8, passes=1)
    plan = best_plan(biased, FULL)
    (choice,) = plan.choices(biased)
    assert rooms(biased, choice, FULL)[1] < FULL.wgt_depth
    assert rooms(C8, choice, FULL) == (FULL.inp_depth, FULL.wgt_depth)
    products = biased.macs + biased.rows * biased.columns * biased.outputs
    assert products >= 0.9 * cycles(biased, [choice], FULL)


@pytest.mark.parametrize(("blocks", "piece", "loads"), [(16, 2, 2), (11, 2, 11), (12, 5, 6), (9, 2, 3)])
def test_loads_of_weights_are_alike(blocks: int, piece: int, loads: int) -> None:
    assert piece_of(Choice((0, 7), (0, blocks), (7, 7, 32, 1), piece=piece)) == loads


def test_refusals() -> None:
    with pytest.raises(ScheduleError, match="a head of 7 of 7 rows"):
        Plan((7, 7, 4, 1), head="rows", head_size=7).choices(C11)
    with pytest.raises(ScheduleError, match="a tail of 4 blocks leaves nothing"):
        Plan((7, 7, 4, 1), head="blocks", head_size=28, tail=4).choices(C11)
    with pytest.raises(ScheduleError, match="no tile of the layer fits"):
        best_plan(replace(C2, dilations=(1000, 1000)), FULL)


@pytest.mark.parametrize("shape", [C2, C8, C11, replace(C2, groups=3, residual=1, passes=2)], ids=range(4))
def test_every_configuration_fits(shape: Shape) -> None:
    knobs = Knobs()
    ask(shape, FULL, knobs)
    space, rng = knobs.space(), np.random.default_rng(0)
    for row in space.sample(rng, 200):
        plan = ask(shape, FULL, Knobs(space.config(row)))
        choices = plan.choices(shape)
        assert not any(refusal(shape, choice, FULL) for choice in choices)
        assert all(have <= want for have, want in zip(plan.tile, space.config(row).values(), strict=False))


@pytest.mark.parametrize(
    ("tile", "data_at", "message"),
    [
        ((14, 56, 1, 4), At.CHUNK, "elements of input"),
        ((1, 56, 1, 1), At.PART, "elements of input"),
        ((1, 56, 4, 4), At.CHUNK, "tiles of weights"),
        ((12, 56, 4, 1), At.CHUNK, "accumulators"),
    ],
)
def test_what_does_not_fit(tile: tuple[int, int, int, int], data_at: At, message: str) -> None:
    choice = Choice((0, 56), (0, 4), tile, data_at=data_at, tiles_at=At.CHUNK)
    assert message in refusal(C2, choice, FULL)
