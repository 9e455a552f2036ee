"""Operator fusion by the four kinds of TVM §3.

* injective operators fuse into injective ones;
* a reduction takes in the injective operators on its inputs, and what narrows its result alone: a cast to fewer bits;
* a complex operator (convolution, matrix product) takes in the elementwise operators on its output, together with
  elementwise operators on their other operands, as long as shapes stay those of its output; a depthwise convolution
  takes in a channel shuffle on its input too, and attention what moves its operands;
* opaque operators never fuse.

As in TVM, a node fuses into its *immediate post-dominator*, the node where all paths from it meet, together with all
that lies between. So diamonds fuse as a whole, only the last node's results leave a group, no cycle can arise, and
nothing is computed twice. A group has at most one anchor (reduction or complex). Elementwise operators go first, so
that convolutions find their activations; operators that move elements go in a second round. Where two complex operators
meet, the one on the shorter branch takes in what follows, whatever their order in the file: it then runs right after
the other one, which finds its own operand still in the cache, as does the sum the other one's result.

:class:`FuseLimits` keeps expressions readable by a compiler, and keeps functions like ``exp`` out of places where they
would be evaluated again for every reader (windows that overlap, broadcasts).

Last, where the peaks of a machine are known, what maps elements and is read by several groups goes into all of them if
that saves more transfers and launches than it repeats work (:mod:`mlc.rewrite.reward`). That is so in training, where
readers of the forward and of the backward pass want the same result.

Stage in: an optimised graph. Stage out: every node is a group (:mod:`mlc.rewrite.group`) or an opaque routine.

Example: ``relu(add(conv(x, w), b))`` becomes ``g0_conv_add_relu(x, w, b)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlc.ir.cost import Peaks
from mlc.ir.graph import FusionKind, Graph, Node, Value
from mlc.ops import get
from mlc.ops.registry import is_core
from mlc.rewrite.dominators import post_dominators
from mlc.rewrite.group import VIEWS, is_group, make_group
from mlc.rewrite.profile import Profiler
from mlc.rewrite.reward import repetition

INJECTIVE, REDUCTION, COMPLEX, OPAQUE = (
    FusionKind.INJECTIVE, FusionKind.REDUCTION, FusionKind.COMPLEX, FusionKind.OPAQUE,
)  # fmt: skip


@dataclass(frozen=True)
class FuseLimits:
    """When fusion stops.

    Args:
        nodes: operators in a group.
        expression: scalar operations of the group's result with everything inlined.
        recompute: how often an element that takes a function like ``exp`` may be computed.
        text: loads in the text of the group's result with everything inlined, each as often as a variable occurs in its
            indices. Reshapes that do not cancel double these, one after the other, as does what reads an operand twice.
            What the operators take by themselves is no reason to refuse (Winograd's transforms take thousands).
    """

    nodes: int = 64
    expression: int = 2048
    recompute: float = 4.0
    text: int = 256


DEFAULT_FUSE_LIMITS = FuseLimits()


def fuse(graph: Graph, limits: FuseLimits = DEFAULT_FUSE_LIMITS, peaks: Peaks | None = None) -> Graph:
    """Partition the graph into groups and wrap each.

    Args:
        peaks: of the machine, by which it is decided what is computed again for each of its readers; nothing unless
            given.
    """
    if all(is_group(n) or not _can_wrap(n) for n in graph.nodes):
        return graph
    fuser = _Fuser(graph, limits)
    for node in _by_depth(graph):
        fuser.visit(node, 0)
    for node in graph.nodes:
        fuser.visit(node, 1)
    groups = list(fuser.groups())
    if peaks is not None:
        groups = fuser.repeated(groups, set(graph.outputs), peaks)
    return wrap(graph, [g.ordered(fuser.position) for g in groups])


def group_each(graph: Graph) -> Graph:
    """Wrap every node that is in no group yet into one of its own, so that later stages only meet groups and routines.

    Example: ``relu(x)`` becomes ``g0_relu(x)``.
    """
    return wrap(graph, [[n] for n in graph.nodes])


def _by_depth(graph: Graph) -> list[Node]:
    """Nodes by the complex operators on the longest way to them, then as they stand; producers before users."""
    depth: dict[Value, int] = {}
    for node in graph.nodes:
        before = max((depth.get(v, 0) for v in node.inputs), default=0)
        depth.update(dict.fromkeys(node.outputs, before + (node.op.kind is COMPLEX)))
    return sorted(graph.nodes, key=lambda n: max(depth[v] for v in n.outputs))


def _can_wrap(node: Node) -> bool:
    return node.op.kind is not OPAQUE and node.op.express is not None


def wrap(graph: Graph, parts: Iterable[list[Node]]) -> Graph:
    """Replace each list of nodes by one group; the last of a list makes the group's results.

    Nodes that are groups already, or opaque, must be alone; they stay as they are.
    """
    by_root = {part[-1]: part for part in parts}
    nodes: list[Node] = []
    for node in graph.nodes:
        part = by_root.get(node)
        if part is None:
            continue
        nodes.append(node if is_group(node) or not _can_wrap(node) else make_group(part, graph.constants, len(nodes)))
    if nodes == list(graph.nodes):
        return graph
    used = {v for n in nodes for v in n.inputs} | set(graph.outputs)
    constants = {v: a for v, a in graph.constants.items() if v in used}
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), constants, graph.output_names)


@dataclass(frozen=True)
class Cost:
    """What a group costs with everything inlined; upper bounds.

    Args:
        size: scalar operations in the expression of its result.
        copies: how often the expression of any of its nodes is written there.
        runs: how often an element of any of its nodes is computed.
        dear: the same, of nodes with functions like ``exp``; 0 when there are none.
        growth: how often one variable occurs in an index of any of its nodes.
        written: how often the text of the result repeats the expression of any of its nodes.
        text: loads in that text, times ``growth``.
        apart: the same of all nodes by themselves.
        each: how often an element of each node is computed, where that was asked node by node.
    """

    size: int
    copies: int
    runs: float
    dear: float
    growth: int
    written: int
    text: int
    apart: int
    each: Mapping[Node, float] = field(default_factory=dict)


def cost_of(nodes: Sequence[Node], roots: Iterable[Node], profile: Profiler) -> Cost:
    """The cost of a group, from every node of it.

    Args:
        nodes: producers before users.
        roots: those of them that make its results.
        profile: looks at single nodes.
    """
    copies, runs = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0.0)
    growth, written = dict.fromkeys(nodes, 1), dict.fromkeys(nodes, 0)
    for root in roots:
        copies[root], runs[root], written[root] = 1, 1.0, 1
    makers = {v: n for n in nodes for v in n.outputs}
    size, dear, text, apart = 0, 0.0, 0, 0
    for node in reversed(nodes):
        if node.op.kind is COMPLEX:
            copies[node], runs[node], growth[node], written[node] = 1, 1.0, 1, 1  # computed once, whatever reads it
        single = profile(node)
        size += copies[node] * single.size
        dear = max(dear, runs[node] if single.dear else 0.0)
        for k, v in enumerate(dict.fromkeys(node.inputs)):
            maker = makers.get(v)
            grows, repeats = growth[node] * single.growth[k], written[node] * single.written[k]
            apart += single.growth[k] * single.written[k]
            if maker is None:
                text += repeats * grows
                continue
            copies[maker] += copies[node] * single.sites[k]
            runs[maker] = max(runs[maker], runs[node] * max(1.0, single.reads[k]))
            growth[maker] = max(growth[maker], grows)
            written[maker] += repeats
    return Cost(
        size, max(copies.values()), max(runs.values()), dear, max(growth.values()), max(written.values()), text, apart,
        runs,
    )  # fmt: skip


@dataclass(eq=False)
class _Group:
    """Nodes that will share a kernel; ``root`` is the one whose results leave it."""

    root: Node
    members: set[Node]
    anchor: Node | None = None
    cost: Cost | None = None  # looked up when it is first needed

    @property
    def kind(self) -> FusionKind:
        return INJECTIVE if self.anchor is None else self.anchor.op.kind

    def ordered(self, position: dict[Node, int]) -> list[Node]:
        return sorted(self.members, key=position.__getitem__)


@dataclass(frozen=True)
class _Region:
    """Everything on the paths from a node to its post-dominator.

    Args:
        between: the nodes strictly between.
        edges: (value read, its reader), readers in ``between`` or the post-dominator.
    """

    between: list[Node]
    edges: list[tuple[Value, Node]]


class _Fuser:
    def __init__(self, graph: Graph, limits: FuseLimits) -> None:
        self.limits = limits
        self.position = {n: k for k, n in enumerate(graph.nodes)}
        self._consumers = graph.consumers()
        self._sinks = post_dominators(graph)
        self._profile = Profiler()
        self._group = {n: _Group(n, {n}, n if n.op.kind is not INJECTIVE else None) for n in graph.nodes}

    def groups(self) -> Iterable[_Group]:
        """Every group once."""
        return dict.fromkeys(self._group.values())

    def visit(self, node: Node, phase: int) -> None:
        """Fuse a node into its post-dominator where the rules allow it."""
        group, sink = self._group[node], self._sinks[node]
        if sink is None or group.root is not node or group.kind is OPAQUE:
            return
        if is_group(node) or is_group(sink):
            return
        if group.kind is REDUCTION:
            if phase == 0 and _narrows(node, sink):
                self._merge(node, _Region([], []), sink)
            return
        # a complex operator has first choice of what follows; what moves elements waits for it
        if phase != (0 if group.kind is COMPLEX else 1) and not (group.kind is INJECTIVE and node.op.elementwise):
            return
        region = self._region(node, sink)
        if region is None:
            return
        if group.kind is COMPLEX:
            allowed = self._complex_fuses(sink, region)
        else:
            allowed = self._injective_fuses(node, sink, region)
        if allowed:
            self._merge(node, region, sink)

    def repeated(self, groups: list[_Group], kept: set[Value], peaks: Peaks) -> list[_Group]:
        """Groups of which some have gone into all of their readers, the greatest reward first.

        Args:
            kept: values that have to be there in the end.
        """
        looked_at: dict[tuple[_Group, ...], tuple[list[_Group], float] | None] = {}
        while True:
            holders: dict[Node, list[_Group]] = {}
            for g in groups:
                for n in g.members:
                    holders.setdefault(n, []).append(g)
            best: tuple[_Group, ...] = ()
            most = 0.0
            for g in groups:
                if not kept.isdisjoint(g.root.outputs):
                    continue
                reading = self._consumers.get(g.root.outputs[0], ())
                case = (g, *dict.fromkeys(reader for n in reading for reader in holders[n]))
                if case not in looked_at:
                    looked_at[case] = self._into_readers(g, case[1:], reading, peaks)
                found = looked_at[case]
                if found is not None and found[1] > most:
                    best, most = case, found[1]
            chosen = looked_at.get(best)
            if chosen is None:
                return groups
            into = dict(zip(best[1:], chosen[0], strict=True))
            groups = [into.get(g, g) for g in groups if g is not best[0]]

    def _into_readers(
        self, group: _Group, readers: Sequence[_Group], reading: Sequence[Node], peaks: Peaks
    ) -> tuple[list[_Group], float] | None:
        """The readers of a group with it in them, and the reward of that; nothing where it cannot be.

        Args:
            reading: the nodes of them that read its result.
        """
        nodes = group.ordered(self.position)
        if len(readers) < 2 or not all(n.op.elementwise and len(n.outputs) == 1 and not is_group(n) for n in nodes):
            return None
        if all(n.op.name in VIEWS for n in nodes):
            return None  # nothing runs for it
        merged: list[_Group] = []
        costs: list[tuple[Sequence[Node], float]] = []
        for reader in readers:
            found = self._with_members(reader, group, [n for n in reading if n in reader.members])
            if found is None or found.cost is None or found.cost.each[group.root] > 1:
                return None  # windows would compute each element again for every place that they have
            merged.append(found)
            costs.append((reader.ordered(self.position), found.cost.each[group.root]))
        return merged, repetition(nodes, group.root.outputs[0], costs, self._profile).reward(peaks)

    def _with_members(self, reader: _Group, group: _Group, reading: Sequence[Node]) -> _Group | None:
        """A group with another one that it reads in it; nothing where a rule or a limit forbids that."""
        if reader.kind is OPAQUE or any(is_group(n) or not _can_wrap(n) or _is_concat(n) for n in reading):
            return None
        if reader.kind is COMPLEX and not all(n.op.elementwise for n in reading):
            return None
        members = reader.members | group.members
        if len(members) > self.limits.nodes:
            return None
        cost = cost_of(sorted(members, key=self.position.__getitem__), [reader.root], self._profile)
        merged = _Group(reader.root, members, reader.anchor, cost)
        fits = self._affordable(cost) and (merged.kind is not COMPLEX or self._is_elementwise_tail(merged))
        return merged if fits else None

    def _region(self, node: Node, sink: Node) -> _Region | None:
        """The paths from ``node`` to ``sink``; ``None`` when there is more on them than a group may hold."""
        seen: dict[Node, None] = {}
        edges: list[tuple[Value, Node]] = []
        stack = [node]
        while stack:
            for v in stack.pop().outputs:
                for reader in self._consumers.get(v, ()):
                    edges.append((v, reader))
                    if reader is not sink and reader not in seen:
                        seen[reader] = None
                        stack.append(reader)
            if len(seen) >= self.limits.nodes:
                return None
        return _Region(list(seen), edges)

    def _complex_fuses(self, sink: Node, region: _Region) -> bool:
        """Only elementwise operators follow a complex one, and they follow no other anchor."""
        return all(self._group[n].anchor is None for n in (*region.between, sink)) and _all_elementwise(region)

    def _injective_fuses(self, node: Node, sink: Node, region: _Region) -> bool:
        if any(self._group[n].anchor is not None for n in region.between):
            return False
        target = self._group[sink]
        if target.kind is COMPLEX:
            if sink is target.anchor:
                first = sink.inputs[: 3 if sink.op is get("attention") else 1]
                fits = not region.between and any(v in first for v in node.outputs)
                return fits and all(_reads_through(sink, n) for n in self._group[node].members)
            # beside the anchor, as another operand of its elementwise tail
            return node.op.elementwise and _all_elementwise(region)
        if target.kind is REDUCTION and _is_concat(node) and all(n == 1 for n in _outside(node)):
            return False  # its operands may be made in place, and then nothing is left to fuse
        return target.kind in (INJECTIVE, REDUCTION)

    def _merge(self, node: Node, region: _Region, sink: Node) -> None:
        """Join the groups of a node, its post-dominator, and all between, unless a limit forbids it."""
        target = self._group[sink]
        groups = list(dict.fromkeys(self._group[n] for n in (node, *region.between, sink)))
        members = set().union(*(g.members for g in groups))
        if len(members) > self.limits.nodes or self._buries_concat(groups, target, region):
            return
        cost = self._cost_of_chain(node, sink) if not region.between else None
        if cost is None or not self._affordable(cost):
            cost = cost_of(sorted(members, key=self.position.__getitem__), [target.root], self._profile)
        if not self._affordable(cost):
            return
        anchors = [g.anchor for g in groups if g.anchor is not None]
        merged = _Group(target.root, members, anchors[0] if anchors else None, cost)
        if merged.kind is COMPLEX and not self._is_elementwise_tail(merged):
            return
        self._group.update(dict.fromkeys(members, merged))

    def _buries_concat(self, groups: list[_Group], target: _Group, region: _Region) -> bool:
        """Whether a concat of what the group computes would not be its last node (each element is one of several)."""
        ends = any(_is_concat(g.root) and len(g.members) > 1 for g in groups if g is not target)
        return ends or any(_is_concat(reader) and reader is not target.root for _, reader in region.edges)

    def _affordable(self, cost: Cost) -> bool:
        return (
            cost.size <= self.limits.expression
            and cost.dear <= self.limits.recompute
            and cost.text <= max(self.limits.text, cost.apart)
        )

    def _cost_of_chain(self, node: Node, sink: Node) -> Cost:
        """A bound for a group that ends at ``node`` put before ``sink``, from what is known of both."""
        a, b = (self._known_cost(self._group[n]) for n in (node, sink))
        profile = self._profile(sink)
        copies, runs, growth, written = 0, 1.0, 1, 0
        for k, v in enumerate(dict.fromkeys(sink.inputs)):
            if v in node.outputs:
                copies, runs = copies + profile.sites[k], max(runs, profile.reads[k])
                growth, written = max(growth, profile.growth[k]), written + profile.written[k]
        copies, runs = max(1, copies) * b.copies, runs * b.runs
        growth, written = growth * b.growth, max(1, written) * b.written
        return Cost(
            b.size + a.size * copies, max(b.copies, a.copies * copies), max(b.runs, a.runs * runs),
            max(b.dear, a.dear * runs), max(b.growth, a.growth * growth), max(b.written, a.written * written),
            b.text + a.text * written * growth, a.apart + b.apart,
        )  # fmt: skip

    def _known_cost(self, group: _Group) -> Cost:
        if group.cost is None:
            profile = self._profile(group.root)
            text = sum(written * grows for written, grows in zip(profile.written, profile.growth, strict=True))
            group.cost = Cost(profile.size, 1, 1.0, 1.0 if profile.dear else 0.0, 1, 1, text, text)
        return group.cost

    def _is_elementwise_tail(self, group: _Group) -> bool:
        """Whether all beside the anchor is elementwise, and all behind it has its shape.

        The sink may have joined a group before the anchor came to it, so the region says too little.
        """
        assert group.anchor is not None
        shape = group.anchor.outputs[0].type.shape
        behind = set(group.anchor.outputs)
        for node in group.ordered(self.position):
            before = not any(v in behind for v in node.inputs)
            if node is group.anchor or (before and _reads_through(group.anchor, node)):
                continue
            if not node.op.elementwise:
                return False
            if any(v in behind for v in node.inputs):
                if any(v.type.shape != shape for v in node.outputs):
                    return False
                behind.update(node.outputs)
        return True


def _reads_through(anchor: Node, node: Node) -> bool:
    """Whether a complex operator reads through one that makes its first operands.

    A depthwise convolution works on one channel at a time, and where that lies is the same for all of its pixels; one
    in larger groups reads blocks of channels. A convolution of quantised numbers surrounds them by their zero point, as
    one of floats does by zeros.
    Attention reads its queries number by number, and copies keys and values in any case. What others read is read again
    for every output.
    """
    if anchor.op is get("attention"):
        return node.op in (get("slice"), get("reshape"), get("transpose"))
    if anchor.op is not get("conv"):
        return False
    if node.op is get("channel_shuffle"):
        return anchor.attrs["groups"] == anchor.inputs[0].type.shape[1] > 1 or node.attrs["block"] > 1
    return node.op is get("pad") and anchor.inputs[0].type.dtype.is_int


def _narrows(node: Node, sink: Node) -> bool:
    """Whether all that is done to the result of a reduction is to keep fewer bits of it."""
    if sink.op is not get("cast") or len(node.outputs) != 1 or sink.inputs[0] is not node.outputs[0]:
        return False
    wide, narrow = node.outputs[0].type.dtype, sink.outputs[0].type.dtype
    return wide.is_float and narrow.is_float and narrow.bits < wide.bits


def _is_concat(node: Node) -> bool:
    return node.op.name == "concat" and is_core(node.op)


def _outside(concat: Node) -> tuple[int, ...]:
    """Extents of the dimensions outside of the one that is joined."""
    return concat.outputs[0].type.shape[: concat.attrs["axis"]]


def _all_elementwise(region: _Region) -> bool:
    return all(reader.op.elementwise and len(reader.outputs) == 1 for _, reader in region.edges)
