"""Nodes of custom domains that the user has defined: converters made of operators of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc.errors import ImportModelError
from mlc.frontend.base import CustomOperator
from mlc.frontend.common.context import Context
from mlc.frontend.onnx.registry import Converter, OnnxNode
from mlc.frontend.onnx.schema import STANDARD_DOMAINS
from mlc.ir.graph import Value


class CustomOperators:
    """Operators of the user's own, by domain and name.

    Args:
        operators: one without a domain stands for nodes of every domain that is none of ONNX's.
    """

    def __init__(self, operators: Sequence[CustomOperator]) -> None:
        self._table = {(op.domain, op.name): _converter(op) for op in operators}

    def find(self, domain: str, op_type: str) -> Converter | None:
        """What converts a node, if it is one of them."""
        found = self._table.get((domain, op_type)) if domain else None
        if found is None and domain not in STANDARD_DOMAINS:
            found = self._table.get(("", op_type))
        return found


def _converter(op: CustomOperator) -> Converter:
    def convert(ctx: Context, node: OnnxNode, inputs: list[Any]) -> Sequence[Value | None]:
        missing = [k for k, v in enumerate(inputs) if v is None]
        if missing:
            raise ImportModelError(f"input {missing[0]} is left out, and an operator of your own takes all of them")
        before = len(ctx.builder.nodes)
        results = op.add(ctx.builder, inputs, node.attrs, sources=(ctx.source,))
        ctx.limits.check("nodes", len(ctx.builder.nodes) - before, f"computes of the operator {op.name}")
        return results

    return Converter(op.name, op.domain, 1, convert)
