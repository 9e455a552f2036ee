"""The table of ONNX converters and what each is given.

A converter is one function an operator: ``(ctx, node, inputs) -> outputs``. It reads attributes from ``node`` and appends
core operators through ``ctx``. Which versions of the operator it understands is declared beside its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mlc.errors import UnsupportedError
from mlc.ir.graph import Attrs, Builder, Operator, Value
from mlc.ir.interp.graph import run_node
from mlc.ops import get

# eager folding at import is for shape computations; bigger constants are left to the folding pass
EAGER_FOLD_BYTES = 1 << 20


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


class Context:
    """What a converter may use: it appends nodes and knows which values are constants."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.node: OnnxNode | None = None

    def const(self, value: Value | None) -> np.ndarray | None:
        """The array of a value known at import, else ``None``."""
        return None if value is None else self.builder.constants.get(value)

    def require_const(self, value: Value | None, what: str) -> np.ndarray:
        """The array of a value that must be known at import.

        Raises:
            UnsupportedError: it depends on the model's inputs.
        """
        array = self.const(value)
        if array is None:
            node = self.node
            where = f"{node.op_type} node {node.name!r}" if node else "node"
            raise UnsupportedError(
                f"{where}: {what} depends on the model's inputs; it must be known at compile time",
                hint="make it an initializer, or run the model through a constant-folding exporter",
            )
        return array

    def constant(self, array: Any, dtype: Any = None, name: str = "const") -> Value:
        """A new constant."""
        return self.builder.constant(np.asarray(array, dtype=dtype), name)

    def add(self, op: Operator | str, inputs: Iterable[Value], **attrs: Any) -> Value:
        """Append a one-output operator, or fold it at once when it is small and all inputs are constants."""
        (out,) = self.add_many(op, inputs, attrs)
        return out

    def add_many(self, op: Operator | str, inputs: Iterable[Value], attrs: Attrs) -> tuple[Value, ...]:
        """Append an operator and give all its outputs."""
        operator = get(op) if isinstance(op, str) else op
        ins = tuple(inputs)
        sources = (self.node.name,) if self.node is not None else ()
        names = [n for n in (self.node.outputs if self.node is not None else ()) if n]
        known = [self.builder.constants.get(v) for v in ins]
        outs = self.builder.add(operator, ins, attrs, names=names, sources=sources)
        small = sum(prod(v.type.shape) * v.type.dtype.itemsize for v in outs) <= EAGER_FOLD_BYTES
        if small and all(a is not None for a in known):
            node = self.builder.nodes.pop()
            for v, array in zip(node.outputs, run_node(node, [a for a in known if a is not None]), strict=True):
                self.builder.constants[v] = array
        return outs


ConvertFn = Callable[[Context, OnnxNode, list[Any]], Sequence[Value]]


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
