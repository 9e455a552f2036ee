"""Gradients that are better said than derived: views, rows whose terms the derivation would compute again, rectifiers;
and those of routines (:mod:`mlc.training.routines`), which say nothing of their elements.

Everything else is derived from what an operator says of its elements (:mod:`mlc.training.autodiff.expression`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.define.expressions import add_expressions
from mlc.errors import UnsupportedError
from mlc.ir import te
from mlc.ir.expr import Expr, binary, call, select
from mlc.ir.graph import Builder, Node, Value
from mlc.ir.index import IndexLike, Linear
from mlc.ops import get
from mlc.training.routines import ROUTINES

# grows the graph by what the operands receive, given what the results do
Rule = Callable[[Builder, Node, Sequence[Value | None]], Sequence[Value | None]]


def _identity(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    return received


def _reshape(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    (d,) = received
    assert d is not None
    return g.add(get("reshape"), [d], {"shape": node.inputs[0].type.shape}, sources=node.sources)


def _transpose(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    (d,) = received
    assert d is not None
    perm = node.attrs["perm"]
    back = tuple(perm.index(k) for k in range(len(perm)))
    return g.add(get("transpose"), [d], {"perm": back}, sources=node.sources)


def _relu(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    """By its result, which is mostly kept for whoever reads it: so its operand need not be."""
    (operand,), (value,), (of_result,) = node.inputs, node.outputs, received
    assert of_result is not None
    y, d = (te.placeholder(v.type.shape, v.type.dtype, name) for v, name in ((value, "y"), (of_result, "dy")))
    dx = te.compute(y.shape, lambda *at: select(binary("gt", y[at], 0.0), d[at], 0.0), f"d{operand.name}")
    return add_expressions(g, [dx], {id(y): value, id(d): of_result}, node.sources)


def _of_rows(element: Callable[[Expr, Expr, Expr], Expr], term: Callable[[Expr, Expr], Expr]) -> Rule:
    """Of a result ``y`` with the derivative ``d``: ``element(d, y, the sum of term(d, y) over the row)``."""

    def rule(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
        (value,), (of_result,) = node.outputs, received
        assert of_result is not None
        y, d = (te.placeholder(v.type.shape, v.type.dtype, name) for v, name in ((value, "y"), (of_result, "dy")))
        axis = node.attrs["axis"] % y.rank

        def total(*at: Linear) -> te.Reduction:
            k = te.reduce_axis(y.shape[axis], "r")
            where: tuple[IndexLike, ...] = (*at[:axis], k, *at[axis:])
            return te.sum_of(term(d[where], y[where]), k)

        row = te.compute(y.shape[:axis] + y.shape[axis + 1 :], total, "total")
        dx = te.compute(y.shape, lambda *at: element(d[at], y[at], row[(*at[:axis], *at[axis + 1 :])]), "dx")
        return add_expressions(g, [dx], {id(y): value, id(d): of_result}, node.sources)

    return rule


def _batch_norm(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    """Two sums over what was received; whatever else there is belongs to channels."""
    data, scale, _, mean, variance = node.inputs
    (of_result,) = received
    assert of_result is not None
    x, d = (te.placeholder(data.type.shape, data.type.dtype, name) for name in ("x", "dy"))
    w, m, v = (te.placeholder(t.type.shape, t.type.dtype, t.name) for t in (scale, mean, variance))
    channels, epsilon = w.shape, node.attrs["epsilon"]

    def over(term: Callable[[tuple[IndexLike, ...], Linear], Expr], name: str) -> te.Tensor:
        axes = tuple(te.reduce_axis(n, f"r{k}") for k, n in enumerate((x.shape[0], *x.shape[2:])))
        return te.compute(channels, lambda c: te.sum_of(term((axes[0], c, *axes[1:]), c), axes), name, tag="sum")

    bias = over(lambda at, c: d[at], f"d{node.inputs[2].name}")
    moment = over(lambda at, c: d[at] * (x[at] - m[c]), "moment")
    inverse = te.compute(channels, lambda c: 1.0 / call("sqrt", v[c] + epsilon), "inverse")
    factor = te.compute(channels, lambda c: w[c] * inverse[c], "factor")
    results = (
        te.compute(x.shape, lambda n, c, *at: d[(n, c, *at)] * factor[c], f"d{data.name}"),
        te.compute(channels, lambda c: moment[c] * inverse[c], f"d{scale.name}"),
        bias,
        te.compute(channels, lambda c: -(factor[c] * bias[c]), f"d{mean.name}"),
        te.compute(channels, lambda c: moment[c] * factor[c] * inverse[c] * inverse[c] * -0.5, f"d{variance.name}"),
    )
    known = {id(x): data, id(d): of_result, id(w): scale, id(m): mean, id(v): variance}
    return add_expressions(g, results, known, node.sources)


RULES: Mapping[str, Rule] = {
    **ROUTINES,
    "batch_norm": _batch_norm,
    "identity": _identity,
    "relu": _relu,
    "reshape": _reshape,
    "transpose": _transpose,
    "softmax": _of_rows(lambda d, y, total: (d - total) * y, lambda d, y: d * y),
    "log_softmax": _of_rows(lambda d, y, total: d - call("exp", y) * total, lambda d, y: d),
}


def require_expression(node: Node) -> None:
    """Raises UnsupportedError for what has neither a rule nor an expression."""
    if node.op.express is None:
        where = f" ({', '.join(node.sources)})" if node.sources else ""
        raise UnsupportedError(
            f"{node.op.name}{where} has no gradient: it is a routine, and no expression says what its elements are"
        )
