"""Random tensor expressions of one to three computes, smooth almost everywhere."""

from __future__ import annotations

from math import prod
from random import Random

from mlc.define.te import combiner
from mlc.ir import te
from mlc.ir.expr import Expr, all_of, binary, call, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.types import f64

EITHER = combiner(lambda a, b: a + b - a * b, 0.0, "either")
FOLDS = (te.sum_of, te.sum_of, te.sum_of, te.max_of, te.min_of, te.prod_of, EITHER)
LARGEST = 400  # elements of a tensor, and iterations of a compute divided by 20


def index(rng: Random, axes: list[Var]) -> Linear:
    form = as_index(rng.randint(0, 1))
    for a in rng.sample(axes, min(len(axes), rng.choice([1, 1, 2]))):
        form += as_index(a) * rng.choice([1, 1, 1, 2, 3, -1])
    kind = rng.random()
    if kind < 0.15:
        form = form // rng.randint(2, 3)
    elif kind < 0.3:
        form = form % rng.randint(2, 4)
    return form


def operand(rng: Random, axes: list[Var], made: list[te.Tensor], placeholders: list[te.Tensor]) -> Expr:
    """A load from a tensor that is there, guarded where it may miss it, or from a new one that fits the access."""
    if made and rng.random() < 0.6:
        t = rng.choice(made)
        at = [index(rng, axes) for _ in t.shape]
        guard = all_of([within(ix, 0, n) for ix, n in zip(at, t.shape, strict=True)])
        return select(guard, t[tuple(at)], 0.25)
    at = [index(rng, axes) for _ in range(rng.randint(1, 2))]
    at = [ix - ix.bounds()[0] for ix in at]
    shape = [ix.bounds()[1] + 1 for ix in at]
    if prod(shape) > LARGEST:
        at, shape = at[:1], shape[:1]
    t = te.placeholder(shape, f64, f"x{len(placeholders)}")
    placeholders.append(t)
    made.append(t)
    return t[tuple(at)]


def term(rng: Random, axes: list[Var], made: list[te.Tensor], placeholders: list[te.Tensor], depth: int = 0) -> Expr:
    kind = rng.random()
    if depth > 2 or kind < 0.3:
        return operand(rng, axes, made, placeholders)

    def below() -> Expr:
        return term(rng, axes, made, placeholders, depth + 1)

    if kind < 0.55:
        return binary(rng.choice(["mul", "mul", "add", "sub"]), below(), below())
    if kind < 0.62:
        return binary(rng.choice(["min", "max"]), below(), below())
    if kind < 0.7:
        divisor = below()
        return below() / (1.5 + divisor * divisor)
    if kind < 0.78:
        return select(binary("gt", below(), 0.1), below(), below())
    if kind < 0.84:
        return select(within(index(rng, axes), 0, 3), below(), 0.0)
    return call(rng.choice(["tanh", "sigmoid", "sin", "cos", "erf", "neg", "abs", "atan", "asinh"]), below())


def network(rng: Random) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """Placeholders, and the results of computes that need them."""
    placeholders: list[te.Tensor] = []
    made: list[te.Tensor] = []
    results: list[te.Tensor] = []
    for number in range(rng.randint(1, 3)):
        shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
        axes = [te.axis(n, "ijk"[d]) for d, n in enumerate(shape)]
        over = [te.reduce_axis(rng.randint(1, 4), "rs"[k]) for k in range(rng.choice([0, 1, 1, 2]))]
        body = term(rng, [*axes, *over], made, placeholders)
        fold = rng.choice(FOLDS)(body, over).combiner if over else None
        (t,) = te.finish(te.Compute(f"t{number}", tuple(axes), tuple(over), (body,), fold))
        made.append(t)
        results.append(t)
    return placeholders, results
