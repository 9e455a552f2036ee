"""Random small networks of odd shapes: channels, pixels, rows and terms that are one, primes, or no whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.loop import Function
from mlc.ir.types import DType, f32
from mlc.rewrite.fuse import fuse
from mlc.targets.gpu.record import Gpu
from tests.unit.targets.gpu.blocks import Done, check, interpreted, laid_out, weights
from tests.unit.targets.gpu.configurations import named
from tests.unit.targets.gpu.groups import assert_close, put, window, x

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31)
MOST = {1: 31, 2: 9, 3: 4}  # pixels along each axis
ROOM = 4000  # elements of a tensor
ROUNDED = 2e-3  # of the largest number: what halves are computed with is rounded once, or after each operation
WORK = 200_000  # multiplications of an operator: the interpreter makes them, too


class Odd:
    """A network under construction.

    Args:
        seed: decides all of it.
        dtype: of its tensors.
    """

    def __init__(self, seed: int, dtype: DType) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.b = Builder(f"odd{seed}")

    def one(self, *values: int, most: int = 1 << 30) -> int:
        return int(self.rng.choice([v for v in values if v <= most] or [1]))

    def network(self) -> Graph:
        """One to three operators, and what follows each element by element."""
        rank = self.one(0, 1, 2, 2, 2, 3)
        y = self.matrix() if rank == 0 else self.image(rank)
        for _ in range(self.one(1, 2, 3)):
            made = self.product(y) if rank == 0 else self.over_pixels(y, rank)
            y = self.after(made)
        return fuse(self.b.finish([y]))

    def matrix(self) -> Value:
        batch = [self.one(1, 2, 3)] if self.one(0, 1) else []
        return x(self.b, *batch, *(self.one(*EXTENTS) for _ in range(2)), dtype=self.dtype)

    def image(self, rank: int) -> Value:
        channels = self.one(*EXTENTS)
        pixels = [self.one(*EXTENTS, most=MOST[rank]) for _ in range(rank)]
        return x(self.b, self.one(1, 1, 2, 3), channels, *pixels, dtype=self.dtype)

    def small(self, *shape: int, terms: int = 1) -> Value:
        """Weights by which numbers keep their size."""
        w = np.random.default_rng(len(self.b.nodes)).standard_normal(shape) / np.sqrt(terms)
        return self.b.constant(w.astype(self.dtype.numpy), f"w{len(self.b.nodes)}_{len(shape)}")

    def product(self, v: Value) -> Value:
        """By constant weights, turned or not, or of a matrix by itself."""
        *batch, m, k = v.type.shape
        if self.one(0, 1, 2) == 0 and prod(batch) * m * m * k <= WORK:
            return put(self.b, "matmul", [v, v], transpose_b=True)
        n = self.one(*EXTENTS, most=max(1, ROOM // (prod(batch) * m)))
        turned = bool(self.one(0, 1))
        w = self.small(*((n, k) if turned else (k, n)), terms=k)
        return put(self.b, "matmul", [v, w], transpose_b=turned)

    def over_pixels(self, v: Value, rank: int) -> Value:
        n, c, *pixels = v.type.shape
        kernel = self.one(1, 2, 3, 5, most=min(pixels) + 1)
        stride, dilation = self.one(1, 1, 2, 3), self.one(1, 1, 2) if kernel <= min(pixels) // 2 else 1
        attrs = window(rank, stride, kernel // 2 * dilation, dilation)
        kind = self.one(*range(6))
        if kind == 0:
            return put(self.b, "max_pool", [v], kernel=(kernel,) * rank, **window(rank, stride, kernel // 2))
        if kind == 1:
            inside = min(kernel, *pixels)
            return put(self.b, "avg_pool", [v], kernel=(inside,) * rank, **window(rank, stride, 0))
        if kind == 2:
            mean = put(self.b, "reduce_mean", [v], axes=tuple(range(2, rank + 2)), keepdims=True)
            return put(self.b, "mul", [v, put(self.b, "sigmoid", [mean])])
        taps = kernel**rank
        groups = c if kind == 3 else gcd(c, self.one(1, 1, 2, 3))
        room = min(ROOM // prod((n, *pixels)), WORK // (prod((n, *pixels)) * taps * (c // groups)))
        each = self.one(*EXTENTS, most=max(1, room // groups))
        if kind == 5:
            w = self.small(c, each, *(kernel,) * rank, terms=c // groups)
            attrs["pads"] = (0,) * 2 * rank
            return put(self.b, "conv_transpose", [v, w], **attrs, groups=groups)
        w = self.small(each * groups, c // groups, *(kernel,) * rank, terms=taps * c // groups)
        return put(self.b, "conv", [v, w], **attrs, groups=groups)

    def after(self, v: Value) -> Value:
        """A bias, an activation, both or nothing."""
        if self.one(0, 1):
            last = v.type.shape[1:2] + (1,) * (v.type.rank - 2) if v.type.rank > 2 else v.type.shape[-1:]
            v = put(self.b, "add", [v, weights(self.b, *last, dtype=self.dtype)])
        return put(self.b, ("relu", "sigmoid", "tanh")[self.one(0, 1, 2)], [v]) if self.one(0, 1) else v


def odd_network(seed: int, dtype: DType) -> Graph:
    """The network of a seed, fused."""
    return Odd(seed, dtype).network()


def kernels_of(seeds: Sequence[int], dtype: DType, target: Gpu) -> list[Done]:
    """Kernels of the networks of some seeds, untuned and as drawn, and what the interpreter was given and made of it.

    That is what the graph says; no two kernels have the same name.
    """
    found: list[Done] = []

    def run(fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = interpreted(fn, inputs)
        found.append((named(fn, f"k{len(found)}"), inputs, results))
        return results

    for seed in seeds:
        for rng in (None, np.random.default_rng(seed)):
            graph = odd_network(seed, dtype)
            check(graph, laid_out(graph, rng, target=target), run, target)
    return found


def assert_agrees(got: Sequence[np.ndarray], done: Done, dtype: DType) -> None:
    """A device has made the same of what a kernel was given."""
    fn, _, want = done
    if dtype is f32:
        assert_close(got, want, repr(fn))
        return
    for g, w in zip(got, want, strict=True):
        least = ROUNDED * max(1.0, float(np.abs(w).max(initial=0)))
        np.testing.assert_allclose(g.reshape(w.shape), w, rtol=ROUNDED, atol=least, err_msg=repr(fn))
