"""Operators by expression: a function from tensors to what every element of a result is (NeoFlow §4.1).

Nothing else is said of such an operator. Each compute of its expression becomes a node of the graph, and whatever a
graph's nodes meet, it meets: it is fused, laid out, scheduled by what it does, tuned, and differentiated.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Protocol, overload, runtime_checkable

from mlc.define.expressions import add_expressions
from mlc.define.foreign import ask
from mlc.errors import UsageError, VerifyError
from mlc.ir import te
from mlc.ir.expr import Expr, Load, Select, children, replace_loads
from mlc.ir.graph import Builder, Value
from mlc.ir.index import Linear
from mlc.ops.expression import kept_inside


@runtime_checkable
class Operand(Protocol):
    """What an operator may be applied to besides tensor expressions."""

    def take(self, op: OwnOperator, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Applies an operator to operands, of which this is one."""
        ...


class OwnOperator:
    """An operator of the user's own; made by :func:`operator`.

    Called with tensor expressions it gives tensor expressions, so that operators may be made of others; called with
    tensors of a network, it becomes part of the network.

    Args:
        express: takes tensors by position, attributes by name; gives the result, or a tuple of several.
        name: in models; the function's unless given.
        domain: in ONNX models; empty for any that is not one of ONNX's own.
    """

    def __init__(self, express: Callable[..., Any], name: str, domain: str) -> None:
        self.express = express
        self.name = name
        self.domain = domain
        self._signature = inspect.signature(express)
        update_wrapper(self, express)

    def __repr__(self) -> str:
        return f"<operator {self.domain + '.' if self.domain else ''}{self.name}>"

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        taker = next((t for t in operands if isinstance(t, Operand)), None)
        return self.express(*operands, **attrs) if taker is None else taker.take(self, operands, attrs)

    @property
    def where(self) -> str:
        """The operator with the file and line that it is written in."""
        code = getattr(self.express, "__code__", None)
        place = f" ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})" if code is not None else ""
        return f"operator {self.name}{place}"

    def add(
        self, g: Builder, inputs: Sequence[Value], attrs: Mapping[str, Any], *, sources: Sequence[str] = ()
    ) -> list[Value]:
        """Appends the operator's expression to a graph, a node for each compute.

        Args:
            inputs: operands.
            attrs: by name of the function's parameters.
            sources: the model's own nodes behind it.
        Returns:
            the results.
        Raises:
            UsageError: the function takes other operands, raises something, gives what is no tensor, or reads beyond a
                tensor.
        """
        operands = self._operands(inputs, attrs)
        results = self._expressed(operands, attrs)
        try:
            te.verify(results)
        except VerifyError as error:
            raise UsageError(f"{self.where}: {error.message}") from error
        known = {id(t): v for t, v in zip(operands, inputs, strict=True)}
        for op in te.topological(results):
            for t in op.inputs:
                if t.op is None and id(t) not in known:
                    raise UsageError(f"{self.where}: {op.name} reads {t.name!r}, which is none of its operands")
            _require_inside(op, self.where)
        return add_expressions(g, _kept_inside(results, self.name), known, sources)

    def _operands(self, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> list[te.Tensor]:
        try:
            bound = self._signature.bind(*inputs, **attrs)
        except TypeError as error:
            raise UsageError(f"{self.where}: {error}", hint=f"it is written as {self.name}{self._signature}") from error
        names: list[str] = []
        for name, value in bound.arguments.items():
            if isinstance(value, tuple) and self._signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                names += [f"{name}{k}" for k in range(len(value))]
            elif isinstance(value, Value):
                names.append(name)
        return [te.placeholder(v.type.shape, v.type.dtype, n) for v, n in zip(inputs, names, strict=True)]

    def _expressed(self, operands: Sequence[te.Tensor], attrs: Mapping[str, Any]) -> tuple[te.Tensor, ...]:
        types = ", ".join(map(repr, operands))
        found = ask(lambda: self.express(*operands, **attrs), lambda error: self.where, f"it was given {types}")
        results = found if isinstance(found, tuple) else (found,)
        if not results or not all(isinstance(t, te.Tensor) for t in results):
            kind = type(found).__name__
            raise UsageError(f"{self.where} gives a {kind}, not a tensor", hint="return te.compute(shape, element)")
        return results


def _require_inside(op: te.Compute, where: str) -> None:
    """Complains of elements beyond a tensor, read whatever conditions say.

    Raises:
        UsageError: naming tensor and dimension.
    """
    for body in op.bodies:
        for load in _unconditional(body):
            for d, (ix, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
                lo, hi = _range(ix)
                if lo < 0 or hi >= extent:
                    raise UsageError(
                        f"{where}: {op.name} reads {load!r}, which reaches from {lo} to {hi} along axis {d} of "
                        f"{load.source!r}",
                        hint="te.where(te.inside(index, 0, extent), …, 0.0) reads zeros beyond a tensor",
                    )


def _kept_inside(results: Sequence[te.Tensor], name: str) -> list[te.Tensor]:
    """The same tensors, where conditions that do not keep reads inside of a tensor are helped.

    Args:
        name: of those that have none.
    """
    new: dict[int, te.Tensor] = {}
    for op in te.topological(results):
        bodies = tuple(
            kept_inside(replace_loads(b, lambda ld: Load(new.get(id(ld.source), ld.source), ld.indices)))
            for b in op.bodies
        )
        called = name if op.name == te.UNNAMED else op.name
        made = te.finish(te.Compute(called, op.axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs))
        new.update({id(old): t for old, t in zip(op.outputs, made, strict=True)})
    return [new.get(id(t), t) for t in results]


def _range(ix: Linear) -> tuple[int, int]:
    return ix.bounds() if ix.terms else (ix.const, ix.const)


def _unconditional(e: Expr) -> list[Load]:
    """What is read whatever ``where`` chooses."""
    found: list[Load] = []
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            found.append(node)
        stack += (node.cond,) if isinstance(node, Select) else children(node)
    return found


@overload
def operator(express: Callable[..., Any]) -> OwnOperator: ...


@overload
def operator(*, name: str = "", domain: str = "") -> Callable[[Callable[..., Any]], OwnOperator]: ...


def operator(express: Callable[..., Any] | None = None, *, name: str = "", domain: str = "") -> Any:
    """Decorator: a function of tensor expressions becomes an operator.

    Args:
        express: takes tensors by position and attributes by name, and gives what ``te.compute`` does, or a tuple.
        name: that ONNX models call it by; the function's own unless given.
        domain: that it has in ONNX models; any that is not one of ONNX's own unless given.

    >>> from mlc.define import te
    >>> @operator
    ... def halved(x, *, by=2):
    ...     return te.compute((x.shape[0] // by,), lambda i: x[i * by] + x[i * by + 1], "halved")
    >>> halved
    <operator halved>
    """

    def wrap(function: Callable[..., Any]) -> OwnOperator:
        return OwnOperator(function, name or function.__name__, domain)

    return wrap if express is None else wrap(express)


__all__ = ["OwnOperator", "operator"]
