"""Static memory planning (TVM §3): every intermediate value gets its place before anything runs.

Intermediate values and the kernels' scratch memory share one arena, the workspace, by their lifetimes over the order of
the nodes. Model inputs, outputs and constants lie outside; what becomes an output is written to the caller's buffer at
once. Values share storage in three ways:

* an *alias* (a reshape between row-major tensors, see :func:`mlc.rewrite.group.is_alias`) is its operand; its node is
  no step of the plan;
* the operands of a concat are made as parts of its result, and a slice is a part of its operand
  (:mod:`mlc.rewrite.parts`); their nodes are no steps either;
* a kernel writes *in place* of an operand that dies there (:mod:`mlc.rewrite.inplace`);
* an output may lie *over* an input, whose next value it is, in the caller's memory: it is written no sooner than the
  last reader of the old value has read it, or else made in the workspace and copied after the last step.

Values in the memory of a device beside the host (:mod:`mlc.rewrite.region`) share a second arena by the same rules, but
nothing there is written in place.

Stage in: a fused graph, layouts assigned. Stage out: the graph as it is and a :class:`MemoryPlan` beside it.

Example: in ``y = g0(x); z = g1(y); return z`` only ``y`` lies in the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mlc.errors import ImportModelError, VerifyError
from mlc.ir.graph import Graph, Node, Value
from mlc.rewrite.arena import ALIGNMENT, Block, live_bytes, place, rounded
from mlc.rewrite.group import is_alias
from mlc.rewrite.inplace import InPlaceOperands
from mlc.rewrite.parts import joined, sliced
from mlc.rewrite.region import in_device_memory, on_device


class Space(StrEnum):
    """A kind of memory that a kernel's parameter may point into."""

    WORKSPACE = "workspace"
    INPUT = "input"
    OUTPUT = "output"
    PARAM = "param"
    DEVICE = "device"


@dataclass(frozen=True)
class Location:
    """Where a value lies: a byte offset into an arena, or the position of an input, output or constant."""

    space: Space
    at: int


@dataclass(frozen=True)
class Copy:
    """An output that needs a copy after the last step: it is an input, a constant, or another output, or the next value
    of an input that is read for too long.

    Args:
        source: where the value lies.
        output: position of the output.
        nbytes: how much to copy.
    """

    source: Location
    output: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class InPlace:
    """A step that writes the result at position ``result`` over the operand at position ``operand``."""

    node: Node
    operand: int
    result: int = 0


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """Where everything lies.

    Args:
        workspace_bytes: size of the arena, a multiple of ``ALIGNMENT``.
        steps: the nodes to run, in order; aliases are none, nor concats whose operands are made in place.
        locations: of every input, constant and result. A constant's position counts ``graph.constants`` in order.
        scratch: offset into the workspace of the scratch memory of every node that asked for some.
        in_place: results written over an operand.
        copies: to be made after the last step.
        live_bytes: the most bytes alive at once, a bound that no plan with the same sharing can beat.
        unshared_bytes: what the workspace would take without any reuse.
        device_bytes: size of the arena in the memory of a device.
        over: outputs that may lie in the memory of an input, by position.
    """

    workspace_bytes: int
    steps: tuple[Node, ...]
    locations: Mapping[Value, Location]
    scratch: Mapping[Node, int]
    in_place: tuple[InPlace, ...]
    copies: tuple[Copy, ...]
    live_bytes: int
    unshared_bytes: int
    device_bytes: int = 0
    over: Mapping[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class _Storage:
    """Memory of one value and all its aliases; ``home`` is set where that is not the workspace."""

    nbytes: int
    first: int
    last: int
    home: Location | None = None
    is_output: bool = False
    over: _Storage | None = None  # in whose place it was put
    within: _Storage | None = None  # what it is a part of
    offset: int = 0  # bytes from the beginning of that
    on_device: bool = False

    @property
    def base(self) -> _Storage:
        return self.placed()[0]

    def placed(self) -> tuple[_Storage, int]:
        """The storage that gets a place of its own, and the bytes from its beginning to this one's."""
        storage, offset = self, 0
        while (around := storage.over or storage.within) is not None:
            offset += storage.offset
            storage = around
        return storage, offset


def plan_memory(
    graph: Graph,
    *,
    scratch: Mapping[Node, int] | None = None,
    max_bytes: int | None = None,
    device_alignment: int = ALIGNMENT,
    region: bool = False,
    views: bool = True,
    in_place: InPlaceOperands | None = None,
    over: Mapping[int, int] | None = None,
) -> MemoryPlan:
    """Lay out the memory of a graph.

    Args:
        graph: what is compiled, one kernel a node.
        scratch: bytes that nodes need while they run.
        max_bytes: the greatest workspace allowed.
        device_alignment: of values in device memory; a multiple of ``ALIGNMENT``.
        region: whether it is a region of a device, whose workspace lies in device memory. Nothing is written in place
            there, no concat nor slice is left out, and outputs lie as the device wants them.
        views: whether an alias is no step, but its operand.
        in_place: says which operands results may lie over; remembers what it looked at.
        over: outputs by position, and the input that each may lie over: the caller may give both the same memory.
    Raises:
        ImportModelError: the workspace is greater; names the limit.
        VerifyError: an output is not row-major, or is an input that another one may lie over.
    """
    operands = InPlaceOperands() if in_place is None else in_place
    return _Planner(graph, scratch or {}, device_alignment, region, views, operands, over or {}).plan(max_bytes)


class _Planner:
    def __init__(
        self,
        graph: Graph,
        scratch: Mapping[Node, int],
        device_alignment: int,
        region: bool,
        views: bool,
        operands: InPlaceOperands,
        over: Mapping[int, int],
    ) -> None:
        self.graph = graph
        self.over = over
        self.scratch = scratch
        self.device_alignment = device_alignment
        self.region = region
        self.operands = operands
        self.joined = {} if region else joined(graph)
        self.sliced = {} if region else sliced(graph)
        self.aliases = {n for n in graph.nodes if is_alias(n)} if views else set()
        unmade = {*self.aliases, *self.joined, *self.sliced}
        self.steps = tuple(n for n in graph.nodes if n not in unmade)
        self.storage: dict[Value, _Storage] = {}
        self.copies: list[Copy] = []
        self.in_place: list[InPlace] = []

    def plan(self, max_bytes: int | None) -> MemoryPlan:
        self._make_storages()
        self._settle_outputs()
        unshared = sum(rounded(s.nbytes) for s in self._in_workspace())
        self._join()
        late = self._settle_over()
        if not self.region:
            self._share_in_place()
        kept = [s for s in self._in_workspace() if s.base is s]
        position = {n: k for k, n in enumerate(self.steps)}
        asking = [n for n in self.steps if self.scratch.get(n)]
        unit = self.device_alignment if self.region else 1
        blocks = [Block(-(-s.nbytes // unit) * unit, s.first, s.last) for s in kept]
        blocks += [Block(-(-self.scratch[n] // unit) * unit, position[n], position[n]) for n in asking]
        offsets, total = place(blocks)
        if max_bytes is not None and total > max_bytes:
            raise ImportModelError(
                f"the model needs {total} bytes of workspace, the limit is {max_bytes}", hint="raise --max-memory"
            )
        for s, offset in zip(kept, offsets, strict=False):
            s.home = Location(Space.WORKSPACE, offset)
        device_bytes = self._place_on_device()
        locations: dict[Value, Location] = {}
        for v, s in self.storage.items():
            base, offset = s.placed()
            assert base.home is not None
            locations[v] = Location(base.home.space, base.home.at + offset)
        for k in late:
            v = self.graph.outputs[k]
            self.copies.append(Copy(locations[v], k, v.type.nbytes))
        return MemoryPlan(
            total,
            self.steps,
            locations,
            dict(zip(asking, offsets[len(kept) :], strict=True)),
            tuple(self.in_place),
            tuple(self.copies),
            live_bytes(blocks),
            unshared,
            device_bytes,
            dict(self.over),
        )

    def _in_workspace(self) -> list[_Storage]:
        return [s for s in dict.fromkeys(self.storage.values()) if s.home is None and not s.on_device]

    def _place_on_device(self) -> int:
        """Gives the values in device memory their places there; the size of all of it."""
        there = [s for s in dict.fromkeys(self.storage.values()) if s.on_device]
        # with sizes that are whole multiples, so is every offset
        sizes = [-(-s.nbytes // self.device_alignment) * self.device_alignment for s in there]
        offsets, total = place([Block(n, s.first, s.last) for n, s in zip(sizes, there, strict=True)])
        for s, offset in zip(there, offsets, strict=True):
            s.home = Location(Space.DEVICE, offset)
        return total

    def _make_storages(self) -> None:
        """One storage for each value that is no alias, alive from its step to its last reader's."""
        for space, values in ((Space.INPUT, self.graph.inputs), (Space.PARAM, tuple(self.graph.constants))):
            for k, v in enumerate(values):
                self.storage[v] = _Storage(v.type.nbytes, -1, -1, Location(space, k))
        step = -1
        for node in self.graph.nodes:
            if node in self.aliases:
                self.storage[node.outputs[0]] = self.storage[node.inputs[0]]
                continue
            if node in self.joined:  # its operands are its result from the step on that makes the first of them
                (v,) = node.outputs
                self.storage[v] = _Storage(v.type.nbytes, min(self.storage[u].first for u in node.inputs), step)
                continue
            if node in self.sliced:
                (v,) = node.outputs
                whole = self.storage[node.inputs[0]]
                part = self.storage[v] = _Storage(v.type.nbytes, whole.first, step)
                part.within, part.offset = whole, self.sliced[node]
                continue
            step += 1
            for v in node.inputs:
                self.storage[v].last = step
            for v in node.outputs:
                self.storage[v] = _Storage(v.type.nbytes, step, step, on_device=in_device_memory(node))

    def _settle_outputs(self) -> None:
        """Give the caller's buffers to what can be written there; the rest is copied."""
        for k, v in enumerate(self.graph.outputs):
            if v.type.layout is not None and not self.region:
                raise VerifyError(f"output {v.name} has layout {v.type.layout}, it must be row-major")
            if k in self.over:
                continue
            s = self.storage[v]
            if s.home is None:
                s.home = Location(Space.OUTPUT, k)
            else:
                self.copies.append(Copy(s.home, k, v.type.nbytes))

    def _settle_over(self) -> list[int]:
        """Outputs that may lie over inputs are made there if nobody reads those any more; the rest is copied, last."""
        late, end = [], len(self.steps) - 1
        makers = {v: (n, step) for step, n in enumerate(self.steps) for v in n.outputs}
        for k, j in self.over.items():
            v = self.graph.outputs[k]
            s, old = self.storage[v], self.storage[self.graph.inputs[j]]
            if s.home is None and s.within is None and self._ready(old, s, v, makers.get(v)):
                s.home = Location(Space.OUTPUT, k)
                continue
            updated = [Location(Space.INPUT, i) for i in self.over.values() if i != j]
            if s.home in updated:
                raise VerifyError(f"output {v.name} is an input whose memory another output may take")
            if s.home is None:
                base = s.base
                base.last = max(base.last, end)
            late.append(k)
        return late

    def _ready(self, old: _Storage, new: _Storage, v: Value, made: tuple[Node, int] | None) -> bool:
        """Whether a value may be written over an input by the step that makes it; noted where that reads the input."""
        if old.within is not None or any(c.source == old.home for c in self.copies):
            return False
        if old.last < new.first:
            return True
        if made is None or old.last > made[1] or new.first != made[1] or on_device(made[0]):
            return False
        node = made[0]
        result = node.outputs.index(v)
        sharers = [i for i, u in enumerate(node.inputs) if self.storage[u].base is old]
        if not sharers or not self.operands(node, result).issuperset(sharers):
            return False
        self.in_place.append(InPlace(node, sharers[0], result))
        return True

    def _join(self) -> None:
        """Let what has parts live as long as they do, and make the operands of concats parts of the results."""
        for node in reversed(self.graph.nodes):  # a slice of a slice first
            if node in self.sliced:
                whole = self.storage[node.inputs[0]]
                whole.last = max(whole.last, self.storage[node.outputs[0]].last)
        for node, places in self.joined.items():
            whole = self.storage[node.outputs[0]]
            for v, offset in zip(node.inputs, places, strict=True):
                part = self.storage[v]
                part.within, part.offset = whole, offset
                whole.last = max(whole.last, part.last)

    def _share_in_place(self) -> None:
        """Put results over operands that die there."""
        operands = self.operands
        for step, node in enumerate(self.steps):
            if len(node.outputs) != 1 or on_device(node):
                continue
            result = self.storage[node.outputs[0]]
            dying = [k for k, v in enumerate(node.inputs) if self._dies(self.storage[v], step, result)]
            if result.home is not None or result.within is not None or not dying:
                continue
            fitting = operands(node)
            for k in dying:
                base = self.storage[node.inputs[k]].base
                # aliases of the operand may be operands too
                sharers = [j for j, v in enumerate(node.inputs) if self.storage[v].base is base]
                if all(j in fitting for j in sharers):
                    result.over = base
                    base.last = result.last
                    self.in_place.append(InPlace(node, k))
                    break

    def _dies(self, operand: _Storage, step: int, result: _Storage) -> bool:
        base = operand.base
        return base.home is None and base.last == step and 0 < base.nbytes == result.nbytes


# -- checking -------------------------------------------------------------------------------------------------------
def check_plan(graph: Graph, plan: MemoryPlan, scratch: Mapping[Node, int] | None = None) -> None:
    """Follow a plan step by step and make sure that nothing is read after it was overwritten.

    Args:
        graph: what was planned.
        plan: the plan.
        scratch: bytes that nodes asked for.
    Raises:
        VerifyError: the first fault.
    """
    _Checker(graph, plan, scratch or {}).check()


_Range = tuple[Location | Space | None, int, int]  # (place outside the workspace, or the device's arena, begin, end)


@dataclass(eq=False)
class _Checker:
    graph: Graph
    plan: MemoryPlan
    scratch: Mapping[Node, int]
    contents: dict[_Range, Value] = field(default_factory=dict)  # what each written range holds
    origin: dict[Value, Value] = field(default_factory=dict)  # of aliases

    def check(self) -> None:
        for v in (*self.graph.inputs, *self.graph.constants):
            self.contents[self._range(v)] = v
        over: dict[Node, dict[int, int]] = {}
        for p in self.plan.in_place:
            over.setdefault(p.node, {})[p.result] = p.operand
        steps, places, slices = set(self.plan.steps), joined(self.graph), sliced(self.graph)
        for node in self.graph.nodes:
            if is_alias(node):
                v, operand = node.outputs[0], node.inputs[0]
                self.origin[v] = self._original(operand)
                if self._range(v) != self._range(operand):  # which may be a part of what it originates from
                    raise VerifyError(f"alias {v.name} does not lie where {operand.name} does")
                continue
            if node in slices and node not in steps:
                self._take(node, slices[node])
                continue
            for v in node.inputs:
                self._expect(v, f"{node!r} reads {v.name}")
            if node not in steps:
                self._join(node, places.get(node, ()))
                continue
            self._run(node, over.get(node, {}))
        self._finish()

    def _take(self, node: Node, offset: int) -> None:
        (operand,), (v,) = node.inputs, node.outputs
        place, begin, _ = self._range(operand)
        if self._range(v) != (place, begin + offset, begin + offset + v.type.nbytes):
            raise VerifyError(f"slice {v.name} is no step, but does not lie in {operand.name}")
        self.origin[v] = self._original(operand)

    def _join(self, node: Node, places: Sequence[int]) -> None:
        whole = self._range(node.outputs[0])
        parts = [
            (whole[0], whole[1] + p, whole[1] + p + v.type.nbytes) for p, v in zip(places, node.inputs, strict=False)
        ]
        if [self._range(v) for v in node.inputs] != parts:
            raise VerifyError(f"{node!r} is no step, but its operands are not parts of its result")
        self.contents[whole] = node.outputs[0]

    def _run(self, node: Node, over: Mapping[int, int]) -> None:
        """One step, which writes results, by position, over operands."""
        reads = {self._range(v) for v in node.inputs}
        written: list[_Range] = [self._range(v) for v in node.outputs]
        for result, operand in over.items():
            shared = self._range(node.inputs[operand])
            if shared != written[result]:
                raise VerifyError(f"{node!r} is not where its operand {operand} was")
            reads.discard(shared)
        if self.scratch.get(node):
            begin = self.plan.scratch[node]
            written.append((None, begin, begin + self.scratch[node]))
        for k, w in enumerate(written):
            sizes = {None: self.plan.workspace_bytes, Space.DEVICE: self.plan.device_bytes}
            if not isinstance(w[0], Location) and (w[1] % ALIGNMENT or w[2] > sizes.get(w[0], 0)):
                raise VerifyError(f"{node!r}: bytes {w[1]} to {w[2]} are misaligned or outside the arena")
            clash = [r for r in (*reads, *written[:k]) if _overlap(w, r)]
            if clash:
                raise VerifyError(f"{node!r}: bytes {w[1]} to {w[2]} are in use while it runs")
            for r in [r for r in self.contents if _overlap(w, r)]:
                del self.contents[r]
        for v in node.outputs:
            self.contents[self._range(v)] = v

    def _finish(self) -> None:
        copied = {c.output: c for c in self.plan.copies}
        for k, v in enumerate(self.graph.outputs):
            self._expect(v, f"output {k} is {v.name}")
            place = self.plan.locations[v]
            if (copied[k].source if k in copied else Location(Space.OUTPUT, k)) != place:
                raise VerifyError(f"output {k} is not {v.name}, which lies in {place}")

    def _original(self, v: Value) -> Value:
        return self.origin.get(v, v)

    def _range(self, v: Value) -> _Range:
        place = self.plan.locations.get(v)
        if place is None:
            raise VerifyError(f"{v.name} has no place")
        if place.space is Space.OUTPUT and place.at in self.plan.over:
            place = Location(Space.INPUT, self.plan.over[place.at])
        if place.space in (Space.WORKSPACE, Space.DEVICE):
            which = None if place.space is Space.WORKSPACE else Space.DEVICE
            return which, place.at, place.at + v.type.nbytes
        return place, 0, v.type.nbytes

    def _expect(self, v: Value, what: str) -> None:
        base = self._original(v)
        held = self.contents.get(self._range(base))
        if held is not base and v.type.nbytes:
            raise VerifyError(f"{what}, which was overwritten" + (f" by {held.name}" if held is not None else ""))


def _overlap(a: _Range, b: _Range) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
