"""Structural checks of a model before anything is converted: names, scopes, versions, counts, nesting.

``onnx.checker`` is no gate (it accepts operator set 9999 and subgraphs that read what nobody makes), and it is C++ over
hostile data. These checks are linear in the size of the model and never recurse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.order import node_name, subgraphs
from mlc.frontend.onnx.schema import NEWEST_OPSET
from mlc.frontend.onnx.tensors import stored_bytes

NEWEST_IR = int(onnx.IR_VERSION)


def text(value: Any, what: str) -> str:
    """A string of the model; protobuf hands over bytes where it is no UTF-8.

    Raises:
        ImportModelError: it is no UTF-8.
    """
    if not isinstance(value, str):
        raise ImportModelError(f"{what} {value!r} is not UTF-8 text")
    return value


def _name(value: Any, what: str, limits: Limits) -> str:
    """A name of the model, of bounded length: it is repeated in messages, listings and whatever is made of a node.

    Raises:
        ImportModelError: it is no UTF-8, or beyond the limit ``name_length``.
    """
    if len(value) > limits.name_length:
        limits.check("name_length", len(value), f"{what} {value[:32]!r}...: characters")
    return text(value, what)


def normal_domain(domain: str) -> str:
    """``""`` for both spellings of the standard operators' domain."""
    return "" if domain == "ai.onnx" else domain


def read_opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    """Versions of operator sets, by domain.

    Raises:
        ImportModelError: a domain occurs twice with different versions, or a version is below 1.
        UnsupportedError: the standard operators in a version that is not known yet.
    """
    opsets: dict[str, int] = {}
    for entry in imports:
        domain = normal_domain(text(entry.domain, f"{where}: operator set"))
        version = int(entry.version)
        if version < 1:
            raise ImportModelError(f"{where}: operator set {domain or 'ai.onnx'!r} has version {version}")
        if opsets.setdefault(domain, version) != version:
            raise ImportModelError(f"{where}: operator set {domain or 'ai.onnx'!r} is imported in two versions")
    if opsets.get("", 1) > NEWEST_OPSET:
        raise UnsupportedError(
            f"{where}: uses operator set {opsets['']}, the newest known is {NEWEST_OPSET}",
            hint=f"export the model for operator set {NEWEST_OPSET} or older, or install a newer onnx package",
        )
    return opsets


def check_model(model: onnx.ModelProto, limits: Limits) -> dict[str, int]:
    """Check a model's structure.

    Returns:
        the versions of its operator sets by domain.
    Raises:
        ImportModelError: the first fault, with the node or tensor.
        UnsupportedError: a version of the format or of the operators that is too new.
    """
    if model.ir_version < 1:
        raise ImportModelError("the model has no format version (ir_version)")
    if model.ir_version > NEWEST_IR:
        raise UnsupportedError(
            f"the model's format version (ir_version) is {model.ir_version}, the newest known is {NEWEST_IR}",
            hint="export the model for an older version, or install a newer onnx package",
        )
    opsets = read_opsets(model.opset_import, "the model")
    if model.ir_version < 3 and not opsets:
        opsets[""] = 1  # the first formats had no imports
    for what, value in (("producer", model.producer_name), ("version of the producer", model.producer_version)):
        text(value, what)
    for entry in model.metadata_props:
        text(entry.key, "metadata key")
        text(entry.value, f"metadata {entry.key!r}")
    stored = len(model.graph.initializer) + len(model.graph.sparse_initializer)
    arguments = max(0, len(model.graph.input) - stored) + len(model.graph.output)
    limits.check("arguments", arguments, "inputs and outputs of the model")
    count = _check_graph(model.graph, limits)
    for function in model.functions:
        count += _check_function(function, limits)
    limits.check("nodes", count, "nodes in the model")
    limits.check("external_bytes", _external_bytes(model), "external data of the model")
    return opsets


def _external_bytes(model: onnx.ModelProto) -> int:
    """What the tensors that lie outside the model take by their shapes, before any is read."""
    total = 0
    bodies: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        attributes = [a for node in body.node for a in node.attribute]
        tensors = [t for a in attributes for t in (a.t, *a.tensors)]
        sparse = [s for a in attributes for s in (a.sparse_tensor, *a.sparse_tensors)]
        if isinstance(body, onnx.GraphProto):
            tensors += body.initializer
            sparse += body.sparse_initializer
        tensors += [t for s in sparse for t in (s.values, s.indices)]
        total += sum(stored_bytes(t) for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL)
        bodies += [g for node in body.node for g in subgraphs(node)]
    return total


@dataclass(frozen=True)
class _Body:
    """A list of nodes and the names that it knows; ``outer`` is the body around it, for subgraphs."""

    nodes: Sequence[onnx.NodeProto]
    outputs: tuple[str, ...]
    outer: _Body | None
    depth: int
    where: str
    known: set[str] = field(default_factory=set)


def _check_graph(graph: onnx.GraphProto, limits: Limits) -> int:
    limits.check("nodes", len(graph.initializer) + len(graph.input), "inputs and initializers")
    return _check_bodies(_graph_body(graph, None, "the graph", limits), limits)


def _check_function(function: onnx.FunctionProto, limits: Limits) -> int:
    name = _name(function.name, "function", limits)
    where = f"function {name!r}"
    read_opsets(function.opset_import, where)
    given = [_name(n, f"{where}: input", limits) for n in function.input]
    outputs = tuple(_name(n, f"{where}: output", limits) for n in function.output)
    if len(set(given)) < len(given):
        raise ImportModelError(f"{where}: two inputs have one name")
    return _check_bodies(_Body(function.node, outputs, None, 0, where, set(given)), limits)


def _graph_body(graph: onnx.GraphProto, outer: _Body | None, where: str, limits: Limits) -> _Body:
    _name(graph.name, f"{where}: name", limits)
    inputs = [_name(v.name, f"{where}: input", limits) for v in graph.input]
    stored = [_name(t.name, f"{where}: initializer", limits) for t in graph.initializer]
    stored += [_name(t.values.name, f"{where}: sparse initializer", limits) for t in graph.sparse_initializer]
    for what, names in (("inputs", inputs), ("initializers", stored)):
        twice = _first_duplicate(names)
        if twice is not None:
            raise ImportModelError(f"{where}: two {what} are called {twice!r}")
    if "" in inputs or "" in stored:
        raise ImportModelError(f"{where}: an input or initializer has no name")
    outputs = tuple(_name(v.name, f"{where}: output", limits) for v in graph.output)
    twice = _first_duplicate(list(outputs)) if outer is None else None  # a body may give one value twice
    if twice is not None:
        raise ImportModelError(f"{where}: two outputs are called {twice!r}")
    for v in (*graph.input, *graph.output):
        for d in v.type.tensor_type.shape.dim:
            _name(d.dim_param, f"{where}: tensor {v.name!r}: dimension", limits)
    known = {*inputs, *stored}
    depth = 0 if outer is None else outer.depth + 1
    return _Body(graph.node, outputs, outer, depth, where, known)


def _check_bodies(first: _Body, limits: Limits) -> int:
    """Check a body and all that it contains; gives the number of nodes."""
    count = 0
    stack = [first]
    while stack:
        body = stack.pop()
        limits.check("depth", body.depth, f"{body.where}: nesting of subgraphs")
        # asked before anything is looked at: a file of tiny nodes is small for what it holds
        count += len(body.nodes)
        limits.check("nodes", count, "nodes in the model")
        nodes = list(body.nodes)
        for k, node in enumerate(nodes):
            _check_node(node, node_name(node, k), body, limits)
        for k, node in enumerate(nodes):
            where = f"node {node_name(node, k)!r}"
            for name in node.input:
                if not _visible(name, body):
                    raise ImportModelError(f"{where} ({node.op_type}): reads {name!r}, which nothing makes")
            stack += [_graph_body(g, body, f"{where}: subgraph", limits) for g in subgraphs(node)]
        for name in body.outputs:
            if not _visible(name, body) or not name:
                raise ImportModelError(f"{body.where}: output {name!r} is never made")
    return count


def _check_node(node: onnx.NodeProto, name: str, body: _Body, limits: Limits) -> None:
    where = f"node {_name(name, 'node', limits)!r}"
    for value in (node.op_type, node.domain, node.overload, *node.input):
        _name(value, f"{where}: name", limits)
    if not node.op_type:
        raise ImportModelError(f"{where}: has no operator")
    for attr in node.attribute:
        _name(attr.name, f"{where}: attribute", limits)
        _name(attr.ref_attr_name, f"{where}: attribute {attr.name!r}", limits)
    twice = _first_duplicate([a.name for a in node.attribute])
    if twice is not None:
        raise ImportModelError(f"{where} ({node.op_type}): attribute {twice!r} occurs twice")
    for output in node.output:
        if _name(output, f"{where}: output", limits) in body.known and output:
            raise ImportModelError(f"{where} ({node.op_type}): makes {output!r}, which exists already")
        body.known.add(output)


def _visible(name: str, body: _Body | None) -> bool:
    if not name:
        return True
    while body is not None:
        if name in body.known:
            return True
        body = body.outer
    return False


def _first_duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def opset_of(domain: str, opsets: Mapping[str, int]) -> int:
    """The version in which a node's domain is imported.

    Raises:
        ImportModelError: it is not imported.
    """
    version = opsets.get(normal_domain(domain))
    if version is None:
        raise ImportModelError(f"the model imports no operator set {domain or 'ai.onnx'!r}")
    return version
