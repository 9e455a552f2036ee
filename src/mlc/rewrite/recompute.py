"""Less memory by computing values again (NeoFlow, section 5.1: what is kept for the backward pass, and what is not).

A training step keeps results of its forward pass until the backward pass reads them. Where the arena has to be smaller,
some of them are given up between two of their readers, and made again before the later one: by the same kernels from
the same operands, so to the same bits. Candidates are compared by how much of the memory above the limit they take
away, summed up over all steps, for the time that making them again takes; the best one first.

A value is made again by its own node and, where operands of that are gone by then, by theirs. What serves a reader so
serves all later ones, so that a chain of layers is made again once.

Stage in: a graph with layouts. Stage out: the same with some nodes repeated.

Example: of ``a = f(x); b = g(a); c = h(b); d = k(c, a)`` the value ``a`` need not be there while ``h`` runs:
``a = f(x); b = g(a); c = h(b); a.again = f(x); d = k(c, a.again)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ops.shape import JOIN
from mlc.rewrite.arena import rounded
from mlc.rewrite.group import is_alias
from mlc.rewrite.memory import MemoryPlan
from mlc.rewrite.parts import joined, sliced
from mlc.rewrite.region import on_device

MOST_REPEATED = 24  # nodes for one value
STEP = 0.97  # of the arena that the next stage has, on the way to the smallest one
MOST_TIMES = 3  # as many nodes as there were
ATTEMPTS = 8  # at a limit, each lower by what places wasted in the one before

Plan = Callable[[Graph, Mapping[Node, int]], MemoryPlan]


def recompute(
    graph: Graph, limit: int, plan: Plan, scratch: Mapping[Node, int], seconds: Callable[[Node], float]
) -> tuple[Graph, int]:
    """Repeats nodes until the arena is small enough.

    Args:
        graph: what is compiled, one kernel a node.
        limit: bytes that the arena may take.
        plan: the arena of a graph, given scratch memory by node.
        scratch: bytes that nodes need while they run.
        seconds: what repeating a node takes, in any unit.
    Returns:
        the graph whose arena is within the limit, or else the smallest that was found; and the bytes of its arena.
        A limit of that many bytes or more is kept.
    """
    found = _Shrinking(graph, plan, scratch, seconds)
    if found.plan.workspace_bytes > limit:
        found = _directly(found, limit) or _stepwise(found, limit)
    return found.graph, found.plan.workspace_bytes


def _directly(begin: _Shrinking, limit: int) -> _Shrinking | None:
    """By what helps most on the way to the limit."""
    target = limit
    if max(map(begin.lives.around, begin.graph.nodes), default=0) > limit:
        return None
    for _ in range(ATTEMPTS):
        state = replace(begin)
        if not state.lower(target):
            return None
        state.settle()
        over = state.plan.workspace_bytes - limit
        if over <= 0:
            return state
        target -= over
    return None


def _stepwise(state: _Shrinking, limit: int) -> _Shrinking:
    """By stages that do not depend on the limit; so whoever is told the smallest arena of them can have it."""
    best = state
    while True:
        state = replace(state)
        before = state.lives.peak
        state.lower(int(before * STEP))
        if state.lives.peak >= before:
            return best
        state.settle()
        if state.plan.workspace_bytes < best.plan.workspace_bytes:
            best = state
        if best.plan.workspace_bytes <= limit:
            return best


class _Lives:
    """Which values lie in the arena when, and how much of it that takes after every node.

    Args:
        graph: nodes with positions.
        parts: nodes that are no steps since results share the memory of operands, or the other way round.
        plan: whose results lie over operands.
        scratch: bytes by node.
    Attributes:
        root: of values in others' memory: whose it is.
        touched: positions at which each root is made and read.
        live: bytes by position.
        until: of inputs that something is written over: the position at which that is done.
    """

    def __init__(self, graph: Graph, parts: Collection[Node], plan: MemoryPlan, scratch: Mapping[Node, int]) -> None:
        self.nodes = graph.nodes
        self.parts = parts
        self.position = {n: k for k, n in enumerate(graph.nodes)}
        self.makers = graph.producers()
        self.root: dict[Value, Value] = {}
        self.values: dict[Value, list[Value]] = {}
        for v in (*graph.inputs, *graph.constants):
            self.root[v] = v
        together: set[Value] = set()
        for node in graph.nodes:
            for v in node.outputs:
                self.root[v] = self.root[node.inputs[0]] if is_view(node, parts) else v
                self.values.setdefault(self.root[v], []).append(v)
            if node in parts and not is_view(node, parts):  # a concat in place: parts of one block
                together.update(self.root[v] for v in (*node.inputs, *node.outputs))
        self.until = {
            graph.inputs[j]: self.position[self.makers[v]]
            for v, j in ((graph.outputs[k], j) for k, j in plan.over.items())
            if v in self.makers
        }
        outside = {self.root[v] for v in (*graph.inputs, *graph.constants, *graph.outputs)}
        self.touched: dict[Value, list[int]] = {}
        for k, node in enumerate(graph.nodes):
            if is_view(node, parts):
                continue
            for r in dict.fromkeys(self.root[v] for v in (*node.inputs, *node.outputs)):
                self.touched.setdefault(r, []).append(k)
        self.inside = {r: None for r in self.touched if r not in outside}  # in order, so that results do not vary
        self.free = {r: None for r in self.inside if r not in together}
        change = [0] * (len(graph.nodes) + 1)
        for r in self.inside:
            change[self.touched[r][0]] += self.size(r)
            change[self.touched[r][-1] + 1] -= self.size(r)
        alone = [0] * len(graph.nodes)
        for node, nbytes in scratch.items():
            if node in self.position:
                alone[self.position[node]] += rounded(nbytes)
        for over in plan.in_place:
            if over.node in self.position and (r := self.root[over.node.outputs[over.result]]) in self.inside:
                alone[self.position[over.node]] -= self.size(r)
        self.live = np.cumsum(change)[:-1] + np.array(alone, np.int64)

    @staticmethod
    def size(v: Value) -> int:
        return rounded(v.type.nbytes)

    @property
    def peak(self) -> int:
        return int(self.live.max(initial=0))

    def around(self, node: Node) -> int:
        """Bytes of the operands of a node in the arena, which is there while it runs."""
        if is_view(node, self.parts):
            return 0
        roots = dict.fromkeys(self.root[v] for v in node.inputs)
        return sum(self.size(r) for r in roots if r in self.inside)

    def there(self, r: Value, at: int) -> bool:
        """Whether a value can be read at a position anyhow, once it was made."""
        return r not in self.inside or self.touched[r][-1] >= at

    def repeatable(self, node: Node) -> bool:
        return node.op is not JOIN and not on_device(node) and (node not in self.parts or is_view(node, self.parts))


def is_view(node: Node, parts: Collection[Node]) -> bool:
    """Whether a node's result is its first operand's memory, or a part of it."""
    return is_alias(node) or (node in parts and len(node.inputs) == 1)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A value that is given up before the node at ``at``, and how it is made again.

    Args:
        value: the root.
        since: the position of the reader before.
        chain: nodes to repeat, in order.
        longer: roots that have to be kept until then.
    """

    value: Value
    since: int
    at: int
    chain: tuple[Node, ...]
    longer: tuple[Value, ...]


@dataclass(eq=False)
class _Shrinking:
    """A graph on its way to a smaller arena."""

    graph: Graph
    make_plan: Plan
    scratch: Mapping[Node, int]
    seconds: Callable[[Node], float]
    origin: dict[Node, Node] = field(default_factory=dict)  # of nodes that were repeated or got other operands
    costs: dict[Node, float] = field(default_factory=dict)  # of original ones
    most: int = 0  # nodes that there may be in the end

    def __post_init__(self) -> None:
        self.most = self.most or MOST_TIMES * len(self.graph.nodes)
        self.parts: set[Node] = {*joined(self.graph), *sliced(self.graph)}
        self.settle()

    def settle(self) -> None:
        """Looks at places again, after nodes were repeated."""
        self.plan = self.make_plan(self.graph, self.scratch)
        self.lives = _Lives(self.graph, self.parts, self.plan, self.scratch)

    def lower(self, target: int) -> bool:
        """Repeats nodes until no more bytes than that live at once; whether that was possible."""
        while self.lives.peak > target:
            if len(self.graph.nodes) > self.most:
                return False
            best, most = None, 0.0
            over = np.maximum(self.lives.live - target, 0)
            before = np.concatenate([[0], np.cumsum(over)])
            for c in self._candidates(before):
                gain = self._gain(c, target, before)
                if gain <= 0:
                    continue
                worth = gain / max(sum(map(self._cost, c.chain)), 1e-12)
                if worth > most:
                    best, most = c, worth
            if best is None:
                return False
            self._repeat(best)
        return True

    def _candidates(self, before: np.ndarray) -> Iterator[_Candidate]:
        """All values with a gap between readers in which there is too much memory.

        Args:
            before: what is too much, summed up over all positions before each.
        """
        lives = self.lives
        for r in lives.free:
            touched = lives.touched[r]
            for since, at in pairwise(touched):
                if at - since < 2 or before[at] == before[since + 1]:
                    continue
                for keep in (True, False):
                    found = self._way(r, at, keep)
                    if found is not None:
                        yield _Candidate(r, since, at, *found)
                    if found is not None and not found[1]:
                        break  # nothing would have to be kept for it, so there is no other way

    def _way(self, r: Value, at: int, keep: bool) -> tuple[tuple[Node, ...], tuple[Value, ...]] | None:
        """The nodes that make a value again at a position, and what is kept for them.

        Args:
            keep: operands that would be gone are kept; else they are made again as well.
        """
        lives = self.lives
        chain: dict[Node, None] = {}
        longer: dict[Value, None] = {}
        stack: list[tuple[Value, bool]] = [(r, False)]
        while stack:
            root, done = stack.pop()
            node = lives.makers.get(root)
            if node is None or node in chain:
                continue
            if done:
                chain[node] = None
                continue
            if not lives.repeatable(node) or root not in lives.free or len(chain) + len(stack) > MOST_REPEATED:
                return None
            stack.append((root, True))
            for v in node.inputs:
                operand = lives.root[v]
                if lives.until.get(operand, at) < at:
                    return None
                if lives.there(operand, at):
                    continue
                if keep:
                    longer[operand] = None
                else:
                    stack.append((operand, False))
        return tuple(chain), tuple(longer)

    def _gain(self, c: _Candidate, target: int, before: np.ndarray) -> float:
        """By how much less memory there is above the target, summed up over all positions."""
        lives = self.lives
        begin = min([c.since + 1, *(lives.touched[r][-1] + 1 for r in c.longer)])
        live = lives.live[begin : c.at + 1].copy()
        live[c.since + 1 - begin : -1] -= lives.size(c.value)
        for r in c.longer:
            live[lives.touched[r][-1] + 1 - begin :] += lives.size(r)
        live[-1] = max(live[-1], self._while_repeating(c, int(live[-1])))
        after = int(np.maximum(live - target, 0).sum())
        return float(before[c.at + 1] - before[begin]) - after

    def _while_repeating(self, c: _Candidate, there: int) -> int:
        """The most bytes that live while a value is made again.

        Args:
            there: bytes at its next reader.
        """
        lives = self.lives
        last = {lives.root[v]: k for k, n in enumerate(c.chain) for v in n.inputs}
        most = now = 0
        for k, n in enumerate(c.chain):
            now += sum(lives.size(v) for v in n.outputs)
            most = max(most, now + rounded(self.scratch.get(n, 0)))
            now -= sum(lives.size(v) for m in c.chain[:k] for v in m.outputs if last.get(v) == k)
        # what the reader makes is not there yet
        made = sum(lives.size(v) for v in lives.nodes[c.at].outputs if v in lives.inside)
        return there - lives.size(c.value) - made + most

    def _cost(self, node: Node) -> float:
        if is_view(node, self.parts):
            return 0.0
        original = self.origin.get(node, node)
        if original not in self.costs:
            self.costs[original] = self.seconds(original)
        return self.costs[original]

    def _repeat(self, c: _Candidate) -> None:
        """Puts the nodes of a candidate before the reader, which and all later ones get what they make."""
        lives = self.lives
        new: dict[Value, Value] = {}
        added: list[Node] = []
        scratch = dict(self.scratch)
        again = set(c.chain)
        names = {v.name for n in lives.nodes for v in n.outputs}

        def repeated(v: Value) -> Value:
            """What stands for a value from there on."""
            stack = [v]
            while stack:
                node = lives.makers.get(stack[-1])
                if node is None or stack[-1] in new or lives.makers.get(lives.root[stack[-1]]) not in again:
                    new.setdefault(stack[-1], stack[-1])
                    stack.pop()
                    continue
                missing = [u for u in node.inputs if u not in new]
                if missing:
                    stack += missing
                    continue
                outputs = tuple(Value(_fresh(u.name, names), u.type) for u in node.outputs)
                copy = Node(node.op, tuple(new[u] for u in node.inputs), node.attrs, outputs, node.sources)
                new.update(zip(node.outputs, outputs, strict=True))
                added.append(copy)
                self.origin[copy] = self.origin.get(node, node)
                if node in scratch:
                    scratch[copy] = scratch[node]
                if node in self.parts:
                    self.parts.add(copy)
                stack.pop()
            return new[v]

        group = set(lives.values[c.value])
        tail: list[Node] = []
        renamed: dict[Node, Node] = {}
        for node in lives.nodes[c.at :]:
            if not group.isdisjoint(node.inputs):
                early = [v for v in node.inputs if v in group and lives.position[lives.makers[v]] < c.at]
                given = {v: repeated(v) for v in early}
                changed = Node(
                    node.op, tuple(given.get(v, v) for v in node.inputs), node.attrs, node.outputs, node.sources
                )
                renamed[node] = changed
                self.origin[changed] = self.origin.get(node, node)
                node = changed
            tail.append(node)
        for old, changed in renamed.items():
            if old in scratch:
                scratch[changed] = scratch.pop(old)
            if old in self.parts:
                self.parts.add(changed)
        self.graph = replace(self.graph, nodes=(*lives.nodes[: c.at], *added, *tail))
        self.scratch = scratch
        over = {p.node for p in self.plan.in_place}
        moved = tuple(replace(p, node=renamed[p.node]) for p in self.plan.in_place if p.node in renamed)
        if over & set(renamed):
            self.plan = replace(self.plan, in_place=(*self.plan.in_place, *moved))
        self.lives = _Lives(self.graph, self.parts, self.plan, scratch)


def _fresh(name: str, names: set[str]) -> str:
    k, found = 0, f"{name}.again"
    while found in names:
        k += 1
        found = f"{name}.again{k}"
    names.add(found)
    return found
