"""Batches in slices: a few images go through a part of the network, then the next, while caches hold what they leave.

A batch goes through a network layer by layer, so what a layer leaves has gone to memory when the next one reads it;
what a few images leave may still be in a cache. So a part of a graph that keeps images apart
(:mod:`mlc.rewrite.images`) may become a recurrence over slices of the batch that carries nothing
(:mod:`mlc.ops.scan`): its body is that part for fewer images, its rows are the operands' own memory, and constants are
packed once as ever. What it costs is that weights are read once a slice, and that kernels are called as often.

Which part, and how many images a slice has, is decided by the target's peaks: a step takes its operations or the bytes
that it moves, whichever is longer, and bytes come from what caches hold of all that was touched since they were used.

Stage in: a clean graph of single operators. Stage out: the same, in part within recurrences.

Example: of 16 images, ``y = relu(conv(x, w))`` becomes ``y = reshape(scan(reshape(x, (8, 2, …))), y.shape)`` with
``relu(conv(x, w))`` of two images as body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations, count
from math import isqrt

import numpy as np

from mlc.ir import te
from mlc.ir.cost import Peaks, operations
from mlc.ir.graph import FusionKind, Graph, Node, Value, express, fill_attrs
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.scan import SCAN
from mlc.rewrite.fuse import fuse, group_each
from mlc.rewrite.images import Images, Known, Rows

WORTH = 0.05  # part of a run that has to be saved at least
EQUAL = 0.03  # of a run, that a larger slice may take longer: threads share its kernels more evenly
LONGER = 0.01  # of a run, that a longer section may take longer: it needs less memory
HIDDEN = 0.85  # part of the shorter of computing and loading that runs while the longer one does
TILED = 1.5  # times as long as a stream that tiles of a large batch take to come from memory
MOST_CUTS = 40  # places in a part where sections may begin or end
MOST_LOOKS = 400_000  # at nodes, when all sections of a part are looked through
STARTS = (FusionKind.COMPLEX, FusionKind.REDUCTION)  # of operators that begin a kernel; others go into one before


def use_slices(graph: Graph, peaks: Peaks, images: int | None = None) -> Graph:
    """Let parts of a graph run slice by slice.

    Args:
        graph: whose first input has the batch along its first axis, if there is one.
        peaks: of the machine; without caches, nothing is gained.
        images: of every slice, whatever that costs; unless given, as many as pay, if any do.
    """
    batch = batch_of(graph)
    if batch < 2 or (images is None and not _exceeds_caches(graph, peaks)):
        return graph
    parts = [part for part in _parts(graph, batch) if part.sections]
    if images is not None:
        chosen = [(part.sections[0], images) for part in parts if batch % images == 0 and images < batch]
    else:
        costs = _Costs(graph, batch, peaks)
        chosen = [found for part in parts if (found := costs.best(part)) is not None]
    for section, fewer in chosen:
        graph = section.applied(graph, fewer)
    return graph


def batch_of(graph: Graph) -> int:
    """Images of a batch, if there is one: the first extent of the first input that has any."""
    return next((v.type.shape[0] for v in graph.inputs if v.type.rank), 0)


def in_slices(graph: Graph) -> bool:
    """Whether parts of a graph run slice by slice: recurrences that carry nothing, which a model may have itself."""
    return any(n.op is SCAN and not n.attrs["carried"] for n in graph.nodes)


def _exceeds_caches(graph: Graph, peaks: Peaks) -> bool:
    """Whether any step touches more than the smallest cache holds; otherwise there is nothing to gain."""
    most = max((sum(v.type.nbytes for v in (*n.inputs, *n.outputs)) for n in graph.nodes), default=0)
    return bool(peaks.caches) and most > peaks.caches[0][0]


# -- parts that keep images apart -----------------------------------------------------------------------------------
@dataclass(eq=False)
class _Part:
    """Nodes that keep images apart, with none between them but those that read no batch.

    Args:
        graph: that they are of.
        look: at operators, for its batch.
        nodes: in order.
        operands: where the images of each one's operands lie.
        rows: where those of all results lie.
    """

    graph: Graph
    look: Images
    nodes: list[Node] = field(default_factory=list)
    operands: dict[Node, Known] = field(default_factory=dict)
    rows: dict[Value, Rows] = field(default_factory=dict)

    @cached_property
    def last_read(self) -> dict[Value, int]:
        """The last of the nodes that reads each value; the number of nodes for what is read after them."""
        last = {v: k for k, n in enumerate(self.nodes) for v in n.inputs}
        own = set(self.nodes)
        outside = {v for n in self.graph.nodes if n not in own for v in n.inputs} | set(self.graph.outputs)
        return {**last, **dict.fromkeys(outside, len(self.nodes))}

    def cuts(self) -> list[int]:
        """Where slices may begin or end without taking a kernel apart: one value, made before, is read after."""
        found = [0]
        alive: set[Value] = set()
        for k, node in enumerate(self.nodes):
            alive = {v for v in alive if self.last_read[v] >= k}
            if k and len(alive) == 1 and node.op.kind in STARTS:
                found.append(k)
            alive.update(v for v in node.outputs if v in self.last_read)
        most = max(2, min(MOST_CUTS, isqrt(2 * MOST_LOOKS // len(self.nodes))))
        step = -(-len(found) // most)
        return [0, *reversed(found[:0:-step]), len(self.nodes)]

    @cached_property
    def sections(self) -> list[_Section]:
        """What could run in slices, from most nodes to fewest."""
        pairs = sorted(combinations(self.cuts(), 2), key=lambda c: c[0] - c[1])
        return [found for begin, end in pairs if (found := _Section.of(self, begin, end)) is not None]


def _parts(graph: Graph, batch: int) -> list[_Part]:
    """The parts of a graph that could run in slices, in order."""
    look = Images(batch)
    rows = {v: Rows(0) for v in graph.inputs if v.type.shape[:1] == (batch,)}
    parts = [_Part(graph, look)]
    for node in graph.nodes:
        operands = tuple(rows.get(v) for v in node.inputs)
        if not any(operands):
            continue
        taken = _taken(node, operands, graph, look)
        if taken is None:  # it ends a part, and what it gives may begin another
            rows.update({v: Rows(0) for v in node.outputs if v.type.shape[:1] == (batch,)})
            parts.append(_Part(graph, look))
            continue
        operands, results = taken
        made = {v: r for v, r in zip(node.outputs, results, strict=True) if r is not None}
        parts[-1].nodes.append(node)
        parts[-1].operands[node] = operands
        parts[-1].rows.update(made)
        rows.update(made)
    return [part for part in parts if part.nodes]


def _taken(node: Node, operands: Known, graph: Graph, look: Images) -> tuple[Known, Known] | None:
    """Where images of a node's operands and results lie; nothing where it cannot be in a part.

    An operand that depends on no image may have the batch's extent all the same, such as a constant that was broadcast.
    """
    given = [v for v, r in zip(node.inputs, operands, strict=True) if r is None and v not in graph.constants]
    if node.op.kind is FusionKind.COMPLEX and given:  # weights that are no constants would be packed in every slice
        return None
    pairs = zip(node.inputs, operands, strict=True)
    broad = tuple(Rows(0) if r is None and v.type.shape[:1] == (look.images,) else r for v, r in pairs)
    for tried in dict.fromkeys((operands, broad)):
        results = look(node, tried)
        if results is not None and all(results):
            return tried, results
    return None


# -- recurrences over slices ----------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Section:
    """Nodes of a part that could run slice by slice.

    Args:
        part: whose they are.
        nodes: in order.
        scanned: operands with a batch that others make, and where their images lie,
        captured: operands without one.
        gathered: results that others read.
    """

    part: _Part
    nodes: Sequence[Node]
    scanned: dict[Value, Rows]
    captured: tuple[Value, ...]
    gathered: tuple[Value, ...]

    @classmethod
    def of(cls, part: _Part, begin: int, end: int) -> _Section | None:
        """Nothing where a slice of an operand or result would be no run of memory."""
        scanned: dict[Value, Rows] = {}
        captured: dict[Value, None] = {}
        made: dict[Value, None] = {}
        for node in part.nodes[begin:end]:
            for v, rows in zip(node.inputs, part.operands[node], strict=True):
                if rows is None:
                    captured[v] = None
                elif v not in made:
                    scanned[v] = rows
            made.update(dict.fromkeys(node.outputs))
        gathered = tuple(v for v in made if part.last_read.get(v, -1) >= end)
        if any(r.axis for r in (*scanned.values(), *(part.rows[v] for v in gathered))) or not gathered:
            return None
        return cls(part, part.nodes[begin:end], scanned, tuple(captured), gathered)

    def applied(self, graph: Graph, images: int) -> Graph:
        """A graph that has the nodes, with a recurrence in their place.

        Args:
            graph: comes back itself where an operator would not do the same for fewer images.
            images: of a slice.
        """
        body = self._body(images)
        if body is None:
            return graph
        inside = set(self.nodes)
        first, last = (graph.nodes.index(n) for n in (self.nodes[0], self.nodes[-1]))
        between = [n for n in graph.nodes[first:last] if n not in inside]  # which read none of them
        constants = dict(graph.constants)
        made = _Maker(graph, constants).recurrence(self, body, self.part.look.images // images)
        nodes = [*graph.nodes[:first], *between, *made, *graph.nodes[last + 1 :]]
        used = {v for n in nodes for v in n.inputs} | set(graph.outputs)
        constants = {v: a for v, a in constants.items() if v in used}
        return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), constants, graph.output_names)

    def _body(self, images: int) -> Graph | None:
        """The nodes for a slice's images; nothing where an operator would not do the same for these."""
        inside: dict[Value, Value] = {}
        whole: dict[Value, Value] = {}  # operands that every slice reads whole
        constants: dict[Value, np.ndarray] = {}
        for v, rows in self.scanned.items():
            inside[v] = Value(v.name, rows.resized(v.type, images))
        names = {v.name for n in self.nodes for v in (*n.inputs, *n.outputs)}
        for v in self.captured:
            whole[v] = Value(_unique(f"{v.name}.whole", names) if v in inside else v.name, v.type)
            if v in self.part.graph.constants:
                constants[whole[v]] = self.part.graph.constants[v]
        nodes = []
        for node in self.nodes:
            operands = self.part.operands[node]
            fewer = self.part.look.fewer(node, operands, images)
            if fewer is None:
                return None
            attrs, types = fewer
            ins = tuple(whole[v] if r is None else inside[v] for v, r in zip(node.inputs, operands, strict=True))
            # what others read keeps its name outside, and names tell groups apart (mlc.rewrite.group.identity_of)
            own = (_unique(f"{v.name}.slice", names) if v in self.gathered else v.name for v in node.outputs)
            outs = tuple(Value(name, t) for name, t in zip(own, types, strict=True))
            inside.update(zip(node.outputs, outs, strict=True))
            nodes.append(Node(node.op, ins, attrs, outs, node.sources))
        inputs = (*(inside[v] for v in self.scanned), *(w for w in whole.values() if w not in constants))
        return Graph("slice", inputs, tuple(inside[v] for v in self.gathered), tuple(nodes), constants)


class _Maker:
    """Makes values of a graph beside those that it has.

    Args:
        graph: whose names are taken.
        constants: may be added to.
    """

    def __init__(self, graph: Graph, constants: dict[Value, np.ndarray]) -> None:
        self.constants = constants
        made = (v for n in graph.nodes for v in n.outputs)
        self.names = {v.name for v in (*graph.inputs, *graph.constants, *made)}

    def recurrence(self, section: _Section, body: Graph, rounds: int) -> list[Node]:
        """A recurrence over slices and the views around it; batches among the constants are viewed at once."""
        nodes, rows = [], []
        for v in section.scanned:
            row = TensorType((v.type.shape[0] // rounds, *v.type.shape[1:]), v.type.dtype)
            view = self._stacked(v, row, rounds)
            rows.append(view)
            if v in self.constants:
                self.constants[view] = self.constants[v].reshape(view.type.shape)
            else:
                nodes.append(_reshape(v, view))
        captured = [v for v in section.captured if v not in section.part.graph.constants]
        stacked = tuple(self._stacked(v, r.type, rounds) for v, r in zip(section.gathered, body.outputs, strict=True))
        backwards = (False,) * (len(rows) + len(stacked))
        attrs = {"body": body, "rounds": rounds, "carried": 0, "scanned": len(rows), "backwards": backwards}
        sources = tuple(dict.fromkeys(s for n in section.nodes for s in n.sources))
        nodes.append(Node(SCAN, (*rows, *captured), fill_attrs(SCAN, attrs), stacked, sources))
        return [*nodes, *(_reshape(s, v) for s, v in zip(stacked, section.gathered, strict=True))]

    def _stacked(self, v: Value, row: TensorType, rounds: int) -> Value:
        """What is a value's rows, slice by slice."""
        return Value(_unique(f"{v.name}.slices", self.names), TensorType((rounds, *row.shape), row.dtype))


def _unique(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken; it is from now on."""
    found = next(n for n in chain([name], (f"{name}.{k}" for k in count(1))) if n not in taken)
    taken.add(found)
    return found


def _reshape(x: Value, y: Value) -> Node:
    return Node(get("reshape"), (x,), {"shape": y.type.shape}, (y,))


# -- what it costs --------------------------------------------------------------------------------------------------
class _Costs:
    """Time of a graph's kernels, each for the whole batch or slice by slice, in the peaks' units.

    Args:
        graph: that is run.
        batch: its images.
        peaks: of the machine.
    """

    def __init__(self, graph: Graph, batch: int, peaks: Peaks) -> None:
        self.batch, self.peaks = batch, peaks
        position = {v: k for k, n in enumerate(graph.nodes) for v in n.outputs}
        kernels = [n for n in group_each(fuse(graph, peaks=peaks)).nodes if n.op.express is not None]
        self.made = np.array([max(position[v] for v in n.outputs) for n in kernels])
        facts = np.array([self._facts(n, graph) for n in kernels]).reshape(len(kernels), 4)
        self.computing, self.weights, self.read, self.written = facts.T
        self.position = {n: k for k, n in enumerate(graph.nodes)}

    def _facts(self, kernel: Node, graph: Graph) -> tuple[float, float, int, int]:
        """Time of computing, and bytes of weights, of other operands, and of results."""
        operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in kernel.inputs]
        narrow = min((v.type.dtype.itemsize for v in kernel.inputs), default=f32.itemsize) / f32.itemsize
        computing = operations(list(express(kernel, operands))) / self.peaks.compute * min(1.0, narrow)
        written = sum(v.type.nbytes for v in kernel.outputs)
        read = sum(v.type.nbytes for v in kernel.inputs if v not in graph.constants)
        # of a table, few rows may be read
        most = np.inf if kernel.op.kind is FusionKind.COMPLEX else read + written
        weights = sum(min(v.type.nbytes, most) for v in kernel.inputs if v in graph.constants)
        return computing, weights, read, written

    def best(self, part: _Part) -> tuple[_Section, int] | None:
        """What to run in slices, and the images of each; nothing where that does not pay."""
        whole = self._kernels(np.full(self.made.shape, True), self.batch)
        total, found = whole.sum(), []
        for section in part.sections:
            inside, borders = self._of(section)
            if np.count_nonzero(inside) < 2:  # which leaves nothing to another one
                continue
            rest = total - whole[inside].sum() + borders
            sizes = [n for n in range(1, self.batch) if self.batch % n == 0]
            found += [(rest + self._kernels(inside, n)[inside].sum(), n, section) for n in sizes]
        least = min((cost for cost, _, _ in found), default=np.inf)
        if least > (1 - WORTH) * total:
            return None
        _, images, _ = max((f for f in found if f[0] <= least + EQUAL * total), key=lambda f: f[1])
        alike = [f for f in found if f[1] == images]
        least = min(cost for cost, _, _ in alike)
        return max((s for cost, _, s in alike if cost <= least + LONGER * total), key=lambda s: len(s.nodes)), images

    def _of(self, section: _Section) -> tuple[np.ndarray, float]:
        """Which kernels are a section, and what it takes that its operands and results lie elsewhere."""
        first, last = (self.position[n] for n in (section.nodes[0], section.nodes[-1]))
        inside = (self.made >= first) & (self.made <= last)
        # what comes from elsewhere is in no cache, and a line is read before it is written; row-major copies of both
        # are made where the model does not ask for them
        graph, moved, apart = section.part.graph, 0, 0
        for values, own, passes in ((section.scanned, graph.inputs, 1), (section.gathered, graph.outputs, 2)):
            for v in values:
                moved += (passes if v in own else passes + 3) * v.type.nbytes
                apart += v.type.nbytes
        borders = moved * float(self._each_byte(np.array(apart)))
        return inside, borders

    def _kernels(self, inside: np.ndarray, images: int) -> np.ndarray:
        """Time of every kernel, slice by slice, if those inside are what is run for a slice."""
        rounds, share = self.batch / images, images / self.batch
        moved = self.read + 2 * self.written  # a cache reads a line before it is written
        near = share * (self.read + self.written) + self.weights
        round_bytes = self.weights[inside].sum() + share * self.written[inside].sum()
        loading = moved * self._each_byte(near) + rounds * self.weights * self._each_byte(np.array(round_bytes))
        longer, shorter = np.maximum(self.computing, loading), np.minimum(self.computing, loading)
        return longer + (1 - HIDDEN) * shorter + rounds * self.peaks.launch

    def _each_byte(self, apart: np.ndarray) -> np.ndarray:
        """Time that a byte takes which was used so many bytes ago: caches hold a part of those."""
        held = np.zeros(apart.shape)
        time = np.zeros(apart.shape)
        for size, transfer in self.peaks.caches:
            reached = np.minimum(1.0, size / np.maximum(apart, 1.0))
            time += np.maximum(0.0, reached - held) / transfer
            held = np.maximum(held, reached)
        return time + (1 - held) * TILED / self.peaks.transfer
