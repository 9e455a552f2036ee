"""Graphs of one heavy operator of any kind, drawn at random or said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.types import TensorType, f32
from mlc.ops import get

Draw = Callable[[np.random.Generator], tuple[str, Callable[[], Graph]]]


def _numbers(*shape: int) -> np.ndarray:
    """Small whole numbers: sums of a few products are exact."""
    return np.random.default_rng(len(shape)).integers(-2, 3, shape).astype(np.float32)


def _data(g: Builder, n: int, channels: int, space: Sequence[int], *, blocked: bool) -> Value:
    """An input, row-major; or behind a convolution of single pixels, which gives it blocks of channels."""
    if not blocked:
        return g.input("x", TensorType((n, channels, *space), f32))
    rank = len(space)
    attrs = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank, "groups": 1}
    x = g.input("x", TensorType((n, 16, *space), f32))
    w = g.constant(_numbers(channels, 16, *(1,) * rank), "before.weight")
    return g.add(get("conv"), [x, w], attrs, names=["before"])[0]


def convolution(
    n: int, channels: int, space: Sequence[int], filters: int, taps: int, *, stride: int = 1, dilation: int = 1,
    groups: int = 1, blocked: bool = False, transposed: bool = False,
) -> Graph:  # fmt: skip
    """One convolution, whose node has the source ``last``."""
    rank, g = len(space), Builder("net")
    x = _data(g, n, channels, space, blocked=blocked)
    few = (channels, filters // groups) if transposed else (filters, channels // groups)
    pad = min(taps - 1, taps // 2) if transposed else (taps - 1) * dilation // 2
    attrs = {
        "strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank, "groups": groups,
    }  # fmt: skip
    w = g.constant(_numbers(*few, *(taps,) * rank), "weight")
    op = get("conv_transpose" if transposed else "conv")
    return g.finish(g.add(op, [x, w], attrs, names=["y"], sources=["last"]))


def product(m: int, k: int, n: int, *, constant: bool = True) -> Graph:
    """One matrix product."""
    g = Builder("product")
    a = g.input("a", TensorType((m, k), f32))
    b = g.constant(_numbers(k, n), "b") if constant else g.input("b", TensorType((k, n), f32))
    return g.finish(g.add(get("matmul"), [a, b], names=["y"], sources=["last"]))


def products(equation: str, **extents: int) -> Graph:
    """Several matrix products."""
    g, shapes = Builder("products"), equation.split("->")[0].split(",")
    inputs = [g.input(f"x{k}", TensorType(tuple(extents[a] for a in s), f32)) for k, s in enumerate(shapes)]
    return g.finish(g.add(get("einsum"), inputs, {"equation": equation}, names=["y"], sources=["last"]))


def pool(op: str, n: int, channels: int, space: Sequence[int], kernel: int, stride: int, *, blocked: bool) -> Graph:
    """One pool."""
    rank, g = len(space), Builder("pool")
    x = _data(g, n, channels, space, blocked=blocked)
    pad = kernel // 2
    attrs = {
        "kernel": (kernel,) * rank, "strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (1,) * rank,
        "output_shape": tuple((s + 2 * pad - kernel) // stride + 1 for s in space),
    }  # fmt: skip
    return g.finish(g.add(get(op), [x], attrs, names=["y"], sources=["last"]))


# -- drawn ------------------------------------------------------------------------------------------------------------
def _one(rng: np.random.Generator, *of: int) -> int:
    return int(rng.choice(of))


def _space(rng: np.random.Generator, rank: int, least: int, most: int) -> tuple[int, ...]:
    if rank == 1:
        return (int(rng.integers(16, 1500)),)
    if rank == 3:
        least, most = max(2, least // 3), most // 3
    same = int(rng.integers(least, most))
    return (same,) * rank if rng.random() < 0.6 else tuple(int(k) for k in rng.integers(least, most, rank))


def _channels(rng: np.random.Generator, least: int, most: int) -> int:
    """Odd ones, or whole vectors."""
    n = int(rng.integers(least, most))
    return n if rng.random() < 0.5 else n // 16 * 16 + 16


def _convolution(
    taps: Sequence[int], strides: Sequence[int] = (1,), dilations: Sequence[int] = (1,), rank: int = 2
) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
        args = _one(rng, 1, 1, 4), _channels(rng, 3, 260), _space(rng, rank, 4, 60), _channels(rng, 8, 260)
        more = {"stride": _one(rng, *strides), "dilation": _one(rng, *dilations), "blocked": bool(rng.integers(2))}
        window = _one(rng, *taps)
        return f"{args} {window} {more}", lambda: convolution(*args, window, **more)

    return draw


def _grouped(rank: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
        groups, many = _one(rng, 2, 3, 4, 5, 8, 16), rng.random() < 0.6
        inner, outer = (int(k) for k in (rng.integers(4, 64, 2) if many else rng.integers(2, 9, 2)))
        args = _one(rng, 1, 1, 4), inner * groups, _space(rng, rank, 4, 60), outer * groups, _one(rng, 1, 3, 5)
        more = {"stride": _one(rng, 1, 1, 2), "dilation": _one(rng, 1, 1, 2), "blocked": bool(rng.integers(2))}
        return f"{args} {groups} groups {more}", lambda: convolution(*args, groups=groups, **more)

    return draw


def _depthwise(rank: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
        channels, times = int(rng.integers(8, 300)), _one(rng, 1, 1, 1, 2, 3)
        args = _one(rng, 1, 1, 4), channels, _space(rng, rank, 6, 112), channels * times, _one(rng, 3, 5, 7)
        more = {"stride": _one(rng, 1, 1, 2), "dilation": _one(rng, 1, 1, 2), "blocked": bool(rng.integers(2))}
        return f"{args} depthwise {more}", lambda: convolution(*args, groups=channels, **more)

    return draw


def _transposed(rank: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
        groups = _one(rng, 1, 1, 1, 2, 4)
        inner, outer = (groups * (_channels(rng, 3, 200) // groups + 1) for _ in range(2))
        args = _one(rng, 1, 1, 4), inner, _space(rng, rank, 4, 40), outer, _one(rng, 2, 3, 4, 5)
        more = {"stride": _one(rng, 1, 2, 2, 3), "blocked": bool(rng.integers(2))}
        return f"{args} {groups} groups {more}", lambda: convolution(*args, groups=groups, transposed=True, **more)

    return draw


def _product(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
    m, k, n = (int(2 ** rng.uniform(least, 11)) for least in (1, 4, 3))
    constant = bool(rng.integers(2))
    return f"{m} x {k} x {n}, constant: {constant}", lambda: product(m, k, n, constant=constant)


def _vector(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
    k, n = (int(2 ** rng.uniform(6, 12.5)) for _ in range(2))
    constant = bool(rng.integers(2))
    args = (k, n, 1) if rng.random() < 0.3 else (1, k, n)
    return f"{args}, constant: {constant}", lambda: product(*args, constant=constant)


def _products(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
    equation = str(rng.choice(("bij,bjk->bik", "bij,bkj->bik", "bji,bjk->bik")))
    of = {"b": int(rng.integers(2, 64)), **{a: int(2 ** rng.uniform(2, 8)) for a in "ijk"}}
    return f"{equation} {of}", lambda: products(equation, **of)


def _pool(rank: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[str, Callable[[], Graph]]:
        op = str(rng.choice(("max_pool", "avg_pool")))
        args = (
            _one(rng, 1, 1, 4),
            int(rng.integers(4, 300)),
            _space(rng, rank, 6, 112),
            _one(rng, 2, 3, 5),
            _one(rng, 1, 2),
        )
        blocked = bool(rng.integers(2))
        return f"{op} {args} blocked: {blocked}", lambda: pool(op, *args, blocked=blocked)

    return draw


PRODUCTS: dict[str, Draw] = {
    **{f"{k}x{k}": _convolution((k,)) for k in (1, 3, 5, 7)},
    "strided": _convolution((1, 3, 5), (2, 3)),
    "dilated": _convolution((3,), (1, 2), (2, 3)),
    "1-D": _convolution((1, 3, 5, 9), (1, 2), rank=1),
    "3-D": _convolution((1, 3), (1, 2), rank=3),
    **{f"grouped {rank}-D": _grouped(rank) for rank in (1, 2, 3)},
    **{f"transposed {rank}-D": _transposed(rank) for rank in (1, 2, 3)},
    "product": _product,
    "vector": _vector,
    "products": _products,
}
"""What multiplies and sums up over channels or terms."""

WINDOWS: dict[str, Draw] = {
    **{f"depthwise {rank}-D": _depthwise(rank) for rank in (1, 2, 3)},
    **{f"pool {rank}-D": _pool(rank) for rank in (1, 2, 3)},
}
"""What slides over each channel by itself."""
