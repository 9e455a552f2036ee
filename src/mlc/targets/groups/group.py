"""A fused group as tensor expressions, and what a schedule wants to know about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads
from mlc.ir.graph import Node, express
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs
from mlc.lower.relayout import read_margins, relayout
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import opaque
from mlc.targets.base import is_layout_knob
from mlc.targets.groups.roles import Role, canonical, is_border, is_heavy, role_of


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
        return self.applied(layouts)[0]

    def applied(self, layouts: Mapping[te.Tensor, Layout]) -> tuple[Group, Mapping[te.Tensor, te.Tensor]]:
        """What :meth:`apply` gives, and the new tensor for every old one."""
        stored = {t: layout for t, layout in layouts.items() if t not in self.outputs}
        loops = {t: layout for t, layout in layouts.items() if t in self.outputs}
        outputs, new = relayout(self.outputs, {**self.layouts, **stored}, loops)
        inputs = tuple(new.get(t, t) for t in self.inputs)
        anchor = new[self.anchor.outputs[0]].op if self.anchor is not None else None
        return Group(inputs, tuple(outputs), anchor, {}, self.knobs), new

    @cached_property
    def role(self) -> Role | None:
        """What the anchor does, as long as shapes are logical."""
        return None if self.anchor is None else role_of(self.anchor)

    @property
    def computes(self) -> list[te.Compute]:
        return te.topological(self.outputs)

    @property
    def reductions(self) -> list[te.Compute]:
        return [op for op in self.computes if op.combiner is not None]


def knobs_of(node: Node) -> Knobs:
    """Knobs that answer with the configuration of a group."""
    return Knobs(dict(node.attrs.get("config", ())))


def with_untuned_loops(node: Node) -> Node:
    """The same without a configuration, but for its layouts, which its values have already."""
    config = node.attrs.get("config", ())
    if not config:
        return node
    layouts = tuple((name, value) for name, value in config if is_layout_knob(name))
    return Node(node.op, node.inputs, {**node.attrs, "config": layouts}, node.outputs, node.sources)


def group_of(node: Node, knobs: Knobs) -> Group:
    """Express a node over placeholders of logical shapes, the same ones whenever it is asked."""
    g = _expressed(node)
    return Group(g.inputs, g.outputs, g.anchor, dict(g.layouts), knobs)


@lru_cache(4)  # a cost model looks at hundreds of schedules of one node
def _expressed(node: Node) -> Group:
    """A node's group without knobs."""
    inputs = tuple(te.placeholder(v.type.shape, v.type.dtype, f"p{k}") for k, v in enumerate(node.inputs))
    outputs = tuple(express(node, inputs))
    layouts = {
        t: v.type.layout
        for t, v in zip((*inputs, *outputs), (*node.inputs, *node.outputs), strict=True)
        if v.type.layout is not None
    }
    g = with_margins(Group(inputs, outputs, None, layouts))
    heavy = [op for op in g.computes if is_heavy(op)]
    g.anchor = heavy[-1] if heavy else None
    while (old := next((op for op in g.reductions if canonical(op) is not op), None)) is not None:
        g = replace_compute(g, old, canonical(old))
    return g


def with_margins(g: Group) -> Group:
    """The group reading zeros from the margins of its inputs, where it has borders and they have margins."""
    outputs = tuple(read_margins(g.outputs, g.layouts))
    layouts = {**g.layouts, **{new: g.layouts[t] for t, new in zip(g.outputs, outputs, strict=True) if t in g.layouts}}
    anchor = g.anchor
    if anchor is not None:
        before = te.topological(g.outputs).index(anchor)
        anchor = te.topological(outputs)[before]
    return Group(g.inputs, outputs, anchor, layouts, g.knobs)


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


def is_single(g: Group) -> bool:
    """Whether a group has one result, which has elements."""
    return len(g.outputs) == 1 and g.outputs[0].size > 0


def ends_in_anchor(g: Group) -> bool:
    """Whether the one reduction is the anchor, and the result has its shape: loops can be shared."""
    return g.anchor is not None and g.reductions == [g.anchor] and g.outputs[0].shape == g.anchor.shape


def border_of(t: te.Tensor) -> te.Compute | None:
    """The compute that surrounds a tensor by a number to make ``t``, if one does."""
    return t.op if t.op is not None and is_border(t.op) else None


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
    if fresh is old:
        return g
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
    """The group with its anchor's window reading a copy of the input, as if it had a border."""
    assert g.anchor is not None
    data = g.anchor.inputs[0]
    copy = te.compute(data.shape, lambda *at: data[at], "pad", tag="pad")

    def swap(ld: Load) -> Expr:
        return Load(copy, ld.indices) if ld.source is data else ld

    return replace_anchor(g, te.with_bodies(g.anchor, [replace_loads(b, swap) for b in g.anchor.bodies]))


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
            if inner.shape == t.shape and inner not in g.layouts and not is_border(op) and layout is not None:
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


@opaque
def best_divisor(extent: int, most: int, least: int = 1) -> int:
    """The greatest divisor of ``extent`` in ``[least, most]``; ``min(extent, most)`` when there is none."""
    for k in range(min(extent, most), least - 1, -1):
        if extent % k == 0:
            return k
    return min(extent, most)


def size_of(shape: Sequence[int]) -> int:
    return prod(shape)
