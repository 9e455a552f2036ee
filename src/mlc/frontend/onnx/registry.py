"""The table of ONNX converters and what each is given.

A converter is one function an operator: ``(ctx, node, inputs) -> outputs``. It reads attributes from ``node`` and
appends core operators through ``ctx``. Which versions of the operator it understands is declared beside its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlc.frontend.common.context import Context
from mlc.ir.graph import Value


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model, with attributes as Python values.

    Args:
        name: the node's name, or ``op_type_<position>`` when it has none.
        op_type: operator.
        domain: ``""`` for ai.onnx.
        opset: version of that domain that the model imports.
        attrs: ints, floats, strings, tuples of them, numpy arrays, or ``onnx.GraphProto``.
        outputs: names of the outputs; ``""`` where one is not wanted.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    attrs: dict[str, Any]
    outputs: tuple[str, ...]

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


ConvertFn = Callable[[Context, OnnxNode, list[Any]], Sequence[Value | None]]


@dataclass(frozen=True)
class Converter:
    """A converter and what it covers.

    Args:
        op_type: ONNX operator.
        domain: its domain.
        since: first opset whose definition this converter understands.
        convert: the function; optional inputs that are absent are ``None``.
        limits: what is not covered, in words, printed by ``mlc ops``.
    """

    op_type: str
    domain: str
    since: int
    convert: ConvertFn
    limits: str = ""


@dataclass
class ConverterTable:
    """Converters by (domain, operator)."""

    entries: dict[tuple[str, str], Converter] = field(default_factory=dict)

    def find(self, domain: str, op_type: str) -> Converter | None:
        return self.entries.get(("" if domain == "ai.onnx" else domain, op_type))


CONVERTERS = ConverterTable()


def converter(
    op_type: str, *more: str, domain: str = "", since: int = 1, limits: str = ""
) -> Callable[[ConvertFn], ConvertFn]:
    """Decorator that enters a converter for one or more operators of one shape."""

    def wrap(fn: ConvertFn) -> ConvertFn:
        for name in (op_type, *more):
            key = (domain, name)
            if key in CONVERTERS.entries:
                raise ValueError(f"converter for {name} is registered twice")
            CONVERTERS.entries[key] = Converter(name, domain, since, fn, limits)
        return fn

    return wrap
