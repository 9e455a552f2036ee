"""Winograd's minimal filtering: 3×3 and k×3×3 convolutions with fewer multiplications.

Source: Lavin and Gray, arXiv:1509.09308.

The output is cut into tiles of ``m × m``. A tile needs ``(m + 2)²`` inputs, which are transformed, multiplied point by
point with transformed weights (a matrix product over the channels for each of the ``(m + 2)²`` points), and transformed
back. For ``m = 4`` that is 36 products instead of 144, at the price of some accuracy.

Integers are exact: for ``m = 2``, transformed weights times 4 are whole numbers, and a quarter of what comes back
is the result.

The transforms are those of Toom and Cook for the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity, derived exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import lcm, prod

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, ExprLike, as_expr, binary, cast, const, select, within
from mlc.ir.graph import Attrs, FusionKind, Node
from mlc.ir.index import IndexLike, Linear, as_index
from mlc.ir.types import DType, TensorType, f32, i16, u8
from mlc.ops._broadcast import check_count
from mlc.ops.common import check, product, product_type
from mlc.ops.registry import operator
from mlc.ops.window import SPACE, padded

KERNEL = 3  # taps along each axis
TILES = (2, 4, 6)
EXACT = 2  # the tile whose transforms of integers fit 16 bits
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
    """Weights ``[o, c, 3, 3]`` as ``[a, a, c, o]``, or ``[o, c, k, 3, 3]`` as ``[k, a, a, c, o]``, for tiles of ``m``.

    Computed in double precision. Integers come out exactly, times the square of :func:`scale_along_axis`.
    """
    whole = 1 if np.issubdtype(weights.dtype, np.floating) else scale_along_axis(m)
    g = np.array([[float(x * whole) for x in row] for row in matrices(m)[1]])
    o, c, *slices, _, _ = weights.shape
    last = np.moveaxis(weights, (0, 1), (-1, -2)).astype(np.float64)  # [(k), 3, 3, c, o]
    flat = g @ (g @ last.reshape(-1, KERNEL, KERNEL * c * o)).reshape(-1, KERNEL, c * o)
    return flat.astype(weights.dtype).reshape(*slices, len(g), len(g), c, o)


def scale_along_axis(m: int) -> int:
    """What makes the transform of weights along one axis whole numbers.

    >>> scale_along_axis(2)
    2
    """
    return lcm(*(x.denominator for row in matrices(m)[1] for x in row))


def tile_counts(space: Sequence[int], m: int) -> tuple[int, int]:
    """Tiles along both axes of an output of some height and width."""
    return -(-space[-2] // m), -(-space[-1] // m)


def fits(node: Node) -> bool:
    """Whether a convolution has a window that the algorithm is for."""
    x, w, attrs = node.inputs[0].type, node.inputs[1].type, node.attrs
    return (
        x.rank in (4, 5)
        and w.shape[-2:] == (KERNEL, KERNEL)
        and attrs["groups"] == 1
        and set(attrs["strides"]) == {1}
        and set(attrs["dilations"]) == {1}
    )


def output_space(space: Sequence[int], taps: Sequence[int], pads: Sequence[int]) -> tuple[int, ...]:
    """Spatial extents of the output."""
    rank = len(space)
    return tuple(n + pads[d] + pads[rank + d] - k + 1 for d, (n, k) in enumerate(zip(space, taps, strict=True)))


def _space(x: TensorType | te.Tensor, u: TensorType | te.Tensor, pads: Sequence[int]) -> tuple[int, ...]:
    return output_space(x.shape[2:], (*u.shape[:-4], KERNEL, KERNEL), pads)


def _winograd_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    op = "conv_winograd"
    check_count(op, types, 2)
    x, u = types
    m = attrs["tile"]
    check(m in TILES, op, f"tiles of {m}, there are {', '.join(map(str, TILES))}")
    check(x.rank in (4, 5), op, f"x has rank {x.rank}, 4 and 5 are supported")
    check(u.rank == x.rank if x.rank == 4 else u.rank == 5, op, f"x has rank {x.rank}, u has rank {u.rank}")
    whole = x.dtype in (u8, i16) and u.dtype is i16 and m == EXACT
    what = f"takes f32, or u8 or i16 by i16 in tiles of {EXACT}, given {x.dtype} and {u.dtype}"
    check(whole or (x.dtype is f32 and u.dtype is f32), op, what)
    points = m + KERNEL - 1
    check(
        u.shape[-4:-2] == (points, points), op, f"u has shape {u.shape}, tiles of {m} have {points} by {points} points"
    )
    check(u.shape[-2] == x.shape[1], op, f"x has {x.shape[1]} channels, u takes {u.shape[-2]}")
    check(len(attrs["pads"]) == 2 * (x.rank - 2), op, f"pads {attrs['pads']}, {2 * (x.rank - 2)} numbers are needed")
    space = _space(x, u, attrs["pads"])
    check(min(space) >= 1, op, "the window spans more than the padded input")
    return [TensorType((x.shape[0], u.shape[-1], *space), product_type(op, x.dtype, u.dtype))]


@operator("conv_winograd", FusionKind.COMPLEX, _winograd_type, pads=..., tile=...)
def conv_winograd(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """What :func:`mlc.ops.conv.conv` gives for 3×3 taps with stride 1, from weights of :func:`transform_weights`.

    Operands: ``x[n, c, h, w]``, ``u[a, a, c, o]``. With tiles ``p`` in row-major order over ``[n, h / m, w / m]``:

    * ``columns[e, j, p, c] = sum(inputs[e, i] * x[tile p, i, j] for i)``
    * ``points[e, f, p, c] = sum(inputs[f, j] * columns[e, j, p, c] for j)``
    * ``products[e, f, p, o] = sum(points[e, f, p, c] * u[e, f, c, o] for c)``
    * ``rows[i, f, p, o] = sum(outputs[i, e] * products[e, f, p, o] for e)``
    * ``y[n, o, h, w] = sum(outputs[w % m, f] * rows[h % m, f, tile of n, h, w, o] for f)``

    Integers are bytes, or words of at most 11 bits, as bytes are, and ``y`` is a quarter of those sums.

    In three dimensions, ``x[n, c, d, h, w]`` and ``u[k, a, a, c, o]``, slices have an axis ``s`` over ``[n, d]`` in
    front of their tiles, and ``products`` also sums over the ``k`` slices that the window spans.
    """
    x, u = inputs
    m, pads = attrs["tile"], attrs["pads"]
    rank = x.rank - 2
    points = m + KERNEL - 1
    dtype = product_type("conv_winograd", x.dtype, u.dtype)
    of_inputs, _, of_outputs = matrices(m)
    space = _space(x, u, pads)
    high, wide = tile_counts(space, m)
    channels, filters = u.shape[-2:]
    around = tuple(n + k - 1 for n, k in zip(space[:-2], u.shape[:-4], strict=True))  # slices with their padding
    data = padded(x, pads[:rank], (*around, high * m + KERNEL - 1, wide * m + KERNEL - 1), 0)
    slices_in, slices = (tuple(x.shape[0] * n for n in some) for some in (around, space[:-2]))
    tiles = high * wide * (1 if slices else x.shape[0])
    names = ("s", "p") if slices else ("p",)

    def column(e: Linear, j: Linear, *at: Linear) -> Expr:
        *s, p, c = at
        image = [s[0] // around[0], c, s[0] % around[0]] if s else [p // (high * wide), c]

        def pixel(i: int) -> Expr:
            return cast(data[(*image, p // wide % high * m + i, p % wide * m + j)], u.dtype)

        return _by_row(e, of_inputs, [pixel(i) for i in range(points)], u.dtype)

    shape = (points, points, *slices_in, tiles, channels)
    columns = te.compute(shape, column, "columns", axis_names=("e", "j", *names, "c"), tag="winograd_columns")

    def point(e: Linear, f: Linear, *at: Linear) -> Expr:
        return _by_row(f, of_inputs, [columns[(e, j, *at)] for j in range(points)], u.dtype)

    transformed = te.compute(shape, point, "points", axis_names=("e", "f", *names, "c"), tag="winograd_points")
    c = te.reduce_axis(channels, "c")
    window = tuple(te.reduce_axis(k, "k") for k in u.shape[:-4])

    def dot(e: Linear, f: Linear, *at: Linear) -> te.Reduction:
        *s, p, o = at
        source = [s[0] // space[0] * around[0] + s[0] % space[0] + window[0]] if s else []
        return te.sum_of(product(transformed[(e, f, *source, p, c)], u[(*window, e, f, c, o)], dtype), (*window, c))

    shape = (points, points, *slices, tiles, filters)
    products = te.compute(shape, dot, "products", axis_names=("e", "f", *names, "o"), tag="winograd")

    def row(i: Linear, f: Linear, *at: Linear) -> Expr:
        return _by_row(i, of_outputs, [products[(e, f, *at)] for e in range(points)], dtype)

    rows = te.compute((m, *shape[1:]), row, "rows", axis_names=("i", "f", *names, "o"), tag="winograd_rows")

    def element(n: Linear, o: Linear, *at: Linear) -> Expr:
        *d, h, w = at
        tile = (h // m) * wide + w // m
        place = [n * space[0] + d[0], tile] if d else [n * (high * wide) + tile]
        found = _by_row(w % m, of_outputs, [rows[(h % m, f, *place, o)] for f in range(points)], dtype)
        return found if dtype.is_float else binary("shr", found, (scale_along_axis(m) ** 2).bit_length() - 1)

    shape = (x.shape[0], filters, *space)
    facts = {"tile": m}
    return [te.compute(shape, element, "conv", axis_names=("n", "o", *SPACE[rank]), tag="winograd_tiles", attrs=facts)]


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
