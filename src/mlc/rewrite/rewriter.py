"""Rebuilding a graph node by node: the one walker behind every rewriting pass.

A :class:`Rewriter` replays a graph in its order. A pass decides for each node whether it stays or which values stand
for its results; new nodes are folded, numbered (an equal one is found again) and simplified as they are made. Uses are
counted all along, so that a rule may ask whether a value is used once, and what loses its last use disappears. Work is
linear in the graph and never recursive in its depth. What did not change keeps its ``Node`` and ``Value`` objects, and
a graph in which nothing changed comes back itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.ir.graph import Attrs, Graph, Node, Operator, Value, fill_attrs
from mlc.ir.types import DType, TensorType, dtype_of
from mlc.rewrite.evaluate import evaluate
from mlc.rewrite.keys import call_key

# A rule may make nodes that other rules simplify in turn; this bounds how deep that goes, whatever the rules do.
MAX_DEPTH = 16

# candidate node -> values that stand for its outputs, or None to leave it alone
Visit = Callable[["Rewriter", Node], Sequence[Value] | None]


@dataclass
class _Step:
    """What happens while one node of the old graph is looked at."""

    node: Node
    fresh: dict[Value, None] = field(default_factory=dict)
    doubtful: list[Value] = field(default_factory=list)  # values that may have lost their last use


class Rewriter:
    """A graph under construction beside the one it replaces.

    Args:
        graph: the graph to replay.
        simplify: tried on every node that :meth:`emit` makes.
    """

    def __init__(self, graph: Graph, simplify: Visit | None = None) -> None:
        self.graph = graph
        self.changed = False
        self._simplify = simplify
        self._depth = 0
        self._env: dict[Value, Value] = {}
        self._nodes: dict[Node, Hashable] = {}  # in order, each with its number
        self._makers: dict[Value, Node] = {}
        self._numbers: dict[Hashable, Node] = {}
        self._constants = dict(graph.constants)
        self._folded: dict[Hashable, list[Value]] = {}  # what was computed from constants, to be found again
        self._old_uses = Counter(v for n in graph.nodes for v in n.inputs)
        self._old_uses.update(graph.outputs)
        self._uses: Counter[Value] = Counter({v: self._old_uses[v] for v in (*graph.inputs, *graph.constants)})
        self._names = {v.name for v in (*graph.inputs, *graph.constants)}
        self._names.update(v.name for n in graph.nodes for v in n.outputs)
        self._more_sources: dict[Node, tuple[str, ...]] = {}
        self._step: _Step | None = None
        # names of the model's nodes that what is emitted now stands for
        self.sources: tuple[str, ...] = ()

    # -- questions ----------------------------------------------------------------------------------------------
    def lookup(self, value: Value) -> Value:
        """What stands for a value of the old graph."""
        return self._env.get(value, value)

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value of the new graph; ``None`` for inputs and constants."""
        return self._makers.get(value)

    def constant(self, value: Value) -> np.ndarray | None:
        """The logical array of a constant; ``None`` when the value is none, or is stored in a layout of its own."""
        return self._constants.get(value) if value.type.layout is None else None

    def uses(self, value: Value) -> int:
        """Operands and graph outputs that read the value, those still to be replayed included."""
        return self._uses[value]

    def find(self, node: Node) -> Node | None:
        """An equal node that exists already."""
        return self._numbers.get(call_key(node.op, node.inputs, node.attrs))

    # -- actions ------------------------------------------------------------------------------------------------
    def emit(
        self,
        op: Operator,
        inputs: Sequence[Value],
        attrs: Attrs | None = None,
        *,
        sources: tuple[str, ...] | None = None,
    ) -> Value:
        """A new application of a one-output operator: folded when all operands are known, found again when an equal one
        exists, simplified by the rules.

        Args:
            op: the operator.
            inputs: operands.
            attrs: attributes that differ from the defaults.
            sources: the model's nodes that it stands for; those of this step unless given.
        Raises:
            VerifyError: the call is mistyped.
        """
        before = self.sources
        if sources is not None:
            self.sources = sources
        (out,) = self._emit(op, inputs, attrs)
        self.sources = before
        return out

    def _emit(self, op: Operator, inputs: Sequence[Value], attrs: Attrs | None) -> Sequence[Value]:
        ins, full = tuple(inputs), fill_attrs(op, attrs or {})
        types = op.infer([v.type for v in ins], full)
        base = self._step.node.outputs[0].name if self._step is not None else op.name
        outs = tuple(Value("", t) for t in types)
        node = Node(op, ins, full, outs, self.sources)
        known = [self.constant(v) for v in ins]
        if known and all(a is not None for a in known):
            key = call_key(op, ins, full)
            if key not in self._folded:
                arrays = evaluate(node, [a for a in known if a is not None])
                if arrays is not None:
                    self._folded[key] = [self.new_constant(a, base) for a in arrays]
            if key in self._folded:
                return self._folded[key]
        same = self.find(node)
        if same is not None:
            return same.outputs
        self._uses.update(ins)
        if self._simplify is not None and self._depth < MAX_DEPTH:
            self._depth += 1
            values = self._simplify(self, node)
            self._depth -= 1
            if values is not None:
                self._release(ins)
                return values
        for v in outs:
            v.name = self._unique(base)
        self._add(node)
        if self._step is not None:
            self._step.fresh.update(dict.fromkeys(outs))
            self._step.doubtful += outs
        return outs

    def call(self, value: Value, name: str) -> None:
        """Give a value that this step has made a name, unless it is taken."""
        if self._step is not None and value in self._step.fresh and name not in self._names:
            self._names.add(name)
            value.name = name

    def new_constant(self, array: np.ndarray, name: str = "const", dtype: DType | None = None) -> Value:
        """A new constant, of the array's element type unless given; equal ones are not merged here."""
        array = np.asarray(array)
        value = Value(self._unique(name), TensorType(tuple(array.shape), dtype or dtype_of(array.dtype)))
        self._constants[value] = array
        if self._step is not None:
            self._step.fresh[value] = None
        return value

    def visit(self, node: Node, visit: Visit, *, keep_sources: bool = False) -> None:
        """Replay one node of the old graph.

        Args:
            node: the next node.
            visit: decides what becomes of it.
            keep_sources: a node that stands for this one as well takes over the names of its sources.
        """
        ins = tuple([self.lookup(v) for v in node.inputs])
        same = all(a is b for a, b in zip(ins, node.inputs, strict=True))
        candidate = node if same else Node(node.op, ins, node.attrs, node.outputs, node.sources)
        self._step = _Step(candidate)
        self.sources = candidate.sources
        values = visit(self, candidate)
        if values is None:
            self.changed |= not same
            for v in node.outputs:
                self._uses[v] = self._old_uses[v]
            self._add(candidate)
        else:
            self._replace(candidate, values)
            self._release(ins)
            if keep_sources:
                self._note_sources(values[0], node.sources)
        self._drop_dead()
        self._step = None

    def claim_sources(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Let what is emitted from now on for this node stand for ``nodes`` too; gives the sources of before."""
        before = self.sources
        self.sources = tuple(dict.fromkeys([*(s for n in nodes for s in n.sources), *before]))
        return before

    def finish(self) -> Graph:
        """The new graph; the old one itself when nothing changed."""
        if not self.changed:
            return self.graph
        nodes = tuple(
            Node(n.op, n.inputs, n.attrs, n.outputs, tuple(dict.fromkeys((*n.sources, *self._more_sources[n]))))
            if n in self._more_sources
            else n
            for n in self._nodes
        )
        outputs = tuple(self.lookup(v) for v in self.graph.outputs)
        constants = {v: a for v, a in self._constants.items() if self._uses[v] > 0}
        return Graph(self.graph.name, self.graph.inputs, outputs, nodes, constants, self.graph.output_names)

    # -- bookkeeping --------------------------------------------------------------------------------------------
    def _add(self, node: Node) -> None:
        key = call_key(node.op, node.inputs, node.attrs)
        self._nodes[node] = key
        self._numbers.setdefault(key, node)
        for v in node.outputs:
            self._makers[v] = node

    def _replace(self, node: Node, values: Sequence[Value]) -> None:
        assert self._step is not None
        self.changed = True
        for old, new in zip(node.outputs, values, strict=True):
            assert (old.type.shape, old.type.dtype) == (new.type.shape, new.type.dtype), f"{node!r} became {new.type}"
            self._env[old] = new
            self._uses[new] += self._old_uses[old]
            self._step.doubtful.append(new)
            if new in self._step.fresh:
                # the model's own name, free now that `old` is gone
                del self._step.fresh[new]
                new.name = old.name

    def _release(self, values: Sequence[Value]) -> None:
        self._uses.subtract(values)
        if self._step is not None:
            self._step.doubtful += values

    def _drop_dead(self) -> None:
        assert self._step is not None
        stack = self._step.doubtful
        while stack:
            v = stack.pop()
            node = self._makers.get(v)
            if node is None or any(self._uses[o] > 0 for o in node.outputs):
                continue
            key = self._nodes.pop(node)
            if self._numbers.get(key) is node:
                del self._numbers[key]
            for o in node.outputs:
                del self._makers[o]
            self._uses.subtract(node.inputs)
            stack.extend(node.inputs)

    def _note_sources(self, value: Value, sources: tuple[str, ...]) -> None:
        node = self._makers.get(value)
        if node is not None and sources:
            self._more_sources[node] = (*self._more_sources.get(node, ()), *sources)

    def _unique(self, name: str) -> str:
        candidate, k = name, 0
        while candidate in self._names:
            k += 1
            candidate = f"{name}.{k}"
        self._names.add(candidate)
        return candidate


def replay(graph: Graph, visit: Visit, *, simplify: Visit | None = None, keep_sources: bool = False) -> Graph:
    """Replay every node through ``visit``; the same graph comes back when nothing changed.

    Args:
        graph: the graph to rewrite.
        visit: tried on every node, operands already replaced.
        simplify: tried on every node that ``visit`` makes through the rewriter.
        keep_sources: see :meth:`Rewriter.visit`.
    """
    rewriter = Rewriter(graph, simplify)
    for node in graph.nodes:
        rewriter.visit(node, visit, keep_sources=keep_sources)
    return rewriter.finish()
