"""Rules on matrix products: transposes become attributes, constant operands are stored the right way round, and batch
axes that only one operand has are collapsed."""

from __future__ import annotations

from math import prod

from mlc.ir.graph import Value
from mlc.ops import get
from mlc.rewrite.pattern import Match, rule
from mlc.rewrite.rewriter import Rewriter
from mlc.rewrite.rules.views import reshaped, transposed


def _swapped(rank: int) -> tuple[int, ...]:
    """The permutation that swaps the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _absorbed(rw: Rewriter, operand: Value, flag: bool) -> tuple[Value, bool] | None:
    """An operand without the transpose before it: what it becomes, and whether its last two axes are then swapped.

    A transpose that moves the last axis to the last but one (and maybe others elsewhere) is cut in two: the swap, which
    the product does for nothing, and the rest, which keeps rows together.
    """
    node = rw.maker(operand)
    if node is None or node.op is not get("transpose"):
        return None
    perm, rank = tuple(node.attrs["perm"]), operand.type.rank
    if perm[-2] != rank - 1:
        return None
    rest = (*perm[:-2], perm[-1], perm[-2])
    return transposed(rw, node.inputs[0], rest, node.sources), not flag


@rule("transpose_into_matmul", "matmul(a, b)")
def transpose_into_matmul(rw: Rewriter, m: Match) -> Value | None:
    """A product reads an operand by columns itself."""
    (a, b), attrs = m.root.inputs, m.root.attrs
    left = _absorbed(rw, a, attrs["transpose_a"])
    right = _absorbed(rw, b, attrs["transpose_b"])
    if left is None and right is None:
        return None
    a, flag_a = left or (a, attrs["transpose_a"])
    b, flag_b = right or (b, attrs["transpose_b"])
    return rw.emit(m.root.op, (a, b), {"transpose_a": flag_a, "transpose_b": flag_b})


@rule("constant_operand_upright", "matmul(a, b)")
def constant_operand_upright(rw: Rewriter, m: Match) -> Value | None:
    """Constants are transposed at compile time: ``[…, m, k]`` on the left, ``[…, k, n]`` on the right."""
    inputs, attrs = list(m.root.inputs), dict(m.root.attrs)
    for k, flag in enumerate(("transpose_a", "transpose_b")):
        if attrs[flag] and rw.constant(inputs[k]) is not None:
            inputs[k] = transposed(rw, inputs[k], _swapped(inputs[k].type.rank))
            attrs[flag] = False
    return None if attrs == m.root.attrs else rw.emit(m.root.op, inputs, attrs)


@rule("matmul_batch_collapse", "matmul(a, b)")
def matmul_batch_collapse(rw: Rewriter, m: Match) -> Value | None:
    """``[…, m, k] x [k, n]`` is one product of ``prod(…) * m`` rows."""
    (a, b), attrs = m.root.inputs, m.root.attrs
    batch = prod(b.type.shape[:-2])
    flat = b.type.rank == 2 or (batch == 1 and b.type.rank <= a.type.rank)
    if a.type.rank == 2 or attrs["transpose_a"] or not flat:
        return None
    # these reshapes are none of the model's nodes
    rows = reshaped(rw, a, (prod(a.type.shape[:-1]), a.type.shape[-1]), ())
    product = rw.emit(m.root.op, (rows, reshaped(rw, b, b.type.shape[-2:], ())), attrs)
    return reshaped(rw, product, m.root.outputs[0].type.shape, ())


RULES = (transpose_into_matmul, constant_operand_upright, matmul_batch_collapse)
