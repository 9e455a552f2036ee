"""Blocks of windows that share a copy of their input."""

from __future__ import annotations

import pytest

from mlc.ir import te
from mlc.ir.loop import Allocate, For, Function, walk
from mlc.ir.types import f32
from mlc.lower.build import build
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.window import schedule_window
from mlc.targets.groups.group import Group
from mlc.targets.x86.record import record_for
from mlc.tuning.task import candidate, tasks_of
from tests.unit.targets.cpu.operators import convolution, pool

TARGETS = [record_for(cpu) for cpu in ("skylake-avx512", "haswell")]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("multiplier", [1, 2, 3, 6])
@pytest.mark.parametrize("taps, stride", [(7, 2), (5, 1)])
def test_a_block_copies_only_the_channels_that_it_reads(target, multiplier: int, taps: int, stride: int) -> None:  # type: ignore[no-untyped-def]
    channels = 192
    x = te.placeholder((1, channels, 16, 16), f32, "x")
    w = te.placeholder((channels * multiplier, 1, taps, taps), f32, "w")
    attrs = {"strides": (stride,) * 2, "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": channels}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    schedule = schedule_window(Group((x, w), (y,), y.op, {}), target)
    fn = build(schedule, [x, w, *schedule.outputs], "kernel")
    blocks = next(s for s in walk(fn.body) if isinstance(s, For)).extent
    (copy,) = (s.buffer for s in walk(fn.body) if isinstance(s, Allocate) and s.buffer.scope == "local")
    assert copy.shape[1] * blocks == channels


@pytest.mark.parametrize("size, tasks", [(28, 24 * 4), (25, 24), (29, 24), (31, 24 * 8)])
def test_rows_that_are_missing_from_the_last_tile_are_not_tested_in_all(size: int, tasks: int) -> None:
    fn = _depthwise(24, size, record_for("haswell"))
    assert next(s for s in walk(fn.body) if isinstance(s, For)).extent == tasks


@pytest.mark.parametrize("stride", [1, 2])
def test_lanes_beyond_the_channels_are_read_as_they_are(stride: int) -> None:
    """They compute what nobody reads: to tell them apart would cost as much as some of the products."""
    target = get_target("x86 -mcpu=znver5")
    graph = convolution(1, 24, (13, 13), 24, 3, stride=stride, groups=24, blocked=True)
    task = tasks_of(graph, target, CompileOptions("m", "test", ""), Observer())[-1]
    text = str(target.kernel(candidate(task, target, task.space.default), "k"))
    assert "p0: f32[1,2,15,15,16]" in text  # a block is ragged, and a margin in place of a border
    assert "select" not in text


@pytest.mark.parametrize("channels", [24, 40])
@pytest.mark.parametrize("stride", [1, 2])
def test_pools_ask_about_the_border_and_not_about_lanes(channels: int, stride: int) -> None:
    target = get_target("x86 -mcpu=znver5")
    graph = pool("max_pool", 1, channels, (13, 13), 3, stride, blocked=True)
    task = tasks_of(graph, target, CompileOptions("m", "test", ""), Observer())[-1]
    fn = target.kernel(candidate(task, target, task.space.default), "k")
    text = str(fn)
    assert f"p0: f32[1,{-(-channels // 16)},13,13,16]" in text  # the last block is ragged
    assert f"< {channels}" not in text


def _depthwise(channels: int, size: int, target: Cpu) -> Function:
    x = te.placeholder((1, channels, size, size), f32, "x")
    w = te.placeholder((channels, 1, 3, 3), f32, "w")
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": channels}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    assert y.op is not None
    schedule = schedule_window(Group((x, w), (y,), y.op, {}), target)
    return build(schedule, [x, w, *schedule.outputs], "kernel")
