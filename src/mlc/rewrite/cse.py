"""Common subexpression elimination.

Equal constants become one, then nodes of the same operator, operands and attributes. Every operator is a pure function,
so this is always right.

Stage in, stage out: any graph before fusion.

Example: ``a = relu(x); b = relu(x); return add(a, b)`` becomes ``a = relu(x); return add(a, a)``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mlc.ir.graph import Graph, Node, Value
from mlc.rewrite.keys import constant_hint, content_digest
from mlc.rewrite.rewriter import Rewriter, replay


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Compute equal values once; the first of them keeps its name and takes over the sources of the others."""
    return replay(merge_constants(graph), _find_equal, keep_sources=True)


def _find_equal(rw: Rewriter, node: Node) -> Sequence[Value] | None:
    same = rw.find(node)
    return None if same is None else same.outputs


def merge_constants(graph: Graph) -> Graph:
    """One constant for all of equal type, layout and bits; only such that may be equal are hashed."""
    candidates: dict[Hashable, list[Value]] = {}
    for v, array in graph.constants.items():
        candidates.setdefault(constant_hint(v.type, array), []).append(v)
    env: dict[Value, Value] = {}
    for group in candidates.values():
        if len(group) < 2:
            continue
        firsts: dict[str, Value] = {}
        for v in group:
            first = firsts.setdefault(content_digest(graph.constants[v]), v)
            if first is not v:
                env[v] = first
    if not env:
        return graph
    return Graph(
        graph.name,
        graph.inputs,
        tuple(env.get(v, v) for v in graph.outputs),
        tuple(_with_inputs(n, env) for n in graph.nodes),
        {v: a for v, a in graph.constants.items() if v not in env},
        graph.output_names,
    )


def _with_inputs(node: Node, env: dict[Value, Value]) -> Node:
    if not any(v in env for v in node.inputs):
        return node
    return Node(node.op, tuple(env.get(v, v) for v in node.inputs), node.attrs, node.outputs, node.sources)
