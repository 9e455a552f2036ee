"""Products of blocked tensors on an imagined accelerator: it multiplies vectors with matrices, in its own memories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlc.ir import te
from mlc.ir.expr import all_of, cast, select, within
from mlc.ir.interp import run_function, run_tensors
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.loop import Function
from mlc.ir.types import i8, i32

ALL = (Kind.BODY, Kind.RESET, Kind.UPDATE)
IN, WEIGHTS, SUMS = "unit.in", "unit.weights", "unit.sums"


def product(block: int = 4, kinds: tuple[Kind, ...] = ALL) -> TensorIntrinsic:
    """``y[0, j] = sum(x[0, k] * w[j, k] for k)``, each operand in a memory of its own, at whole blocks of it."""
    x, w = te.placeholder((1, block), i8, "x"), te.placeholder((block, block), i8, "w")
    k = te.reduce_axis(block, "k")
    y = te.compute((1, block), lambda b, j: te.sum_of(cast(x[b, k], i32) * cast(w[j, k], i32), k), "y")
    operands = {x: Operand(IN, block), w: Operand(WEIGHTS, block * block), y: Operand(SUMS, block)}
    return TensorIntrinsic("unit.product", y, operands, kinds)


@dataclass(frozen=True)
class Blocked:
    """A convolution over blocks of channels; a product of matrices is one with windows of one element.

    Args:
        data: ``[c, h, w, block]``.
        weights: ``[o, c, r, s, block of o, block of c]``.
        pad: the data with zeros around, or the data.
        out: ``[o, h, w, block]``, int32.
    """

    data: te.Tensor
    weights: te.Tensor
    pad: te.Tensor
    out: te.Tensor

    @property
    def params(self) -> list[te.Tensor]:
        return [self.data, self.weights, self.out]

    def check(self, fn: Function, seed: int = 0) -> None:
        """A kernel gives what the tensor expressions say."""
        rng = np.random.default_rng(seed)
        arrays = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in (self.data, self.weights)]
        out = np.full(self.out.shape, 0x55, np.int32)
        run_function(fn, [*arrays, out])
        (expected,) = run_tensors([self.out], dict(zip((self.data, self.weights), arrays, strict=True)))
        np.testing.assert_array_equal(out, expected)


def convolution(
    c: int, o: int, h: int, w: int, window: int = 1, stride: int = 1, padding: int = 0, block: int = 4
) -> Blocked:
    data = te.placeholder((c, h, w, block), i8, "data")
    weights = te.placeholder((o, c, window, window, block, block), i8, "weights")
    pad = data
    if padding:
        pad = te.compute(
            (c, h + 2 * padding, w + 2 * padding, block),
            lambda k, y, x, b: select(
                all_of([within(y - padding, 0, h), within(x - padding, 0, w)]), data[k, y - padding, x - padding, b], 0
            ),
            "pad",
            axis_names=("c", "y", "x", "b"),
        )
    ko, ki = te.reduce_axis(c, "ko"), te.reduce_axis(block, "ki")
    r, s = te.reduce_axis(window, "r"), te.reduce_axis(window, "s")
    shape = (o, *((n + 2 * padding - window) // stride + 1 for n in (h, w)), block)
    out = te.compute(
        shape,
        lambda m, y, x, b: te.sum_of(
            cast(pad[ko, y * stride + r, x * stride + s, ki], i32) * cast(weights[m, ko, r, s, b, ki], i32),
            (ko, r, s, ki),
        ),
        "out",
        axis_names=("o", "y", "x", "b"),
    )
    return Blocked(data, weights, pad, out)
