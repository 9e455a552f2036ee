"""An imported model as JSON, without its weights, and back; see :mod:`mlc.ops.document` for what graphs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import fields as fields_of
from math import prod
from typing import Any

import numpy as np

from mlc.errors import DocumentError, ImportModelError, MlcError, UnsupportedError
from mlc.frontend.base import FixedInput, ImportedModel, ModelSource, TensorInfo
from mlc.frontend.limits import Limits
from mlc.ir.graph import Graph, Node, Value, verify
from mlc.ir.types import ALL_DTYPES
from mlc.ops import get
from mlc.ops.document import (
    fields,
    index,
    items,
    node_to_json,
    numbered,
    read_call,
    read_type,
    require_types,
    text,
    type_to_json,
    wrong,
)
from mlc.ops.random import seed_of


def model_to_json(model: ImportedModel) -> dict[str, Any]:
    """The model as JSON values.

    Raises:
        UnsupportedError: see ``mlc.frontend.saved.encode_model``.
    """
    return {"source": _source_to_json(model.source), **_graph_to_json(model.graph)}


def _graph_to_json(graph: Graph) -> dict[str, Any]:
    """A graph; those among its nodes' attributes, the bodies of recurrences, alike, with numbers of their own."""
    numbers = numbered([*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)])
    return {
        "name": graph.name,
        "inputs": [_value_to_json(v) for v in graph.inputs],
        "constants": [_value_to_json(v) for v in graph.constants],
        "nodes": [_node_to_json(node, numbers) for node in graph.nodes],
        "outputs": [numbers[v] for v in graph.outputs],
        "output_names": list(graph.output_names),
    }


def model_from_json(document: Mapping[str, Any], weights: Mapping[str, np.ndarray], limits: Limits) -> ImportedModel:
    """The model from JSON values that may be anything.

    Args:
        document: what ``model_to_json`` gave, as read from a file.
        weights: the constants by name.
        limits: budgets.
    Raises:
        ImportModelError: naming the field or node.
    """
    try:
        graph = _graph(document, weights, limits)
        try:
            verify(graph)
        except MlcError as error:
            raise ImportModelError(f"is not a sound graph: {error.message}") from error
        return ImportedModel(graph, _source_from_json(document.get("source"), graph))
    except DocumentError as error:
        raise ImportModelError(error.message, hint="import the original model again") from error


def _graph(document: Mapping[str, Any], weights: Mapping[str, np.ndarray], limits: Limits, depth: int = 0) -> Graph:
    limits.check("depth", depth, "nesting of recurrences")
    nodes = items(document.get("nodes"), "nodes")
    limits.check("operators", len(nodes), "core operators")
    inputs = [_value(v, f"inputs[{i}]", limits) for i, v in enumerate(items(document.get("inputs"), "inputs"))]
    constants = {}
    for i, item in enumerate(items(document.get("constants"), "constants")):
        value = _value(item, f"constants[{i}]", limits)
        array = weights.get(value.name)
        if array is None or (array.shape, array.dtype) != (value.type.shape, value.type.dtype.numpy):
            raise wrong(f"constants[{i}]", f"a weight {value.type} called {value.name!r}")
        constants[value] = array
    values = [*inputs, *constants]
    built = []
    for i, item in enumerate(nodes):
        node = _node(item, values, f"nodes[{i}]", limits, depth)
        built.append(node)
        values.extend(node.outputs)
    ends = items(document.get("outputs"), "outputs")
    outputs = tuple(values[index(n, values, f"outputs[{i}]")] for i, n in enumerate(ends))
    given = items(document.get("output_names"), "output_names")
    names = tuple(text(n, f"output_names[{i}]") for i, n in enumerate(given))
    return Graph(text(document.get("name"), "name"), tuple(inputs), outputs, tuple(built), constants, names)


def _source_to_json(source: ModelSource) -> dict[str, Any]:
    """All but inputs and outputs, which follow from the graph."""
    apart = ("inputs", "outputs", "constants")
    plain = {key: _plain(value) for key, value in asdict(source).items() if key not in apart}
    constants = [
        {"name": c.name, "dtype": c.dtype, "shape": list(c.shape), "data": c.data.hex()} for c in source.constants
    ]
    return {**plain, "constants": constants}


def _source_from_json(value: Any, graph: Graph) -> ModelSource:
    wanted = {f.name for f in fields_of(ModelSource)} - {"inputs", "outputs"}
    if not isinstance(value, dict) or set(value) != wanted:
        raise wrong("source", f"an object of {', '.join(sorted(wanted))}")
    opsets, metadata, constants = value["opsets"], value["metadata"], value["constants"]
    if not isinstance(opsets, dict) or not all(type(n) is int for n in opsets.values()):
        raise wrong("source.opsets", "an object of integers")
    if not isinstance(metadata, dict) or not all(isinstance(word, str) for word in metadata.values()):
        raise wrong("source.metadata", "an object of strings")
    if not isinstance(constants, list):
        raise wrong("source.constants", "a list of inputs with their values")
    words = {key: text(value[key], f"source.{key}") for key in ("format", "path", "name", "producer", "sha256")}
    seed = seed_of(graph)
    return ModelSource(
        **words,
        inputs=tuple(TensorInfo(v.name, v.type.shape, v.type.dtype.name) for v in graph.inputs if v is not seed),
        outputs=tuple(
            TensorInfo(name, v.type.shape, v.type.dtype.name)
            for name, v in zip(graph.output_names, graph.outputs, strict=True)
        ),
        opsets=opsets,
        metadata=metadata,
        constants=tuple(_fixed(c, f"source.constants[{i}]") for i, c in enumerate(constants)),
    )


def _fixed(item: Any, where: str) -> FixedInput:
    if not isinstance(item, dict) or set(item) != {"name", "dtype", "shape", "data"}:
        raise wrong(where, "an object of name, dtype, shape and data")
    dtype, shape = text(item["dtype"], f"{where}.dtype"), item["shape"]
    if dtype not in ALL_DTYPES:
        raise wrong(f"{where}.dtype", "an element type")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise wrong(f"{where}.shape", "a list of extents")
    try:
        data = bytes.fromhex(text(item["data"], f"{where}.data"))
    except ValueError:
        raise wrong(f"{where}.data", "bytes in hexadecimal") from None
    fixed = FixedInput(text(item["name"], f"{where}.name"), tuple(shape), dtype, data)
    if data and len(data) != prod(shape) * ALL_DTYPES[dtype].numpy.itemsize:
        raise wrong(f"{where}.data", f"the bytes of a {dtype}{shape}")
    return fixed


def _value_to_json(value: Value) -> dict[str, Any]:
    if value.type.layout is not None:
        raise UnsupportedError(f"{value.name} has a layout: only a model as it was imported can be saved")
    return {"name": value.name, **type_to_json(value.type)}


def _value(item: Any, where: str, limits: Limits) -> Value:
    item = fields(item, where, ("name", "dtype", "shape"))
    type_ = read_type(item, where, limits)
    return Value(text(item["name"], f"{where}.name"), type_)


def _node_to_json(node: Node, numbers: Mapping[Value, int]) -> dict[str, Any]:
    if get(node.op.name) is not node.op:
        raise UnsupportedError(f"operator {node.op.name} is not one of the built-in ones, so it cannot be saved")
    outputs = [_value_to_json(v) for v in node.outputs]
    return {**node_to_json(node, numbers, _graph_to_json), "outputs": outputs, "sources": list(node.sources)}


def _node(item: Any, values: list[Value], where: str, limits: Limits, depth: int) -> Node:
    item = fields(item, where, ("op", "inputs", "attrs", "outputs", "sources"))
    op, inputs, attrs = read_call(item, values, where, lambda graph: _graph(graph, {}, limits, depth + 1))
    given = items(item["outputs"], f"{where}.outputs")
    outputs = tuple(_value(v, f"{where}.outputs[{i}]", limits) for i, v in enumerate(given))
    names = items(item["sources"], f"{where}.sources")
    sources = tuple(text(s, f"{where}.sources[{i}]") for i, s in enumerate(names))
    require_types(op, inputs, attrs, [v.type for v in outputs], where)
    return Node(op, inputs, attrs, outputs, sources)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
