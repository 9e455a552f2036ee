"""Dead code elimination.

Removes nodes that no output depends on, and constants that nothing reads. Graph inputs stay: they are the interface.

Stage in, stage out: any graph.

Example: in ``y = relu(x); z = exp(x); return y`` the node of ``z`` goes.
"""

from __future__ import annotations

from mlc.ir.graph import Graph


def eliminate_dead_code(graph: Graph) -> Graph:
    """The graph without what its outputs do not need."""
    live = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if any(v in live for v in node.outputs):
            kept.append(node)
            live.update(node.inputs)
    constants = {v: a for v, a in graph.constants.items() if v in live}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    nodes = tuple(reversed(kept))
    return Graph(graph.name, graph.inputs, graph.outputs, nodes, constants, graph.output_names)
