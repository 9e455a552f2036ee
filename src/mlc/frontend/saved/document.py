"""An imported model as JSON, without its weights, and back; see :mod:`mlc.ops.document` for what graphs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, MlcError, UnsupportedError
from mlc.fields import Fields, as_flag, as_list, as_object, as_text, as_whole, told_as, wrong
from mlc.frontend.base import FixedInput, ImportedModel, ModelSource, TensorInfo
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.ir.graph import Graph, Node, Value, verify
from mlc.ops.document import as_value, node_to_json, numbered, read_call, read_type, require_types, type_to_json
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
    with told_as(ImportModelError, "import the original model again"):
        get = Fields(document, "")
        get.take("mlc_version", as_text)
        source = get.take("source", lambda value, where: value)
        graph = _graph(get, weights, limits)
        try:
            verify(graph)
        except MlcError as error:
            raise ImportModelError(f"is not a sound graph: {error.message}") from error
        return ImportedModel(graph, _source_from_json(source, graph))


def _graph(get: Fields, weights: Mapping[str, np.ndarray], limits: Limits, depth: int = 0) -> Graph:
    limits.check("depth", depth, "nesting of recurrences")

    def value(item: Any, where: str) -> Value:
        fields = Fields(item, where)
        found = Value(fields.take("name", as_text), read_type(fields, limits))
        fields.end()
        return found

    def constant(item: Any, where: str) -> Value:
        found = value(item, where)
        array = weights.get(found.name)
        dtype = found.type.dtype
        if array is None or (array.shape, array.dtype) != (found.type.shape, dtype.carrier.numpy):
            raise wrong(where, f"a weight {found.type} called {found.name!r}", None if array is None else array.dtype)
        if dtype.bits < 8 and array.size:
            least, most = int(array.min()), int(array.max())
            if least < dtype.min_value or most > dtype.max_value:
                raise wrong(where, f"values of {dtype} in the weight {found.name!r}", [least, most])
        return found

    def node(item: Any, where: str) -> Node:
        fields = Fields(item, where)
        op, inputs, attrs = read_call(fields, values, lambda g, at: _graph(Fields(g, at), {}, limits, depth + 1))
        outputs = fields.take("outputs", lambda items, at: as_list(items, at, value))
        sources = fields.take("sources", lambda items, at: as_list(items, at, as_text))
        fields.end()
        require_types(op, inputs, attrs, [v.type for v in outputs], where)
        values.extend(outputs)
        return Node(op, inputs, attrs, outputs, sources)

    nodes = get.take("nodes", lambda items, where: as_list(items, where, lambda item, at: item))
    limits.check("operators", len(nodes), "core operators")
    inputs = get.take("inputs", lambda items, where: as_list(items, where, value))
    constants = get.take("constants", lambda items, where: as_list(items, where, constant))
    values = [*inputs, *constants]
    built = tuple(node(item, f"{get.place('nodes')}[{i}]") for i, item in enumerate(nodes))
    outputs = get.take("outputs", lambda items, where: as_list(items, where, as_value(values)))
    names = get.take("output_names", lambda items, where: as_list(items, where, as_text))
    name = get.take("name", as_text)
    get.end()
    return Graph(name, inputs, outputs, built, {v: weights[v.name].view(v.type.dtype.numpy) for v in constants}, names)


def _source_to_json(source: ModelSource) -> dict[str, Any]:
    """All but inputs and outputs, which follow from the graph."""
    apart = ("inputs", "outputs", "constants", "states")
    plain = {key: _plain(value) for key, value in asdict(source).items() if key not in apart}

    def valued(inputs: Sequence[FixedInput]) -> list[dict[str, Any]]:
        return [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape), "data": c.data.hex()} for c in inputs]

    return {**plain, "constants": valued(source.constants), "states": valued(source.states)}


def _source_from_json(value: Any, graph: Graph) -> ModelSource:
    get = Fields(value, "source")
    words = {key: get.take(key, as_text) for key in ("format", "path", "name", "producer", "sha256")}
    seed = seed_of(graph)
    found = ModelSource(
        **words,
        inputs=tuple(TensorInfo(v.name, v.type.shape, v.type.dtype.name) for v in graph.inputs if v is not seed),
        outputs=tuple(
            TensorInfo(name, v.type.shape, v.type.dtype.name)
            for name, v in zip(graph.output_names, graph.outputs, strict=True)
        ),
        opsets=get.take("opsets", lambda value, where: as_object(value, where, as_whole(-(1 << 63)))),
        metadata=get.take("metadata", lambda value, where: as_object(value, where, as_text)),
        constants=get.take("constants", lambda items, where: as_list(items, where, _fixed)),
        quantised=get.take("quantised", as_flag),
        layouts=get.maybe("layouts", lambda value, where: as_object(value, where, as_text)) or {},
        states=get.maybe("states", lambda items, where: as_list(items, where, _fixed)) or (),
        updates=get.maybe("updates", lambda value, where: as_object(value, where, as_text)) or {},
    )
    get.end()
    return found


def _fixed(item: Any, where: str) -> FixedInput:
    get = Fields(item, where)
    name, type_, text = get.take("name", as_text), read_type(get, DEFAULT_LIMITS), get.take("data", as_text)
    get.end()
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise wrong(f"{where}.data", "bytes in hexadecimal", text) from None
    if data and len(data) != type_.nbytes:
        raise wrong(f"{where}.data", f"the {type_.nbytes} bytes of {type_}", text)
    return FixedInput(name, type_.shape, type_.dtype.name, data)


def _value_to_json(value: Value) -> dict[str, Any]:
    if value.type.layout is not None:
        raise UnsupportedError(f"{value.name} has a layout: only a model as it was imported can be saved")
    return {"name": value.name, **type_to_json(value.type)}


def _node_to_json(node: Node, numbers: Mapping[Value, int]) -> dict[str, Any]:
    outputs = [_value_to_json(v) for v in node.outputs]
    return {**node_to_json(node, numbers, _graph_to_json), "outputs": outputs, "sources": list(node.sources)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
