"""Graphs of the table's operators as JSON values, and back: what saved models and tuning records share.

Values are numbered in order of appearance: inputs, then constants, then the results of nodes; a node names its operands
by number. The types of results are stored for readers, but derived anew from the operators' own type rules when a
document is read. What is read may be anything: every field is checked, and a complaint names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, Protocol

import numpy as np

from mlc.errors import DocumentError, UnsupportedError, VerifyError
from mlc.fields import Fields, as_integer, as_list, as_object, as_text, as_whole, wrong
from mlc.ir.graph import RULE_ERRORS, Attrs, Graph, Node, Operator, Value, check_attrs, fill_attrs
from mlc.ir.layout import (
    DecoupleAt,
    Fold,
    Fuse,
    Layout,
    Margin,
    Pad,
    Primitive,
    Reorder,
    Split,
    StoreAt,
    Unfold,
    Unpad,
)
from mlc.ir.types import DTYPES_BY_NAME, DType, TensorType
from mlc.ops.expression import expression_to_json, read_expression
from mlc.ops.registry import get as get_operator
from mlc.ops.registry import is_core

MAX_DEPTH = 8  # of lists in attributes

# primitives of layouts by name; the numbers of each are its fields, but a permutation has any number
_PRIMITIVES: Mapping[str, type[Primitive]] = {
    "split": Split,
    "fuse": Fuse,
    "pad": Pad,
    "margin": Margin,
    "reorder": Reorder,
    "unfold": Unfold,
    "fold": Fold,
    "unpad": Unpad,
    "store_at": StoreAt,
    "decouple_at": DecoupleAt,
}
_PRIMITIVE_NAMES = {kind: name for name, kind in _PRIMITIVES.items()}


class Budget(Protocol):
    """What a document may ask for."""

    def check(self, limit: str, amount: int, what: str) -> None:
        """Complains where an amount is beyond a limit: ``rank`` (axes) or ``tensor_bytes`` of one tensor."""
        ...


# -- writing --------------------------------------------------------------------------------------------------------
def numbered(values: Iterable[Value]) -> dict[Value, int]:
    """Numbers for values, in order."""
    numbers: dict[Value, int] = {}
    for v in values:
        numbers.setdefault(v, len(numbers))
    return numbers


def type_to_json(type: TensorType) -> dict[str, Any]:
    """``{"dtype": "f32", "shape": [1, 64, 8, 8]}``, with the ``layout`` where there is one."""
    found: dict[str, Any] = {"dtype": type.dtype.name, "shape": list(type.shape)}
    if type.layout is not None:
        found["layout"] = [_primitive_to_json(p) for p in type.layout.primitives]
    return found


def _primitive_to_json(primitive: Primitive) -> list[Any]:
    numbers = primitive.perm if isinstance(primitive, Reorder) else astuple(primitive)
    return [_PRIMITIVE_NAMES[type(primitive)], *numbers]


def node_to_json(
    node: Node, numbers: Mapping[Value, int], nested: Callable[[Graph], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Operator, operands, attributes and types of the results.

    Args:
        node: an operator's application.
        numbers: of its operands.
        nested: writes graphs among its attributes, the bodies of recurrences, as ``{"graph": …}``.
    Raises:
        UnsupportedError: an attribute that no document can hold.
    """
    attrs: dict[str, Any] = {}
    for key, value in sorted(node.attrs.items()):
        graph = nested is not None and isinstance(value, Graph) and not value.constants
        attrs[key] = {"graph": nested(value)} if nested and graph else attr_to_json(value, f"{node.op.name}.{key}")
    own = {} if is_core(node.op) else {"expression": expression_to_json(node.op, node.inputs, node.attrs)}
    return {
        "op": node.op.name,
        **own,
        "inputs": [numbers[v] for v in node.inputs],
        "attrs": attrs,
        "outputs": [type_to_json(v.type) for v in node.outputs],
    }


def attr_to_json(value: Any, where: str, depth: int = 0) -> Any:
    """Tuples become lists; floats that JSON cannot write become ``{"float": "inf"}``.

    Raises:
        UnsupportedError: a value that no document can hold.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (tuple, list)) and depth < MAX_DEPTH:
        return [attr_to_json(v, where, depth + 1) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedError(f"attribute {where} is a {type(value).__name__}, which a document cannot hold")


# -- reading --------------------------------------------------------------------------------------------------------
def as_value(values: Sequence[Value]) -> Callable[[object, str], Value]:
    """Reads the number of one of the values so far."""

    def read(value: object, where: str) -> Value:
        if type(value) is not int or not 0 <= value < len(values):
            raise wrong(where, f"the number of one of the {len(values)} values before it", value)
        return values[value]

    return read


def _dtype(value: object, where: str) -> DType:
    if not isinstance(value, str) or value not in DTYPES_BY_NAME:
        raise wrong(where, "an element type", value)
    return DTYPES_BY_NAME[value]


def read_type(get: Fields, budget: Budget) -> TensorType:
    """The inverse of :func:`type_to_json`; other fields are the caller's affair.

    Raises:
        DocumentError: naming the field.
    """
    dtype = get.take("dtype", _dtype)
    shape = get.take("shape", lambda value, where: as_list(value, where, as_integer))
    found = TensorType(shape, dtype)
    _check_size(shape, found, get.where, budget)
    if not get.has("layout"):
        return found
    layout = Layout(shape)
    for k, primitive in enumerate(get.take("layout", lambda value, where: as_list(value, where, _primitive, 64))):
        at = f"{get.place('layout')}[{k}]"
        try:
            layout = Layout(shape, (*layout.primitives, primitive))
        except VerifyError as error:
            raise DocumentError(f"{at}: {error.message}") from error
        _check_size(layout.physical_shape, found, at, budget)
    return found.with_layout(layout)


def _check_size(shape: Sequence[int], type: TensorType, where: str, budget: Budget) -> None:
    budget.check("rank", len(shape), f"{where}: rank")
    # An extent of 0 must not hide a large one beside it.
    budget.check("tensor_bytes", math.prod(max(1, n) for n in shape) * type.dtype.itemsize, f"{where} ({type})")


def _primitive(value: Any, where: str) -> Primitive:
    name, *numbers = as_list(value, where, lambda item, at: item, 65) or (None,)
    kind = _PRIMITIVES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise wrong(where, f"one of {', '.join(_PRIMITIVES)}, with its numbers", value)
    whole = [as_whole(0, 1 << 32)(n, where) for n in numbers]
    if issubclass(kind, Reorder):
        return Reorder(tuple(whole))
    if len(whole) != len(fields(kind)):
        raise wrong(where, f"{len(fields(kind))} numbers after {name}", value)
    return kind(*whole)


def read_attr(value: Any, where: str, depth: int = 0) -> Any:
    """The inverse of :func:`attr_to_json`."""
    if isinstance(value, list) and depth < MAX_DEPTH:
        return tuple(read_attr(v, where, depth + 1) for v in value)
    if isinstance(value, dict) and set(value) == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    if value is None or isinstance(value, (bool, float, str)) or (type(value) is int and -(1 << 63) <= value < 1 << 64):
        return value
    raise wrong(where, "a number, text, truth value or list of them", value)


def read_call(
    get: Fields,
    values: Sequence[Value],
    nested: Callable[[dict[str, Any], str], Graph] | None = None,
    most: int | None = None,
) -> tuple[Operator, tuple[Value, ...], Attrs]:
    """Operator, operands and attributes of a node, with the operator's defaults.

    Args:
        get: the node.
        values: those before it.
        nested: reads graphs among attributes, given the path that leads to them.
        most: operands at most.
    Raises:
        DocumentError: a field is wrong, there is no such operator, or it has no such attributes.
    """
    name = get.take("op", as_text)
    inputs = get.take("inputs", lambda items, where: as_list(items, where, as_value(values), most))

    def attr(value: Any, where: str) -> Any:
        graph = isinstance(value, dict) and set(value) == {"graph"} and isinstance(value["graph"], dict)
        return nested(value["graph"], where) if nested and graph else read_attr(value, where)

    given = get.take("attrs", lambda value, where: as_object(value, where, attr))
    if get.has("expression"):
        return get.take("expression", lambda value, where: read_expression(value, name, inputs, where)), inputs, given
    try:
        op = get_operator(name)
        attrs = fill_attrs(op, given)
        check_attrs(op, attrs)
    except RULE_ERRORS as error:
        raise DocumentError(f"{get.where}: {error}") from error
    return op, inputs, attrs


def require_types(op: Operator, inputs: Sequence[Value], attrs: Attrs, found: Sequence[TensorType], where: str) -> None:
    """Complains unless an operator's own type rule gives these types.

    Raises:
        DocumentError: it does not, or refuses its operands.
    """
    try:
        types = list(op.infer([TensorType(v.type.shape, v.type.dtype) for v in inputs], attrs))
    except RULE_ERRORS as error:
        raise DocumentError(f"{where} ({op.name}): {error}") from error
    if list(found) != types:
        raise wrong(f"{where}.outputs", "results of type " + ", ".join(map(str, types)), [str(t) for t in found])
