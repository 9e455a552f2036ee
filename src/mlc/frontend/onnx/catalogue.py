"""The list of operators that can be imported, for ``mlc ops``; taken from the tables that the import itself uses."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs

from mlc.frontend.base import OperatorInfo
from mlc.frontend.onnx import converters as _converters  # noqa: F401, fills the table
from mlc.frontend.onnx.control import CONTROL_FLOW, LIMITS
from mlc.frontend.onnx.registry import CONVERTERS
from mlc.frontend.onnx.schema import NEWEST_OPSET, STANDARD_DOMAINS, find_schema
from mlc.frontend.onnx.validate import normal_domain


def supported_operators() -> list[OperatorInfo]:
    """Every operator that can be imported, standard ones first, by name."""
    found = [OperatorInfo(c.op_type, c.domain, c.since, c.limits) for c in CONVERTERS.entries.values()]
    found += [OperatorInfo(name, "", 1, LIMITS[name]) for name in CONTROL_FLOW]
    found += _by_definition({(o.domain, o.name) for o in found})
    return sorted(found, key=lambda o: (o.domain, o.name))


def _by_definition(known: set[tuple[str, str]]) -> list[OperatorInfo]:
    """Operators without a converter that ONNX defines by others, all of which can be imported.

    Where the definition depends on the operands, it is not known here; the import finds out.
    """
    supported = set(known)
    fixed: dict[tuple[str, str], tuple[int, set[tuple[str, str]]]] = {}
    found: list[OperatorInfo] = []
    since: dict[tuple[str, str], int] = {}
    raw: Any  # the type stubs of onnx leave out half of what a schema has
    for raw in defs.get_all_schemas_with_history():
        if raw.has_function or raw.has_context_dependent_function:
            key = (raw.domain, raw.name)
            since[key] = min(raw.since_version, since.get(key, raw.since_version))
    for raw in defs.get_all_schemas():
        key = (raw.domain, raw.name)
        schema = find_schema(raw.domain, raw.name, NEWEST_OPSET)
        if key in known or raw.domain not in STANDARD_DOMAINS or schema is None or not schema.is_function:
            continue
        if any(not any(t.startswith("tensor(") for t in formal.types) for formal in schema.inputs):
            continue
        if raw.has_function:
            fixed[key] = since[key], _operators(raw.function_body)
        else:
            supported.add(key)
            found.append(
                OperatorInfo(
                    raw.name, raw.domain, since[key], "where its definition in other operators allows", "function"
                )
            )
    # a definition may use another that is met later
    while ready := [key for key, (_, uses) in fixed.items() if uses <= supported]:
        for key in ready:
            version, _ = fixed.pop(key)
            supported.add(key)
            found.append(OperatorInfo(key[1], key[0], version, via="function"))
    return found


def _operators(function: onnx.FunctionProto) -> set[tuple[str, str]]:
    return {(normal_domain(node.domain), node.op_type) for node in function.node}
