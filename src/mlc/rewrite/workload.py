"""Workloads: groups apart from any model, as JSON documents by which tuning records know them.

A document holds what decides a group's layouts and its schedule: the types of its operands with their layouts, which of
them are constants, the operators inside with their attributes and literals. Names of values are no part of it, so equal
groups of different models are one workload. Its key is a digest of the document, and whoever reads the document has the
group again (:func:`read_workload`): no model is needed to know what was measured.

What a file says may be anything: what is read has to be written as the same document again, and budgets bound what it
can ask for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.errors import DocumentError, UnsupportedError, WorkloadError
from mlc.fields import Fields, as_flag, as_list, as_text, wrong
from mlc.ir.graph import RULE_ERRORS, FusionKind, Node, Value
from mlc.ir.site import Site
from mlc.ir.types import TensorType
from mlc.ops.document import (
    as_value,
    attr_to_json,
    node_to_json,
    numbered,
    read_call,
    read_type,
    require_types,
    type_to_json,
)
from mlc.ops.registry import is_core
from mlc.rewrite.fuse import cost_of
from mlc.rewrite.group import body_of, device_of, is_group, make_group, on_device, operator_key
from mlc.rewrite.keys import attr_key
from mlc.rewrite.profile import Profiler

MAX_NODES = 512
MAX_OPERANDS = 1024
MAX_EXPRESSION = 1 << 15  # scalar operations of a group's results with everything inlined; see FuseLimits
MAX_EXTENT = 1 << 24  # of a dimension, and of every number of a layout
MAX_BYTES = 1 << 38  # of a tensor as it lies in memory
MAX_RANK = 32

Document = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Workload:
    """A group and what decides its layouts and its schedule.

    Args:
        node: the group; its own types do not count.
        site: where it stands.
    """

    node: Node
    site: Site


def workload_document(node: Node, site: Site) -> dict[str, Any]:
    """What two groups share exactly when they have the same choices of layouts and schedules.

    Args:
        node, site: see :class:`Workload`; ``node`` may be a routine, too, which has no choices.
    """
    found: dict[str, Any] = {
        "operands": [
            {
                **type_to_json(t),
                **({"constant": True} if site.constant[k] else {}),
                **({"askable": True} if k in site.askable else {}),
            }
            for k, t in enumerate(site.inputs)
        ],
        "row_major": site.row_major and not device_of(node),  # a device's own layouts do not depend on it
    }
    if device_of(node):
        found["device"] = device_of(node)
    if not is_group(node):
        return {**found, "routine": node.op.name}
    body = body_of(node)
    literals = _literals(body.nodes, body.constants)
    numbers = numbered(body.inputs)
    operands = len(body.inputs)
    numbers.update({v: operands + k for v, (k, _) in literals.items()})
    made = operands + len({k for k, _ in literals.values()})
    for inner in body.nodes:
        for v in inner.outputs:
            numbers[v] = made
            made += 1
    distinct = dict(sorted(literals.values(), key=lambda item: item[0]))
    return {
        **found,
        "literals": list(distinct.values()),
        "nodes": [_node_to_json(n, numbers) for n in body.nodes],
        "outputs": [numbers[v] for v in body.outputs],
    }


def algorithm_document(node: Node) -> dict[str, Any]:
    """What two operators share exactly when they have the same choice of algorithms.

    Args:
        node: row-major, before it is fused.
    """
    group = make_group([node], {}, 0)
    types = [v.type for v in group.inputs]
    return {**workload_document(group, Site(types, [False] * len(types))), "choice": "algorithm"}


def _literals(nodes: Sequence[Node], constants: Mapping[Value, np.ndarray]) -> dict[Value, tuple[int, dict[str, Any]]]:
    """The constants of one element that nodes read, in order; equal ones have one number."""
    known: dict[tuple[TensorType, bytes], int] = {}
    found: dict[Value, tuple[int, dict[str, Any]]] = {}
    for v in (v for n in nodes for v in n.inputs if v in constants):
        data = np.ascontiguousarray(constants[v]).tobytes()
        number = known.setdefault((v.type, data), len(known))
        found[v] = number, {**type_to_json(v.type), "data": data.hex()}
    return found


def _node_to_json(node: Node, numbers: Mapping[Value, int]) -> dict[str, Any]:
    """A user's own operator is told by its expressions, so that a document means the same in every process."""
    try:
        if is_core(node.op):
            return node_to_json(node, numbers)
        attrs = {k: attr_to_json(v, k) for k, v in sorted(node.attrs.items())}
    except UnsupportedError:
        attrs = {k: repr(attr_key(v)) for k, v in sorted(node.attrs.items())}
    return {
        "op": node.op.name,
        "own": operator_key(node),
        "inputs": [numbers[v] for v in node.inputs],
        "attrs": attrs,
        "outputs": [type_to_json(v.type) for v in node.outputs],
    }


def canonical(document: Document) -> str:
    """The document as text, the same for equal documents."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def workload_key(document: Document) -> str:
    """Sixteen hexadecimal digits for a workload."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()[:16]


class _Budget:
    def check(self, limit: str, amount: int, what: str) -> None:
        most = {"rank": MAX_RANK, "tensor_bytes": MAX_BYTES}[limit]
        if amount > most:
            raise WorkloadError(f"{what}: {amount} in a workload, the limit is {most}")


def read_workload(document: Any) -> Workload:
    """What a workload's document says.

    Args:
        document: as :func:`workload_document` gives it, or whatever a file holds.
    Raises:
        WorkloadError: it is none of a workload, is beyond a budget, or is that of a user's own operator, which only the
            user's program knows, or of an opaque routine.
    """
    try:
        found = _read(document)
        again = workload_document(found.node, found.site)
    except WorkloadError:
        raise
    except DocumentError as error:
        raise WorkloadError(f"no workload: {error.message}") from error
    except RULE_ERRORS as error:
        raise WorkloadError(f"a workload that makes no sense: {error}") from error
    if canonical(again) != canonical(document):
        raise WorkloadError("a workload that is not written as it would be")
    return found


def _read(document: Any) -> Workload:
    if isinstance(document, dict) and "routine" in document:
        raise WorkloadError(f"{document['routine']!r} is an opaque routine, which has no schedule")
    get = Fields(document, "")
    row_major = get.take("row_major", as_flag)
    device = get.maybe("device", as_text) or ""
    operands = get.take("operands", lambda items, where: as_list(items, where, _operand, MAX_OPERANDS))
    types = tuple(t for t, _, _ in operands)
    askable = frozenset(k for k, (*_, a) in enumerate(operands) if a)
    site = Site(types, tuple(c for _, c, _ in operands), row_major, askable)
    values = [Value(f"in{k}", TensorType(t.shape, t.dtype)) for k, t in enumerate(types)]
    constants = dict(get.take("literals", lambda items, where: as_list(items, where, _literal, MAX_OPERANDS)))
    values += constants

    def node(item: Any, where: str) -> Node:
        found = _node(item, values, where)
        values.extend(found.outputs)
        return found

    nodes = get.take("nodes", lambda items, where: as_list(items, where, node, MAX_NODES))
    returned = get.take("outputs", lambda items, where: as_list(items, where, as_value(values), MAX_OPERANDS))
    get.end()
    if not returned or not {v for n in nodes for v in n.outputs}.issuperset(returned):
        raise WorkloadError("outputs: a workload returns what its operators make")
    size = cost_of(nodes, [n for n in nodes if not set(returned).isdisjoint(n.outputs)], Profiler()).size
    if size > MAX_EXPRESSION:
        raise WorkloadError(f"a workload of {size} operations an element, the limit is {MAX_EXPRESSION}")
    group = make_group(nodes, constants, 0, returned)
    return Workload(on_device(group, device) if device else group, site)


def _type(get: Fields) -> TensorType:
    found = read_type(get, _Budget())
    if max((*found.shape, *found.physical_shape), default=0) > MAX_EXTENT:
        raise WorkloadError(f"{get.where}: an extent in a workload is beyond the limit, {MAX_EXTENT}")
    return found


def _operand(item: Any, where: str) -> tuple[TensorType, bool, bool]:
    get = Fields(item, where)
    found = _type(get), get.maybe("constant", as_flag) is True, get.maybe("askable", as_flag) is True
    get.end()
    return found


def _literal(item: Any, where: str) -> tuple[Value, np.ndarray]:
    get = Fields(item, where)
    type_, text = _type(get), get.take("data", as_text)
    get.end()
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise wrong(f"{where}.data", "hexadecimal digits", text) from None
    if type_.size != 1 or len(data) != type_.dtype.itemsize:
        raise wrong(where, f"one element, and its {type_.dtype.itemsize} bytes", text)
    return Value(where, type_), np.frombuffer(data, type_.dtype.numpy).reshape(type_.shape)


def _node(item: Any, values: Sequence[Value], where: str) -> Node:
    get = Fields(item, where)
    if get.has("own"):
        raise WorkloadError(f"{item.get('op')!r} is a user's own operator, which only the user's program knows")
    op, inputs, attrs = read_call(get, values, most=MAX_OPERANDS)
    if op.kind is FusionKind.OPAQUE or op.express is None:
        raise WorkloadError(f"{op.name} is an opaque routine, which has no schedule")
    types = get.take("outputs", lambda items, at: as_list(items, at, _result, MAX_OPERANDS))
    get.end()
    require_types(op, inputs, attrs, types, where)
    return Node(op, inputs, attrs, tuple(Value(f"v{len(values) + k}", t) for k, t in enumerate(types)))


def _result(item: Any, where: str) -> TensorType:
    get = Fields(item, where)
    found = _type(get)
    get.end()
    return found


# -- for people and for comparison ------------------------------------------------------------------------------------
def operand_texts(document: Document) -> list[str]:
    """Types of what a workload reads, without layouts; none where the document does not tell."""
    try:
        return [f"{o['dtype']}[{','.join(map(str, o['shape']))}]" for o in document["operands"]]
    except (KeyError, TypeError):
        return []


def workload_text(document: Document) -> str:
    """A workload, for people: a line for its operands, one an operator.

    >>> print(workload_text({
    ...     "operands": [{"dtype": "f32", "shape": [1, 8]}, {"dtype": "f32", "shape": [8], "constant": True}],
    ...     "row_major": True, "literals": [],
    ...     "nodes": [{"op": "add", "inputs": [0, 1], "attrs": {}, "outputs": [{"dtype": "f32", "shape": [1, 8]}]}],
    ...     "outputs": [2]}))
    (f32[1,8], const f32[8]) -> row-major
    %2 = add(%0, %1) -> f32[1,8]
    return %2
    """
    try:
        return "\n".join(_lines(document))
    except (KeyError, TypeError, AttributeError):
        return canonical(document)


def _lines(document: Document) -> list[str]:
    def type_text(t: Mapping[str, Any]) -> str:
        steps = ".".join(f"{p[0]}({','.join(map(str, p[1:]))})" for p in t.get("layout", ()))
        layout = f"@{steps or 'plain'}" if "layout" in t else ""
        return f"{t['dtype']}[{','.join(map(str, t['shape']))}]{layout}"

    operands = [("const " if "constant" in o else "") + type_text(o) for o in document["operands"]]
    where = f" on {document['device']}" if "device" in document else ""
    found = [f"({', '.join(operands)}) -> {'row-major' if document['row_major'] else 'any'}{where}"]
    if "routine" in document:
        return [*found, str(document["routine"])]
    made = len(operands) + len(document["literals"])
    found += [f"%{len(operands) + k} = {type_text(item)} {item['data']}" for k, item in enumerate(document["literals"])]
    for n in document["nodes"]:
        attrs = [f"{k}={json.dumps(v)}" for k, v in n["attrs"].items()]
        results = ", ".join(f"%{made + k}" for k in range(len(n["outputs"])))
        made += len(n["outputs"])
        call = ", ".join([*(f"%{k}" for k in n["inputs"]), *attrs])
        found.append(f"{results} = {n['op']}({call}) -> {', '.join(map(type_text, n['outputs']))}")
    return [*found, f"return {', '.join(f'%{k}' for k in document['outputs'])}"]
