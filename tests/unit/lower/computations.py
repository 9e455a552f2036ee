"""A handful of computations that random schedules are tried on, with inputs whose results are exact.

Inputs are small whole numbers, so that sums come out the same in any order and in any precision; ``tolerance`` is zero
but where a transcendental function is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.ir import te
from mlc.ir.expr import all_of, as_expr, call, cast, select, within
from mlc.ir.index import dynamic
from mlc.ir.interp import run_tensors
from mlc.ir.types import DType, bf16, f16, f32, i8, i32, i64, u8


@dataclass(frozen=True, repr=False)
class Computation:
    """Inputs and outputs of a tensor expression, inputs drawn for it, and how exact a result must be."""

    inputs: tuple[te.Tensor, ...]
    outputs: tuple[te.Tensor, ...]
    tolerance: float = 0.0

    @property
    def params(self) -> list[te.Tensor]:
        return [*self.inputs, *self.outputs]

    def draw(self, seed: int) -> list[np.ndarray]:
        """Small whole numbers for every input; from a seed of 2 on, a few infinities and NaN among the floats."""
        rng = np.random.default_rng(seed)
        arrays = [rng.integers(-3 if t.dtype.kind in "fi" else 0, 4, t.shape) for t in self.inputs]
        arrays = [a.astype(t.dtype.numpy) for a, t in zip(arrays, self.inputs, strict=True)]
        for a, t in zip(arrays, self.inputs, strict=True):
            if seed >= 2 and t.dtype.is_float and a.size > 2:
                a.flat[rng.integers(a.size, size=3)] = [np.nan, np.inf, -np.inf]
        return arrays

    def expect(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the interpreter of tensor expressions says."""
        return run_tensors(list(self.outputs), dict(zip(self.inputs, arrays, strict=True)))


def elementwise_chain() -> Computation:
    x, b = te.placeholder((5, 7), f32, "x"), te.placeholder((7,), f32, "b")
    y = te.compute((5, 7), lambda i, j: x[i, j] + b[j], "y")
    z = te.compute((5, 7), lambda i, j: y[i, j] * 2.0, "z")
    return Computation((x, b), (te.compute((5, 7), lambda i, j: z[i, j] + y[i, j], "out"),))


def shifted_reads() -> Computation:
    """One stage read at two distances by another: the region is wider than an iteration."""
    x = te.placeholder((13,), i32, "x")
    y = te.compute((13,), lambda i: x[i] * x[i], "y")
    return Computation((x,), (te.compute((10,), lambda i: y[i] - y[i + 3], "out"),))


def transposed() -> Computation:
    x = te.placeholder((3, 6), i8, "x")
    y = te.compute((3, 6), lambda i, j: x[i, j] + x[2 - i, j], "y")
    return Computation((x,), (te.compute((6, 3), lambda i, j: cast(y[j, i], i32), "out"),))


def folded_index() -> Computation:
    """A reshape: quotients and remainders in the indices."""
    x = te.placeholder((6, 4), f32, "x")
    y = te.compute((6, 4), lambda i, j: x[i, j] + 1.0, "y")
    return Computation((x,), (te.compute((3, 8), lambda i, j: y[(i * 8 + j) // 4, (i * 8 + j) % 4], "out"),))


def matmul() -> Computation:
    a, b = te.placeholder((5, 7), f32, "a"), te.placeholder((7, 3), f32, "b")
    k = te.reduce_axis(7, "k")
    c = te.compute((5, 3), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c", tag="matmul")
    return Computation((a, b), (te.compute((5, 3), lambda i, j: call("abs", c[i, j]), "out"),))


def conv(height: int = 5, width: int = 1, stride: int = 1) -> Computation:
    """Padded convolution over extents of one and of a prime, with a bias and a clamp."""
    x, w = te.placeholder((1, 2, height, width), f32, "x"), te.placeholder((3, 2, 3, 3), f32, "w")
    bias = te.placeholder((3,), f32, "b")

    def padded(n: te.Var, c: te.Var, h: te.Var, v: te.Var) -> object:
        inside = all_of([within(h, 1, height + 1), within(v, 1, width + 1)])
        return select(inside, x[n, c, h - 1, v - 1], 0.0)

    pad = te.compute((1, 2, height + 2, width + 2), padded, "pad", tag="pad")
    c, r, s = te.reduce_axis(2, "c"), te.reduce_axis(3, "r"), te.reduce_axis(3, "s")
    rows, columns = (height - 1) // stride + 1, (width - 1) // stride + 1
    y = te.compute(
        (1, 3, rows, columns),
        lambda n, o, h, v: te.sum_of(pad[n, c, h * stride + r, v * stride + s] * w[o, c, r, s], (c, r, s)),
        "conv",
        axis_names="nohw",
        tag="conv",
    )
    out = te.compute(y.shape, lambda n, o, h, v: select(_above(y[n, o, h, v] + bias[o]), y[n, o, h, v], 0.0), "out")
    return Computation((x, w, bias), (out,))


def _above(e: object) -> te.Expr:
    from mlc.ir.expr import binary

    return binary("gt", e, 0.0)


def softmax() -> Computation:
    x = te.placeholder((3, 7), f32, "x")
    k, l = te.reduce_axis(7, "k"), te.reduce_axis(7, "l")
    top = te.compute((3,), lambda i: te.max_of(x[i, k], k), "top")
    e = te.compute((3, 7), lambda i, j: call("exp", x[i, j] - top[i]), "e")
    total = te.compute((3,), lambda i: te.sum_of(e[i, l], l), "total")
    return Computation((x,), (te.compute((3, 7), lambda i, j: e[i, j] / total[i], "out"),), tolerance=1e-6)


def argmax() -> Computation:
    """Values and positions, with ties."""
    x = te.placeholder((4, 11), f32, "x")
    k = te.reduce_axis(11, "k")
    top, at = te.compute_many((4,), lambda i: te.Reduction(te.ARGMAX, (x[i, k], as_expr(k, i64)), (k,)), "best")
    return Computation((x,), (top, at))


def column_sums() -> Computation:
    x = te.placeholder((7, 5), i32, "x")
    k = te.reduce_axis(7, "k")
    return Computation((x,), (te.compute((5,), lambda j: te.sum_of(x[k, j], k), "out"),))


def row_sums() -> Computation:
    """Half precision summed in single."""
    x = te.placeholder((3, 17), f16, "x")
    k = te.reduce_axis(17, "k")
    s = te.compute((3,), lambda i: te.sum_of(cast(x[i, k], f32), k), "s")
    return Computation((x,), (te.compute((3,), lambda i: cast(s[i], f16), "out"),))


def full_sum() -> Computation:
    """Rank 0."""
    x = te.placeholder((3, 4), f32, "x")
    k, l = te.reduce_axis(3, "k"), te.reduce_axis(4, "l")
    s = te.compute((), lambda: te.sum_of(x[k, l], (k, l)), "s")
    return Computation((x,), (te.compute((), lambda: s[()] * 0.5, "out"),))


def gathered() -> Computation:
    """Rows chosen at run time, read before the first one behind a guard."""
    x, rows = te.placeholder((4, 3), f32, "x"), te.placeholder((6,), u8, "rows")
    double = te.compute((4, 3), lambda i, j: x[i, j] * 2.0, "double")

    def row(i: te.Var, j: te.Var) -> object:
        return select(within(i, 1, 7), double[dynamic(rows[i - 1], 0, 3), j], -1.0)

    return Computation((x, rows), (te.compute((7, 3), row, "out"),))


def two_outputs() -> Computation:
    """An intermediate tensor that is a result as well."""
    x = te.placeholder((4, 6), i64, "x")
    k = te.reduce_axis(6, "k")
    y = te.compute((4, 6), lambda i, j: x[i, j] * x[i, j], "y")
    return Computation((x,), (te.compute((4,), lambda i: te.max_of(y[i, k], k), "top"), y))


def conv_chain() -> Computation:
    """Two padded one-dimensional convolutions: windows of windows, guards inside guards."""
    x, w, v = te.placeholder((11,), f32, "x"), te.placeholder((3,), f32, "w"), te.placeholder((3,), f32, "v")

    def convolved(source: te.Tensor, weights: te.Tensor, name: str) -> te.Tensor:
        padded = te.compute(
            (13,), lambda i: select(within(i, 1, 12), source[i - 1], 0.0), f"{name}.pad", axis_names=["i"]
        )
        r = te.reduce_axis(3, "r")
        return te.compute((11,), lambda i: te.sum_of(padded[i + r] * weights[r], r), name)

    return Computation((x, w, v), (convolved(convolved(x, w, "first"), v, "second"),))


def conv_transpose() -> Computation:
    """Stride two, turned round: an element takes part where the position divides."""
    x, w = te.placeholder((5,), f32, "x"), te.placeholder((4,), f32, "w")
    r = te.reduce_axis(4, "r")

    def term(i: te.Var) -> te.Expr:
        at = i + 3 - r
        inside = all_of([within(at % 2, 0, 1), within(at // 2, 0, 5)])
        return select(inside, x[at // 2] * w[r], 0.0)

    y = te.compute((8,), lambda i: te.sum_of(term(i), r), "y", tag="conv_transpose")
    return Computation((x, w), (te.compute((8,), lambda i: y[i] + 1.0, "out"),))


def max_pool() -> Computation:
    """Overlapping windows with a border of minus infinity."""
    x = te.placeholder((7, 5), f32, "x")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(2, "s")

    def element(i: te.Var, j: te.Var) -> te.Expr:
        h, w = i * 2 + r - 1, j * 2 + s
        return select(all_of([within(h, 0, 7), within(w, 0, 5)]), x[h, w], float("-inf"))

    y = te.compute((4, 3), lambda i, j: te.max_of(element(i, j), (r, s)), "y", tag="max_pool")
    return Computation((x,), (te.compute((4, 3), lambda i, j: y[i, j] * 2.0, "out"),))


def concatenated() -> Computation:
    """Two computed tensors side by side, in another element type."""
    x, y = te.placeholder((4, 3), bf16, "x"), te.placeholder((4, 6), bf16, "y")
    a = te.compute((4, 3), lambda i, j: x[i, j] + 1.0, "a")
    b = te.compute((4, 6), lambda i, j: y[i, j] * 2.0, "b")
    out = te.compute((4, 9), lambda i, j: select(within(j, 0, 3), a[i, j], b[i, j - 3]), "out")
    return Computation((x, y), (out,))


def centred() -> Computation:
    """What a normalisation does: sums over two axes, broadcast back, twice."""
    x = te.placeholder((3, 4, 2), f32, "x")
    p, q, r, s = (te.reduce_axis(n, name) for n, name in ((4, "p"), (2, "q"), (4, "r"), (2, "s")))
    mean = te.compute((3,), lambda i: te.sum_of(x[i, p, q], (p, q)), "mean")
    away = te.compute((3, 4, 2), lambda i, j, k: x[i, j, k] * 8.0 - mean[i], "away")
    power = te.compute((3,), lambda i: te.sum_of(away[i, r, s] * away[i, r, s], (r, s)), "power")
    return Computation((x,), (te.compute((3, 4, 2), lambda i, j, k: away[i, j, k] + power[i], "out"),))


COMPUTATIONS: dict[str, Callable[[], Computation]] = {
    "elementwise_chain": elementwise_chain,
    "shifted_reads": shifted_reads,
    "transposed": transposed,
    "folded_index": folded_index,
    "matmul": matmul,
    "conv": conv,
    "conv_wide": lambda: conv(1, 7),
    "conv_strided": lambda: conv(3, 7, stride=2),
    "softmax": softmax,
    "argmax": argmax,
    "column_sums": column_sums,
    "row_sums": row_sums,
    "full_sum": full_sum,
    "gathered": gathered,
    "two_outputs": two_outputs,
    "conv_chain": conv_chain,
    "conv_transpose": conv_transpose,
    "max_pool": max_pool,
    "concatenated": concatenated,
    "centred": centred,
}


def assert_results(computation: Computation, got: Sequence[np.ndarray], want: Sequence[np.ndarray], note: str) -> None:
    """Every output as expected, NaN where NaN is expected."""
    for t, a, b in zip(computation.outputs, got, want, strict=True):
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=computation.tolerance, atol=computation.tolerance,
            err_msg=f"{t.name}\n{note}", equal_nan=True,
        )  # fmt: skip


def empty_outputs(computation: Computation) -> list[np.ndarray]:
    """Arrays for the outputs, filled with what no result holds."""
    return [np.full(t.shape, _garbage(t.dtype), t.dtype.numpy) for t in computation.outputs]


def _garbage(dtype: DType) -> float | int:
    return 77.0 if dtype.is_float else 77
