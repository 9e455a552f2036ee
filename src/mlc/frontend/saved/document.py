"""An imported model as JSON, without its weights, and back.

Values are numbered: inputs, then constants, then the results of the nodes; a node names its operands by number. The
types of results are stored for readers, but derived anew from the operators' own type rules when the model is read.
A graph among a node's attributes, the body of a recurrence, is written alike, with numbers of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, MlcError, UnsupportedError
from mlc.frontend.base import ImportedModel, ModelSource, TensorInfo
from mlc.frontend.limits import Limits
from mlc.ir.graph import RULE_ERRORS, Graph, Node, Value, check_attrs, fill_attrs, verify
from mlc.ir.types import ALL_DTYPES, TensorType
from mlc.ops import get
from mlc.ops.random import seed_of

_MAX_DEPTH = 8


def model_to_json(model: ImportedModel) -> dict[str, Any]:
    """The model as JSON values.

    Raises:
        UnsupportedError: see ``mlc.frontend.saved.encode_model``.
    """
    return {"source": _source_to_json(model.source), **_graph_to_json(model.graph)}


def _graph_to_json(graph: Graph) -> dict[str, Any]:
    numbers: dict[Value, int] = {}
    for value in (*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)):
        numbers[value] = len(numbers)
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
    graph = _graph(document, weights, limits)
    try:
        verify(graph)
    except MlcError as error:
        raise ImportModelError(f"is not a sound graph: {error.message}") from error
    return ImportedModel(graph, _source_from_json(document.get("source"), graph))


def _graph(document: Mapping[str, Any], weights: Mapping[str, np.ndarray], limits: Limits, depth: int = 0) -> Graph:
    limits.check("depth", depth, "nesting of recurrences")
    reader = _Reader(document)
    nodes = reader.items("nodes")
    limits.check("operators", len(nodes), "core operators")
    inputs = [_value(item, f"inputs[{i}]", limits) for i, item in enumerate(reader.items("inputs"))]
    constants = {}
    for i, item in enumerate(reader.items("constants")):
        value = _value(item, f"constants[{i}]", limits)
        array = weights.get(value.name)
        if array is None or (array.shape, array.dtype) != (value.type.shape, value.type.dtype.numpy):
            raise _wrong(f"constants[{i}]", f"a weight {value.type} called {value.name!r}")
        constants[value] = array
    values = [*inputs, *constants]
    built = []
    for i, item in enumerate(nodes):
        node = _node(item, values, f"nodes[{i}]", limits, depth)
        built.append(node)
        values.extend(node.outputs)
    outputs = [values[_index(n, values, f"outputs[{i}]")] for i, n in enumerate(reader.items("outputs"))]
    names = [_text(n, f"output_names[{i}]") for i, n in enumerate(reader.items("output_names"))]
    return Graph(reader.text("name"), tuple(inputs), tuple(outputs), tuple(built), constants, tuple(names))


def _source_to_json(source: ModelSource) -> dict[str, Any]:
    """All but inputs and outputs, which follow from the graph."""
    return {key: _plain(value) for key, value in asdict(source).items() if key not in ("inputs", "outputs")}


def _source_from_json(value: Any, graph: Graph) -> ModelSource:
    wanted = {f.name for f in fields(ModelSource)} - {"inputs", "outputs"}
    if not isinstance(value, dict) or set(value) != wanted:
        raise _wrong("source", f"an object of {', '.join(sorted(wanted))}")
    opsets, metadata, constants = value["opsets"], value["metadata"], value["constants"]
    if not isinstance(opsets, dict) or not all(type(n) is int for n in opsets.values()):
        raise _wrong("source.opsets", "an object of integers")
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _wrong("source.metadata", "an object of strings")
    if not isinstance(constants, list):
        raise _wrong("source.constants", "a list of strings")
    words = {key: _text(value[key], f"source.{key}") for key in ("format", "path", "name", "producer", "sha256")}
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
        constants=tuple(_text(n, f"source.constants[{i}]") for i, n in enumerate(constants)),
    )


def _value_to_json(value: Value) -> dict[str, Any]:
    if value.type.layout is not None:
        raise UnsupportedError(f"{value.name} has a layout: only a model as it was imported can be saved")
    return {"name": value.name, "dtype": value.type.dtype.name, "shape": list(value.type.shape)}


def _value(item: Any, where: str, limits: Limits) -> Value:
    if not isinstance(item, dict) or set(item) != {"name", "dtype", "shape"}:
        raise _wrong(where, "an object of name, dtype and shape")
    dtype, shape = item["dtype"], item["shape"]
    if not isinstance(dtype, str) or dtype not in ALL_DTYPES:
        raise _wrong(f"{where}.dtype", "an element type")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise _wrong(f"{where}.shape", "a list of extents")
    type_ = TensorType(tuple(shape), ALL_DTYPES[dtype])
    _check_type(type_, where, limits)
    return Value(_text(item["name"], f"{where}.name"), type_)


def _check_type(type_: TensorType, where: str, limits: Limits) -> None:
    limits.check("rank", type_.rank, f"{where}: rank")
    # An extent of 0 must not hide a large one beside it.
    size = math.prod(max(1, n) for n in type_.shape) * type_.dtype.itemsize
    limits.check("tensor_bytes", size, f"{where} ({type_})")


def _node_to_json(node: Node, numbers: Mapping[Value, int]) -> dict[str, Any]:
    if get(node.op.name) is not node.op:
        raise UnsupportedError(f"operator {node.op.name} is not one of the built-in ones, so it cannot be saved")
    return {
        "op": node.op.name,
        "inputs": [numbers[v] for v in node.inputs],
        "attrs": {key: _attr_to_json(value, f"{node.op.name}.{key}") for key, value in node.attrs.items()},
        "outputs": [_value_to_json(v) for v in node.outputs],
        "sources": list(node.sources),
    }


def _node(item: Any, values: list[Value], where: str, limits: Limits, depth: int) -> Node:
    if not isinstance(item, dict) or set(item) != {"op", "inputs", "attrs", "outputs", "sources"}:
        raise _wrong(where, "an object of op, inputs, attrs, outputs and sources")
    lists = [item[key] for key in ("inputs", "outputs", "sources")]
    if not all(isinstance(items, list) for items in lists) or not isinstance(item["attrs"], dict):
        raise _wrong(where, "lists of inputs, outputs and sources, and an object of attrs")
    name = _text(item["op"], f"{where}.op")
    try:
        op = get(name)
        given = {
            key: _graph(value["graph"], {}, limits, depth + 1)
            if isinstance(value, dict) and isinstance(value.get("graph"), dict)
            else _attr(value, f"{where}.attrs.{key}")
            for key, value in item["attrs"].items()
        }
        attrs = fill_attrs(op, given)
        check_attrs(op, attrs)
    except RULE_ERRORS as error:
        raise ImportModelError(f"{where}: {error}") from error
    inputs = tuple(values[_index(n, values, f"{where}.inputs[{i}]")] for i, n in enumerate(item["inputs"]))
    outputs = tuple(_value(v, f"{where}.outputs[{i}]", limits) for i, v in enumerate(item["outputs"]))
    sources = tuple(_text(s, f"{where}.sources[{i}]") for i, s in enumerate(item["sources"]))
    try:
        types = op.infer([v.type for v in inputs], attrs)
    except RULE_ERRORS as error:
        raise ImportModelError(f"{where} ({name}): {error}") from error
    if [v.type for v in outputs] != list(types):
        raise _wrong(f"{where}.outputs", "results of type " + ", ".join(map(str, types)))
    return Node(op, inputs, attrs, outputs, sources)


def _attr_to_json(value: Any, where: str, depth: int = 0) -> Any:
    """Tuples become lists; floats that JSON cannot write become ``{"float": "inf"}``."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Graph) and not value.constants:
        return {"graph": _graph_to_json(value)}
    if isinstance(value, (tuple, list)) and depth < _MAX_DEPTH:
        return [_attr_to_json(v, where, depth + 1) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedError(f"attribute {where} is a {type(value).__name__}, which a saved model cannot hold")


def _attr(value: Any, where: str, depth: int = 0) -> Any:
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return tuple(_attr(v, where, depth + 1) for v in value)
    if isinstance(value, dict) and set(value) == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    if value is None or isinstance(value, (bool, float, str)) or (type(value) is int and -(1 << 63) <= value < 1 << 64):
        return value
    raise _wrong(where, "a number, text, truth value or list of them")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _index(value: Any, values: list[Value], where: str) -> int:
    if type(value) is not int or not 0 <= value < len(values):
        raise _wrong(where, f"the number of one of the {len(values)} values before it")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can smuggle in half of a surrogate pair.
        raise _wrong(where, "text of Unicode characters") from None
    return value


def _wrong(where: str, expected: str) -> ImportModelError:
    return ImportModelError(f"{where}: expected {expected}", hint="import the original model again")


class _Reader:
    """Fields of the document's top level."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def items(self, key: str) -> list[Any]:
        value = self._document.get(key)
        if not isinstance(value, list):
            raise _wrong(key, "a list")
        return value

    def text(self, key: str) -> str:
        return _text(self._document.get(key), key)
