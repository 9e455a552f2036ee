"""What the cost model expects of searched layouts, and the register tiles that it has for them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.workload import workload_document
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cpu.schedules.tiled_tile import Shape, best_choice
from mlc.targets.x86.record import record_for
from mlc.tuning.joint import expected_layouts, layout_space, loop_space
from mlc.tuning.task import Task, candidate, task_of, tasks_of

TARGET = get_target("x86 -mcpu=skylake-avx512")
MACHINE = record_for("skylake-avx512", ())
OPTIONS = CompileOptions("tiled", "onnx", "0" * 64, disabled_passes=("winograd",))


def task(channels: int, filters: int, size: tuple[int, ...], taps: int, groups: int = 1) -> Task:
    """A convolution between others."""
    rank = len(size)
    g, rng = Builder("conv"), np.random.default_rng(0)
    x = g.input("x", TensorType((1, channels, *size), f32))
    w = rng.standard_normal((filters, channels // groups, *[taps] * rank)).astype(np.float32)
    ones, pads = (1,) * rank, (taps // 2,) * 2 * rank
    attrs = {"strides": ones, "pads": pads, "dilations": ones, "groups": groups}
    (y,) = g.add(get("conv"), [x, g.constant(w, "w")], attrs)
    last = tasks_of(g.finish([y]), TARGET, OPTIONS, Observer())[-1]
    return task_of(workload_document(last.node, replace(last.site, row_major=False)), (), TARGET)


def expected(found: Task) -> list[dict[str, object]]:
    """The layouts that are expected to be the fastest, with the loops that they have untuned."""
    space = layout_space(found, TARGET)
    assert space is not None
    loops = [loop_space(found, TARGET, space.config(row)) for row in expected_layouts(found, TARGET, space, 4)]
    return [dict(s.default) for s in loops if s is not None]


@pytest.mark.parametrize("held", [(14, 16), (7, 7, 56), (14, 1), (64, 1), (3, 5, 1), (1, 1), (8, 8, 8, 24)])
def test_sums_fit_the_registers_and_vectors_lie_where_results_are_neighbours(held: tuple[int, ...]) -> None:
    choice = best_choice(Shape(held, outside=12, blocks=6, depth=50, weights=1 << 16, packed=held[-1]), MACHINE)
    assert choice.along == ("space" if held[-1] == 1 < held[-2] else "channels")
    assert prod(choice.rows) * choice.vectors * choice.panels < MACHINE.registers
    assert choice.cycles > 0


def test_ragged_channels_are_expected_to_lie_in_rows() -> None:
    """40 filters fill two vectors and a half, 256 columns sixteen (figure 9 of ALT, C1D-0)."""
    best, *_ = expected(task(136, 40, (256,), 5))
    assert best["vector"] == "space"
    assert best["layout.o"] == (40, 1)


def test_few_filters_a_group_are_expected_to_have_tiles_of_several_rows() -> None:
    """Four filters are four sums, one a row: a multiply-add every cycle takes eight (figure 9, GRP-0)."""
    best, *_ = expected(task(208, 8, (14, 14), 5, groups=2))
    assert best["vector"] == "space"
    assert int(best["rows.h"]) * int(best["panels"]) * int(best["vectors"]) >= 8  # type: ignore[call-overload]


def test_what_is_expected_can_be_built_and_differs() -> None:
    found = expected(task(48, 112, (7, 7), 3, groups=2))
    assert len(found) > 1
    assert len({str(sorted(c.items())) for c in found}) == len(found)


@pytest.mark.parametrize(
    "input_lies, vectors, steps, message",
    [
        ("tiled", 1, 2, None),
        ("tiled", 2, 2, "the sums of a tile do not fit the registers"),
        ("tiled", 1, 16, "too much is unrolled"),
        ("as it is", 1, 16, None),  # in rows, whose pixels are neighbours
    ],
)
def test_what_takes_a_compiler_seconds_is_refused(
    input_lies: str, vectors: int, steps: int, message: str | None
) -> None:
    """Vectors of pixels that have channels between them are loaded one number after the other (4 to 10 s each)."""
    found = task(16, 32, (14, 14), 3)
    layout = layout_space(found, TARGET)
    assert layout is not None
    config = {**layout.default, "layout": 1, "layout.h": (1, 14), "layout.w": (1, 14), "layout.o": (2, 16)}
    space = loop_space(found, TARGET, {**config, "layout.i": (1, 16), "layout.input": input_lies})
    assert space is not None
    tile = {"vector": "space", "rows.h": 14, "rows.w": 1, "vectors": vectors, "panels": 2}
    chosen = {**space.default, **tile, "steps": steps}
    with pytest.raises(ScheduleError, match=message) if message else nullcontext():
        TARGET.kernel(candidate(found, TARGET, chosen), "k")
