"""The joint space: every layout of it, with the loops that are rebuilt for it, means what the operator means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.rewrite.workload import workload_document
from mlc.settings import Observer
from mlc.targets.base import Foreseeing
from mlc.tuning.features import LoopFeatures
from mlc.tuning.joint import expected_layouts, layout_space, likeliest, loop_space
from mlc.tuning.task import candidate, tasks_of
from mlc.tuning.task import task_of as read_task
from tests.fuzz import examples
from tests.unit.tuning.operators import (
    OPERATORS,
    OPTIONS,
    TARGET,
    check,
    convolution,
    product,
    task_of,
    transposed,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_complex_operator_has_layouts_that_mean_the_same(name: str) -> None:
    assert check(OPERATORS[name](), 3, levels=1 + len(name) % 2, layouts=1, loops=1)


@st.composite
def operators(draw: Draw) -> Graph:
    if draw(st.integers(0, 3)) == 0:
        m, k, n = (draw(st.integers(1, 12)) for _ in range(3))
        return product(m, k, n, draw(st.sampled_from([(), (2,)])))
    rank = draw(st.integers(1, 3))
    taps, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    reach = (taps - 1) * dilation + 1
    pad = draw(st.integers(0, reach // 2))
    least = max(1, reach - 2 * pad)
    space = tuple(draw(st.integers(least, max(least, 9 // rank))) for _ in range(rank))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = (groups * draw(st.integers(1, 8)) for _ in range(2))
    if draw(st.integers(0, 4)) == 0:
        groups = filters = channels
    if draw(st.integers(0, 3)) == 0:
        stride = draw(st.integers(1, 3))
        return transposed(
            channels, filters, space, taps, stride=stride, dilation=dilation, groups=groups,
            pad=min(pad, (reach - 1) // 2), more=draw(st.integers(0, stride - 1)), batch=draw(st.integers(1, 2)),
        )  # fmt: skip
    return convolution(
        channels, filters, space, taps, stride=draw(st.integers(1, 3)), dilation=dilation, groups=groups, pad=pad,
        batch=draw(st.integers(1, 2)),
    )  # fmt: skip


@pytest.mark.slow
@given(graph=operators(), seed=st.integers(0, 1 << 30), levels=st.integers(1, 2))
@examples(500)
def test_random_operators_under_random_layouts_mean_the_same(graph: Graph, seed: int, levels: int) -> None:
    if tasks_of(graph, TARGET, OPTIONS, Observer()) and layout_space(task_of(graph), TARGET, levels) is not None:
        check(graph, seed, levels=levels, layouts=2, loops=1)


def test_layouts_of_the_paper() -> None:
    """ALT §5.1: the result ``N H/h W/w O/o h w o``, the input unfolded, weights ``O/o I/i r s i o``."""
    task = task_of(convolution(8, 16, (8, 8), 3, pad=1))
    space = layout_space(task, TARGET)
    assert space is not None
    assert [k.name for k in space.knobs] == [
        "layout", "layout.h", "layout.w", "layout.o", "layout.i", "layout.weights.o", "layout.weights.i",
        "layout.input",
    ]  # fmt: skip
    config = {**space.default, "layout.h": (2, 4), "layout.w": (4, 2), "layout.o": (2, 8), "layout.i": (2, 4)}
    node = candidate(task, TARGET, config)
    assert str(node.outputs[0].type.layout) == "split(3, 2).split(2, 4).split(1, 8).reorder(0,3,5,1,4,6,2)"
    assert node.inputs[1].type.physical_shape == (1, 1, 3, 3, 8, 16)
    text = "\n".join(repr(s.op) for s in TARGET.schedule(node, Knobs(config)).stages)
    assert "pad[n:1, h:2, w:4, c:2, hb:6, wb:4, cb:4]" in text
    assert "conv[n:1, h:2, w:4, o:2, hb:4, wb:2, ob:8] = sum(pad[0, h, w, c//4, hb + r, wb + s, c%4]" in text


def test_tiles_of_a_transposed_convolution_hold_whole_strides() -> None:
    """Its input is read in tiles of a stride's share of the rows and what taps reach, its sums lie as phases."""
    task = task_of(transposed(8, 16, (4, 3), 3, pad=1))  # 7 by 5 results
    space = layout_space(task, TARGET)
    assert space is not None
    config = {**space.default, "layout.h": (2, 2), "layout.o": (2, 8), "layout.weights.o": (2, 8)}
    node = candidate(task, TARGET, config)
    (result,) = node.outputs
    assert (
        str(result.type.layout)
        == "pad(2, 0, 1).pad(3, 0, 1).split(3, 6).split(2, 4).split(1, 8).reorder(0,3,5,1,4,6,2)"
    )
    assert node.inputs[1].type.physical_shape == (2, 2, 2, 1, 2, 2, 8, 8)  # O/o phases I/i taps i o
    text = "\n".join(repr(s.op) for s in TARGET.schedule(node, Knobs(config)).stages)
    assert "pad[n:1, h:2, w:1, c:1, hb:4, wb:5, cb:8]" in text
    assert "phases[n:1, h:2, w:1, o:2, fh:2, fw:2, hb:2, wb:3, ob:8]" in text


def test_two_levels_tile_tiles() -> None:
    task = task_of(convolution(8, 16, (8, 8), 3, pad=1))
    space = layout_space(task, TARGET, 2)
    assert space is not None
    config = {**space.default, "layout.h": (2, 2, 2), "layout.w": (1, 4, 2), "layout.o": (1, 2, 8)}
    node = candidate(task, TARGET, config)
    assert node.outputs[0].type.physical_shape == (1, 2, 1, 1, 2, 4, 2, 2, 2, 8)
    text = "\n".join(repr(s.op) for s in TARGET.schedule(node, Knobs(config)).stages)
    assert "pad[n:1, h:2, w:1, c:1, hb:2, wb:4, hbb:4, wbb:4, cb:8]" in text


def test_what_is_no_complex_operator_has_no_layouts_to_choose() -> None:
    g = Builder("sums")
    (y,) = g.add(get("softmax"), [g.input("x", TensorType((64, 512), f32))], {"axis": 1}, names=["y"])
    tasks = tasks_of(g.finish([y]), TARGET, OPTIONS, Observer())
    assert all(layout_space(t, TARGET) is None for t in tasks)


def test_what_would_have_to_be_converted_in_the_end_has_none_either() -> None:
    task = task_of(product(12, 8, 24))
    assert layout_space(task, TARGET) is not None
    assert layout_space(replace(task, site=replace(task.site, row_major=True)), TARGET) is None


def test_every_configuration_of_tiled_layouts_can_be_described(caplog: pytest.LogCaptureFixture) -> None:
    task, rng = task_of(convolution(16, 32, (12, 12), 3, pad=1)), np.random.default_rng(0)
    space = layout_space(task, TARGET)
    assert space is not None
    for row in [space.row({}), *space.sample(rng, 3)]:
        loops = loop_space(task, TARGET, space.config(row))
        assert loops is not None
        features = LoopFeatures.of(replace(task, space=loops), TARGET)
        assert features is not None
        assert features(loops.sample(rng, 12)).any(axis=1).any()
    assert not caplog.records


@pytest.mark.parametrize(
    ("graph", "worth"),
    [
        # 12 filters are half a register more than one in the target's own blocks of 8, and one and a half in one of 12
        (convolution(32, 12, (14, 14), 1), True),
        (convolution(64, 64, (14, 14), 3, groups=64, pad=1), False),
    ],
)
def test_layouts_are_worth_a_look_where_their_loops_are_expected_to_be_as_fast(graph: Graph, worth: bool) -> None:
    alone = tasks_of(graph, TARGET, OPTIONS, Observer())[-1]
    task = read_task(workload_document(alone.node, replace(alone.site, row_major=False)), (), TARGET)
    space = layout_space(task, TARGET)
    assert space is not None
    layouts = expected_layouts(task, TARGET, space, 6)
    ranked, looks = likeliest(task, TARGET, space, layouts)
    assert isinstance(TARGET, Foreseeing)
    assert {r.tobytes() for r in ranked} <= {r.tobytes() for r in layouts}
    cycles = []
    for row in ranked:
        loops = loop_space(task, TARGET, space.config(row))
        assert loops is not None
        cycles.append(TARGET.expected_cycles(candidate(task, TARGET, loops.default)))
    own = TARGET.expected_cycles(candidate(task, TARGET, task.space.default))
    assert cycles == sorted(cycles)
    assert (0.95 * cycles[0] <= own) == worth
    assert looks == max(1, sum(0.95 * c <= own for c in cycles))


def test_a_batch_under_a_layout_is_described_like_each_of_its_members() -> None:
    """What one configuration has decided for itself, such as which loops threads share, holds for no other."""
    task, rng = task_of(convolution(8, 8, (8, 8), 3, pad=1)), np.random.default_rng(0)
    space = layout_space(task, TARGET)
    assert space is not None
    layouts = {**space.default, "layout.h": (2, 4), "layout.w": (4, 2), "layout.o": (2, 4)}
    loops = loop_space(task, TARGET, layouts)
    assert loops is not None
    under = replace(task, space=loops)
    rows = loops.sample(rng, 24)
    together = LoopFeatures(under, TARGET)(rows)
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_array_equal(LoopFeatures(under, TARGET)(row[None])[0], found, err_msg=str(loops.config(row)))


def test_a_layout_that_is_not_there_is_refused() -> None:
    task = task_of(convolution(8, 16, (8, 8), 3))
    space = layout_space(task, TARGET)
    assert space is not None
    with pytest.raises(ScheduleError, match=r"knob layout.h has no value \(2, 5\)"):
        candidate(task, TARGET, {**space.default, "layout.h": (2, 5)})
