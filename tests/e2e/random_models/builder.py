"""Grows a valid ONNX model node by node, computing every tensor with onnxruntime on the way.

A tensor's value is known as soon as it is made, so that an operator can choose operands that it is defined for, and so
that a model whose result hangs on the last bit of a number never comes to be: every node is also run on operands that
are a little off, by as much as rounding may have moved them. What then changes a comparison, a position or a rounded
integer, or grows beyond the tolerance of the tests, is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import ort
from tests.e2e.random_models.rounding import PERTURBED_RUNS, ROUNDING, is_exact, largest, limit_of

OPSET = 21
IR_VERSION = 10
MAX_ELEMENTS = 40_000
MAX_MAGNITUDE, MAX_OF_HALVES = 1e4, 50.0
LEAST_HALF = 6e-8  # no half precision number but 0 is smaller
MAX_INPUTS = 6
# one, primes, and what lies around multiples of a vector's lanes
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)


class Choices(Protocol):
    """Where all chances come from."""

    def whole(self, lo: int, hi: int) -> int:
        """A number from ``lo`` to ``hi``, both included."""
        ...


class UnfitError(Exception):
    """The operator cannot be applied to these operands: nothing is added."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the model.

    Args:
        name: in the model.
        value: what it holds.
        error: how far rounding may have moved an element.
        coarse: whether something of 16 bits went into it.
        origin: ``input``, ``constant``, or ``node``.
        folded: whether it depends on constants alone.
    """

    name: str
    value: np.ndarray
    error: float = 0.0
    coarse: bool = False
    origin: str = "node"
    folded: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> np.dtype:
        return self.value.dtype

    @property
    def rank(self) -> int:
        return self.value.ndim


@dataclass(frozen=True, eq=False)
class RandomModel:
    """A finished model.

    Args:
        nodes: in order.
        tensors: all of them by name; those that are no results of nodes are its inputs and constants.
        outputs: names.
    """

    nodes: tuple[onnx.NodeProto, ...]
    tensors: Mapping[str, Tensor]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {t.name: t.value for t in self.tensors.values() if t.origin == "input"}

    @property
    def expected(self) -> dict[str, Tensor]:
        return {name: self.tensors[name] for name in self.outputs}

    @property
    def proto(self) -> onnx.ModelProto:
        constants = [numpy_helper.from_array(t.value, t.name) for t in self.tensors.values() if t.origin == "constant"]
        inputs = [t for t in self.tensors.values() if t.origin == "input"]
        graph = helper.make_graph(
            list(self.nodes),
            "random",
            [_info(t) for t in inputs],
            [_info(self.tensors[name]) for name in self.outputs],
            constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def __repr__(self) -> str:
        """The model as text, values of small constants included: what a failing test shows."""
        np_repr = {t.name: np.array2string(t.value, threshold=8) for t in self.tensors.values()}
        lines = [
            f"{t.origin} {t.name}: {t.dtype}{list(t.shape)}" + (f" = {np_repr[t.name]}" if t.value.size <= 8 else "")
            for t in self.tensors.values()
            if t.origin != "node"
        ]
        for node in self.nodes:
            attrs = ", ".join(f"{a.name}={helper.get_attribute_value(a)!r}" for a in node.attribute)
            types = ", ".join(f"{self.tensors[o].dtype}{list(self.tensors[o].shape)}" for o in node.output if o)
            lines.append(f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)}; {attrs}) -> {types}")
        return "\n".join([*lines, f"outputs {', '.join(self.outputs)}"])


def _info(t: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(t.name, helper.np_dtype_to_tensor_dtype(t.dtype), t.shape)


@dataclass(eq=False)
class Builder:
    """A model under construction. Operators are functions that take one and add nodes to it.

    Args:
        choices: where all chances come from.
        halves: whether the model shall mean the same in half precision: its numbers are such, and small, and rounding
            moves floats as far as theirs.
    """

    choices: Choices
    halves: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    # -- chances ----------------------------------------------------------------------------------------------------
    def whole(self, lo: int, hi: int) -> int:
        return self.choices.whole(lo, hi)

    def flag(self, one_in: int = 2) -> bool:
        return self.whole(0, one_in - 1) == one_in - 1

    def one_of(self, options: Sequence[Any]) -> Any:
        if not options:
            raise UnfitError("nothing to choose from")
        return options[self.whole(0, len(options) - 1)]

    def some_of(self, options: Sequence[Any], least: int = 0) -> list[Any]:
        chosen = [x for x in options if self.flag()]
        return chosen if len(chosen) >= least else list(options[:least])

    def shuffled(self, options: Sequence[Any]) -> list[Any]:
        left, out = list(options), []
        while left:
            out.append(left.pop(self.whole(0, len(left) - 1)))
        return out

    def shape(self, rank: int, room: int | None = None) -> tuple[int, ...]:
        """Extents whose product stays within ``room``; now and then there is enough for threads to share."""
        extents: list[int] = []
        if room is None:
            room = MAX_ELEMENTS if self.flag(8) else 4000
        for _ in range(rank):
            left = room // prod(extents)
            extents.append(self.one_of([n for n in EXTENTS if n <= left] or [1]))
        return tuple(extents)

    # -- operands ---------------------------------------------------------------------------------------------------
    def pick(
        self,
        fits: Callable[[Tensor], bool] = lambda t: True,
        fresh: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """A tensor that fits; sometimes, and when there is none, a fresh one.

        Constants are taken seldom: what is made of constants alone is folded and tests nothing else.
        """
        folded = self.flag(12)
        found = [t for t in reversed(self.tensors.values()) if (folded or not t.folded) and fits(t)]
        if fresh is not None and (not found or self.flag(8)):
            return fresh()
        return self.one_of(found[:12])

    def pick_floats(self, ranks: Sequence[int] = (0, 1, 2, 3, 4, 5), dtype: Any = np.float32) -> Tensor:
        """A tensor of floats with one of these ranks."""
        return self.pick(
            lambda t: t.dtype == dtype and t.rank in ranks,
            lambda: self.fresh(self.shape(self.one_of([r for r in (3, 4, 2, 1, 5, 0) if r in ranks])), dtype),
        )

    def fresh(self, shape: Sequence[int], dtype: Any = np.float32, *, constant: bool | None = None) -> Tensor:
        """A new input or constant of moderate random numbers."""
        dtype = np.dtype(dtype)
        rng = np.random.default_rng(len(self.tensors))
        if dtype.kind == "f":
            value = rng.standard_normal(tuple(shape))
            value[rng.random(value.shape) < 0.05] = 0.0
        elif dtype.kind == "b":
            value = rng.random(tuple(shape)) < 0.5
        else:
            value = rng.integers(0 if dtype.kind == "u" else -9, 10, tuple(shape))
        return self.given(np.asarray(value).astype(dtype), constant=constant)

    def given(self, value: np.ndarray, *, constant: bool | None = True) -> Tensor:
        """A new tensor with this value; ``constant=None`` leaves to chance whether the caller gives it."""
        inputs = sum(t.origin == "input" for t in self.tensors.values())
        if constant is None:
            constant = inputs >= MAX_INPUTS or self.flag(3)
        if value.size > MAX_ELEMENTS:
            raise UnfitError("too large")
        if self.halves and value.dtype == np.float32:
            value = value.astype(np.float16).astype(np.float32)
        letter, origin = ("c", "constant") if constant else ("x", "input")
        t = Tensor(f"{letter}{len(self.tensors)}", value, origin=origin, folded=bool(constant))
        self.tensors[t.name] = t
        return t

    def ints(self, *values: int) -> Tensor:
        """A constant of 64-bit integers: axes, shapes, positions."""
        return self.given(np.array(values, np.int64))

    # -- nodes ------------------------------------------------------------------------------------------------------
    def add(self, op: str, operands: Sequence[Tensor | None], outputs: int = 1, **attrs: Any) -> list[Tensor]:
        """Append a node, unless its results are of no use.

        Args:
            op: operator of the standard domain.
            operands: ``None`` for what is left out.
            outputs: how many results.
            attrs: attributes; those that are ``None`` are left out.
        Raises:
            UnfitError: onnxruntime cannot run it, or the results are not finite, too large, or too sensitive.
        """
        given = {k: v for k, v in attrs.items() if v is not None}
        names = [f"t{len(self.tensors) + k}" for k in range(outputs)]
        node = helper.make_node(op, ["" if t is None else t.name for t in operands], names, **given)
        present = list({t.name: t for t in operands if t is not None}.values())
        run = _runner(node, present)
        values = run([t.value for t in present])
        coarse = self.halves or any(t.coarse for t in present) or any(v.dtype == np.float16 for v in values)
        folded = all(t.folded for t in present)
        errors = [0.0 for _ in values]
        for _, moved in zip(range(PERTURBED_RUNS), self._perturbed(present), strict=False):
            for k, (v, near) in enumerate(zip(values, run(moved), strict=True)):
                errors[k] = max(errors[k], _distance(v, near))
        made = []
        for name, value, error in zip(names, values, errors, strict=True):
            if value.size == 0 or value.size > MAX_ELEMENTS:
                raise UnfitError("empty or too large")
            if value.dtype.kind == "f":
                top = largest(value)
                if not np.isfinite(value).all() or top > (MAX_OF_HALVES if self.halves else MAX_MAGNITUDE):
                    raise UnfitError("not finite, or too large a number")
                if not is_exact(op, present):
                    error += (
                        max(ROUNDING["float16"] * top, LEAST_HALF) if self.halves else ROUNDING[value.dtype.name] * top
                    )
                if error > limit_of(coarse) * top:
                    raise UnfitError("too sensitive")
            made.append(Tensor(name, value, error, coarse, folded=folded))
        self.nodes.append(node)
        self.tensors.update({t.name: t for t in made})
        return made

    def _perturbed(self, operands: Sequence[Tensor]) -> Iterator[list[np.ndarray]]:
        """Operands moved by what rounding may have done to them; none where all are exact."""
        rng = np.random.default_rng(1)
        if self.halves and any(t.error for t in operands):  # by which numbers may have become equal
            yield [t.value.astype(np.float16).astype(t.dtype) if t.dtype.kind == "f" else t.value for t in operands]
        while any(t.error for t in operands):
            yield [
                np.asarray(t.value + rng.uniform(-t.error, t.error, t.shape).astype(t.dtype)) if t.error else t.value
                for t in operands
            ]

    def apply(self, operator: Callable[[Builder], None]) -> bool:
        """Let an operator add itself; what it had added when it gave up is taken back."""
        nodes, tensors = len(self.nodes), dict(self.tensors)
        try:
            operator(self)
        except UnfitError:
            del self.nodes[nodes:]
            self.tensors = tensors
            return False
        return True

    def finish(self) -> RandomModel:
        """Choose outputs: what nobody reads, unless left dead; some of the rest, perhaps an input or a constant."""
        read = {name for node in self.nodes for name in node.input}
        made = [t for t in self.tensors.values() if t.origin == "node"]
        sinks = [t.name for t in made if t.name not in read and not self.flag(8)]
        inner = [t.name for t in made if t.name in read and self.flag(8)]
        given = [t.name for t in self.tensors.values() if t.origin != "node" and self.flag(24)]
        outputs = self.shuffled(sinks)[:8] + inner[:3] + given[:2]
        if not outputs:
            outputs = [list(self.tensors)[-1]]
        kept = {
            t.name: t
            for t in self.tensors.values()
            if t.origin != "constant" or t.name in read or t.name in outputs or self.flag(16)
        }
        return RandomModel(tuple(self.nodes), kept, tuple(outputs))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        raise UnfitError("even the shape depends on rounding")
    if a.dtype.kind != "f":
        if not np.array_equal(a, b):
            raise UnfitError("depends on rounding")
        return 0.0
    return float(largest(a.astype(np.float64) - b))


def _runner(node: onnx.NodeProto, operands: Sequence[Tensor]) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """The node alone in onnxruntime, without its optimisations."""
    graph = helper.make_graph(
        [node], "one", [_info(t) for t in operands], [helper.make_empty_tensor_value_info(n) for n in node.output]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    try:
        session = ort.session(model)
    except Exception as error:  # its exceptions have no common base of their own
        raise UnfitError(f"onnxruntime: {error}") from None

    def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            results = session.run(None, {t.name: v for t, v in zip(operands, values, strict=True)})
        except Exception as error:  # as above
            raise UnfitError(f"onnxruntime: {error}") from None
        return [np.asarray(r) for r in results]

    return run
