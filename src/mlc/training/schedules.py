"""Learning rates that change from step to step, as expressions of the step's number: compiled into it like the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlc.define.expressions import add_expressions
from mlc.ir import te
from mlc.ir.expr import Expr, as_expr, binary, call, cast, const, select
from mlc.ir.graph import Builder, Value
from mlc.ir.index import Linear
from mlc.ir.types import DType, f64

SCHEDULES = ("constant", "cosine")
RATES = 3  # what an optimizer takes: the learning rate, and factors for the first and for the second moment


@dataclass(frozen=True)
class Schedule:
    """How fast a run learns, in each of its steps.

    Args:
        lr: the learning rate.
        kind: how it goes on: ``constant``, or ``cosine`` down to nothing.
        warmup: steps in which it grows from nothing, in equal parts.
        steps: of the whole run; only ``cosine`` asks.
    """

    lr: float
    kind: str = "constant"
    warmup: int = 0
    steps: int = 0

    def add(self, g: Builder, number: Value, betas: tuple[float, float] | None, dtype: DType) -> Value:
        """Appends the rates of a step to a graph, ``[RATES]``.

        They are computed in double precision: what makes up for moments is one over a small difference in early steps.
        The schedule's numbers are a constant beside the expression, so kernels do not depend on them.

        Args:
            number: of the step, counted from 1: an integer, ``[1]``.
            betas: decay of the two moments whose beginning at zero is made up for (Kingma and Ba, "Adam", 2015,
                algorithm 1); both factors are 1 without.
            dtype: of the rates.
        """
        given = np.array([self.lr, self.warmup, max(1, self.steps - self.warmup)], np.float64)
        step = te.placeholder(number.type.shape, number.type.dtype, "step")
        s = te.placeholder(given.shape, f64, "schedule")
        n = cast(step[0], f64)

        def element(k: Linear) -> Expr:
            result = self._rate(n, s)
            for place, beta in enumerate(betas or (), 1):
                makes_up = 1.0 / (1.0 - binary("pow", const(beta, f64), n))
                result = select(binary("eq", as_expr(k), place), makes_up, result)
            if betas is None:
                result = select(binary("eq", as_expr(k), 0), result, 1.0)
            return cast(result, dtype)

        rates = te.compute((RATES,), element, "rates")
        return add_expressions(g, [rates], {id(step): number, id(s): g.constant(given, "schedule")})[0]

    def _rate(self, n: Expr, s: te.Tensor) -> Expr:
        """The learning rate of a step."""
        lr, warmup, rest = (s[k] for k in range(3))
        later: Expr = lr
        if self.kind == "cosine":
            later = lr * 0.5 * (1.0 + call("cos", math.pi * (n - warmup) / rest))
        return select(binary("le", n, warmup), lr * n / warmup, later) if self.warmup else later
