"""Gradients of graphs: from a result back to what it depends on, node by node, added to the graph itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from mlc.define.expressions import add_expressions
from mlc.errors import MlcError
from mlc.ir import te
from mlc.ir.graph import Builder, Node, Value, express
from mlc.ops import get
from mlc.ops.registry import is_core
from mlc.ops.scan import SCAN
from mlc.training.autodiff.expression import gradients
from mlc.training.convolutions import add_convolution_gradients, seen_in
from mlc.training.recurrence import add_scan_gradients
from mlc.training.rules import RULES, require_expression


def add_gradients(
    g: Builder,
    seeds: Sequence[tuple[Value, Value]],
    wanted: Sequence[Value],
    *,
    constant: Collection[Value] = (),
    as_derived: bool = False,
) -> list[Value | None]:
    """Appends the derivatives by some values to a graph that is being built.

    Args:
        g: the graph; all of its nodes so far count.
        seeds: values, with the derivatives by them.
        wanted: inputs, constants or results on the way; of float types.
        constant: results on the way that count as constants.
        as_derived: sums stay as they are derived, also where schedules know a better spelling.
    Returns:
        one a wanted value, of its type; ``None`` where no seeded value depends on it.
    Raises:
        UnsupportedError: an operator on the way has no gradient; it is named.
    """
    needed = set(wanted)
    for node in g.nodes:
        if any(v in needed for v in node.inputs):
            needed.update(v for v in node.outputs if v.type.dtype.is_float and v not in constant)
    received: dict[Value, Value] = {}

    def receive(v: Value, part: Value | None) -> None:
        if part is None or v not in needed:
            return
        old = received.get(v)
        received[v] = part if old is None else g.add(get("add"), [old, part], names=[f"d{v.name}"])[0]

    for value, seed in seeds:
        receive(value, seed)
    for node in reversed(list(g.nodes)):
        if not any(v in needed for v in node.inputs):
            continue
        of_results = [received.get(v) for v in node.outputs]
        if all(d is None for d in of_results):
            continue
        try:
            parts = _of_node(g, node, of_results, needed, as_derived)
        except MlcError as error:
            error.add_note(f"in the gradient of {node.op.name} {', '.join(node.sources)}")
            raise
        for v, part in zip(node.inputs, parts, strict=True):
            receive(v, part)
    return [received.get(v) for v in wanted]


def _of_node(
    g: Builder, node: Node, received: Sequence[Value | None], needed: set[Value], as_derived: bool
) -> Sequence[Value | None]:
    """What the operands of a node receive from its results."""
    rule = RULES.get(node.op.name) if is_core(node.op) else None
    if rule is not None:
        return rule(g, node, received)
    if node.op is SCAN:
        wanted = [v in needed and v.type.dtype.is_float for v in node.inputs]
        derive = partial(add_gradients, as_derived=as_derived)
        return add_scan_gradients(g, node, received, wanted, derive)
    require_expression(node)
    asked = [k for k, v in enumerate(node.inputs) if v in needed and v.type.dtype.is_float]
    seen = None if as_derived else seen_in(node)
    if seen is not None and received[0] is not None:
        return add_convolution_gradients(g, node, seen, received[0], [k in asked for k in range(len(node.inputs))])
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    results = list(express(node, operands))
    seeds = [
        None if v is None else te.placeholder(v.type.shape, v.type.dtype, f"d{t.name}")
        for t, v in zip(results, received, strict=True)
    ]
    known = {id(t): v for t, v in zip(operands, node.inputs, strict=True)}
    known |= {id(t): v for t, v in zip(results, node.outputs, strict=True)}
    known |= {id(t): v for t, v in zip(seeds, received, strict=True) if t is not None and v is not None}
    found = gradients(results, seeds, [operands[k] for k in asked])
    made = iter(add_expressions(g, [t for t in found if t is not None], known, node.sources))
    values = {k: None if t is None else next(made) for k, t in zip(asked, found, strict=True)}
    return [values.get(k) for k in range(len(node.inputs))]
