"""Resampling along axes: by index arithmetic, by tables of taps, and at free positions (grid_sample)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import add, mul
from typing import NamedTuple

from mlc.ir import te
from mlc.ir.expr import Expr, all_of, binary, call, cast, select
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, as_index, dynamic
from mlc.ir.types import TensorType, i64
from mlc.ops._broadcast import check_axes, check_count, check_kinds
from mlc.ops.common import check, check_float, check_same_dtype, wide
from mlc.ops.index import position
from mlc.ops.registry import operator

# beyond this many taps a sum of single terms is the wrong form; such a resampling is a matrix product
MAX_TAPS = 8

SAMPLE_MODES = ("linear", "nearest", "cubic")
PADDING_MODES = ("zeros", "border", "reflection")


def _infer_nearest(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("resize_nearest", types, 1)
    (x,) = types
    shape = tuple(attrs["shape"])
    fits = len(shape) == x.rank and all(m >= 0 and (n > 0 or m == 0) for m, n in zip(shape, x.shape, strict=True))
    check(fits, "resize_nearest", f"{x} to {list(shape)}")
    return [TensorType(shape, x.dtype)]


@operator("resize_nearest", FusionKind.INJECTIVE, _infer_nearest, shape=...)
def _resize_nearest(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``out[i] = x[i * n // m]`` for each axis of extent ``n`` resized to ``m``: ``i // s`` for a whole scale ``s``."""
    (x,) = inputs
    shape = tuple(attrs["shape"])

    def element(*i: Linear) -> Expr:
        return x[tuple(k * n // m if m not in (0, n) else k for k, n, m in zip(i, x.shape, shape, strict=True))]

    return [te.compute(shape, element, "resize_nearest", tag="resize_nearest")]


def _infer_resample(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("resample", types, 3)
    x, index, weight = types
    axis = attrs["axis"]
    check_float("resample", x)
    check_same_dtype("resample", x, weight)
    check_kinds("resample", index, "iu", "index")
    check_axes("resample", [axis], x.rank)
    same = index.rank == 2 and index.shape == weight.shape
    check(same, "resample", f"index {index} and weight {weight} must be [taps, positions]")
    taps, positions = index.shape
    check(1 <= taps <= MAX_TAPS, "resample", f"{taps} taps, at most {MAX_TAPS} are supported")
    check(x.shape[axis] > 0 or positions == 0, "resample", f"axis {axis} of {x} is empty")
    return [TensorType((*x.shape[:axis], positions, *x.shape[axis + 1 :]), x.dtype)]


@operator("resample", FusionKind.INJECTIVE, _infer_resample, axis=...)
def _resample(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """Weighted sum of a few elements along ``axis``: position ``o`` of the result is the sum over ``t`` of
    ``weight[t, o] * x[index[t, o]]``. The whole of linear and cubic resizing, one axis at a time."""
    x, index, weight = inputs
    axis = attrs["axis"]
    taps, positions = index.shape

    def element(*i: Linear) -> Expr:
        def tap(t: int) -> Expr:
            at = position(index[t, i[axis]], x.shape[axis])
            return wide(weight[t, i[axis]]) * wide(x[(*i[:axis], at, *i[axis + 1 :])])

        return cast(reduce(add, [tap(t) for t in range(taps)]), x.dtype)

    shape = (*x.shape[:axis], positions, *x.shape[axis + 1 :])
    return [te.compute(shape, element, "resample", tag="gather", attrs={"axis": axis})]


def _infer_grid_sample(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("grid_sample", types, 2)
    x, grid = types
    spatial = x.rank - 2
    check_float("grid_sample", x)
    check_same_dtype("grid_sample", x, grid)
    check(attrs["mode"] in SAMPLE_MODES, "grid_sample", f"mode {attrs['mode']!r}")
    check(attrs["padding_mode"] in PADDING_MODES, "grid_sample", f"padding_mode {attrs['padding_mode']!r}")
    fits = spatial >= 1 and grid.rank == x.rank and grid.shape[0] == x.shape[0] and grid.shape[-1] == spatial
    check(fits, "grid_sample", f"grid {grid} for {x}")
    check(0 not in x.shape[2:] or 0 in grid.shape, "grid_sample", f"nothing to sample in {x}")
    return [TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype)]


def _unnormalised(g: Expr, n: int, align_corners: bool) -> Expr:
    """From ``[-1, 1]`` to positions on an axis of extent ``n``."""
    return (g + 1) * ((n - 1) / 2) if align_corners else ((g + 1) * n - 1) * 0.5


def _reflected(v: Expr, n: int, align_corners: bool) -> Expr:
    """``v`` folded back at the borders (at the centres of the outermost elements, or at their edges)."""
    low, span = (0.0, n - 1) if align_corners else (-0.5, n)
    if span == 0:
        return 0 * v
    up = binary("mod", v - low, 2 * span)
    return binary("min", up, 2 * span - up) + low


def _cubic_weights(t: Expr) -> list[Expr]:
    """Weights of the four neighbours at fraction ``t`` of the way from the second to the third (Keys, a = -0.75)."""
    a = -0.75

    def near(d: Expr) -> Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Expr) -> Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


class _Tap(NamedTuple):
    """One neighbour on an axis: where it is, whether it exists (``None``: always), its weight (``None``: 1)."""

    at: Linear
    inside: Expr | None
    weight: Expr | None


class _AxisSampler:
    """The neighbours of a real position on one axis and their weights."""

    def __init__(self, attrs: Attrs, n: int) -> None:
        self.padding = attrs["padding_mode"]
        self.align = bool(attrs["align_corners"])
        self.mode = attrs["mode"]
        self.n = n

    def taps(self, g: Expr) -> list[_Tap]:
        """Each neighbour of the grid coordinate ``g``."""
        v = _unnormalised(g, self.n, self.align)
        if self.mode != "cubic":
            v = self._bounded(v)
        if self.mode == "nearest":
            return [self._tap(call("round", v), None)]
        base = call("floor", v)
        t = v - base
        if self.mode == "linear":
            return [self._tap(base, 1 - t), self._tap(base + 1, t)]
        return [self._tap(base + (k - 1), w) for k, w in enumerate(_cubic_weights(t))]

    def _bounded(self, v: Expr) -> Expr:
        if self.padding == "reflection":
            v = _reflected(v, self.n, self.align)
        return v if self.padding == "zeros" else binary("min", binary("max", v, 0), self.n - 1)

    def _tap(self, at: Expr, weight: Expr | None) -> _Tap:
        inside = None
        if self.padding == "zeros":
            inside = binary("and", binary("ge", at, 0), binary("le", at, self.n - 1))
        else:
            at = self._bounded(at)
        # clamped as a float: the conversion of a huge value or a NaN is not to be relied upon
        safe = select(binary("ge", at, 0), binary("min", at, self.n - 1), 0)
        index = cast(safe, i64)
        return _Tap(dynamic(binary("min", binary("max", index, 0), self.n - 1), 0, self.n - 1), inside, weight)


@operator(
    "grid_sample", FusionKind.INJECTIVE, _infer_grid_sample, mode="linear", padding_mode="zeros", align_corners=False
)
def _grid_sample(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``x[n, c, ...]`` sampled at the coordinates along the last axis of ``grid``, innermost axis of x first.

    -1 and 1 are the outermost edges of x, or with ``align_corners`` the centres of its outermost elements.
    """
    x, grid = inputs
    spatial = x.shape[2:]

    def element(*i: Linear) -> Expr:
        per_axis = []
        for d, n in enumerate(spatial):
            g = wide(grid[(i[0], *i[2:], as_index(len(spatial) - 1 - d))])
            per_axis.append(_AxisSampler(attrs, n).taps(g))
        terms = []
        for corner in product(*per_axis):
            value: Expr = wide(x[(i[0], i[1], *[tap.at for tap in corner])])
            value = select(all_of([tap.inside for tap in corner if tap.inside is not None]), value, 0)
            terms.append(reduce(mul, [tap.weight for tap in corner if tap.weight is not None], value))
        return cast(reduce(add, terms), x.dtype)

    return [te.compute((*x.shape[:2], *grid.shape[1:-1]), element, "grid_sample", tag="gather")]
