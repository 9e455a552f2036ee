"""Gradients as people read them: for each distinct operator of a graph, what its operands receive from its results."""

from __future__ import annotations

from collections.abc import Iterator

from mlc.errors import UnsupportedError
from mlc.ir import te
from mlc.ir.graph import Builder, Graph, Node, express
from mlc.ir.printer import compute_text
from mlc.rewrite.group import group_key
from mlc.training.backward import add_gradients


def gradient_text(graph: Graph) -> str:
    """The derived gradient of every distinct operator, as tensor expressions; ``dx`` is the derivative by ``x``.

    Operators without float operands are left out; those without a gradient are told.
    """
    blocks, seen = [], set()
    for node in graph.nodes:
        key = group_key(node)
        if key in seen or not any(v.type.dtype.is_float for v in node.inputs):
            continue
        seen.add(key)
        blocks.append("\n".join(_block(node)))
    return "\n\n".join(blocks) + "\n"


def _block(node: Node) -> Iterator[str]:
    operands = ", ".join(f"{v.name}: {v.type}" for v in node.inputs)
    results = ", ".join(f"{v.name}: {v.type}" for v in node.outputs)
    yield f"# {node.op.name}({operands}) -> {results}" + (f"  # {', '.join(node.sources)}" if node.sources else "")
    g = Builder(node.op.name)
    ins = [g.input(v.name, v.type) for v in node.inputs]
    outs = g.add(node.op, ins, node.attrs, names=[v.name for v in node.outputs], sources=node.sources)
    seeds = [(v, g.input(f"d{v.name}", v.type)) for v in outs if v.type.dtype.is_float]
    variables = [v for v in dict.fromkeys(ins) if v.type.dtype.is_float]
    try:
        found = add_gradients(g, seeds, variables, as_derived=True)
    except UnsupportedError as error:
        yield f"# {error.message}"
        return
    for made in g.nodes[1:]:
        if made.op.express is None:
            given = [v.name for v in made.inputs] + [f"{k}={made.attrs[k]!r}" for k in sorted(made.attrs)]
            yield f"{', '.join(v.name for v in made.outputs)} = {made.op.name}({', '.join(given)})"
            continue
        stages = express(made, [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in made.inputs])
        for stage in te.topological(stages):
            yield compute_text(stage)
    for v, d in zip(variables, found, strict=True):
        if d is None:
            yield f"d{v.name} = 0"
        elif d in g.inputs:
            yield f"d{v.name} = {d.name}"
