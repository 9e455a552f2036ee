"""Sums of products over whole blocks of an operand: what an array of multipliers wants to see.

In: a sum whose terms multiply an element of a blocked operand with something else, where the element's channel ``e``
moves with a reduction axis ``c``::

    y[o] = sum(x[e // 16, e % 16] * w[o, c] for c in (20))                       e = c, or e = (o // 4)*4 + c …

Out: the same sum over all blocks and lanes of that operand. The other factor is zero where a lane is no term's::

    y[o] = sum(x[b, k] * select(0 <= 16*b + k < 20, w[o, 16*b + k], 0) for b, k in (2, 16))

So sums may end within a block, and each result of a convolution in groups may take a few of a block's channels: its
weights are a matrix with zeros. What lanes beyond the last channel hold counts for nothing, and they are read without a
guard; that is right for integers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import (
    Binary,
    Cast,
    Expr,
    Load,
    all_of,
    cast,
    const,
    index_vars,
    loads,
    select,
    substitute_vars,
    within,
)  # fmt: skip
from mlc.ir.index import IndexLike, Linear, Var, as_index

Order = Callable[[Var, Var], Sequence[Var]]


def over_blocks(
    t: te.Tensor, x: te.Tensor, dims: tuple[int, int], order: Order, name: str = "factors"
) -> tuple[te.Tensor, te.Tensor]:
    """The sum over all blocks and lanes of an operand.

    Args:
        t: a sum of products of integers.
        x: one operand of the products, physical.
        dims: its dimensions that channels are split into: block and lane.
        order: the axes of the other factor, a tensor of its own, given those over blocks and lanes: axes of ``t`` and
            these, all that the factor depends on.
        name: of that tensor.
    Returns:
        the same sum, whose reduction axes are the block, the others but channels, and the lane; and the other factor.
    Raises:
        ScheduleError: it is no such sum.
    """
    op = t.op
    term = op.bodies[0] if op is not None else None
    if op is None or op.combiner is not te.SUM or not isinstance(term, Binary) or term.op != "mul":
        raise ScheduleError(f"{t!r} is no sum of products")
    ours, other = (term.a, term.b) if _reads(term.a, x) else (term.b, term.a)
    if not _reads(ours, x) or _reads(other, x) or not term.dtype.is_int:
        raise ScheduleError(f"{term!r} is no product of {x.name} and something else, in integers")
    (ld,) = loads(ours)
    block, lane = dims
    lanes = x.shape[lane]
    channel = ld.indices[block] * lanes + ld.indices[lane]
    moving = [r for r in op.reduce_axes if r in channel.vars()]
    if len(moving) > 1 or any(channel.coefficient(r) != 1 for r in moving):
        raise ScheduleError(f"{ld!r}: channel {channel} does not follow one axis of the sum")
    b, k = te.reduce_axis(x.shape[block], "c"), te.reduce_axis(lanes, "k")
    there = as_index(b) * lanes + as_index(k)
    env: dict[Var, IndexLike] = {r: there - channel.without(r) for r in moving}
    inside = [within(as_index(p), 0, r.hi + 1) for r, p in env.items()] or [within(there - channel, 0, 1)]
    inner, wide = (other.a, other.dtype) if isinstance(other, Cast) else (other, other.dtype)
    inner = select(all_of(inside), substitute_vars(inner, env), const(0, inner.dtype))
    factor = _stage(inner, order(b, k), name)
    indices: list[Linear] = list(ld.indices)
    indices[block], indices[lane] = as_index(b), as_index(k)
    load = Load(x, tuple(indices))
    ours = cast(load, ours.dtype)
    other = cast(factor[tuple(as_index(v) for v in order(b, k))], wide)
    rest = tuple(r for r in op.reduce_axes if r not in moving)
    fresh = te.Compute(op.name, op.axes, (b, *rest, k), (ours * other,), op.combiner, op.tag, op.attrs)
    (total,) = te.finish(fresh)
    return total, factor


def _reads(e: Expr, t: te.Tensor) -> bool:
    return any(ld.source is t for ld in loads(e))


def _stage(e: Expr, over: Sequence[Var], name: str) -> te.Tensor:
    """An expression as a tensor over the given axes."""
    loose = index_vars(e) - set(over)
    if loose:
        raise ScheduleError(f"{e!r} depends on {', '.join(sorted(v.name for v in loose))}, too")
    shape = [v.hi + 1 for v in over]
    return te.compute(
        shape, lambda *at: substitute_vars(e, dict(zip(over, at, strict=True))), name,
        axis_names=[v.name for v in over], tag="copy",
    )  # fmt: skip
