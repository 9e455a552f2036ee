"""Spaces of schedules that are small enough to measure whole: operators of the papers, with some knobs pinned.

A *subspace* keeps some values of some knobs of a task and one value, the untuned one unless named, of all others. What
is left has a few thousand configurations, so that a table can hold all of them (see :mod:`benchmarks.papers.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from benchmarks.zoo.operators import CONVOLUTIONS
from mlc.errors import UsageError
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Categorical, Discrete, Knob, Space
from mlc.lower.knobs import Value as Choice
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import Task, tasks_of

# The papers' convolutions are direct ones.
DISABLED = ("winograd",)


class Untuned:
    """The value that a knob has untuned stays, and no other."""


Kept = Sequence[Choice] | Untuned


@dataclass(frozen=True)
class Workload:
    """An operator and what is kept of its space.

    Args:
        name: as the paper has it.
        text: one line that says what it is, and how it differs from the paper's.
        graph: a graph whose last task it is.
        kept: values that stay, by knob; a knob that is not named keeps all of them.
        untuned: knobs that keep their untuned value, where the template has them.
        disabled: passes left out.
        processor: of its table, as a target; defaults and features of another one are others.
    """

    name: str
    text: str
    graph: Callable[[], Graph]
    kept: Mapping[str, Kept] = field(default_factory=dict)
    untuned: Collection[str] = ()
    disabled: tuple[str, ...] = DISABLED
    processor: str = "x86 -mcpu=znver5"

    def task(self, target: Target) -> Task:
        """The operator's task."""
        options = CompileOptions(self.name, "onnx", "", disabled_passes=self.disabled)
        return tasks_of(self.graph(), target, options, Observer())[-1]


class Subspace:
    """A part of a task's space.

    Args:
        whole: the task's space.
        kept: values that stay, by knob; knobs with one value are not part of ``space``.

    Attributes:
        space: what is left; its default is the whole space's where that is left, or else near it.

    Raises:
        UsageError: the space lacks a knob or a value that is to stay, as that of another processor may.
    """

    def __init__(self, whole: Space, kept: Mapping[str, Kept]) -> None:
        unknown = set(kept) - {k.name for k in whole.knobs}
        if unknown:
            raise UsageError(f"no knob {', '.join(sorted(unknown))}; there are {[k.name for k in whole.knobs]}")
        self.whole = whole
        self._values = [_indices(k, kept.get(k.name), whole.default[k.name]) for k in whole.knobs]
        free = [(k, at) for k, at in zip(whole.knobs, self._values, strict=True) if len(at) > 1]
        knobs = tuple(_restricted(k, at) for k, at in free)
        default = {k.name: _nearest(k, at, whole.default[k.name]) for k, at in free}
        self.space = Space(knobs, default)

    def lift(self, rows: np.ndarray) -> np.ndarray:
        """Rows of ``space`` as rows of the whole space, int64 ``[n, knobs]``."""
        found = np.zeros((len(rows), len(self._values)), np.int64)
        column = 0
        for k, at in enumerate(self._values):
            if len(at) > 1:
                found[:, k] = np.array(at)[rows[:, column]]
                column += 1
            else:
                found[:, k] = at[0]
        return found

    def all(self) -> np.ndarray:
        """Every row of ``space``, refused ones included, int64 ``[size, knobs]``."""
        return np.stack(np.unravel_index(np.arange(self.space.size), tuple(self.space.counts)), axis=1)


def _indices(knob: Knob, kept: Kept | None, untuned: Choice) -> list[int]:
    if kept is None:
        return list(range(len(knob.values)))
    if isinstance(kept, Untuned):
        kept = (untuned,)
    values = list(knob.values)
    absent = [value for value in kept if value not in values]
    if absent:
        raise UsageError(f"the knob {knob.name} has no value {absent[0]}: the subspace is of another processor")
    return sorted(map(values.index, kept))


def _restricted(knob: Knob, at: Sequence[int]) -> Knob:
    """The knob with some of its values."""
    if len(at) == len(knob.values):
        return knob
    values = tuple(knob.values[k] for k in at)
    if isinstance(knob, (Discrete, Categorical)):
        return replace(knob, values=values)
    raise ValueError(f"knob {knob.name}: some of its values would not be neighbours of the others any more")


def _nearest(knob: Knob, at: Sequence[int], value: Choice) -> Choice:
    here = knob.table[list(knob.values).index(value)]
    return knob.values[min(at, key=lambda k: float(np.abs(knob.table[k] - here).sum()))]


@dataclass
class Setting:
    """A workload on a target: its task, the subspace, and what its configurations look like to a cost model."""

    workload: Workload
    target: Target

    @cached_property
    def task(self) -> Task:
        return self.workload.task(self.target)

    @cached_property
    def part(self) -> Subspace:
        space, work = self.task.space, self.workload
        fixed: dict[str, Kept] = {k.name: Untuned() for k in space.knobs if k.name in work.untuned}
        return Subspace(space, {**fixed, **work.kept})

    @cached_property
    def features(self) -> LoopFeatures:
        return LoopFeatures(self.task, self.target)

    def accepted(self) -> np.ndarray:
        """Every row of the subspace that the template accepts, int64 ``[n, knobs]``."""
        rows = self.part.all()
        return rows[self.features.valid(self.part.lift(rows))]


# -- graphs -----------------------------------------------------------------------------------------------------------
def _conv(g: Builder, x: Value, inner: int, outer: int, kernel: int, stride: int, name: str, groups: int = 1) -> Value:
    rng = np.random.default_rng(len(name))
    scale = (2 / (inner // groups * kernel * kernel)) ** 0.5
    weight = rng.standard_normal((outer, inner // groups, kernel, kernel)).astype(np.float32) * np.float32(scale)
    attrs: dict[str, Any] = {
        "strides": (stride, stride), "pads": (kernel // 2,) * 4, "dilations": (1, 1), "groups": groups,
    }  # fmt: skip
    (y,) = g.add(get("conv"), [x, g.constant(weight, f"{name}.weight")], attrs, names=[name])
    return y


def convolution(edge: int, inner: int, outer: int, kernel: int, stride: int) -> Graph:
    """One convolution; a single-pixel one stands between two others, which give it tensors in blocks of channels."""
    g = Builder("convolution")
    if kernel > 1:
        x = g.input("x", TensorType((1, inner, edge, edge), f32))
        return g.finish([_conv(g, x, inner, outer, kernel, stride, "conv")])
    x = _conv(g, g.input("x", TensorType((1, 16, edge, edge), f32)), 16, inner, 3, 1, "before")
    return g.finish([_conv(g, x, inner, outer, kernel, stride, "conv")])


def windowed(
    edge: int, inner: int, outer: int, kernel: int, stride: int, groups: int = 1, *, first: bool = False
) -> Graph:
    """A convolution of any kind: the first, of row-major data, or behind a pointwise one, which blocks channels."""
    g = Builder("windowed")
    if first:
        x = g.input("x", TensorType((1, inner, edge, edge), f32))
    else:
        x = _conv(g, g.input("x", TensorType((1, 16, edge, edge), f32)), 16, inner, 1, 1, "before")
    return g.finish([_conv(g, x, inner, outer, kernel, stride, "conv", groups)])


def matmul(rows: int, inner: int, columns: int) -> Graph:
    """A product with constant weights."""
    g = Builder("matmul")
    weight = np.random.default_rng(0).standard_normal((inner, columns)).astype(np.float32) * np.float32(inner**-0.5)
    x = g.input("x", TensorType((rows, inner), f32))
    (y,) = g.add(get("matmul"), [x, g.constant(weight, "weight")], names=["y"])
    return g.finish([y])


def einsum(equation: str, *shapes: tuple[int, ...]) -> Graph:
    """A product of two inputs."""
    g = Builder("einsum")
    inputs = [g.input(f"x{k}", TensorType(shape, f32)) for k, shape in enumerate(shapes)]
    (y,) = g.add(get("einsum"), inputs, {"equation": equation}, names=["y"])
    return g.finish([y])


# -- workloads --------------------------------------------------------------------------------------------------------
# What a convolution does not choose unless it is kept.
_STILL = ("blocks", "order", "chunk", "steps", "panels", "shared", "prefetch")


def _convolution(name: str, **kept: Kept) -> Workload:
    """Register tiles of pixels on one axis or two, factors of the depth, orders of terms and of loops over tiles."""
    _, edge, inner, outer, kernel, stride = next(row for row in CONVOLUTIONS if row[0] == name)
    text = f"convolution {edge}x{edge}, {inner} -> {outer}, {kernel}x{kernel}, stride {stride}"
    graph = partial(convolution, edge, inner, outer, kernel, stride)
    some: dict[str, Kept] = {"vectors": (1, 2, 4, 8), "rows": (1, 2, 4, 7, 14)}
    return Workload(name, text, graph, {**some, **kept}, _STILL)


def _winograd(name: str) -> Workload:
    """Products of Winograd's algorithm: register tiles and cuts, orders of loops, factors of what is transformed."""
    _, edge, inner, outer, kernel, stride = next(row for row in CONVOLUTIONS if row[0] == name)
    text = f"convolution {name} by Winograd's algorithm"
    graph = partial(convolution, edge, inner, outer, kernel, stride)
    kept: dict[str, Kept] = {"rows": (1, 2, 4, 7, 14), "cut": ((1, 1), (14, 1), (196, 1))}
    return Workload(f"W{name[1:]}", text, graph, kept, ("steps", "group", "outputs", "outward", "prefetch"), ())


def _product(name: str, equation: str, shapes: Sequence[tuple[int, ...]], **kept: Kept) -> Workload:
    """Register tiles, factors of the sum's depth, the order of the loops, and how many tiles go together."""
    sizes = " and ".join("x".join(map(str, shape)) for shape in shapes)
    text = f"einsum {equation} of {sizes}"
    still = ("order", "steps", "prefetch", "ahead", "level")
    return Workload(name, text, lambda: einsum(equation, *shapes), {**_TILES, **kept}, still)


_TILES: dict[str, Kept] = {"vectors": (1, 2, 4), "rows": (2, 4, 6, 8, 12, 14), "panels": (1, 2, 4), "tiles": (1, 2, 4)}
_BATCH: dict[str, Kept] = {"vectors": (1, 2), "panels": (1, 2), "steps": (1, 4)}
_LARGE: dict[str, Kept] = {"vectors": (1, 2, 4, 8), "rows": (1, 2, 4, 8, 12), "panels": (1, 4), "tiles": (1, 4)}

# Matrices of OpEvo's B.1 have an eighth of the edges, those of B.2 a half, and 24 of them stand for 960: so that
# thousands of configurations can be measured.
WORKLOADS = {
    w.name: w
    for w in (
        _convolution("C1", vectors=(1, 2, 4), panels=(1, 2)),
        _convolution("C2", vectors=(1, 2, 4), chunk=(0, 16)),
        _convolution("C3", vectors=(1, 2, 4), chunk=(0, 16)),
        _convolution("C4"),
        _convolution("C5", chunk=(0, 16)),
        _convolution("C6", chunk=(0, 16)),
        _convolution("C7", chunk=(0, 16)),
        _convolution("C8", chunk=(0, 64)),
        _convolution("C9", chunk=(0, 16)),
        _convolution("C12", flat=Untuned(), chunk=(0, 16, 64), panels=(1, 2)),
        _winograd("C2"),
        _product("MM1", "ij,jk->ik", ((64, 128), (128, 128))),
        _product("MM2", "ij,jk->ik", ((64, 128), (128, 512))),
        _product("MM3", "ij,jk->ik", ((64, 512), (512, 128))),
        _product("BMM1", "bij,bjk->bik", ((24, 64, 64), (24, 64, 32)), **_BATCH),
        _product("BMM2", "bji,bjk->bik", ((24, 64, 64), (24, 64, 32)), **_BATCH),
        _product("BMM3", "bij,bkj->bik", ((24, 64, 32), (24, 64, 32)), **_BATCH),
        _product("Matmul-1024", "ij,jk->ik", ((1024, 1024), (1024, 1024)), **_LARGE),
    )
}
