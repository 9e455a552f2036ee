"""Attention: products of queries with keys, turned into weights of a mean of values."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, call, const
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear
from mlc.ir.types import TensorType, f32
from mlc.ops.common import broadcast_load, broadcastable_to, check
from mlc.ops.registry import operator


def _attention_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check(len(types) in (3, 4), "attention", f"{len(types)} operands, 3 or 4 are needed")
    q, k, v, *mask = types
    check(all(t.dtype is f32 for t in types), "attention", "operands are not all f32")
    check(min(q.rank, k.rank, v.rank) >= 2, "attention", "queries, keys and values have rank 2 or more")
    check(q.shape[:-2] == k.shape[:-2] == v.shape[:-2], "attention", f"batch axes of {q}, {k} and {v} differ")
    check(q.shape[-1] == k.shape[-1], "attention", f"queries {q} and keys {k} differ in length")
    check(k.shape[-2] == v.shape[-2], "attention", f"there are not as many keys {k} as values {v}")
    scores = (*q.shape[:-1], k.shape[-2])
    for t in mask:
        check(broadcastable_to(t.shape, scores), "attention", f"mask {t} does not broadcast to scores {list(scores)}")
    return [TensorType((*q.shape[:-1], v.shape[-1]), f32)]


@operator("attention", FusionKind.COMPLEX, _attention_type, scale=1.0)
def attention(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``softmax(q kᵀ * scale + mask) v`` for ``q[…, m, e]``, ``k[…, n, e]``, ``v[…, n, d]``, ``mask`` broadcast.

    The division of softmax comes last, on ``m * d`` sums in place of ``m * n`` weights.
    """
    q, k, v, *masks = inputs
    *batch, m, _ = q.shape
    n, d = v.shape[-2:]
    scores_shape, rows_shape = (*batch, m, n), (*batch, m)
    lead = [f"b{a}" for a in range(len(batch))]
    along, at_key, at_max, at_sum = (
        te.reduce_axis(extent, name) for extent, name in ((q.shape[-1], "e"), (n, "r"), (n, "r"), (n, "r"))
    )

    def product(*at: Linear) -> te.Reduction:
        *b, i, j = at
        return te.sum_of(q[(*b, i, along)] * k[(*b, j, along)], along)

    scores = te.compute(scores_shape, product, "scores", axis_names=(*lead, "i", "j"), tag="scores")

    def masked_element(*at: Linear) -> Expr:
        score: Expr = scores[at]
        if attrs["scale"] != 1:
            score = score * const(attrs["scale"], f32)
        return score + broadcast_load(masks[0], at) if masks else score

    masked = te.compute(scores_shape, masked_element, "masked", axis_names=(*lead, "i", "j"), tag="masked")
    greatest = te.compute(rows_shape, lambda *at: te.max_of(masked[(*at, at_max)], at_max), "greatest", tag="max")
    powers = te.compute(
        scores_shape, lambda *at: call("exp", masked[at] - greatest[at[:-1]]), "powers",
        axis_names=(*lead, "i", "j"), tag="exp",
    )  # fmt: skip
    total = te.compute(rows_shape, lambda *at: te.sum_of(powers[(*at, at_sum)], at_sum), "total", tag="sum")

    def mean(*at: Linear) -> te.Reduction:
        *b, i, j = at
        return te.sum_of(powers[(*b, i, at_key)] * v[(*b, at_key, j)], at_key)

    shape, names = (*batch, m, d), (*lead, "i", "d")
    sums = te.compute(shape, mean, "sums", axis_names=names, tag="attention")
    return [te.compute(shape, lambda *at: sums[at] / total[at[:-1]], "attention", axis_names=names)]
