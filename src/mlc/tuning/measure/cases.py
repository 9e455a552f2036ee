"""What a task's candidates are run on, and what must come out: two sets of inputs and results, in shared memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mlc.harness.feeds import Fill, Span, make_feeds
from mlc.ir import te
from mlc.ir.expr import Binary, Cast, Load, walk
from mlc.ir.graph import Node, express
from mlc.ir.interp import run_tensors
from mlc.ir.interp.points import run_points
from mlc.ir.layout import Layout
from mlc.ir.types import dtype_of
from mlc.runtime.tensor_spec import TensorSpec
from mlc.tuning.task import Task

ALIGNMENT = 64
POINTS = 64  # elements of each result that are computed twice where all would take too long
INTERPRETED = 2.0  # seconds that the interpreter may take, estimated
# seconds a point, measured: sums of products are one product of matrices, or many in einsum's own loops where an axis
# runs through all factors and the result; the rest is evaluated node by node
_PER_PRODUCT, _PER_BATCHED, _PER_NODE = 1.5e-9, 1.2e-8, 6e-9


@dataclass(frozen=True)
class Case:
    """One set of inputs and the results that belong to them: logical, row-major arrays.

    Args:
        inputs: by position; constants are the same in all sets.
        results: by position.
    """

    inputs: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]


def case_bytes(task: Task, sets: int) -> int:
    """Bytes of the memory that :func:`cases_in` lays out."""
    return _lay_out(task, sets, None)[1]


def cases_in(memory: mmap.mmap, task: Task, sets: int) -> list[Case]:
    """The sets of a task as arrays in shared memory."""
    return _lay_out(task, sets, memory)[0]


def _lay_out(task: Task, sets: int, memory: mmap.mmap | None) -> tuple[list[Case], int]:
    end = 0

    def array(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        nonlocal end
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + prod(shape) * dtype.itemsize
        if memory is None:
            return np.empty(0, dtype)
        return np.frombuffer(memory, dtype, prod(shape), start).reshape(shape)

    fixed = {
        k: array(v.type.shape, v.type.dtype.numpy)
        for k, (v, constant) in enumerate(zip(task.node.inputs, task.site.constant, strict=True))
        if constant
    }
    cases = []
    for _ in range(sets):
        inputs = tuple(
            fixed[k] if k in fixed else array(v.type.shape, v.type.dtype.numpy) for k, v in enumerate(task.node.inputs)
        )
        cases.append(Case(inputs, tuple(array(v.type.shape, v.type.dtype.numpy) for v in task.node.outputs)))
    return cases, end


def draw_inputs(task: Task, cases: Sequence[Case], seeds: Sequence[int]) -> None:
    """Fills the inputs at random; constants that the task knows are what they are."""
    known = {k: task.constants[v] for k, v in enumerate(task.node.inputs) if task.constants and v in task.constants}
    types = [v.type for v in task.node.inputs]
    specs = [TensorSpec(f"{k}", dtype_of(t.dtype.numpy).name, t.shape) for k, t in enumerate(types)]
    spans = {f"{k}": Span(t.dtype.min_value, t.dtype.max_value) for k, t in enumerate(types) if t.dtype.magnitude}
    for number, (case, seed) in enumerate(zip(cases, seeds, strict=True)):
        wanted = [s for k, s in enumerate(specs) if k not in known and (number == 0 or not task.site.constant[k])]
        within = {s.name: spans[s.name] for s in wanted if s.name in spans}
        for name, array in make_feeds(wanted, Fill.RANDOM, seed, spans=within).items():
            case.inputs[int(name)][...] = array
    for k, array in known.items():
        cases[0].inputs[k][...] = array  # all sets share them


class Reference:
    """The task's group as the interpreter sees it."""

    def __init__(self, node: Node) -> None:
        self._inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        self._outputs = list(express(node, self._inputs))

    @property
    def seconds(self) -> float:
        """How long computing all results once takes, about."""
        total = 0.0
        for op in te.topological(self._outputs):
            points = prod(op.shape) * prod(a.hi + 1 for a in op.reduce_axes)
            nodes = [n for body in op.bodies for n in walk(body)]
            product = op.combiner is te.SUM and all(
                type(n) in (Load, Cast) or (type(n) is Binary and n.op == "mul") for n in nodes
            )
            if product:
                read = [{v for ix in n.indices for v in ix.vars()} for n in nodes if type(n) is Load]
                batched = set(op.axes).intersection(*read)
                total += points * (_PER_BATCHED if batched else _PER_PRODUCT)
            else:
                total += points * _PER_NODE * len(nodes)
        return total

    def results(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return run_tensors(self._outputs, dict(zip(self._inputs, inputs, strict=True)))

    def spot_check(self, case: Case, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        """Some elements of each result as they are in ``case``, and as they should be."""
        found = []
        given = dict(zip(self._inputs, case.inputs, strict=True))
        for tensor, result in zip(self._outputs, case.results, strict=True):
            if not result.size:
                continue
            points = [rng.integers(0, n, POINTS) for n in tensor.shape]
            found.append((result[tuple(points)], run_points(tensor, points, given)))
        return found


def physical(array: np.ndarray, layout: Layout | None) -> np.ndarray:
    """An input as a kernel finds it: margins are zero, and padding holds what nobody may use."""
    if layout is None or layout.is_plain:
        return np.ascontiguousarray(array)
    packed = layout.core.pack(array)
    if layout.has_padding and array.dtype.kind == "f":
        packed[~layout.core.pack(np.ones(array.shape, bool))] = np.nan
    if layout.has_margins:
        packed = np.pad(packed, layout.margins)
    return packed


def margins_are_zero(array: np.ndarray, layout: Layout | None) -> bool:
    """Whether a physical result has zeros wherever its layout promises them."""
    if layout is None or not layout.has_margins:
        return True
    for axis, (before, after) in enumerate(layout.margins):
        ends = np.moveaxis(array, axis, 0)
        if ends[:before].any() or ends[len(ends) - after :].any():
            return False
    return True
