"""What a float model computes on samples, tensor by tensor, those within recurrences included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import TensorType
from mlc.rewrite.quantization.ranges import Distribution
from mlc.rewrite.recurrence import body_of_scan, is_scan

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], Arrays]


def tapped(graph: Graph, values: Sequence[Value], prefix: str = "tap") -> Graph:
    """The graph with values as results after its own, named ``prefix`` and their position.

    A value within a recurrence gives what it is in all rounds, along a new first axis.
    """
    graph, found = _surfaced(graph, set(values))
    names = tuple(f"{prefix}{k}" for k in range(len(values)))
    outputs = (*graph.outputs, *(found.get(v, v) for v in values))
    return Graph(graph.name, graph.inputs, outputs, graph.nodes, graph.constants, (*graph.output_names, *names))


def _surfaced(graph: Graph, wanted: Collection[Value]) -> tuple[Graph, dict[Value, Value]]:
    """The graph with rows gathered of all values that are wanted of its recurrences; what stands for them."""
    found: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if not is_scan(node):
            nodes.append(node)
            continue
        body, inner = _surfaced(body_of_scan(node), wanted)
        own = {*body.inputs, *(v for n in body.nodes for v in n.outputs)} & set(wanted)
        rows = {**inner, **{v: v for v in sorted(own, key=lambda v: v.name)}}
        taps = tuple(f"tap.{len(body.outputs) + k}" for k in range(len(rows)))
        body = Graph(
            body.name, body.inputs, (*body.outputs, *rows.values()), body.nodes, body.constants,
            (*body.output_names, *taps),
        )  # fmt: skip
        rounds = node.attrs["rounds"]
        made = tuple(
            Value(f"{node.outputs[0].name}.{v.name}", TensorType((rounds, *v.type.shape), v.type.dtype))
            for v in rows.values()
        )
        backwards = (*node.attrs["backwards"], *(False for _ in rows))
        attrs = {**node.attrs, "body": body, "backwards": backwards}
        nodes.append(Node(node.op, node.inputs, attrs, (*node.outputs, *made), node.sources))
        found.update(zip(rows, made, strict=True))
    if not found:
        return graph, {}
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), graph.constants, graph.output_names), found


def calibrate(
    run: Run,
    values: Mapping[str, Value],
    samples: Sequence[Arrays],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Value, Distribution]:
    """How the numbers of ``values`` are distributed.

    Args:
        run: the float model.
        values: some of its values, in f32, by the names of the results that they are.
        samples: inputs by name, a mapping a sample.
        progress: told how many samples of how many are done.
    Raises:
        UsageError: there is no sample, or a value becomes infinite or NaN on one.
    """
    if not samples:
        raise UsageError("there are no samples to calibrate with", hint="give some tens of typical inputs")
    found = {v: Distribution() for v in values.values()}
    for k, sample in enumerate(samples):
        results = run(sample)
        for name, v in values.items():
            numbers = results[name]
            if not np.isfinite(numbers).all():
                raise UsageError(
                    f"calibration: {v.name} becomes infinite or NaN on sample {k}", hint="check the samples' values"
                )
            found[v].add(numbers)
        progress(k + 1, len(samples))
    return found
