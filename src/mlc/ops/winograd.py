"""Winograd's minimal filtering: a 3×3 convolution with fewer multiplications (Lavin and Gray, arXiv:1509.09308).

The output is cut into tiles of ``m × m``. A tile needs ``(m + 2)²`` inputs, which are transformed, multiplied point by
point with transformed weights (a matrix product over the channels for each of the ``(m + 2)²`` points), and transformed
back. For ``m = 4`` that is 36 products instead of 144, at the price of some accuracy.

The transforms are those of Toom and Cook for the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity, derived exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, ExprLike, as_expr, const, select, within
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import IndexLike, Linear, as_index
from mlc.ir.types import DType, TensorType, f32
from mlc.ops._broadcast import check_count
from mlc.ops.common import check
from mlc.ops.registry import operator
from mlc.ops.window import padded

KERNEL = 3  # taps along each axis
TILES = (2, 4, 6)
Matrix = tuple[tuple[Fraction, ...], ...]
_POINTS = tuple(Fraction(p) for p in ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))


@cache
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """The transforms for tiles of ``m``: of inputs ``[a, a]``, weights ``[a, 3]`` and outputs ``[m, a]``, a = m + 2.

    ``outputs @ ((weights @ g) * (inputs @ d))`` are the ``m`` results of the taps ``g`` over the inputs ``d``.
    """
    count = m + KERNEL - 1
    points = _POINTS[: count - 1]
    inputs, weights = [], []
    for j, p in enumerate(points):
        others = [q for k, q in enumerate(points) if k != j]
        inputs.append((*_polynomial(others), Fraction(0)))
        scale = prod((p - q for q in others), start=Fraction(1))
        weights.append(tuple(p**k / scale for k in range(KERNEL)))
    inputs.append(tuple(_polynomial(points)))
    weights.append((Fraction(0),) * (KERNEL - 1) + (Fraction(1),))
    outputs = [(*(p**i for p in points), Fraction(int(i == m - 1))) for i in range(m)]
    return tuple(inputs), tuple(weights), tuple(outputs)


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the product of ``x - root``."""
    found = [Fraction(1)]
    for r in roots:
        up, stay = [Fraction(0), *found], [*found, Fraction(0)]
        found = [a - r * b for a, b in zip(up, stay, strict=True)]
    return found


def transform_weights(weights: np.ndarray, m: int) -> np.ndarray:
    """Weights ``[o, c, 3, 3]`` as ``[a, a, c, o]`` for tiles of ``m``, computed in double precision."""
    g = np.array([[float(x) for x in row] for row in matrices(m)[1]])
    return np.einsum("ir,ocrs,js->ijco", g, weights.astype(np.float64), g, optimize=True).astype(weights.dtype)


def tile_counts(space: Sequence[int], m: int) -> tuple[int, int]:
    """Tiles along both axes of an output of some height and width."""
    return -(-space[0] // m), -(-space[1] // m)


def _space(x: TensorType | te.Tensor, pads: Sequence[int]) -> tuple[int, int]:
    h, w = x.shape[2:]
    return h + pads[0] + pads[2] - KERNEL + 1, w + pads[1] + pads[3] - KERNEL + 1


def _winograd_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    op = "conv_winograd"
    check_count(op, types, 2)
    x, u = types
    m = attrs["tile"]
    check(m in TILES, op, f"tiles of {m}, there are {', '.join(map(str, TILES))}")
    check(x.rank == 4 and u.rank == 4, op, f"x has rank {x.rank}, u has rank {u.rank}; both must have 4")
    check(x.dtype is f32 and u.dtype is f32, op, f"takes f32, given {x.dtype} and {u.dtype}")
    points = m + KERNEL - 1
    check(u.shape[:2] == (points, points), op, f"u has shape {u.shape}, tiles of {m} have {points} by {points} points")
    check(u.shape[2] == x.shape[1], op, f"x has {x.shape[1]} channels, u takes {u.shape[2]}")
    check(len(attrs["pads"]) == 4, op, f"pads {attrs['pads']}, 4 numbers are needed")
    space = _space(x, attrs["pads"])
    check(min(space) >= 1, op, f"the window spans {KERNEL}, the padded input is smaller")
    return [TensorType((x.shape[0], u.shape[3], *space), f32)]


@operator("conv_winograd", FusionKind.COMPLEX, _winograd_type, pads=..., tile=...)
def conv_winograd(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """What :func:`mlc.ops.conv.conv` gives for a 3×3 window with stride 1, from weights of :func:`transform_weights`.

    Operands: ``x[n, c, h, w]``, ``u[a, a, c, o]``. With tiles ``p`` in row-major order over ``[n, h / m, w / m]``:

    * ``columns[e, j, p, c] = sum(inputs[e, i] * x[tile p, i, j] for i)``
    * ``points[e, f, p, c] = sum(inputs[f, j] * columns[e, j, p, c] for j)``
    * ``products[e, f, p, o] = sum(points[e, f, p, c] * u[e, f, c, o] for c)``
    * ``rows[i, f, p, o] = sum(outputs[i, e] * products[e, f, p, o] for e)``
    * ``y[n, o, h, w] = sum(outputs[w % m, f] * rows[h % m, f, tile of n, h, w, o] for f)``
    """
    x, u = inputs
    m, pads = attrs["tile"], attrs["pads"]
    points = m + KERNEL - 1
    of_inputs, _, of_outputs = matrices(m)
    space = _space(x, pads)
    high, wide = tile_counts(space, m)
    channels, filters = u.shape[2:]
    data = padded(x, pads[:2], (high * m + KERNEL - 1, wide * m + KERNEL - 1), 0)
    tiles = x.shape[0] * high * wide

    def column(e: Linear, j: Linear, p: Linear, c: Linear) -> Expr:
        def at(i: int) -> Expr:
            return data[p // (high * wide), c, p // wide % high * m + i, p % wide * m + j]

        return _by_row(e, of_inputs, [at(i) for i in range(points)], x.dtype)

    columns = te.compute(
        (points, points, tiles, channels), column, "columns", axis_names="ejpc", tag="winograd_columns"
    )

    def point(e: Linear, f: Linear, p: Linear, c: Linear) -> Expr:
        return _by_row(f, of_inputs, [columns[e, j, p, c] for j in range(points)], x.dtype)

    transformed = te.compute(columns.shape, point, "points", axis_names="efpc", tag="winograd_points")
    c = te.reduce_axis(channels, "c")

    def dot(e: Linear, f: Linear, p: Linear, o: Linear) -> te.Reduction:
        return te.sum_of(transformed[e, f, p, c] * u[e, f, c, o], c)

    products = te.compute((points, points, tiles, filters), dot, "products", axis_names="efpo", tag="winograd")

    def row(i: Linear, f: Linear, p: Linear, o: Linear) -> Expr:
        return _by_row(i, of_outputs, [products[e, f, p, o] for e in range(points)], x.dtype)

    rows = te.compute((m, points, tiles, filters), row, "rows", axis_names="ifpo", tag="winograd_rows")

    def element(n: Linear, o: Linear, h: Linear, w: Linear) -> Expr:
        tile = (n * high + h // m) * wide + w // m
        return _by_row(w % m, of_outputs, [rows[h % m, f, tile, o] for f in range(points)], x.dtype)

    shape = (x.shape[0], filters, *space)
    return [te.compute(shape, element, "conv", axis_names="nohw", tag="winograd_tiles", attrs={"tile": m})]


def _by_row(which: IndexLike, matrix: Matrix, values: Sequence[Expr], dtype: DType) -> Expr:
    """Row ``which`` of the product of a matrix and some values, as a choice between the rows' expressions.

    Rows of opposite points share the sums of their even and odd parts.
    """
    results = _products(matrix, values, dtype)
    found = results[-1]
    for k in reversed(range(len(results) - 1)):
        found = select(within(as_index(which), k, k + 1), results[k], found)
    return found


def _products(matrix: Matrix, values: Sequence[Expr], dtype: DType) -> list[Expr]:
    """The product of a matrix and some values."""
    results: list[Expr | None] = [None] * len(matrix)
    for k, row in enumerate(matrix):
        if results[k] is not None:
            continue
        twin = next((j for j in range(k + 1, len(matrix)) if _mirrored(row, matrix[j])), None)
        if twin is None:
            results[k] = _dot(row, values, dtype)
            continue
        same = [(a + b) / 2 for a, b in zip(row, matrix[twin], strict=True)]
        other = [(a - b) / 2 for a, b in zip(row, matrix[twin], strict=True)]
        even, odd = _dot(same, values, dtype), _dot(other, values, dtype)
        results[k], results[twin] = even + odd, even - odd
    return [r for r in results if r is not None]


def _mirrored(a: Sequence[Fraction], b: Sequence[Fraction]) -> bool:
    """Whether two rows agree in some columns and are opposite in all others, with at least one of each kind."""
    kinds = {1 if x == y else -1 if x == -y else 0 for x, y in zip(a, b, strict=True) if x or y}
    return kinds == {1, -1}


def _dot(row: Sequence[Fraction], values: Sequence[Expr], dtype: DType) -> Expr:
    """A linear combination; terms of factor one come first, so that the others are fused into them."""
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: abs(t[0]) != 1)
    total: Expr | None = None
    for c, v in terms:
        scaled: ExprLike = v if abs(c) == 1 else v * const(abs(float(c)), dtype)
        if total is None:
            total = as_expr(scaled) if c > 0 else as_expr(scaled) * const(-1.0, dtype)
        else:
            total = total + scaled if c > 0 else total - scaled
    return total if total is not None else const(0.0, dtype)
