"""Graphs of the table's operators as JSON values, and back: what saved models and tuning records share.

Values are numbered in order of appearance: inputs, then constants, then the results of nodes; a node names its operands
by number. The types of results are stored for readers, but derived anew from the operators' own type rules when a
document is read. What is read may be anything: every field is checked, and a complaint names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mlc.errors import DocumentError, UnsupportedError, VerifyError
from mlc.ir.graph import RULE_ERRORS, Attrs, Graph, Node, Operator, Value, check_attrs, fill_attrs
from mlc.ir.layout import Fuse, Layout, Margin, Pad, Primitive, Reorder, Split
from mlc.ir.types import ALL_DTYPES, TensorType
from mlc.ops.registry import get

MAX_DEPTH = 8  # of lists in attributes

# primitives of layouts by name, with how many numbers they take; a permutation takes any number
_PRIMITIVES: Mapping[str, tuple[Callable[..., Primitive], int | None]] = {
    "split": (Split, 2),
    "fuse": (Fuse, 2),
    "pad": (Pad, 3),
    "margin": (Margin, 3),
    "reorder": (lambda *perm: Reorder(perm), None),
}


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
    match primitive:
        case Split(dim, factor):
            return ["split", dim, factor]
        case Fuse(dim, count):
            return ["fuse", dim, count]
        case Reorder(perm):
            return ["reorder", *perm]
        case Pad(dim, before, after):
            return ["pad", dim, before, after]
        case Margin(dim, before, after):
            return ["margin", dim, before, after]


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
    return {
        "op": node.op.name,
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
def wrong(where: str, expected: str) -> DocumentError:
    """The complaint of a field."""
    return DocumentError(f"{where}: expected {expected}")


def fields(item: Any, where: str, wanted: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object that has all of some fields, maybe others, and no more."""
    if not isinstance(item, dict) or not {*wanted} <= set(item) <= {*wanted, *optional}:
        names = ", ".join(wanted[:-1]) + f" and {wanted[-1]}" if len(wanted) > 1 else wanted[0]
        raise wrong(where, f"an object of {names}" + (f", maybe {', '.join(optional)}" if optional else ""))
    return item


def items(value: Any, where: str, most: int | None = None) -> list[Any]:
    """A list, of no more than ``most`` items."""
    if not isinstance(value, list) or (most is not None and len(value) > most):
        raise wrong(where, "a list" if most is None else f"a list of at most {most}")
    return value


def integer(value: Any, where: str, least: int, most: int) -> int:
    """A whole number in a range, its ends included."""
    if type(value) is not int or not least <= value <= most:
        raise wrong(where, f"a whole number from {least} to {most}")
    return value


def index(value: Any, values: Sequence[Value], where: str) -> int:
    """The number of a value."""
    if type(value) is not int or not 0 <= value < len(values):
        raise wrong(where, f"the number of one of the {len(values)} values before it")
    return value


def text(value: Any, where: str) -> str:
    """Text that UTF-8 can tell."""
    if not isinstance(value, str):
        raise wrong(where, "text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can smuggle in half of a surrogate pair.
        raise wrong(where, "text of Unicode characters") from None
    return value


def read_type(item: Mapping[str, Any], where: str, budget: Budget) -> TensorType:
    """The inverse of :func:`type_to_json`; fields but its own are the caller's affair.

    Raises:
        DocumentError: naming the field.
    """
    dtype, shape = item["dtype"], item["shape"]
    if not isinstance(dtype, str) or dtype not in ALL_DTYPES:
        raise wrong(f"{where}.dtype", "an element type")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise wrong(f"{where}.shape", "a list of extents")
    found = TensorType(tuple(shape), ALL_DTYPES[dtype])
    _check_size(found.shape, found, where, budget)
    if "layout" not in item:
        return found
    layout = Layout(found.shape)
    for k, primitive in enumerate(items(item["layout"], f"{where}.layout", 64)):
        at = f"{where}.layout[{k}]"
        try:
            layout = Layout(found.shape, (*layout.primitives, _read_primitive(primitive, at)))
        except VerifyError as error:
            raise DocumentError(f"{at}: {error.message}") from error
        _check_size(layout.physical_shape, found, at, budget)
    return found.with_layout(layout)


def _check_size(shape: Sequence[int], type: TensorType, where: str, budget: Budget) -> None:
    budget.check("rank", len(shape), f"{where}: rank")
    # An extent of 0 must not hide a large one beside it.
    budget.check("tensor_bytes", math.prod(max(1, n) for n in shape) * type.dtype.itemsize, f"{where} ({type})")


def _read_primitive(item: Any, where: str) -> Primitive:
    name, *numbers = items(item, where, 65) or [None]
    make, count = _PRIMITIVES.get(name, (None, None)) if isinstance(name, str) else (None, None)
    if make is None:
        raise wrong(where, f"one of {', '.join(_PRIMITIVES)}, with its numbers")
    if count is not None and len(numbers) != count:
        raise wrong(where, f"{count} numbers after {name}")
    return make(*(integer(n, where, 0, 1 << 32) for n in numbers))


def read_attr(value: Any, where: str, depth: int = 0) -> Any:
    """The inverse of :func:`attr_to_json`."""
    if isinstance(value, list) and depth < MAX_DEPTH:
        return tuple(read_attr(v, where, depth + 1) for v in value)
    if isinstance(value, dict) and set(value) == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    if value is None or isinstance(value, (bool, float, str)) or (type(value) is int and -(1 << 63) <= value < 1 << 64):
        return value
    raise wrong(where, "a number, text, truth value or list of them")


def read_call(
    item: Mapping[str, Any],
    values: Sequence[Value],
    where: str,
    nested: Callable[[dict[str, Any]], Graph] | None = None,
) -> tuple[Operator, tuple[Value, ...], Attrs]:
    """Operator, operands and attributes of a node, with the operator's defaults.

    Args:
        item: has the fields ``op``, ``inputs`` and ``attrs``.
        values: those before it.
        where: it stands.
        nested: reads graphs among attributes.
    Raises:
        DocumentError: a field is wrong, there is no such operator, or it has no such attributes.
    """
    name = text(item["op"], f"{where}.op")
    inputs = tuple(values[index(n, values, f"{where}.inputs[{i}]")] for i, n in enumerate(items(item["inputs"], where)))
    if not isinstance(item["attrs"], dict):
        raise wrong(f"{where}.attrs", "an object")
    given = {}
    for key, value in item["attrs"].items():
        graph = isinstance(value, dict) and set(value) == {"graph"} and isinstance(value["graph"], dict)
        at = f"{where}.attrs.{key}"
        given[text(key, where)] = nested(value["graph"]) if nested and graph else read_attr(value, at)
    try:
        op = get(name)
        attrs = fill_attrs(op, given)
        check_attrs(op, attrs)
    except RULE_ERRORS as error:
        raise DocumentError(f"{where}: {error}") from error
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
        raise wrong(f"{where}.outputs", "results of type " + ", ".join(map(str, types)))
