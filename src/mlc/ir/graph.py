"""The graph: operators applied to typed values, immutable, in topological order.

A pass is a function ``Graph -> Graph``. This module knows no operator by name: a :class:`Node` holds its
:class:`Operator`, which may come from the registry of ``mlc.ops`` or be built on the spot (a user-defined operator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from mlc.errors import MlcError, VerifyError
from mlc.ir import te
from mlc.ir.loop import Buffer, Stmt
from mlc.ir.text import Printable
from mlc.ir.types import TensorType, dtype_of

Attrs = Mapping[str, Any]

# What a type rule or an expression may raise on attributes that make no sense to it.
RULE_ERRORS = (MlcError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class FusionKind(StrEnum):
    """The four classes of TVM §3 that decide what fuses with what."""

    INJECTIVE = "injective"
    REDUCTION = "reduction"
    COMPLEX = "complex-out-fusable"
    OPAQUE = "opaque"


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator, once: its type rule, its meaning, its fusion kind.

    Args:
        name: unique in the registry.
        kind: fusion kind.
        infer: input types and attributes -> output types; raises ``VerifyError`` on a mistyped call.
        express: input tensors and attributes -> output tensors, in logical index space; ``None`` for opaque routines.
        routine: for what no expression can state: input and output buffers and attributes -> a loop AST.
        evaluate: input arrays and attributes -> output arrays, for what neither says; where there is an expression as
            well, what the interpreter takes instead of it, since it is that much faster.
        elementwise: every output element depends on the inputs' elements at the same (broadcast) position only.
        foldable: whether it may be computed at compile time where all operands are known; not where a pass wants to see
            what it is applied to.
        attrs: attribute names with their defaults; ``...`` marks a required one.
    """

    name: str
    kind: FusionKind
    infer: Callable[[Sequence[TensorType], Attrs], Sequence[TensorType]]
    express: Callable[[Sequence[te.Tensor], Attrs], Sequence[te.Tensor]] | None = None
    routine: Callable[[Sequence[Buffer], Sequence[Buffer], Attrs], Stmt] | None = None
    evaluate: Callable[[Sequence[np.ndarray], Attrs], Sequence[np.ndarray]] | None = None
    elementwise: bool = False
    foldable: bool = True
    attrs: Attrs = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Value:
    """A typed edge of the graph.

    Args:
        name: unique in its graph; the model's own tensor name where there is one.
        type: shape, element type and layout.
    """

    name: str
    type: TensorType

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(slots=True, eq=False, repr=False)
class Node(Printable):
    """One application of an operator.

    Args:
        op: the operator.
        inputs: operands.
        attrs: every attribute of the operator, defaults filled in.
        outputs: results.
        sources: names of the model's own nodes that this one stands for.
    """

    op: Operator
    inputs: tuple[Value, ...]
    attrs: Attrs
    outputs: tuple[Value, ...]
    sources: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Graph(Printable):
    """A whole model, or the body of a fused group.

    Args:
        name: for printing.
        inputs: values given by the caller.
        outputs: values given back; one may be an input, a constant, or occur twice.
        nodes: producers before users.
        constants: values known at compile time.
        output_names: the model's names of the outputs.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: dict[Value, np.ndarray]
    output_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.output_names:
            self.output_names = tuple(v.name for v in self.outputs)

    def producers(self) -> dict[Value, Node]:
        """The node that makes each value."""
        return {v: n for n in self.nodes for v in n.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """The nodes that read each value, each node once; graph outputs are not counted."""
        users: dict[Value, list[Node]] = {}
        for n in self.nodes:
            for v in dict.fromkeys(n.inputs):
                users.setdefault(v, []).append(n)
        return users


Pass = Callable[[Graph], Graph]


def fill_attrs(op: Operator, attrs: Attrs) -> dict[str, Any]:
    """Attributes of a call with the operator's defaults.

    Raises:
        VerifyError: an unknown attribute, or a required one is missing.
    """
    unknown = set(attrs) - set(op.attrs)
    if unknown:
        raise VerifyError(f"{op.name} has no attribute {', '.join(sorted(unknown))}")
    full = {**op.attrs, **attrs}
    missing = [k for k, v in full.items() if v is ...]
    if missing:
        raise VerifyError(f"{op.name} needs attribute {', '.join(missing)}")
    return full


def check_attrs(op: Operator, attrs: Attrs) -> None:
    """Attributes that come from outside must be of the kind of their defaults: a type rule need not expect others.

    Raises:
        VerifyError: one is not.
    """
    for key, value in attrs.items():
        default = op.attrs[key]
        if default is ... or default is None or value is None:
            continue
        kinds = (int, float) if type(default) is float else type(default)
        if not isinstance(value, kinds) or (isinstance(value, bool) and type(default) is not bool):
            raise VerifyError(f"{op.name}.{key} is {value!r}, not a value like {default!r}")


class Builder:
    """Grows a graph node by node, keeping names unique.

    ``add`` infers types; constants of equal bytes are not merged here (a pass does that).
    """

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[Value, np.ndarray] = {}
        self._names: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """``name``, with a number appended when it is taken already."""
        if name not in self._names:
            self._names[name] = 0
            return name
        while True:
            self._names[name] += 1
            candidate = f"{name}.{self._names[name]}"
            if candidate not in self._names:
                self._names[candidate] = 0
                return candidate

    def input(self, name: str, type: TensorType) -> Value:
        value = Value(self.unique(name), type)
        self.inputs.append(value)
        return value

    def constant(self, array: np.ndarray, name: str = "const") -> Value:
        array = np.asarray(array)
        value = Value(self.unique(name), TensorType(tuple(array.shape), dtype_of(array.dtype)))
        self.constants[value] = array
        return value

    def add(
        self,
        op: Operator,
        inputs: Iterable[Value],
        attrs: Attrs | None = None,
        *,
        names: Sequence[str] = (),
        sources: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Append a node and give back its outputs.

        Args:
            op: the operator.
            inputs: operands.
            attrs: attributes that differ from the defaults.
            names: wished-for names of the outputs.
            sources: the model's own nodes behind this one.
        """
        ins = tuple(inputs)
        full = fill_attrs(op, attrs or {})
        types = op.infer([v.type for v in ins], full)
        outs = tuple(Value(self.unique(names[k] if k < len(names) else op.name), t) for k, t in enumerate(types))
        self.nodes.append(Node(op, ins, full, outs, tuple(sources)))
        return outs

    def finish(self, outputs: Sequence[Value], output_names: Sequence[str] = ()) -> Graph:
        return Graph(
            self.name, tuple(self.inputs), tuple(outputs), tuple(self.nodes), self.constants, tuple(output_names)
        )


def express(node: Node, inputs: Sequence[te.Tensor]) -> Sequence[te.Tensor]:
    """The tensor expressions of a node over the given operands.

    Raises:
        VerifyError: the operator is an opaque routine.
    """
    if node.op.express is None:
        raise VerifyError(f"{node.op.name} is opaque: it has no tensor expression")
    return node.op.express(inputs, node.attrs)


def verify(graph: Graph) -> None:
    """Check order, uniqueness, types and constants.

    Raises:
        VerifyError: the first fault, naming the node.
    """
    known: set[Value] = set(graph.inputs) | set(graph.constants)
    names: set[str] = set()
    for v in known:
        if v.name in names:
            raise VerifyError(f"two values are called {v.name!r}")
        names.add(v.name)
    for v, array in graph.constants.items():
        if tuple(array.shape) != v.type.physical_shape or array.dtype != v.type.dtype.numpy:
            raise VerifyError(f"constant {v.name}: is {array.dtype}{array.shape}, typed {v.type}")
        if (most := v.type.dtype.magnitude) is not None and (
            array.min(initial=0) < -most or array.max(initial=0) > most
        ):
            raise VerifyError(f"constant {v.name}: typed {v.type}, but has numbers beyond {most}")
    for node in graph.nodes:
        for v in node.inputs:
            if v not in known:
                raise VerifyError(f"{node!r}: {v.name} is used before it is made")
        fill_attrs(node.op, node.attrs)
        types = node.op.infer([v.type for v in node.inputs], node.attrs)
        if len(types) != len(node.outputs):
            raise VerifyError(f"{node!r}: {len(node.outputs)} outputs, the operator gives {len(types)}")
        for v, t in zip(node.outputs, types, strict=True):
            if (v.type.shape, v.type.dtype) != (t.shape, t.dtype):
                raise VerifyError(f"{node!r}: {v.name} is typed {v.type}, the operator gives {t}")
            if v in known or v.name in names:
                raise VerifyError(f"{node!r}: {v.name} is made twice")
            known.add(v)
            names.add(v.name)
    for v in graph.outputs:
        if v not in known:
            raise VerifyError(f"output {v.name} is never made")
    if len(graph.output_names) != len(graph.outputs):
        raise VerifyError(f"{len(graph.outputs)} outputs but {len(graph.output_names)} names")
