"""What follows a product, as the operators state it: their expressions over elements of sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Binary, Const, Expr, Select, replace_loads, rewrite
from mlc.ir.interp import scalar
from mlc.ops import get


def stated(name: str, *operands: Expr, **attrs: Any) -> Expr:
    """What an element-wise operator makes of an element; what constants alone decide is decided.

    Args:
        name: of the operator, which has one result.
        operands: an element of each of its operands.
        attrs: its attributes.
    """
    scalars = [te.placeholder((), e.dtype, f"operand{k}") for k, e in enumerate(operands)]
    (result,) = get(name).express(scalars, attrs)  # type: ignore[misc]
    assert result.op is not None
    given = {id(t): e for t, e in zip(scalars, operands, strict=True)}
    return _decided(replace_loads(result.op.bodies[0], lambda ld: given[id(ld.source)]))


def _decided(e: Expr) -> Expr:
    def leaf(n: Expr) -> Expr:
        if isinstance(n, Binary) and isinstance(n.a, Const) and isinstance(n.b, Const):
            a, b = (np.asarray(c.value, c.dtype.numpy) for c in (n.a, n.b))
            return Const(scalar.binary(n.op, a, b).item(), n.dtype)
        if isinstance(n, Select) and isinstance(n.cond, Const):
            return n.a if n.cond.value else n.b
        return n

    return rewrite(e, leaf)
