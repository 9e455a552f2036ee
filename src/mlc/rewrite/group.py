"""Groups: nodes whose operator is a graph of its own, compiled to one kernel.

A group's body holds its constants of one element; everything else it reads is an input. The one operator of each fusion
kind is called ``group``; its type rule and its expression are those of the body, so that the interpreters, the layouts
and the schedules need not know that it was fused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Const, Expr, Load, const, replace_loads
from mlc.ir.graph import Attrs, FusionKind, Graph, Node, Operator, Value, express, verify
from mlc.ir.loop import Buffer
from mlc.ir.order import post_order
from mlc.ir.printer import compute_text, stmt_text
from mlc.ir.types import TensorType
from mlc.ops.registry import is_core
from mlc.rewrite.keys import attrs_key, content_digest

MAX_NAME = 64
VIEWS = ("reshape", "identity")


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    body: Graph = attrs["body"]
    wanted = [v.type for v in body.inputs]
    if [(t.shape, t.dtype) for t in types] != [(t.shape, t.dtype) for t in wanted]:
        given = ", ".join(map(str, types))
        raise VerifyError(f"group {body.name}: takes ({', '.join(map(str, wanted))}), given ({given})")
    verify(body)
    return [v.type for v in body.outputs]


def _express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    body: Graph = attrs["body"]
    env: dict[Value, te.Tensor] = dict(zip(body.inputs, inputs, strict=True))
    numbers: dict[int, Const] = {}
    for v, array in body.constants.items():
        tensor = te.placeholder(v.type.shape, v.type.dtype, v.name)
        env[v] = tensor
        numbers[id(tensor)] = const(array.reshape(-1)[0].item(), v.type.dtype)
    for node in body.nodes:
        env.update(zip(node.outputs, express(node, [env[v] for v in node.inputs]), strict=True))
    return _with_numbers([env[v] for v in body.outputs], numbers)


def _with_numbers(outputs: Sequence[te.Tensor], numbers: dict[int, Const]) -> Sequence[te.Tensor]:
    """The same expressions with literals in place of loads from the tensors in ``numbers`` (by ``id``)."""
    if not numbers:
        return outputs
    new: dict[int, te.Tensor] = {}

    def load(e: Load) -> Expr:
        number = numbers.get(id(e.source))
        if number is not None:
            return number
        source = new.get(id(e.source), e.source)
        return e if source is e.source else Load(source, e.indices)

    for op in te.topological(outputs):
        bodies = tuple(replace_loads(b, load) for b in op.bodies)
        if all(a is b for a, b in zip(bodies, op.bodies, strict=True)):
            continue
        copy = te.Compute(op.name, op.axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs)
        new.update({id(old): t for old, t in zip(op.outputs, te.finish(copy), strict=True)})
    return [new.get(id(t), t) for t in outputs]


GROUPS = {
    kind: Operator(
        "group", kind, _infer, _express, attrs={"body": ..., "anchor": "", "alias": False, "config": (), "device": ""}
    )
    for kind in (FusionKind.INJECTIVE, FusionKind.REDUCTION, FusionKind.COMPLEX)
}


def is_group(node: Node) -> bool:
    """Whether a node is a group (of one operator or more)."""
    return GROUPS.get(node.op.kind) is node.op


def body_of(node: Node) -> Graph:
    """The body of a group.

    Raises:
        VerifyError: the node is none.
    """
    if not is_group(node):
        raise VerifyError(f"{node.op.name} is no group")
    body: Graph = node.attrs["body"]
    return body


def make_group(
    nodes: Sequence[Node], constants: dict[Value, np.ndarray], number: int, results: Sequence[Value] = ()
) -> Node:
    """One group node in place of ``nodes``.

    Args:
        nodes: what it computes.
        constants: those of the graph; of one element, they move into the body.
        number: for the name, ``g<number>_<operators>``.
        results: those that are read elsewhere; the last node's unless given.
    """
    results = tuple(results) or nodes[-1].outputs
    ordered = _canonical_order(results, set(nodes))
    inside: dict[Value, Value] = {}
    outer_inputs: list[Value] = []
    body_inputs: list[Value] = []
    body_constants: dict[Value, np.ndarray] = {}
    body_nodes: list[Node] = []

    literals: dict[tuple[TensorType, bytes], Value] = {}  # equal ones are one

    def inner(v: Value) -> Value:
        if v not in inside:
            array = constants.get(v)
            if array is not None and array.size == 1 and v.type.layout is None:
                inside[v] = literals.setdefault((v.type, array.tobytes()), Value(v.name, v.type))
                body_constants[inside[v]] = array
            else:
                inside[v] = Value(v.name, v.type)
                outer_inputs.append(v)
                body_inputs.append(inside[v])
        return inside[v]

    for node in ordered:
        ins = tuple([inner(v) for v in node.inputs])
        outs = tuple([Value(v.name, v.type) for v in node.outputs])
        inside.update(zip(node.outputs, outs, strict=True))
        body_nodes.append(Node(node.op, ins, node.attrs, outs, node.sources))
    kind = max((n.op.kind for n in ordered), key=list(GROUPS).index)
    anchor = next((n.op.name for n in ordered if n.op.kind is kind and kind is not FusionKind.INJECTIVE), "")
    name = group_name(number, [n.op.name for n in ordered])
    body = Graph(name, tuple(body_inputs), tuple(inside[v] for v in results), tuple(body_nodes), body_constants)
    alias = all(n.op.name in VIEWS and is_core(n.op) for n in ordered) and len(outer_inputs) == 1
    sources = tuple(dict.fromkeys(s for n in nodes for s in n.sources))
    attrs = {"body": body, "anchor": anchor, "alias": alias, "config": (), "device": ""}
    return Node(GROUPS[kind], tuple(outer_inputs), attrs, results, sources)


def _canonical_order(results: Sequence[Value], members: Collection[Node]) -> list[Node]:
    """Members in depth-first order from the results, so that equal groups list their nodes alike."""
    makers = {v: n for n in members for v in n.outputs}
    return post_order([makers[v] for v in results], lambda node: [makers[v] for v in node.inputs if v in makers])


def group_name(number: int, operators: Sequence[str]) -> str:
    """``g<number>_<operators>`` in ``[a-z0-9_]``, at most ``MAX_NAME`` characters; the number makes it unique."""
    words = [re.sub(r"[^a-z0-9_]", "_", name.lower()) for name in operators]
    return "_".join([f"g{number}", *words])[:MAX_NAME].rstrip("_")


def is_reshape(node: Node) -> bool:
    """Whether a node is a lone reshape."""
    return is_group(node) and bool(node.attrs["alias"])


def is_alias(node: Node) -> bool:
    """Whether a node's result may be its operand's memory: a lone reshape between row-major tensors."""
    if not is_reshape(node):
        return False
    return node.inputs[0].type.layout is None and node.outputs[0].type.layout is None


# -- keys -----------------------------------------------------------------------------------------------------------
def group_key(node: Node) -> str:
    """A text that two nodes share exactly when one kernel serves both, whatever their values are called.

    It holds the operators with their attributes, types with layouts, wiring and literal constants. A user's own
    operator is told by its expressions, so that the key means the same in every process. Nodes that are no groups
    (opaque routines, layout conversions) have keys too.
    """
    lines = [f"({', '.join(str(v.type) for v in node.inputs)}) -> ({', '.join(str(v.type) for v in node.outputs)})"]
    if not is_group(node):
        return "\n".join([*lines, _node_key(node, _numbering(node.inputs))])
    if node.attrs["config"]:
        lines.append(f"configured {node.attrs['config']}")
    return "\n".join([*lines, *_body_lines(node)])


def configured(node: Node, config: Mapping[str, Hashable]) -> Node:
    """A group with a configuration for its layouts and its schedule."""
    attrs = {**node.attrs, "config": tuple(sorted(config.items()))}
    return Node(node.op, node.inputs, attrs, node.outputs, node.sources)


def config_of(node: Node) -> dict[str, Any]:
    """The configuration of a node; empty where it has none."""
    return dict(node.attrs.get("config", ()))


def device_of(node: Node) -> str:
    """The device that runs a group, with a digest of its options; empty for the host."""
    device: str = node.attrs.get("device", "")
    return device


def on_device(group: Node, device: str) -> Node:
    """The group as one that a device runs; see :func:`device_of`."""
    return Node(group.op, group.inputs, {**group.attrs, "device": device}, group.outputs, group.sources)


def identity_of(node: Node) -> tuple[str, ...]:
    """What tells a group from all others of its graph: names of its results, after the device's if one runs it.

    A region's results bear the same names inside as those of the host that are copied from them.
    """
    return (*((device_of(node),) if device_of(node) else ()), *(v.name for v in node.outputs))


def _body_lines(node: Node) -> list[str]:
    lines = []
    body = body_of(node)
    names = _numbering(body.inputs)
    for v, array in body.constants.items():
        names[v] = f"{v.type}:{content_digest(array)}"
    for inner in body.nodes:
        lines.append(_node_key(inner, names))
        names.update({v: f"%{len(names) + k}" for k, v in enumerate(inner.outputs)})
    return [*lines, f"return {', '.join(names[v] for v in body.outputs)}"]


def _numbering(values: Sequence[Value]) -> dict[Value, str]:
    names: dict[Value, str] = {}
    for v in values:
        names.setdefault(v, f"%{len(names)}")
    return names


def _node_key(node: Node, names: dict[Value, str]) -> str:
    types = ", ".join(str(v.type) for v in node.outputs)
    args = ", ".join(names[v] for v in node.inputs)
    return f"{operator_key(node)}({args}) {attrs_key(node.attrs)} -> {types}"


def operator_key(node: Node) -> str:
    """An operator's name, with its meaning where it is not one of the table's."""
    op = node.op
    if is_core(op):
        return op.name
    if op.routine is not None:
        ins, outs = (
            tuple(Buffer(f"{what}{k}", v.type.physical_shape, v.type.dtype) for k, v in enumerate(values))
            for what, values in (("in", node.inputs), ("out", node.outputs))
        )
        return f"{op.name}<{stmt_text(op.routine(ins, outs, node.attrs))}>"
    operands = [te.placeholder(v.type.shape, v.type.dtype, f"in{k}") for k, v in enumerate(node.inputs)]
    numbers = {id(t): k for k, t in enumerate(operands)}
    texts = []
    for stage in te.topological(express(node, operands)):
        # stages may share a name, so what each reads is told by number too
        texts.append(f"{compute_text(stage)} of {[numbers[id(t)] for t in stage.inputs]}{_fold_text(stage)}")
        numbers.update({id(t): len(numbers) + k for k, t in enumerate(stage.outputs)})
    return f"{op.name}<{'; '.join(texts)}>"


def _fold_text(stage: te.Compute) -> str:
    """What a user's own combiner says: its name tells nothing."""
    if stage.combiner is None or stage.combiner in te.COMBINERS.values():
        return ""
    return f" by {te.fold_of(stage.combiner, [b.dtype for b in stage.bodies])!r}"
