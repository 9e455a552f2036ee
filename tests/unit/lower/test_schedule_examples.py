"""The nests that the docstrings of schedule primitives show are those that come out."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from mlc.ir import te
from mlc.ir.intrinsic import Kind, TensorIntrinsic
from mlc.ir.types import f32
from mlc.lower import lower, schedule, stage, stage_loops
from mlc.lower.build import build
from mlc.lower.pipeline import NEST_PASSES
from mlc.lower.schedule import Schedule


def show(s: Schedule) -> None:
    """Prints the loops of a schedule, with intrinsics in them."""
    inputs = dict.fromkeys(t for stage in s.stages for t in stage.op.inputs if t.op is None)
    params = [*inputs, *s.outputs]
    replaced = any(stage.tensorized for stage in s.stages)  # nests are matched with intrinsics by a pass
    fn = lower(s, params, "f", passes=NEST_PASSES) if replaced else build(s, params, "f")
    lines = repr(fn).splitlines()[1:]
    print("\n".join(line.removeprefix("  ") for line in lines))


def rows() -> tuple[Schedule, te.Tensor, te.Tensor]:
    x = te.placeholder((6, 10), f32, "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, "y")
    return Schedule([y]), x, y


def chain() -> tuple[Schedule, te.Tensor, te.Tensor, te.Tensor]:
    x = te.placeholder((6, 10), f32, "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, "y")
    z = te.compute((6, 8), lambda i, j: y[i, j] * y[i, j + 2], "z")
    return Schedule([z]), x, y, z


def sums() -> tuple[Schedule, te.Tensor, te.Tensor]:
    x, k = te.placeholder((6, 10), f32, "x"), te.reduce_axis(10, "k")
    y = te.compute((6,), lambda i: te.sum_of(x[i, k], k), "y")
    return Schedule([y]), x, y


def sum5() -> TensorIntrinsic:
    x, k = te.placeholder((5,), f32, "x"), te.reduce_axis(5, "k")
    return TensorIntrinsic("sum5", te.compute((1,), lambda i: te.sum_of(x[k], k), "y"), {}, tuple(Kind))


@pytest.mark.parametrize("module, least", [(stage_loops, 20), (stage, 15), (schedule, 10)])
def test_docstrings_show_what_becomes_of_a_nest(module: ModuleType, least: int) -> None:
    known = {"show": show, "rows": rows, "chain": chain, "sums": sums, "sum5": sum5()}
    found = doctest.testmod(module, extraglobs=known)
    assert found.failed == 0
    assert found.attempted > least
