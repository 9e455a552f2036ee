"""Random nodes that move elements: views, slices, joins, pads, and those that look positions up."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tests.e2e.random_models.builder import MAX_ELEMENTS, Builder, Tensor, UnfitError


def anything(b: Builder, least_rank: int = 0) -> Tensor:
    return b.pick(lambda t: t.rank >= least_rank, lambda: b.fresh(b.shape(b.whole(max(1, least_rank), 5))))


def reshape(b: Builder) -> None:
    """Factors of the size dealt out anew, one of them left to be found, or kept with a 0."""
    x = anything(b)
    if x.rank and b.flag(3):
        split = b.whole(0, x.rank - 1)
        divisors = [k for k in range(1, x.shape[split] + 1) if x.shape[split] % k == 0]
        k = b.one_of(divisors)
        shape = [*x.shape[:split], k, x.shape[split] // k, *x.shape[split + 1 :]]
    else:
        left, shape = x.value.size, []
        for _ in range(b.whole(0, 3)):
            k = b.one_of([d for d in range(1, left + 1) if left % d == 0][:12])
            shape.append(k)
            left //= k
        shape.insert(b.whole(0, len(shape)), left)
    asked = list(shape)
    if b.flag(3):
        asked[b.whole(0, len(asked) - 1)] = -1
    elif asked and x.rank and asked[0] == x.shape[0] and b.flag():
        asked[0] = 0
    b.add("Reshape", [x, b.ints(*asked)])


def flatten(b: Builder) -> None:
    x = anything(b)
    b.add("Flatten", [x], axis=b.whole(-x.rank, x.rank))


def transpose(b: Builder) -> None:
    x = anything(b, 1)
    b.add("Transpose", [x], perm=None if b.flag(4) else b.shuffled(range(x.rank)))


def squeeze(b: Builder) -> None:
    x = b.pick(lambda t: 1 in t.shape)
    ones = [d for d, n in enumerate(x.shape) if n == 1]
    b.add("Squeeze", [x] if b.flag(3) else [x, b.ints(*b.some_of(ones, least=1))])


def unsqueeze(b: Builder) -> None:
    x = b.pick(lambda t: t.rank <= 4)
    b.add("Unsqueeze", [x, b.ints(b.whole(-x.rank - 1, x.rank))])


def slices(b: Builder) -> None:
    """Steps of either sign, bounds counted from either end and beyond them."""
    x = anything(b, 1)
    axes = b.some_of(range(x.rank), least=1)
    starts, ends, steps = [], [], []
    for a in axes:
        n, step = x.shape[a], b.one_of((1, 2, -1, -2, 3))
        first = b.whole(0, n - 1)
        if step > 0:
            starts.append(first - n if b.flag(4) else first)
            ends.append(b.one_of((n, 2**31 - 1, b.whole(first + 1, n))))
        else:
            starts.append(b.one_of((first, -1, n + 5)))
            ends.append(b.one_of((-n - 1, -(2**31))))
        steps.append(step)
    b.add("Slice", [x, b.ints(*starts), b.ints(*ends), b.ints(*axes), b.ints(*steps)])


def concat(b: Builder) -> None:
    """Of one tensor, the same one twice, or several that agree but for the axis."""
    x = anything(b, 1)
    axis = b.whole(0, x.rank - 1)

    def joins(t: Tensor) -> bool:
        agree = t.dtype == x.dtype and t.rank == x.rank
        return agree and all(n == m for d, (n, m) in enumerate(zip(t.shape, x.shape, strict=True)) if d != axis)

    def fresh() -> Tensor:
        return b.fresh([b.one_of((1, 3, 16, n)) if d == axis else n for d, n in enumerate(x.shape)], x.dtype)

    parts = [x, *[b.pick(joins, fresh) for _ in range(b.whole(0, 3))]]
    if sum(t.value.size for t in parts) > MAX_ELEMENTS // 4:
        raise UnfitError("too large")
    b.add("Concat", b.shuffled(parts), axis=axis - x.rank if b.flag(3) else axis)


def split(b: Builder) -> None:
    x = anything(b, 1)
    axis = b.whole(0, x.rank - 1)
    n = x.shape[axis]
    cuts = sorted({b.whole(1, n) for _ in range(b.whole(0, 2))} | {n})
    sizes = [hi - lo for lo, hi in zip((0, *cuts), cuts, strict=False)]
    if n % 2 == 0 and b.flag(3):
        b.add("Split", [x], outputs=2, axis=axis, num_outputs=2)
    else:
        b.add("Split", [x, b.ints(*sizes)], outputs=len(sizes), axis=axis)


def pad(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == np.float32 and 1 <= t.rank <= 4, lambda: b.fresh(b.shape(b.whole(1, 4))))
    mode = b.one_of(("constant", "reflect", "edge", "wrap"))
    most = (
        2
        if mode in ("constant", "edge")
        else min(2, *(n - 1 for n in x.shape))
        if x.rank > 1
        else min(2, x.shape[0] - 1)
    )
    least = -1 if mode == "constant" and b.flag(3) else 0
    pads = [b.whole(least, most) if b.flag() else 0 for _ in range(2 * x.rank)]
    value = [b.given(np.array(b.one_of((0.0, 1.5, -2.0)), np.float32))] if mode == "constant" and b.flag() else []
    b.add("Pad", [x, b.ints(*pads), *value], mode=mode)


def expand(b: Builder) -> None:
    x = anything(b)
    shape = [b.one_of((2, 3, 16)) if n == 1 and b.flag() else n for n in x.shape]
    lead = [b.one_of((1, 2, 3))] if x.rank < 5 and b.flag(3) else []
    if prod(lead + shape) > 6000:
        raise UnfitError("too large")
    b.add("Expand", [x, b.ints(*lead, *shape)])


def tile(b: Builder) -> None:
    x = anything(b, 1)
    repeats = [b.one_of((1, 1, 2, 3)) for _ in x.shape]
    if x.value.size * prod(repeats) > 6000:
        raise UnfitError("too large")
    b.add("Tile", [x, b.ints(*repeats)])


def gather(b: Builder) -> None:
    x = anything(b, 1)
    axis = b.whole(-x.rank, x.rank - 1)
    n = x.shape[axis]
    rng = np.random.default_rng(len(b.tensors))
    shape = b.one_of(((), (1,), (3,), (2, 3)))
    if x.value.size // n * prod(shape) > 8000 or x.rank + len(shape) > 6:
        raise UnfitError("too large")
    low = -n if b.flag(3) else 0
    indices = b.given(rng.integers(low, n, shape).astype(b.one_of((np.int64, np.int32))), constant=None)
    b.add("Gather", [x, indices], axis=axis)


def gather_elements(b: Builder) -> None:
    x = anything(b, 1)
    axis = b.whole(-x.rank, x.rank - 1)
    rng = np.random.default_rng(len(b.tensors))
    indices = rng.integers(-x.shape[axis], x.shape[axis], x.shape)
    b.add("GatherElements", [x, b.given(indices, constant=None)], axis=axis)


def gather_nd(b: Builder) -> None:
    x = anything(b, 2)
    depth = b.whole(1, x.rank)
    rng = np.random.default_rng(len(b.tensors))
    indices = np.stack([rng.integers(0, n, (3,)) for n in x.shape[:depth]], -1)
    b.add("GatherND", [x, b.given(indices.astype(np.int64), constant=None)])


def scatter_elements(b: Builder) -> None:
    """Distinct positions along the axis, so that the order of writes does not matter."""
    x = b.pick(lambda t: t.dtype in (np.float32, np.int64) and t.rank, lambda: b.fresh(b.shape(b.whole(1, 4))))
    axis = b.whole(0, x.rank - 1)
    count = b.whole(1, x.shape[axis])
    shape = [count if d == axis else n for d, n in enumerate(x.shape)]
    rng = np.random.default_rng(len(b.tensors))
    rows = np.argsort(rng.random(x.shape), axis)
    indices = np.take(rows, range(count), axis).astype(np.int64)
    updates = b.fresh(shape, x.dtype)
    b.add(
        "ScatterElements",
        [x, b.given(indices, constant=None), updates],
        axis=axis,
        reduction=b.one_of(("none", "add", "max")),
    )


def scatter_nd(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in (np.float32, np.int64) and t.rank, lambda: b.fresh(b.shape(b.whole(1, 4))))
    rows = np.random.default_rng(len(b.tensors)).permutation(x.shape[0])[: b.whole(1, min(4, x.shape[0]))]
    updates = b.fresh((len(rows), *x.shape[1:]), x.dtype)
    b.add("ScatterND", [x, b.given(rows[:, None].astype(np.int64), constant=None), updates])


def one_hot(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == np.int64 and t.rank <= 3, lambda: b.fresh(b.shape(b.whole(0, 2), 60), np.int64))
    values = b.given(np.array([b.one_of((0, -1)), 2], np.float32))
    b.add("OneHot", [x, b.given(np.array(b.one_of((5, 1, 16)), np.int64)), values], axis=b.whole(-x.rank - 1, x.rank))


def triangle(b: Builder) -> None:
    x = b.pick_floats((2, 3, 4))
    k = [b.given(np.array(b.whole(-2, 2), np.int64))] if b.flag() else []
    b.add("Trilu", [x, *k], upper=b.whole(0, 1))


def reverse_sequence(b: Builder) -> None:
    x = b.pick_floats((2, 3, 4))
    lengths = np.random.default_rng(len(b.tensors)).integers(1, x.shape[0] + 1, x.shape[1])
    b.add("ReverseSequence", [x, b.given(lengths.astype(np.int64), constant=None)], batch_axis=1, time_axis=0)


def shape_of(b: Builder) -> None:
    """What the importer must fold: the shape of one tensor reshapes another."""
    x = b.pick(lambda t: t.rank >= 1)
    (shape,) = b.add("Shape", [x])
    y = b.pick(lambda t: t.value.size == x.value.size and t.dtype == x.dtype)
    b.add("Reshape", [y, shape])


def concat_of_split(b: Builder) -> None:
    x = b.pick(lambda t: any(n > 1 for n in t.shape))
    axis = b.one_of([d for d, n in enumerate(x.shape) if n > 1])
    first = b.whole(1, x.shape[axis] - 1)
    parts = b.add("Split", [x, b.ints(first, x.shape[axis] - first)], outputs=2, axis=axis)
    b.add("Concat", b.shuffled(parts), axis=axis)


def turned_twice(b: Builder) -> None:
    x = anything(b, 2)
    perm = b.shuffled(range(x.rank))
    (once,) = b.add("Transpose", [x], perm=perm)
    b.add("Transpose", [once], perm=list(np.argsort(perm)) if b.flag() else b.shuffled(range(x.rank)))


FAMILY: dict[str, Callable[[Builder], None]] = {
    f.__name__: f
    for f in (
        reshape, transpose, slices, concat, split, flatten, squeeze, unsqueeze, pad, expand, tile, gather,
        gather_elements, gather_nd, scatter_elements, scatter_nd, one_hot, triangle, reverse_sequence, shape_of,
        concat_of_split, turned_twice,
    )
}  # fmt: skip
