"""Gradients of tensor expressions: for every operand, what its elements receive from those of the results.

Symbolic, one compute at a time (NeoFlow §4.2): each place where a compute reads an operand gives one expression that
gathers, over the iterations which read an element there (:mod:`mlc.training.autodiff.inverse`), the derivative of the
result times that of the computed term (:mod:`mlc.training.autodiff.scalar`). Sums pass derivatives on as they are;
greatest and least elements to the first of them; products and folds of the user's own to each term as if it were folded
last, into all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, IndexValue, Load, all_of, as_expr, binary, replace_loads, select, substitute_vars
from mlc.ir.index import IndexLike, Linear, Var, as_index
from mlc.ir.types import i32
from mlc.training.autodiff.inverse import invert
from mlc.training.autodiff.scalar import by_loads, chosen

_EXTREMES = (te.MAX, te.MIN)
# those that tell the position as well
_PLACED = (te.ARGMAX, te.ARGMIN, te.ARGMAX_LAST, te.ARGMIN_LAST)


def gradients(
    outputs: Sequence[te.Tensor], seeds: Sequence[te.Tensor | None], wanted: Sequence[te.Tensor]
) -> list[te.Tensor | None]:
    """Derivatives by ``wanted`` of what has the derivatives ``seeds`` by ``outputs``.

    Args:
        outputs: results of tensor expressions.
        seeds: one an output, of its shape and type; ``None`` where nothing depends on it.
        wanted: operands, or results on the way; of float types.
    Returns:
        one a wanted tensor, of its shape and type; ``None`` where no output depends on it (steps count as constant).
    Raises:
        UnsupportedError: a function on the way has no derivative.

    >>> from mlc.ir.types import f32
    >>> x, w = te.placeholder((8,), f32, "x"), te.placeholder((3,), f32, "w")
    >>> r = te.reduce_axis(3, "r")
    >>> y = te.compute((6,), lambda i: te.sum_of(x[i + r] * w[r], r), "y")
    >>> dy = te.placeholder((6,), f32, "dy")
    >>> print(gradients([y], [dy], [w])[0].op)
    dw[i:3] = sum(dy[i_1] * x[i_1 + i] for i_1 in (6))  # sum
    """
    found: dict[int, list[te.Tensor]] = {}
    for t, seed in zip(outputs, seeds, strict=True):
        if seed is not None:
            found.setdefault(id(t), []).append(seed)
    needed = _needed(outputs, wanted)
    totals: dict[int, te.Tensor] = {}
    for op in reversed(te.topological(outputs)):
        received = [_total(t, found.pop(id(t), []), totals) for t in op.outputs]
        if any(d is not None for d in received):
            for operand, part in _parts(op, received, needed):
                found.setdefault(id(operand), []).append(part)
    for t in wanted:
        if t.op is None:
            _total(t, found.pop(id(t), []), totals)
    return [totals.get(id(t)) for t in wanted]


def _needed(outputs: Sequence[te.Tensor], wanted: Sequence[te.Tensor]) -> set[int]:
    """Tensors (by ``id``) on the way from what is wanted to the outputs."""
    found = {id(t) for t in wanted}
    for op in te.topological(outputs):
        if any(id(t) in found for t in op.inputs):
            found |= {id(t) for t in op.outputs}
    return found


def _total(t: te.Tensor, parts: list[te.Tensor], totals: dict[int, te.Tensor]) -> te.Tensor | None:
    """The sum of what a tensor receives."""
    if not parts:
        return None
    total = parts[0]
    if len(parts) > 1:
        total = te.compute(t.shape, lambda *i: _sum([p[i] for p in parts]), f"d{t.name}", axis_names=_names(t))
    totals[id(t)] = total
    return total


def _sum(terms: Sequence[Expr]) -> Expr:
    result = terms[0]
    for term in terms[1:]:
        result = binary("add", result, term)
    return result


def _names(t: te.Tensor) -> list[str] | None:
    return [a.name for a in t.op.axes] if t.op is not None else None


def _parts(op: te.Compute, received: Sequence[te.Tensor | None], needed: set[int]) -> list[tuple[te.Tensor, te.Tensor]]:
    """Operands of a compute with what they receive from its results, once for each place where they are read."""
    if not any(id(t) in needed for t in op.inputs):
        return []
    at = [as_index(a) for a in op.axes]
    slopes: list[tuple[Expr, Expr]] = []  # terms, and the derivative by each
    if op.combiner is None or op.combiner is te.SUM:
        slopes = [(body, d[tuple(at)]) for body, d in zip(op.bodies, received, strict=True) if d is not None]
    elif op.combiner in _EXTREMES or op.combiner in _PLACED:
        if received[0] is not None:
            slopes = [(op.bodies[0], _at_extreme(op, received[0][tuple(at)]))]
    elif op.combiner not in (te.ALL, te.ANY):
        slopes = _folded_last(op, received)
    parts = []
    for body, seed in slopes:
        for load, derivative in by_loads(body, seed):
            if id(load.source) in needed:
                parts.append((load.source, _gathered(op, load, derivative)))
    return parts


def _at_extreme(op: te.Compute, seed: Expr) -> Expr:
    """The derivative by a term: the result's, for the first of the greatest (or least) terms."""
    number = as_index(0)
    for a in op.reduce_axes:
        number = number * (a.hi + 1) + as_index(a)
    at = tuple(as_index(a) for a in op.axes)
    if op.combiner in _PLACED:
        place = op.outputs[1]
        return chosen(binary("eq", place[at], op.bodies[1]), seed)
    # the least number of those that are the result: one fold, which vectors can do
    term = select(binary("eq", op.bodies[0], op.outputs[0][at]), IndexValue(number, i32), i32.max_value)
    (place,) = te.finish(te.Compute(f"{op.name}_at", op.axes, op.reduce_axes, (term,), te.MIN))
    return chosen(binary("eq", place[at], IndexValue(number, i32)), seed)


def _folded_last(op: te.Compute, received: Sequence[te.Tensor | None]) -> list[tuple[Expr, Expr]]:
    """Terms of any fold, with the derivative by each: terms may come in any order, so each may be the last one."""
    assert op.combiner is not None
    at = tuple(map(as_index, op.axes))
    fold = te.fold_of(op.combiner, [b.dtype for b in op.bodies])
    place = (*at, *map(as_index, op.reduce_axes))
    stands: dict[int, Expr] = {id(t): other[place] for t, other in zip(fold.before, _others(op), strict=True)}
    stands |= {id(t): body for t, body in zip(fold.terms, op.bodies, strict=True)}
    slopes: dict[int, Expr] = {}
    for result, d in zip(fold.results, received, strict=True):
        if d is None or not result.dtype.is_float:
            continue
        for load, derivative in by_loads(result, d[at]):
            if load.source in fold.terms:
                k = fold.terms.index(load.source)
                known = replace_loads(derivative, lambda ld: stands.get(id(ld.source), ld))
                slopes[k] = binary("add", slopes[k], known) if k in slopes else known
    return [(op.bodies[k], slope) for k, slope in sorted(slopes.items())]


def _others(op: te.Compute) -> tuple[te.Tensor, ...]:
    """For every term of a fold, what all others come to; nothing is divided by, so a product may have zeros."""
    assert op.combiner is not None
    n, combiner = len(op.axes), op.combiner
    identity = combiner.identity([b.dtype for b in op.bodies])

    def element(*at: Linear) -> te.Reduction:
        fresh = tuple(Var(f"{a.name}_1", 0, a.hi) for a in op.reduce_axes)
        env: dict[Var, IndexLike] = dict(zip((*op.axes, *op.reduce_axes), (*at[:n], *fresh), strict=True))
        same = all_of([binary("eq", as_expr(as_index(f)), as_expr(own)) for f, own in zip(fresh, at[n:], strict=True)])
        terms = [select(same, c, substitute_vars(b, env)) for c, b in zip(identity, op.bodies, strict=True)]
        return te.Reduction(combiner, tuple(terms), fresh)

    names = [a.name for a in (*op.axes, *op.reduce_axes)]
    shape = (*op.shape, *(a.hi + 1 for a in op.reduce_axes))
    return te.compute_many(shape, element, f"{op.name}_others", axis_names=names)


def _gathered(op: te.Compute, load: Load, derivative: Expr) -> te.Tensor:
    """What the elements of an operand receive through one place where it is read.

    Args:
        derivative: by what is read there, over the compute's axes.
    """
    source: te.Tensor = load.source
    if _is_all(op, load, derivative):
        assert isinstance(derivative, Load)
        whole: te.Tensor = derivative.source
        return whole

    def element(*at: Var) -> Expr | te.Reduction:
        found = invert(load.indices, at, (*op.axes, *op.reduce_axes))
        term = chosen(all_of(found.guards), substitute_vars(derivative, found.values))
        return te.sum_of(term, found.free) if found.free else term

    names = _names(source) or ["ijklmnopq"[d] if d < 9 else f"i{d}" for d in range(source.rank)]
    return _compute(source, element, names)


def _is_all(op: te.Compute, load: Load, derivative: Expr) -> bool:
    """Whether every element receives just the one derivative at its own position."""
    at = tuple(as_index(a) for a in op.axes)
    return (
        isinstance(derivative, Load)
        and not op.reduce_axes
        and load.indices == at == derivative.indices
        and tuple(load.source.shape) == tuple(derivative.source.shape)
        and load.dtype is derivative.dtype
    )


def _compute(of: te.Tensor, element: Callable[..., Expr | te.Reduction], names: Sequence[str]) -> te.Tensor:
    axes = tuple(te.axis(n, name) for n, name in zip(of.shape, names, strict=True))
    body = element(*axes)
    name = f"d{of.name}"
    if isinstance(body, te.Reduction):
        op = te.Compute(name, axes, body.axes, body.terms, body.combiner, "sum")
    else:
        op = te.Compute(name, axes, (), (body,), None)
    return te.finish(op)[0]


__all__ = ["gradients"]
