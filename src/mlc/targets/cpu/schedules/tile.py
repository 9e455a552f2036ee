"""Register tiles: which one the knobs say, what follows one, and rows in whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlc.ir import te
from mlc.ir.expr import Binary, Call, loads, walk
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.ir.loop import ForKind
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.cpu.cost import Tile, fits_registers, unrolled_steps
from mlc.targets.cpu.dot import NEIGHBOURS, Dot
from mlc.targets.cpu.record import Cpu

STEPS = (1, 2, 4, 8, 16)  # of a sum that one iteration takes


def ask_tile(
    knobs: Knobs,
    default: Tile,
    rows: Sequence[int],
    vectors: Sequence[int],
    target: Cpu,
    *,
    prefix: str = "",
    fits: Callable[[int, int, Cpu], bool] = fits_registers,
) -> Tile:
    """The register tile that the knobs say.

    Args:
        knobs: are asked for ``vectors`` and ``rows``.
        default: where they say nothing; the cost model's.
        rows: to choose from.
        vectors: to choose from.
        target: has the registers.
        prefix: of the knobs' names, where a template has several tiles.
        fits: whether the sums of so many rows and vectors fit the registers.
    Raises:
        ScheduleError: its sums do not fit the registers.
    """
    wide = knobs.discrete(f"{prefix}vectors", vectors, default=default.vectors)
    high = knobs.discrete(f"{prefix}rows", rows, default=default.rows)
    knobs.require(fits(high, wide, target), "the sums of a tile do not fit the registers")
    return Tile(high, wide)


def steps_of(tile: Tile, target: Cpu, dot: Dot | None = None) -> int:
    """Reduction steps that one iteration of the innermost loop takes.

    Loop counters take a tenth of the instructions of a small tile, and processors whose core is shared with another
    thread are bound by them (measured on Zen 3: 71 % of peak with one step, 78 % with four).
    """
    return next(n for n in (4, 2, 1) if n <= unrolled_steps(tile, target, dot))


class Cut(NamedTuple):
    """The loops of a product's register tile, from outside; lanes are from ``instruction`` on."""

    iterations: Var
    steps: Var
    rows: Var
    vectors: Var
    instruction: Var


def cut_depth(
    local: Stage, knobs: Knobs, width: int, sums: Tile, dot: Dot | None, target: Cpu, *, least: int = 1, most: int = 8
) -> Cut:
    """Put the loop over the depth of a product around its register tile, some of its steps within one iteration.

    With instructions that take several terms of a sum, columns end with a whole tile, and the terms are the innermost
    axis.

    Args:
        local: the stage that sums up; its last axis is that of columns, and becomes vectors and lanes.
        knobs: are asked for the ``steps``.
        width: of the tile, in columns.
        sums: that a tile holds.
        dot: the instruction, if it takes several terms.
        target: has the vectors.
        least: steps of an iteration where the knobs say nothing.
        most: of an iteration.
    """
    *lead, rows, columns = local.op.axes
    if dot is not None:
        local.align(columns, width)
    vectors, lane = local.split(columns, target.lanes)
    steps = knobs.discrete("steps", [n for n in STEPS if n <= most], default=max(least, steps_of(sums, target, dot)))
    (depth,) = local.op.reduce_axes
    depth, rows, lanes = instruction_loops(local, depth, rows, lane, dot)
    outer, inner = local.split(depth, steps)
    local.reorder(outer, inner, *lead, rows, vectors, *lanes)
    return Cut(outer, inner, rows, vectors, lanes[0])


def instruction_loops(
    local: Stage, depth: Var, rows: Var, lane: Var, dot: Dot | None
) -> tuple[Var, Var, Sequence[Var]]:
    """The loops over a product's terms and rows that are left around an instruction, and those that it stands for.

    Args:
        local: the stage that sums up.
        depth: its loop over terms.
        rows: its loop over rows.
        lane: its loop over the lanes of a vector of columns.
        dot: the instruction, if it takes several terms.
    """
    if dot is None:
        return depth, rows, (lane,)
    depth, terms = local.split(depth, dot.terms)
    if dot.rows == 1:
        return depth, rows, (lane, terms)
    rows, row = local.split(rows, dot.rows)
    if dot.is_matrix:
        run, term = local.split(terms, NEIGHBOURS // dot.types[0].itemsize)
        return depth, rows, (row, lane, run, term)
    block, column = local.split(lane, dot.rows)
    run, term = local.split(terms, NEIGHBOURS // dot.types[0].itemsize)
    # as the intrinsic has its axes: a sum that is set to zero says nothing about their order
    return depth, rows, (block, row, column, run, term)


def multiply_lanes(local: Stage, instruction: Var, dot: Dot | None) -> None:
    """Make the lanes of a register tile vectors, or the instruction that takes several terms at once."""
    if dot is None:
        local.vectorize(instruction)
    else:
        local.tensorize(instruction, dot.intrinsic)


def hold_terms(s: Schedule, local: Stage, at: Var, which: int, over: Var, count: int, target: Cpu) -> None:
    """Read the numbers that a register tile multiplies vectors by as vectors, whose lanes products name.

    Args:
        s: the schedule.
        local: the stage that sums up.
        at: its loop, an iteration of which reads them.
        which: of the two operands they are part of.
        over: the axis along which they are neighbours, if that is the operand's last.
        count: how many of them an iteration reads.
        target: tells how many a vector has.
    """
    read = loads(local.op.bodies[0])[which]
    if target.terms == 1 or count % target.terms or over not in read.indices[-1].vars():
        return
    held = s[s.cache_read(read.source, "register", [local.op.outputs[0]])]
    held.compute_at(local, at)
    *rows, terms = held.op.axes
    outer, lane = held.split(terms, target.terms)
    held.vectorize(lane)
    for a in (*rows, outer):
        held.unroll(a)


def rows_of_vectors(shape: Sequence[int], excess: int, stride: int, lanes: int) -> Layout:
    """Rows in whole vectors, in which columns a stride apart are neighbours: ``[…, w % stride, w // stride]``.

    Args:
        shape: of what a window slides over.
        excess: columns of results that are computed beyond the end.
        stride: of the window along a row.
        lanes: of a vector.
    """
    last = len(shape) - 1
    reach = shape[last] + excess * stride
    layout = Layout(tuple(shape)).pad(last, 0, reach - shape[last] + -reach % (stride * lanes))
    return layout.split(last, stride).reorder(*range(last), last + 1, last) if stride > 1 else layout


# functions that become polynomials of dozens of instructions and as many registers
_LONG = {
    "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "threefry",
}  # fmt: skip


def has_long_functions(op: te.Compute) -> bool:
    """Whether an element takes a function such as ``erf``, with everything inlined."""
    return any(
        (type(e) is Call and e.fn in _LONG) or (type(e) is Binary and e.op == "pow") for b in op.bodies for e in walk(b)
    )


def finish_tile(s: Schedule, out: te.Tensor, tile: te.Tensor, at: Var, loops: Sequence[Var]) -> None:
    """Run what follows a register tile.

    A short epilogue works on the registers themselves, all of its loops unrolled. A long one would need the registers
    of the accumulators, and the register allocator would spill those in the innermost loop: there, the tile goes to
    memory once and the epilogue loops over it, in a function of its own.

    Args:
        s: the schedule.
        out: the output, with ``tile`` computed at ``at`` and everything in between inlined.
        tile: the accumulated tensor, in registers.
        at: the loop of ``out`` inside which tiles are computed.
        loops: the loops of ``out`` over a tile, without the vectors.
    """
    stage = s[out]
    inlined = _inlined_body(s, out)
    if not any(has_long_functions(op) for op in inlined):
        for a in loops:
            stage.unroll(a)
        return
    long = next((a for a in loops if a.hi > 0), None)
    if long is not None:
        stage.pragma(long, "outline")
    readers = [op.outputs[0] for op in inlined if tile in op.inputs]
    stored = s[s.cache_read(tile, "local", readers)]
    stored.compute_at(stage, at)
    *outer, lane = stored.op.axes
    for a in outer:
        stored.unroll(a)
    if stage.kinds.get(stage.leaves[-1]) is ForKind.VECTORIZED:
        wide, lanes = lane.hi + 1, stage.leaves[-1].hi + 1
        if wide > lanes:
            lo, lane = stored.split(lane, lanes)
            stored.unroll(lo)
    stored.vectorize(lane)


def _inlined_body(s: Schedule, out: te.Tensor) -> list[te.Compute]:
    """The output's compute and those inlined into it."""
    found: list[te.Compute] = []
    stack = [out]
    while stack:
        stage = s.find(stack.pop())
        if stage is None or (stage.op is not s[out].op and not stage.inlined) or stage.op in found:
            continue
        found.append(stage.op)
        stack += stage.op.inputs
    return found
