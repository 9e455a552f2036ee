"""Random matrix products, and reductions over chosen axes: sums, norms, softmax, positions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from tests.e2e.random_models.builder import Builder, Tensor, UnfitError

REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
              "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum")  # fmt: skip
MAX_WORK = 2_000_000


def _right(b: Builder, rows: int, *batch: int) -> Tensor:
    columns = b.one_of((16, 1, 5, 7, 8, 17, 32, 33, 64))
    raw = b.fresh((*batch, rows, columns), constant=True)
    return b.given(raw.value / np.float32(np.sqrt(rows)), constant=None)


def matmul(b: Builder) -> None:
    """Every pairing of ranks: matrices, batches that broadcast, vectors on either side."""
    x = b.pick_floats((2, 3, 4, 1))
    if x.rank > 1 and b.flag(3):
        y = b.pick(
            lambda t: t.dtype == np.float32 and t.rank >= 1 and t.shape[-2:][0] == x.shape[-1],
            lambda: b.fresh((x.shape[-1],)),
        )
    elif x.rank > 2 and b.flag():
        y = _right(b, x.shape[-1], *[1 if b.flag(3) else n for n in x.shape[:-2]])
    else:
        y = _right(b, x.shape[-1])
    if x.value.size * (y.shape[-1] if y.rank > 1 else 1) * prod(y.shape[:-2]) > MAX_WORK:
        raise UnfitError("too much work")
    b.add("MatMul", [x, y])


def turned_matmul(b: Builder) -> None:
    """The last two axes of either operand swapped by a node of its own: what attention does."""
    x = b.pick_floats((2, 3, 4))
    y = b.pick(
        lambda t: (
            t.dtype == np.float32 and t.rank == x.rank and t.shape[:-2] == x.shape[:-2] and t.shape[-1] == x.shape[-1]
        )
    )
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    (turned,) = b.add("Transpose", [y], perm=perm)
    b.add("MatMul", [x, turned])


def gemm(b: Builder) -> None:
    x = b.pick_floats((2,))
    trans_a, trans_b = b.whole(0, 1), b.whole(0, 1)
    rows, inner = x.shape[::-1] if trans_a else x.shape
    y = _right(b, inner)
    if trans_b:
        y = b.given(np.ascontiguousarray(y.value.T), constant=None)
    columns = y.shape[0] if trans_b else y.shape[1]
    bias = b.one_of((None, (columns,), (rows, columns), (rows, 1), (1, columns), ()))
    operands = [x, y] if bias is None else [x, y, b.fresh(bias)]
    b.add("Gemm", operands, transA=trans_a, transB=trans_b, alpha=b.one_of((None, 0.5)), beta=b.one_of((None, 2.0)))


def einsum(b: Builder) -> None:
    equation, ranks = b.one_of(
        (("ij,jk->ik", 2), ("bij,bjk->bik", 3), ("bij,bkj->bik", 3), ("ij,ij->i", 2), ("i,j->ij", 1))
    )
    x = b.pick_floats((ranks,))
    extents = dict(zip(equation.split(",")[0], x.shape, strict=True))
    y = b.fresh([extents.get(axis, 5) for axis in equation.split(",")[1].split("->")[0]])
    b.add("Einsum", [x, y], equation=equation)


def integer_matmul(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == np.int32 and t.rank == 2, lambda: b.fresh(b.shape(2, 300), np.int32))
    b.add("MatMul", [x, b.fresh((x.shape[1], b.one_of((5, 16, 1))), np.int32)])


def some_axes(b: Builder, rank: int) -> list[int]:
    return [a - rank if b.flag(4) else a for a in b.some_of(range(rank), least=min(rank, 1))]


def reduction(b: Builder) -> None:
    op = b.one_of(REDUCTIONS)
    plain = op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
    dtypes = (np.float32, np.int64, np.int32, np.float16) if plain else (np.float32,)
    x = b.pick(lambda t: t.dtype in dtypes, lambda: b.fresh(b.shape(b.whole(1, 5))))
    axes = some_axes(b, x.rank)
    if op == "ReduceProd" and prod(x.shape[a] for a in axes) > 40:
        raise UnfitError("too large a number")
    operands = [x] if b.flag(6) or not x.rank else [x, b.ints(*axes)]
    b.add(op, operands, keepdims=b.whole(0, 1), noop_with_empty_axes=b.whole(0, 1) if b.flag(6) else None)


def position(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in (np.float32, np.int32) and t.rank, lambda: b.fresh(b.shape(b.whole(1, 4))))
    attrs = {"axis": b.whole(-x.rank, x.rank - 1), "keepdims": b.whole(0, 1), "select_last_index": b.whole(0, 1)}
    b.add(b.one_of(("ArgMax", "ArgMin")), [x], **attrs)


def softmax(b: Builder) -> None:
    x = b.pick_floats((1, 2, 3, 4, 5))
    b.add(b.one_of(("Softmax", "LogSoftmax", "Hardmax")), [x], axis=b.whole(-x.rank, x.rank - 1))


def layer_norm(b: Builder) -> None:
    x = b.pick_floats((1, 2, 3, 4))
    axis = b.whole(-x.rank, x.rank - 1)
    shape = x.shape[axis:]
    if prod(shape) < 2:
        raise UnfitError("nothing to normalise")
    bias = [b.fresh(shape)] if b.flag() else []
    b.add("LayerNormalization", [x, b.fresh(shape), *bias], axis=axis, epsilon=b.one_of((None, 0.01)))


def spelled_layer_norm(b: Builder) -> None:
    """Layer norm as exporters write it, sometimes with its mean used once more."""
    x = b.pick_floats((2, 3))
    axes = b.ints(-1)
    (mean,) = b.add("ReduceMean", [x, axes], keepdims=1)
    (centred,) = b.add("Sub", [x, mean])
    (squares,) = b.add("Pow", [centred, b.given(np.array(2, np.float32))])
    (variance,) = b.add("ReduceMean", [squares, axes], keepdims=1)
    (padded,) = b.add("Add", [variance, b.given(np.array(1e-2, np.float32))])
    (deviation,) = b.add("Sqrt", [padded])
    (normal,) = b.add("Div", [centred, deviation])
    (scaled,) = b.add("Mul", [normal, b.fresh((x.shape[-1],), constant=True)])
    b.add("Add", [scaled, mean if b.flag() else b.fresh((x.shape[-1],), constant=True)])


def spelled_gelu(b: Builder) -> None:
    x = b.pick_floats((1, 2, 3, 4))
    (inner,) = b.add("Div", [x, b.given(np.array(np.sqrt(2.0), np.float32))])
    (erf,) = b.add("Erf", [inner])
    (plus,) = b.add("Add", [erf, b.given(np.array(1, np.float32))])
    (product,) = b.add("Mul", [x, plus])
    b.add("Mul", [product, b.given(np.array(0.5, np.float32))])


def lp_norm(b: Builder) -> None:
    x = b.pick_floats((1, 2, 3, 4))
    b.add("LpNormalization", [x], axis=b.whole(-x.rank, x.rank - 1), p=b.whole(1, 2))


def mean_variance(b: Builder) -> None:
    x = b.pick_floats((4,))
    b.add("MeanVarianceNormalization", [x], axes=b.one_of(([0, 2, 3], [1, 2, 3], [2, 3])))


def cumulative_sum(b: Builder) -> None:
    x = b.pick(
        lambda t: t.dtype in (np.float32, np.int64, np.int32) and t.rank, lambda: b.fresh(b.shape(b.whole(1, 4)))
    )
    axis = b.given(np.array(b.whole(-x.rank, x.rank - 1), np.int64))
    b.add("CumSum", [x, axis], exclusive=b.whole(0, 1), reverse=b.whole(0, 1))


def top_k(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in (np.float32, np.int64) and t.rank, lambda: b.fresh(b.shape(b.whole(1, 4))))
    axis = b.whole(-x.rank, x.rank - 1)
    k = b.ints(b.whole(1, x.shape[axis]))
    b.add("TopK", [x, k], outputs=2, axis=axis, largest=b.whole(0, 1), sorted=1)


def recurrent(b: Builder) -> None:
    """Two or three steps of a recurrent layer, forwards, backwards or both."""
    op, gates = b.one_of((("RNN", 1), ("GRU", 3), ("LSTM", 4)))
    steps, batch, width, hidden = b.whole(1, 3), b.one_of((1, 2, 3)), b.one_of((5, 8, 17)), b.one_of((4, 7, 16))
    direction = b.one_of(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    x = b.fresh((steps, batch, width), constant=False)

    def stored(*shape: int) -> Tensor:
        return b.given(b.fresh(shape, constant=True).value / np.float32(4))

    operands: list[Tensor | None] = [x, stored(ways, gates * hidden, width), stored(ways, gates * hidden, hidden)]
    if b.flag():
        operands.append(stored(ways, 2 * gates * hidden))
    b.add(op, operands, outputs=2, hidden_size=hidden, direction=direction)


def cast_to_half(b: Builder) -> None:
    """A stretch in 16 bits: cast, an operation, cast back."""
    x = b.pick_floats((1, 2, 3, 4))
    (half,) = b.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(np.float16)))
    op = b.one_of(("Add", "Mul", "Relu", "Softmax", "ReduceSum"))
    operands: list[Any] = [half, half] if op in ("Add", "Mul") else [half]
    (result,) = b.add(op, operands)
    b.add("Cast", [result], to=helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)))


FAMILY: dict[str, Callable[[Builder], None]] = {
    f.__name__: f
    for f in (
        matmul, gemm, reduction, softmax, layer_norm, position, turned_matmul, spelled_layer_norm, spelled_gelu, einsum,
        integer_matmul, lp_norm, mean_variance, cumulative_sum, top_k, recurrent, cast_to_half,
    )
}  # fmt: skip
