"""A fused group as tensor expressions, and what a schedule wants to know about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Expr, Load, replace_loads, walk
from mlc.ir.graph import Node, express
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.ir.loop import ForKind
from mlc.lower.knobs import Knobs
from mlc.lower.relayout import read_margins, relayout
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import opaque

HEAVY = ("conv", "conv_transpose", "group_conv", "depthwise", "matmul", "einsum", "winograd", "attention")
WINDOWS = ("max_pool", "avg_pool", "lp_pool")


@dataclass(eq=False)
class Group:
    """Expressions of one group.

    Attributes:
        inputs: placeholders, one a node input.
        outputs: results.
        anchor: the heavy compute (convolution, matrix product …) if there is one.
        layouts: layouts of inputs and outputs that are not row-major.
        knobs: answers the questions of the group's template.
    """

    inputs: tuple[te.Tensor, ...]
    outputs: tuple[te.Tensor, ...]
    anchor: te.Compute | None
    layouts: dict[te.Tensor, Layout]
    knobs: Knobs = field(default_factory=Knobs)

    def apply(self, layouts: Mapping[te.Tensor, Layout]) -> Group:
        """The group over physical shapes.

        Args:
            layouts: of further tensors, or others of the inputs; for an output, what its loops run over.
        """
        stored = {t: layout for t, layout in layouts.items() if t not in self.outputs}
        loops = {t: layout for t, layout in layouts.items() if t in self.outputs}
        outputs, new = relayout(self.outputs, {**self.layouts, **stored}, loops)
        inputs = tuple(new.get(t, t) for t in self.inputs)
        anchor = new[self.anchor.outputs[0]].op if self.anchor is not None else None
        return Group(inputs, tuple(outputs), anchor, {}, self.knobs)

    @property
    def computes(self) -> list[te.Compute]:
        return te.topological(self.outputs)

    @property
    def reductions(self) -> list[te.Compute]:
        return [op for op in self.computes if op.combiner is not None]


def knobs_of(node: Node) -> Knobs:
    """Knobs that answer with the configuration of a group."""
    return Knobs(dict(node.attrs.get("config", ())))


def group_of(node: Node, knobs: Knobs) -> Group:
    """Express a node over fresh placeholders of logical shapes."""
    inputs = tuple(te.placeholder(v.type.shape, v.type.dtype, f"p{k}") for k, v in enumerate(node.inputs))
    outputs = tuple(express(node, inputs))
    layouts = {
        t: v.type.layout
        for t, v in zip((*inputs, *outputs), (*node.inputs, *node.outputs), strict=True)
        if v.type.layout is not None
    }
    outputs = tuple(read_margins(outputs, layouts))
    layouts.update((t, v.type.layout) for t, v in zip(outputs, node.outputs, strict=True) if v.type.layout is not None)
    heavy = [op for op in te.topological(outputs) if op.tag in HEAVY and op.combiner is not None]
    return Group(inputs, outputs, heavy[-1] if heavy else None, layouts, knobs)


def params_of(g: Group, s: Schedule) -> list[te.Tensor]:
    """Parameters of the kernel: the schedule's tensors that stand for the group's inputs, then its outputs."""
    found: dict[str, te.Tensor] = {}
    for stage in s.stages:
        for t in stage.op.inputs:
            if t.op is None:
                found[t.name] = t
    inputs = []
    for t in g.inputs:
        layout = g.layouts.get(t)
        plain = te.Tensor(t.name, layout.physical_shape if layout is not None else t.shape, t.dtype)
        inputs.append(found.get(t.name, plain))
    return [*inputs, *s.outputs]


def padded_input(op: te.Compute) -> te.Tensor | None:
    """The computed ``pad`` tensor that a convolution or pool reads, if any."""
    return next((t for t in op.inputs if t.op is not None and t.op.tag == "pad"), None)


def apart_from_output(g: Group, t: te.Tensor) -> Group:
    """The group with ``t`` an intermediate tensor: where it is the output, a copy of it becomes the output."""
    if t not in g.outputs:
        return g
    copy = te.compute(t.shape, lambda *ix: t[tuple(ix)], t.name, tag="copy")
    layouts = {copy if k is t else k: layout for k, layout in g.layouts.items()}
    return Group(g.inputs, tuple(copy if k is t else k for k in g.outputs), g.anchor, layouts, g.knobs)


def replace_anchor(g: Group, fresh: te.Compute) -> Group:
    """The group with another compute in place of its anchor's, and what depends on it rebuilt."""
    assert g.anchor is not None
    return replace_compute(g, g.anchor, fresh)


def replace_compute(g: Group, old: te.Compute, fresh: te.Compute) -> Group:
    """The group with another compute in place of one of its own, and what depends on it rebuilt."""
    env = dict(zip(old.outputs, te.finish(fresh), strict=True))

    def swap(ld: Load) -> Expr:
        return Load(env[ld.source], ld.indices) if ld.source in env else ld

    for op in te.topological(g.outputs):
        if op is old or not any(t in env for t in op.inputs):
            continue
        bodies = tuple(replace_loads(b, swap) for b in op.bodies)
        again = te.Compute(op.name, op.axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs)
        env.update(zip(op.outputs, te.finish(again), strict=True))
    layouts = {env.get(t, t): layout for t, layout in g.layouts.items()}
    anchor = g.anchor
    if anchor is not None and anchor.outputs[0] in env:
        anchor = env[anchor.outputs[0]].op
    return Group(g.inputs, tuple(env.get(t, t) for t in g.outputs), anchor, layouts, g.knobs)


def with_copy(g: Group) -> Group:
    """The group with its anchor's window reading a copy of the input, tagged like one with a border."""
    assert g.anchor is not None
    data = g.anchor.inputs[0]
    copy = te.compute(data.shape, lambda *at: data[at], "pad", tag="pad")

    def swap(ld: Load) -> Expr:
        return Load(copy, ld.indices) if ld.source is data else ld

    return replace_anchor(g, te.with_bodies(g.anchor, [replace_loads(b, swap) for b in g.anchor.bodies]))


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


def inline_rest(s: Schedule, keep: Sequence[te.Tensor]) -> None:
    """Inline every stage that is no reduction, no output, and not in ``keep``."""
    held = {t for k in keep for t in (k.op.outputs if k.op is not None else (k,))}
    for stage in s.stages:
        outs = stage.op.outputs
        if stage.op.combiner is None and not any(t in held or t in s.outputs for t in outs):
            stage.compute_inline()


def inner_layouts(g: Group) -> dict[te.Tensor, Layout]:
    """Intermediate tensors of an output's shape take the output's layout; padded inputs follow their input instead."""
    found: dict[te.Tensor, Layout] = {}
    for t in g.outputs:
        layout = g.layouts.get(t)
        for op in g.computes if layout is not None else ():
            inner = op.outputs[0]
            if inner.shape == t.shape and inner not in g.layouts and op.tag != "pad" and layout is not None:
                found[inner] = layout.core
    return found


def accumulate_in_registers(s: Schedule, tensor: te.Tensor, keep: Sequence[te.Tensor]) -> te.Tensor:
    """Give a reduction a register tile, and inline all that is no reduction, no output and not in ``keep``.

    Returns:
        the tensor that is accumulated: ``tensor`` itself, or its copy in registers where it is an output.
    """
    if tensor in s.outputs:
        tensor = s.cache_write(tensor, "register")
    else:
        s[tensor].set_scope("register")
    inline_rest(s, keep)
    return tensor


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


@opaque
def best_divisor(extent: int, most: int, least: int = 1) -> int:
    """The greatest divisor of ``extent`` in ``[least, most]``; ``min(extent, most)`` when there is none."""
    for k in range(min(extent, most), least - 1, -1):
        if extent % k == 0:
            return k
    return min(extent, most)


def size_of(shape: Sequence[int]) -> int:
    return prod(shape)
