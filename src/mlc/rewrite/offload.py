"""Dividing a model between the host and a device beside it.

In: an optimised graph before fusion, row-major. Out: the same graph with *regions* (:mod:`mlc.rewrite.region`).

1. *Claims.* From every operator, products first, a group grows along its only reader, as long as that is elementwise;
   the longest group that the device does not refuse is one operation of the device. What is refused keeps the reason.
2. *Cost.* A group that would take longer on the device than on the host stays.
3. *Regions.* Claimed groups join into convex regions: a group joins where no path leaves the region and comes back, so
   that the graph of regions and host operators has no cycle. Groups at a region's border that copies make slower than
   the host leave it; a region of which that holds dissolves.
4. *Borders.* What a region reads from the host is packed and copied; what the host reads is copied and unpacked. A
   value that one region makes and another reads stays where it is: unpack and pack would cancel, and are not inserted.
   How a value lies follows from its type, unless the device has agreed on something else for all that make and read it
   (:class:`Agreeing`); such values have their layouts within regions, too.

Example: ``y = relu(add(conv(x, w), b)); z = softmax(y)`` becomes ``p = pack(x); d = copy_to(p); r = offload(d, w, b);
c = copy_from(r); y = unpack(c); z = softmax(y)``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from mlc.ir.graph import Attrs, FusionKind, Graph, Node, Value
from mlc.ir.layout import Layout
from mlc.ir.order import post_order
from mlc.ir.types import TensorType
from mlc.rewrite.group import body_of, is_group, make_group
from mlc.rewrite.recurrence import body_of_scan, is_scan
from mlc.rewrite.region import COPY_FROM, COPY_TO, OFFLOAD, PACK, UNPACK

_MOST_NODES = 24  # of a group
_MOST_BESIDE = 4  # elementwise operators on another operand of a group's tail


class Shortcoming(str):
    """A refusal for want of hardware: other devices of the kind would take the group.

    It says more of the group's operators than what is wrong with other groups of them, and is shown for all.
    """


class Device(Protocol):
    """What is asked of the device; see :class:`mlc.targets.base.Accelerator`."""

    device: str

    def options(self) -> Mapping[str, str]: ...

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str: ...

    def layout(self, type: TensorType) -> Layout | None: ...

    def estimate(self, group: Node) -> tuple[float, float]: ...

    def copy_seconds(self, nbytes: int) -> float: ...


@runtime_checkable
class Agreeing(Protocol):
    """A device whose layouts are agreed among those that make and read a value."""

    def layouts_between(self, groups: Sequence[Node], constants: Mapping[Value, np.ndarray]) -> Mapping[Value, Layout]:
        """Layouts of values that are to lie otherwise than the device wants tensors of their type in general.

        Args:
            groups: all that the device takes over.
            constants: values of their inputs that are constants.
        """
        ...


@runtime_checkable
class Recorded(Protocol):
    """A device whose records name it, and so all of its options that what is tuned depends on.

    Attributes:
        processor: the name.
    """

    processor: str


@dataclass(frozen=True)
class Decision:
    """Where one operation runs.

    Args:
        operators: their names, in order.
        sources: the model's nodes that they stand for.
        region: name of the region; empty on the host.
        reason: why it stays on the host.
        device_seconds, host_seconds: estimates, where there are any.
    """

    operators: tuple[str, ...]
    sources: tuple[str, ...]
    region: str = ""
    reason: str = ""
    device_seconds: float | None = None
    host_seconds: float | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "operators": list(self.operators),
            "sources": list(self.sources),
            "region": self.region or None,
            "reason": self.reason or None,
            "device_seconds": self.device_seconds,
            "host_seconds": self.host_seconds,
        }


@dataclass(frozen=True, eq=False)
class Partition:
    """A divided graph, and what was decided about every operation, in the order of the graph."""

    graph: Graph
    decisions: tuple[Decision, ...]


@dataclass(eq=False)
class _Unit:
    """What stands or falls together: a claimed group, or one operator of the host."""

    nodes: list[Node]
    group: Node | None = None
    region: _Region | None = None
    reason: str = ""
    seconds: tuple[float, float] | None = None


@dataclass(eq=False)
class _Region:
    units: list[_Unit] = field(default_factory=list)


def offload(graph: Graph, device: Device) -> Partition:
    """Divide a graph.

    Args:
        graph: optimised, not fused, row-major.
        device: what the other part is for.
    """
    units = _claim(graph, device)
    flow = _Flow(graph, units)
    regions = _grow(units, flow)
    # what leaves one region may make copies for another
    while any([_weigh(region, graph, flow, device) for region in regions if region.units]):
        pass
    return _divided(graph, units, flow, device)


def _divided(graph: Graph, units: Sequence[_Unit], flow: _Flow, device: Device) -> Partition:
    """The graph with the regions that units are in."""
    kept = [r for r in dict.fromkeys(u.region for u in units) if r is not None]
    names = {r: f"region{k}" for k, r in enumerate(kept)}
    decisions = tuple(
        Decision(
            tuple(inner.op.name for n in u.nodes for inner in (body_of(n).nodes if is_group(n) else (n,))),
            tuple(dict.fromkeys(s for n in u.nodes for s in n.sources)),
            names[u.region] if u.region is not None else "",
            "" if u.region is not None else u.reason,
            *(u.seconds or (None, None)),
        )
        for u in units
    )
    return Partition(_Writer(graph, flow, names, device).write() if kept else graph, decisions)


def offload_groups(graph: Graph, device: Device) -> Partition:
    """Divide a fused graph: whatever the device does not refuse is its, in convex regions, whatever it takes.

    Args:
        graph: groups and opaque nodes, row-major.
        device: is asked for refusals of nodes as they are.
    """
    units = []
    for node in graph.nodes:
        reason = device.refusal(node, graph.constants)
        units.append(_Unit([node], reason=reason) if reason else _Unit([node], node))
    flow = _Flow(graph, units)
    _grow(units, flow)
    return _divided(graph, units, flow, device)


# -- claims ---------------------------------------------------------------------------------------------------------
def _claim(graph: Graph, device: Device) -> list[_Unit]:
    """Units in the order of their last nodes."""
    readers, makers = graph.consumers(), graph.producers()
    position = {n: k for k, n in enumerate(graph.nodes)}
    free = set(graph.nodes)
    reasons: dict[Node, str] = {}
    units: list[_Unit] = []
    kinds = list(FusionKind)
    strong_first = sorted(graph.nodes, key=lambda n: (-kinds.index(n.op.kind), position[n]))
    for start in strong_first:
        if start not in free or start.op.kind is FusionKind.OPAQUE or start.op.express is None:
            continue
        best: tuple[list[Node], Node] | None = None
        chain = [start]
        while True:
            members = sorted(chain, key=position.__getitem__)
            group = make_group(members, graph.constants, len(units))
            reason = device.refusal(group, graph.constants)
            if isinstance(reason, Shortcoming):
                lacking = (n for n in members if not isinstance(reasons.get(n), Shortcoming))
                reasons.update(dict.fromkeys(lacking, reason))
            elif reason:
                reasons.setdefault(chain[-1], reason)
            else:
                best = members, group
            more = _next(chain, graph, readers, makers, free)
            if not more or len(chain) + len(more) > _MOST_NODES:
                break
            chain += more
        if best is None:
            continue
        members, group = best
        seconds = device.estimate(group)
        if seconds[0] >= seconds[1]:
            reasons[start] = f"the host is faster ({_ms(seconds[1])}, not {_ms(seconds[0])})"
            continue
        free.difference_update(members)
        units.append(_Unit(members, group, seconds=seconds))
    for node in graph.nodes:
        if node in free:
            opaque = node.op.kind is FusionKind.OPAQUE or node.op.express is None
            units.append(_Unit([node], reason="no expression states it" if opaque else reasons.get(node, "")))
    return sorted(units, key=lambda u: position[u.nodes[-1]])


def _next(
    chain: Sequence[Node],
    graph: Graph,
    readers: Mapping[Value, list[Node]],
    makers: Mapping[Value, Node],
    free: set[Node],
) -> list[Node]:
    """The only reader of a chain's end, where it is elementwise, after what only it reads beside; empty at the end."""
    if len(chain[-1].outputs) != 1:
        return []
    (v,) = chain[-1].outputs
    if len(readers.get(v, ())) != 1 or v in graph.outputs:
        return []
    (reader,) = readers[v]
    if reader not in free or not reader.op.elementwise or len(reader.outputs) != 1:
        return []
    beside: list[Node] = []
    work = [u for u in reader.inputs if u is not v]
    while work:
        maker = makers.get(work.pop())
        if maker is None or maker not in free or maker in chain or not maker.op.elementwise:
            continue
        if any(u in graph.outputs or not {*readers[u]} <= {reader, *beside} for u in maker.outputs):
            continue
        if len(beside) == _MOST_BESIDE:
            break
        beside.append(maker)
        # beyond a widening conversion there would be more bytes to read
        if all(u.type.dtype.itemsize >= maker.outputs[0].type.dtype.itemsize for u in maker.inputs):
            work += maker.inputs
    return [*beside, reader]


# -- regions --------------------------------------------------------------------------------------------------------
class _Flow:
    """Who reads what from whom, by units."""

    def __init__(self, graph: Graph, units: Sequence[_Unit]) -> None:
        self.units = units
        self.maker = {v: u for u in units for n in u.nodes for v in n.outputs}
        self.constants = graph.constants
        self.before: dict[_Unit, list[_Unit]] = {}
        self.readers: dict[Value, list[_Unit]] = {}
        for u in units:
            reads = dict.fromkeys(v for n in u.nodes for v in n.inputs if self.maker.get(v) is not u)
            for v in reads:
                self.readers.setdefault(v, []).append(u)
            self.before[u] = [self.maker[v] for v in reads if v in self.maker]

    def reads(self, region: _Region) -> list[Value]:
        """What a region reads and does not make, constants excepted."""
        found: dict[Value, None] = {}
        for u in region.units:
            assert u.group is not None
            for v in u.group.inputs:
                maker = self.maker.get(v)
                if v not in self.constants and (maker is None or maker.region is not region):
                    found[v] = None
        return list(found)

    def gives(self, region: _Region, outputs: Sequence[Value]) -> list[Value]:
        """What a region makes and others read."""
        return [
            v
            for u in region.units
            if u.group is not None
            for v in u.group.outputs
            if v in outputs or any(r.region is not region for r in self.readers.get(v, ()))
        ]


def _grow(units: Sequence[_Unit], flow: _Flow) -> list[_Region]:
    regions: list[_Region] = []
    for unit in units:
        if unit.group is None:
            continue
        home = next((r for r in reversed(regions) if not _comes_back(unit, r, flow)), None)
        if home is None:
            home = _Region()
            regions.append(home)
        unit.region = home
        home.units.append(unit)
    return regions


def _comes_back(unit: _Unit, region: _Region, flow: _Flow) -> bool:
    """Whether a path would lead from the region, with the unit in it, out and back in."""
    work = [p for u in (*region.units, unit) for p in flow.before[u] if p.region is not region and p is not unit]
    seen: set[_Unit] = set()
    while work:
        at = work.pop()
        if at.region is region or at is unit:
            return True
        if at in seen:
            continue
        together = at.region.units if at.region is not None else [at]
        seen.update(together)
        work += [p for u in together for p in flow.before[u] if p not in seen]
    return False


def _weigh(region: _Region, graph: Graph, flow: _Flow, device: Device) -> bool:
    """Takes out of a region what does not pay, one unit at its border at a time, and in the end maybe all of it.

    Returns:
        whether anything left.
    """
    many = len(region.units)

    def device_seconds() -> float:
        # what another region makes or reads stays in device memory
        crossing = [v for v in flow.reads(region) if v not in flow.maker or flow.maker[v].region is None]
        crossing += [
            v
            for v in flow.gives(region, graph.outputs)
            if v in graph.outputs or any(r.region is None for r in flow.readers.get(v, ()))
        ]
        copies = sum(device.copy_seconds(_placed(v.type, device).nbytes) for v in crossing)
        return sum(u.seconds[0] for u in region.units if u.seconds) + copies

    def leave(units: Sequence[_Unit]) -> None:
        region.units = [u for u in region.units if u not in units]
        for u in units:
            u.region = None

    def too_slow(host: float, there: float) -> str:
        return f"the host is faster ({_ms(host)}, not {_ms(there)} with copies)"

    before = device_seconds()
    left = list(region.units)
    while left:
        unit = left.pop()
        whole = region.units
        leave([unit])
        saved = before - device_seconds()
        host = unit.seconds[1] if unit.seconds else 0.0
        if region.units and host < saved and not _comes_back(region.units[0], region, flow):
            unit.reason = too_slow(host, saved)
            before -= saved
            left = list(region.units)  # the border has moved
        else:
            unit.region, region.units = region, whole
    host = sum(u.seconds[1] for u in region.units if u.seconds)
    if before >= host:
        for u in region.units:
            u.reason = too_slow(host, before)
        leave(region.units)
    return len(region.units) < many


def _placed(type: TensorType, device: Device) -> TensorType:
    return type.with_layout(device.layout(type))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


# -- the divided graph ----------------------------------------------------------------------------------------------
class _Writer:
    """Puts regions into a graph, with all that is needed at their borders."""

    def __init__(self, graph: Graph, flow: _Flow, names: Mapping[_Region, str], device: Device) -> None:
        self.graph = graph
        self.flow = flow
        self.names = names
        self.device = device
        self.nodes: list[Node] = []
        self._taken = {v.name for v in (*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs))}
        self._on_device: dict[Value, Value] = {}
        groups = [u.group for u in flow.units if u.region is not None and u.group is not None]
        self._agreed = device.layouts_between(groups, graph.constants) if isinstance(device, Agreeing) else {}
        # what is tuned for a device is for one of this very name, or else with these very options
        alike = device.processor if isinstance(device, Recorded) else sorted(device.options().items())
        self._told = f"{device.device} {hashlib.sha256(json.dumps(alike).encode()).hexdigest()[:8]}"

    def write(self) -> Graph:
        for unit in self._in_order():
            if isinstance(unit, _Region):
                self._region(unit)
            else:
                self.nodes += unit.nodes
        g = self.graph
        return Graph(g.name, g.inputs, g.outputs, tuple(self.nodes), g.constants, g.output_names)

    def _in_order(self) -> list[_Unit | _Region]:
        """Units and regions, producers first, otherwise as they stood."""

        def before(at: _Unit | _Region) -> list[_Unit | _Region]:
            units = at.units if isinstance(at, _Region) else [at]
            found = [p.region or p for u in units for p in self.flow.before[u]]
            return [p for p in found if p is not at]

        return post_order([unit.region or unit for unit in self.flow.units], before)

    def _unique(self, name: str) -> str:
        k, candidate = 0, name
        while candidate in self._taken:
            k += 1
            candidate = f"{name}.{k}"
        self._taken.add(candidate)
        return candidate

    def _placed(self, v: Value) -> TensorType:
        """The type of a value in device memory."""
        return v.type.with_layout(self._agreed[v]) if v in self._agreed else _placed(v.type, self.device)

    def _to_device(self, v: Value) -> Value:
        """``v`` in device memory, packed and copied unless it is there already."""
        if v not in self._on_device:
            placed = self._placed(v)
            packed = v
            if placed.layout is not None:
                packed = Value(self._unique(f"{v.name}.packed"), placed)
                self.nodes.append(Node(PACK, (v,), {}, (packed,), ()))
            there = Value(self._unique(f"{v.name}.device"), placed)
            self.nodes.append(Node(COPY_TO, (packed,), {"device": self.device.device}, (there,), ()))
            self._on_device[v] = there
        return self._on_device[v]

    def _region(self, region: _Region) -> None:
        activations = self.flow.reads(region)
        given = self.flow.gives(region, self.graph.outputs)
        groups = [u.group for u in region.units if u.group is not None]
        constants = list(dict.fromkeys(v for g in groups for v in g.inputs if v in self.graph.constants))
        inside = {v: Value(v.name, self._placed(v)) for v in activations}
        inside |= {v: Value(v.name, v.type) for v in constants}
        body_nodes = []
        for g in groups:
            fixed = {*given, *self._agreed}  # what lies elsewhere in the region, the device decides later
            outs = tuple(Value(v.name, self._placed(v) if v in fixed else v.type) for v in g.outputs)
            body_nodes.append(Node(g.op, tuple(inside[v] for v in g.inputs), self._told_of(g), outs, g.sources))
            inside.update(zip(g.outputs, outs, strict=True))
        name = self.names[region]
        inputs = tuple(inside[v] for v in (*activations, *constants))
        body = Graph(name, inputs, tuple(inside[v] for v in given), tuple(body_nodes), {})
        there = tuple(Value(self._unique(f"{v.name}.device"), self._placed(v)) for v in given)
        operands = (*(self._to_device(v) for v in activations), *constants)
        attrs = {"body": body, "device": self.device.device, "name": name}
        sources = tuple(dict.fromkeys(s for g in groups for s in g.sources))
        self.nodes.append(Node(OFFLOAD, operands, attrs, there, sources))
        self._on_device.update(zip(given, there, strict=True))
        for v in given:
            if v in self.graph.outputs or any(u.region is None for u in self.flow.readers.get(v, ())):
                self._to_host(v)

    def _told_of(self, node: Node) -> Attrs:
        """Attributes of a node of a region: groups know the device, in recurrences, too."""
        if is_scan(node):
            return {**node.attrs, "body": self._told_graph(body_of_scan(node))}
        return {**node.attrs, "device": self._told} if is_group(node) else node.attrs

    def _told_graph(self, g: Graph) -> Graph:
        nodes = tuple(Node(n.op, n.inputs, self._told_of(n), n.outputs, n.sources) for n in g.nodes)
        return Graph(g.name, g.inputs, g.outputs, nodes, g.constants, g.output_names)

    def _to_host(self, v: Value) -> None:
        """``v`` itself from its place in device memory."""
        there = self._on_device[v]
        attrs = {"device": self.device.device}
        if there.type.layout is None:
            self.nodes.append(Node(COPY_FROM, (there,), attrs, (v,), ()))
            return
        packed = Value(self._unique(f"{v.name}.packed"), there.type)
        self.nodes.append(Node(COPY_FROM, (there,), attrs, (packed,), ()))
        self.nodes.append(Node(UNPACK, (packed,), {}, (v,), ()))
