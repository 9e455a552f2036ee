"""Losses, as expressions: a number for an example, whose derivative is derived like any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from mlc.define.expressions import add_expressions
from mlc.errors import UsageError
from mlc.ir import te
from mlc.ir.expr import Expr, as_expr, binary, select
from mlc.ir.graph import Builder, Value
from mlc.ir.index import Linear, as_index
from mlc.ir.types import TensorType, i64
from mlc.ops import get


@dataclass(frozen=True)
class Loss:
    """What training makes small.

    Args:
        target: the type of what a prediction is compared with, from its own.
        add: appends the losses of the examples of a batch, ``[batch]``, to a graph, given predictions and targets.
        classes: whether predictions are scores of classes, along axis 1.
    """

    target: Callable[[TensorType], TensorType]
    add: Callable[[Builder, Value, Value], Value]
    classes: bool


def _each(g: Builder, shape: tuple[int, ...], term: Callable[..., Expr], known: dict[int, Value], count: int) -> Value:
    """For each example, the sum of ``term`` over all its positions, divided by ``count``."""
    axes = tuple(te.reduce_axis(n, f"r{d}") for d, n in enumerate(shape[1:]))
    total = te.compute((shape[0],), lambda n: te.sum_of(term(n, *map(as_index, axes)), axes), "total", tag="sum")
    return add_expressions(g, [te.compute(shape[:1], lambda n: total[n] * (1.0 / count), "losses")], known)[0]


def mean_of(g: Builder, losses: Value) -> Value:
    """Appends the mean of the losses of a batch, ``[1]``, to a graph."""
    t = te.placeholder(losses.type.shape, losses.type.dtype, "losses")
    n = te.reduce_axis(t.size, "n")
    total = te.compute((1,), lambda _: te.sum_of(t[n], n), "total", tag="sum")
    return add_expressions(g, [te.compute((1,), lambda i: total[i] * (1.0 / t.size), "loss")], {id(t): losses})[0]


def _cross_entropy(g: Builder, prediction: Value, target: Value) -> Value:
    """Minus the logarithm of what the softmax of scores gives to the right class."""
    made_by = next((n for n in g.nodes if prediction in n.outputs), None)
    if made_by is not None and made_by.op is get("softmax") and made_by.attrs["axis"] % prediction.type.rank == 1:
        (prediction,) = made_by.inputs  # which log_softmax takes in one step, without a loss of digits
    (logs,) = g.add(get("log_softmax"), [prediction], {"axis": 1}, names=["log_probabilities"])
    y, label = (te.placeholder(v.type.shape, v.type.dtype, v.name) for v in (logs, target))

    def term(n: Linear, c: Linear, *at: Linear) -> Expr:
        return select(binary("eq", label[(n, *at)], as_expr(c)), -y[(n, c, *at)], 0.0)

    return _each(g, y.shape, term, {id(y): logs, id(label): target}, prod(label.shape[1:]))


def _squares(g: Builder, prediction: Value, target: Value) -> Value:
    """The mean of the squares of an example's differences."""
    y, t = (te.placeholder(v.type.shape, v.type.dtype, v.name) for v in (prediction, target))

    def term(*at: Linear) -> Expr:
        return (y[at] - t[at]) * (y[at] - t[at])

    return _each(g, y.shape, term, {id(y): prediction, id(t): target}, prod(y.shape[1:]))


def _margin(g: Builder, prediction: Value, target: Value) -> Value:
    """Of lengths of capsules: the right one is to be 0.9 at least, all others 0.1 at most.

    Sabour et al., "Dynamic Routing Between Capsules", 2017, equation 4.
    """
    y, label = (te.placeholder(v.type.shape, v.type.dtype, v.name) for v in (prediction, target))

    def term(n: Linear, c: Linear, *at: Linear) -> Expr:
        score = y[(n, c, *at)]
        short, long = binary("max", 0.9 - score, 0.0), binary("max", score - 0.1, 0.0)
        return select(binary("eq", label[(n, *at)], as_expr(c)), short * short, 0.5 * long * long)

    return _each(g, y.shape, term, {id(y): prediction, id(label): target}, prod(label.shape[1:]))


def _labels(type: TensorType) -> TensorType:
    if type.rank < 2:
        raise UsageError(f"the cross entropy takes scores [batch, classes, …], and the model gives {type}")
    return TensorType((type.shape[0], *type.shape[2:]), i64)


LOSSES = {
    "cross_entropy": Loss(_labels, _cross_entropy, classes=True),
    "margin": Loss(_labels, _margin, classes=True),
    "mse": Loss(lambda type: TensorType(type.shape, type.dtype), _squares, classes=False),
}
