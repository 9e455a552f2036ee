"""How every tensor of a compiled graph lies in memory, who asked for that, and where data are converted at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlc.errors import VerifyError
from mlc.ir.expr import Load
from mlc.ir.graph import FusionKind, Graph, Node, Value
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.bounds import SHARED
from mlc.lower.knobs import Knobs
from mlc.lower.relayout import padded_load
from mlc.lower.schedule import Schedule
from mlc.lower.threads import PRIVATE
from mlc.ops import get
from mlc.pipeline.machine import constants_of
from mlc.rewrite.group import body_of, config_of, is_alias, is_group
from mlc.rewrite.recurrence import graphs
from mlc.targets.base import LEVELS, LayoutChoice, Target, Tunable, Whole

LOADED = "in the order of its loads"  # what has no layout of its own, since its only reader loads it part by part
PACKED = "a constant, packed when compiled"


@dataclass(frozen=True)
class _Asking:
    """What groups with searched layouts ask of those that make what they read.

    Args:
        layouts: gives a group's choice.
        loads: whether the machine asks in any case, and where another has been heard before converts while it loads,
            as some accelerators do; their results lie as their readers ask.
    """

    layouts: Callable[[Node, Site, Knobs], LayoutChoice]
    loads: bool = False

    def of(self, g: Graph, node: Node) -> Mapping[Value, Layout]:
        """The layouts that a node has asked for, by what it reads; where it need not load it, those that it got."""
        if not is_group(node) or LEVELS not in config_of(node):
            return {}
        makers = {v: n for n in g.nodes for v in n.outputs if n.op.kind is FusionKind.INJECTIVE}
        askable = frozenset(k for k, v in enumerate(node.inputs) if v in makers)
        site = Site([v.type for v in node.inputs], [v in g.constants for v in node.inputs], askable=askable)
        choice = self.layouts(node, site, Knobs(config_of(node)))
        asked = {node.inputs[k]: layout for k, layout in choice.asked.items()}
        if self.loads:
            return asked
        return {v: a for v, a in asked.items() if _core(v) == a and _followed(makers[v], v) is None}


@dataclass(frozen=True)
class Placement:
    """How one tensor lies.

    Args:
        tensor: its name.
        type: element type and logical shape.
        layout: its primitives; ``plain`` is row-major, and an accelerator's constants lie in the order of their loads.
        shape: extents in memory, margins included; none of what lies in the order of loads.
        asked_by: the operator that wanted it so; empty for what the model decides.
        reason: why, in a few words.
    """

    tensor: str
    type: str
    layout: str
    shape: tuple[int, ...]
    asked_by: str
    reason: str


@dataclass(frozen=True)
class Conversion:
    """Data that are moved from one layout to another while the model runs.

    Args:
        tensor: what is read.
        where: the operator that does it, or the step of its own.
        how: ``step`` for one of its own, ``border`` while zeros are put around it, ``copy`` inside an operator,
            ``load`` while an accelerator loads what lies otherwise than it asked for, ``read`` where an operator takes
            elements from where they lie, which is not as its result does.
        layout: of what is read.
        shape: of what is written, in memory; of ``read``, of the operator's result.
        nbytes: read and written; of ``load`` and ``read``, which write nothing of their own, read.
    """

    tensor: str
    where: str
    how: str
    layout: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Placements:
    """Of a whole model: of its graphs, their recurrences included."""

    tensors: tuple[Placement, ...]
    conversions: tuple[Conversion, ...]

    def to_json(self) -> dict[str, Any]:
        return {"tensors": [asdict(t) for t in self.tensors], "conversions": [asdict(c) for c in self.conversions]}


def placements_of(graph: Graph, target: Target, regions: Sequence[Graph] = ()) -> Placements:
    """What the layout pass has decided.

    Args:
        graph: of the host, with layouts and configurations.
        target: whose schedules, and those of its accelerator, tell where groups copy what they read.
        regions: graphs of the accelerator's, likewise.
    """
    host = _of(graph, lambda g, node: target.schedule(node, Knobs(config_of(node))), _Asking(target.layouts))
    device = target.accelerator
    asked = None if device is None else _Asking(device.layouts, not isinstance(device, Whole))
    parts = [_of(region, _on_device(target), asked) for region in regions if asked is not None]
    known = {t.tensor for t in host.tensors}  # what crosses the border of a region, the host has, too
    tensors = [t for part in parts for t in part.tensors if t.tensor not in known]
    return Placements((*host.tensors, *tensors), tuple(c for part in (host, *parts) for c in part.conversions))


def _on_device(target: Target) -> Callable[[Graph, Node], Schedule | None]:
    """The schedules of an accelerator, where types alone decide them."""
    accelerator = target.accelerator
    if not isinstance(accelerator, Whole) or not isinstance(accelerator, Tunable):
        return lambda g, node: None
    return lambda g, node: accelerator.schedule(node, constants_of(node, g.constants), Knobs(config_of(node)))


def _of(graph: Graph, scheduled: Callable[[Graph, Node], Schedule | None], asking: _Asking) -> Placements:
    """Of one graph, how its groups are scheduled, and what they have asked for."""
    tensors: list[Placement] = []
    conversions: list[Conversion] = []
    for g, _ in graphs(graph):
        tensors += [_placed(v, "", "an input of the model") for v in g.inputs]
        asked = {n: asking.of(g, n) for n in g.nodes}
        for node in g.nodes:
            name = _name(node)
            constants = [v for v in dict.fromkeys(node.inputs) if v in g.constants]
            tensors += [_placed(v, name, PACKED) for v in constants if v.type.layout is not None]
            if asking.loads:
                tensors += [Placement(v.name, _logical(v), LOADED, (), name, PACKED) for v in constants]
            readers = [n for n in g.nodes if not set(n.inputs).isdisjoint(node.outputs)]
            tensors += [_placed(v, *_reason(node, v, readers, name, asked, asking.loads)) for v in node.outputs]
            conversions += [
                Conversion(v.name, name, "load", _text(v), layout.physical_shape, v.type.nbytes)
                for v, layout in asked[node].items()
                if _core(v) != layout
            ]
            if node.op is get("identity"):
                (read,), (made,) = node.inputs, node.outputs
                conversions.append(
                    Conversion(read.name, name, "step", _text(read), made.type.physical_shape, _moved(read, made))
                )
            elif is_group(node) and node.op.routine is None:
                schedule = scheduled(g, node)
                inside = [] if schedule is None else _inside(node, schedule, name)
                conversions += [*inside, *_apart(node, inside, name)]
    return Placements(tuple(tensors), tuple(conversions))


def _placed(v: Value, by: str, reason: str) -> Placement:
    return Placement(v.name, _logical(v), _text(v), v.type.physical_shape, by, reason)


def _logical(v: Value) -> str:
    return f"{v.type.dtype}[{','.join(map(str, v.type.shape))}]"


def _reason(
    node: Node, v: Value, readers: Sequence[Node], name: str, asked: Mapping[Node, Mapping[Value, Layout]], loads: bool
) -> tuple[str, str]:
    """Who wanted a result to lie as it does, and why."""
    layout = v.type.layout
    if layout is None:
        return ("", "row-major") if node.op is not get("identity") else (name, "row-major for its readers")
    if node.op is get("identity"):
        return ", ".join(map(_name, readers)), "packed while the model runs"
    if granted := [n for n in readers if asked[n].get(v) == layout.core]:
        return _name(granted[0]), "searched"
    around = f", with margins for {', '.join(map(_name, readers))}" if layout.has_margins else ""
    if LEVELS in config_of(node) and not (loads and asked[node]):
        return name, f"searched{around}"
    if (same := _followed(node, v)) is not None:
        return same.name, f"propagated from an operand of its shape{around}"
    return name, f"its own choice{around}"


def _followed(node: Node, v: Value) -> Value | None:
    """The operand of its shape whose layout a result has, if there is one."""
    same = next((i for i in node.inputs if _core(i) is not None and i.type.shape == v.type.shape), None)
    return same if same is not None and _core(same) == _core(v) else None


def _core(v: Value) -> Layout | None:
    return None if v.type.layout is None else v.type.layout.core


def _inside(node: Node, schedule: Schedule, name: str) -> list[Conversion]:
    """Stages of a group that only move what it reads."""
    inputs = {f"p{k}": v for k, v in enumerate(node.inputs)}
    found = []
    for stage in schedule.stages:
        op = stage.op
        if stage.inlined or op.combiner is not None or len(op.bodies) != 1 or op.outputs[0] in schedule.outputs:
            continue
        if stage.scope in (*PRIVATE, SHARED):  # what a thread, or a block of them, fetches to compute with
            continue
        body = op.bodies[0]
        padded = padded_load(body)
        ld = body if type(body) is Load else padded
        if ld is None or ld.source.op is not None or ld.source.name not in inputs:
            continue
        read, made = inputs[ld.source.name], op.outputs[0]
        how = "copy" if padded is None else "border"
        nbytes = read.type.nbytes + made.size * made.dtype.itemsize
        found.append(Conversion(read.name, name, how, _text(read), made.shape, nbytes))
    return found


def _apart(node: Node, inside: Sequence[Conversion], name: str) -> list[Conversion]:
    """Operands that a group reads from where they lie, which is not as its result does.

    Those of products and convolutions are none: these read what they sum up in an order of their own.
    """
    if is_alias(node):
        return []
    body, made = body_of(node), node.outputs[0]
    reached = set(body.outputs)
    for n in reversed(body.nodes):
        if n.op.kind is not FusionKind.COMPLEX and not reached.isdisjoint(n.outputs):
            reached.update(n.inputs)
    # what a product has copied may be added to its result as well
    copied = set() if node.op.kind is FusionKind.COMPLEX else {c.tensor for c in inside}
    operands = dict.fromkeys(v for v, inner in zip(node.inputs, body.inputs, strict=True) if inner in reached)
    return [
        Conversion(v.name, name, "read", _text(v), made.type.physical_shape, v.type.nbytes)
        for v in operands
        if v.name not in copied and _lies_otherwise(v, made)
    ]


def _lies_otherwise(read: Value, made: Value) -> bool:
    """Whether elements of two tensors follow each other in memory in another order."""
    own, other = _whole(read), _whole(made)
    if own.expands or other.expands:
        return own != other
    if own.logical_shape != other.logical_shape:
        if read.type.rank != made.type.rank or _alike(own, Layout(read.type.shape)):
            return False  # what is in rows may be read again and again, as the channels' own numbers are
        try:
            own = Layout(made.type.shape, own.primitives)
        except VerifyError:  # blocks of such a size are none of the result
            return True
    return not _alike(own, other)


def _whole(v: Value) -> Layout:
    return _core(v) or Layout(v.type.shape)


def _alike(a: Layout, b: Layout) -> bool:
    """Whether an element of a shape has the same place in memory under both."""
    axes = [Var(f"a{d}", 0, n - 1) for d, n in enumerate(a.logical_shape)]
    return _place(a, axes) == _place(b, axes)


def _place(layout: Layout, axes: Sequence[Var]) -> Linear:
    found = as_index(0)
    for ix, n in zip(layout.forward([as_index(a) for a in axes]), layout.physical_shape, strict=True):
        found = found * n + ix
    return found


def _moved(read: Value, made: Value) -> int:
    return read.type.nbytes + made.type.nbytes


def _text(v: Value) -> str:
    return "plain" if v.type.layout is None else str(v.type.layout)


def _name(node: Node) -> str:
    return ", ".join(node.sources[:3]) or node.outputs[0].name
