"""Reference interpreter of the graph: each node as its operator is defined, by an expression, a routine or in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.graph import Graph, Node, Value, express
from mlc.ir.interp.loop import run_function
from mlc.ir.interp.te import run_tensors
from mlc.ir.loop import Buffer, Function


def run_node(node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of one node."""
    if node.op.evaluate is not None:
        return list(node.op.evaluate(inputs, node.attrs))
    if node.op.routine is not None:
        ins = tuple(Buffer(f"in{k}", tuple(a.shape), v.type.dtype) for k, (a, v) in enumerate(zip(inputs, node.inputs)))  # noqa: B905
        outs = tuple(Buffer(f"out{k}", v.type.shape, v.type.dtype) for k, v in enumerate(node.outputs))
        body = node.op.routine(ins, outs, node.attrs)
        fn = Function(node.op.name, ins + outs, len(outs), body)
        results = [np.zeros(b.shape, b.dtype.numpy) for b in outs]
        run_function(fn, [*[np.asarray(a, order="C") for a in inputs], *results])
        return results
    tensors = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    outputs = express(node, tensors)
    return run_tensors(list(outputs), dict(zip(tensors, inputs, strict=True)))


def run_graph(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    watch: Callable[[Value, np.ndarray], None] | None = None,
) -> dict[str, np.ndarray]:
    """Outputs of the graph by name.

    Args:
        graph: a graph without physical layouts, or with them (values are logical either way).
        inputs: an array for each input, by name.
        watch: called with every computed value.
    Raises:
        VerifyError: an input is missing, or of another type.
    """
    env: dict[Value, np.ndarray] = dict(graph.constants)
    for v in graph.inputs:
        if v.name not in inputs:
            raise VerifyError(f"no value for input {v.name}")
        array = np.asarray(inputs[v.name])
        if tuple(array.shape) != v.type.shape or array.dtype != v.type.dtype.numpy:
            raise VerifyError(f"input {v.name}: is {array.dtype}{array.shape}, typed {v.type}")
        env[v] = array
    for v, array in graph.constants.items():
        if v.type.layout is not None:
            env[v] = v.type.layout.unpack(array)
    last: dict[Value, Node] = {v: n for n in graph.nodes for v in n.inputs}
    kept = set(graph.outputs)
    for node in graph.nodes:
        for v, array in zip(node.outputs, run_node(node, [env[v] for v in node.inputs]), strict=True):
            env[v] = array
            if watch is not None:
                watch(v, array)
        for v in set(node.inputs):
            if last[v] is node and v not in kept and v not in graph.constants:
                del env[v]
    return {name: env[v] for name, v in zip(graph.output_names, graph.outputs, strict=True)}
