"""Optimizers, as expressions: what a step makes of parameters, their derivatives, and what it remembers of those.

Rates that change from step to step are operands, which :mod:`mlc.training.schedules` computes: the learning rate, and
the factors that make up for first and second moments having begun at zero.

Where the loss is no number, everything stays as it was: updates are made in place, and whoever wants to know where that
loss came from needs the parameters that it was computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.define.expressions import add_expressions
from mlc.ir import te
from mlc.ir.expr import Expr, binary, call, select
from mlc.ir.graph import Builder, Value
from mlc.ir.index import Var
from mlc.training.schedules import RATES


@dataclass(frozen=True)
class Optimizer:
    """How parameters follow their derivatives.

    Args:
        name: as in ``--optimizer``.
        moments: tensors of a parameter's shape that are remembered for each; all begin at zero.
        update: parameter, derivative, moments and the three rates, element by element -> the new parameter and moments.
        betas: decay of the two moments, of those that make up for their beginning.
    """

    name: str
    moments: int
    update: Callable[[Expr, Expr, Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
    betas: tuple[float, float] | None = None

    def add(
        self, g: Builder, parameter: Value, derivative: Value, moments: Sequence[Value], rates: Value, loss: Value
    ) -> list[Value]:
        """Appends the new parameter and its new moments to a graph.

        The parameter is the first result, and all of them read moments: so each may be written over what it follows,
        but for moments with a decay among derivatives, which read the parameter too.
        """
        operands = (parameter, derivative, *moments)
        p, d, *m = (te.placeholder(v.type.shape, v.type.dtype, name) for v, name in zip(operands, "pdmv", strict=False))
        r = te.placeholder((RATES,), rates.type.dtype, "rates")
        total = te.placeholder(loss.type.shape, loss.type.dtype, "loss")

        def element(*at: Var) -> tuple[Expr, ...]:
            new = self.update(p[at], d[at], [t[at] for t in m], [r[k] for k in range(RATES)])
            return tuple(_if_number(total, n, t[at]) for n, t in zip(new, (p, *m), strict=True))

        results = te.compute_many(p.shape, element, f"{self.name}_step")
        known = {id(t): v for t, v in zip((p, d, *m, r, total), (*operands, rates, loss), strict=True)}
        return add_expressions(g, results, known)


def add_kept(g: Builder, new: Value, old: Value, loss: Value) -> Value:
    """Appends what is measured on the way: the new values, or the old ones where the loss is no number."""
    n, o = (te.placeholder(v.type.shape, v.type.dtype, name) for v, name in ((new, "new"), (old, "old")))
    total = te.placeholder(loss.type.shape, loss.type.dtype, "loss")
    kept = te.compute(n.shape, lambda *at: _if_number(total, n[at], o[at]), "kept")
    return add_expressions(g, [kept], {id(n): new, id(o): old, id(total): loss})[0]


def _if_number(loss: te.Tensor, new: Expr, old: Expr) -> Expr:
    most = float(np.finfo(loss.dtype.numpy).max)
    return select(binary("le", call("abs", loss[(0,) * len(loss.shape)]), most), new, old)


def optimizer(name: str, momentum: float = 0.0, decay: float = 0.0) -> Optimizer:
    """An optimizer by its name: ``sgd`` (with ``momentum``), ``adam``, or ``adamw``.

    Args:
        momentum: of ``sgd``: how much of the last step's direction stays.
        decay: how much of a parameter counts into its derivative; of ``adamw``, into its step.
    """
    if name == "sgd":

        def plain(p: Expr, d: Expr, m: Sequence[Expr], r: Sequence[Expr]) -> Sequence[Expr]:
            d = d + p * decay if decay else d
            if not momentum:
                return (p - r[0] * d,)
            speed = m[0] * momentum + d
            return p - r[0] * speed, speed

        return Optimizer(name, 1 if momentum else 0, plain)
    first, second, tiny = 0.9, 0.999, 1e-8

    def adam(p: Expr, d: Expr, m: Sequence[Expr], r: Sequence[Expr]) -> Sequence[Expr]:
        if decay and name == "adam":
            d = d + p * decay
        mean, square = m[0] * first + d * (1.0 - first), m[1] * second + d * d * (1.0 - second)
        step = r[0] * (mean * r[1]) / (call("sqrt", square * r[2]) + tiny)
        kept = p * (1.0 - r[0] * decay) if decay and name == "adamw" else p
        return kept - step, mean, square

    return Optimizer(name, 2, adam, (first, second))


OPTIMIZERS = ("sgd", "adam", "adamw")
