"""Tensor expressions evaluated by PyTorch, in float64, so that its autograd can differentiate them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Const, Expr, IndexValue, Load, Select, Within
from mlc.ir.index import Linear, Var, evaluate

BINARY: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.logical_and,
    "eq": torch.eq,
    "gt": torch.gt,
    "lt": torch.lt,
}
CALLS: Mapping[str, Callable[..., Any]] = {
    name: getattr(torch, name) for name in ("tanh", "sigmoid", "sin", "cos", "erf", "neg", "abs", "atan", "asinh")
}
FOLDS: Mapping[str, Callable[..., Any]] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}


def torch_tensors(results: Sequence[te.Tensor], given: Mapping[te.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """The results, from PyTorch's tensors in place of placeholders.

    Raises:
        KeyError: a function or a fold that is not told here.
    """
    values = {id(t): a for t, a in given.items()}
    for op in te.topological(results):
        dims = [*op.axes, *op.reduce_axes]
        grid = np.ix_(*(np.arange(a.hi + 1) for a in dims))
        env = dict(zip(dims, grid, strict=True))
        full = [a.hi + 1 for a in dims]
        (body,) = op.bodies
        term = torch.broadcast_to(_value(body, env, values), full)
        if op.reduce_axes:
            assert op.combiner is not None
            over = tuple(range(len(op.axes), len(dims)))
            if op.combiner is te.PROD:
                term = term.reshape(*op.shape, -1).prod(-1)
            elif op.combiner.name == "either":  # one less what all terms lack of one
                term = 1.0 - (1.0 - term).reshape(*op.shape, -1).prod(-1)
            else:
                term = FOLDS[op.combiner.name](term, dim=over)
        values[id(op.outputs[0])] = term
    return [values[id(t)] for t in results]


def _value(e: Expr, env: Mapping[Var, Any], values: Mapping[int, torch.Tensor]) -> torch.Tensor:
    def index(ix: Linear) -> np.ndarray:
        return np.asarray(evaluate(ix, env))

    def value(part: Expr) -> torch.Tensor:
        return _value(part, env, values)

    match e:
        case Const():
            return torch.tensor(e.value, dtype=torch.bool if isinstance(e.value, bool) else torch.float64)
        case IndexValue():
            return torch.from_numpy(index(e.index))
        case Within():
            ix = index(e.index)
            return torch.from_numpy(np.asarray((ix >= e.lo) & (ix < e.hi)))
        case Load():
            source = values[id(e.source)]
            # what lies outside is guarded, so never chosen
            at = [np.clip(index(ix), 0, n - 1) for ix, n in zip(e.indices, source.shape, strict=True)]
            return source[tuple(map(torch.from_numpy, np.broadcast_arrays(*at)))]
        case Binary():
            return BINARY[e.op](value(e.a), value(e.b))
        case Call():
            return CALLS[e.fn](*map(value, e.args))
        case Select():
            return torch.where(value(e.cond), value(e.a), value(e.b))
    raise KeyError(type(e).__name__)
