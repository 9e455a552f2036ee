"""Operators as devices have schedules for them, in odd sizes beyond those of the other families.

Attention, recurrences of any number of units, rows and columns long enough for threads to share, convolutions with
channels enough for Tensor Cores or Winograd's algorithm, products with long sums: whatever has a template of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from tests.e2e.random_models.builder import Builder, RandomModel, Tensor
from tests.e2e.random_models.strategy import Seeded

ODD = (1, 3, 5, 7, 9, 13, 17, 31)
LONG = (67, 131, 257, 301, 999, 1031)


def data(b: Builder, *shape: int) -> Tensor:
    return b.fresh(shape, constant=False)


def scaled(b: Builder, fan_in: int, *shape: int) -> Tensor:
    """Constants that keep numbers at their size."""
    return b.given(b.fresh(shape, constant=True).value / np.float32(np.sqrt(fan_in)))


def attention(b: Builder) -> None:
    heads, rows, keys, depth, width = (b.one_of(ODD) for _ in range(5))
    q, k, v = data(b, heads, rows, depth), data(b, heads, keys, depth), data(b, heads, keys, width)
    (turned,) = b.add("Transpose", [k], perm=[0, 2, 1])
    (scores,) = b.add("MatMul", [q, turned])
    (scores,) = b.add("Mul", [scores, b.given(np.array(depth**-0.5, np.float32))])
    if b.flag():
        (scores,) = b.add("Add", [scores, data(b, rows, keys)])
    (shares,) = b.add("Softmax", [scores], axis=-1)
    b.add("MatMul", [shares, v])


def recurrence(b: Builder) -> None:
    op, gates = b.one_of((("GRU", 3), ("LSTM", 4), ("RNN", 1)))
    steps, batch, width, units = b.whole(1, 4), b.one_of((1, 2, 3)), b.one_of(ODD), b.one_of((*ODD, 2, 6, 33))
    direction = b.one_of(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    operands = [
        data(b, steps, batch, width),
        scaled(b, 4 * width, ways, gates * units, width),
        scaled(b, 4 * units, ways, gates * units, units),
        scaled(b, 4, ways, 2 * gates * units),
    ]
    more = {"linear_before_reset": b.whole(0, 1)} if op == "GRU" else {}
    b.add(op, operands, outputs=2, hidden_size=units, direction=direction, **more)


def product(b: Builder) -> None:
    """Long sums of few results, or rows and columns enough for tiles."""
    m, k, n = b.one_of(((1, 1031, 33), (3, 517, 7), (17, 40, 72), (33, 24, 65), (5, 257, 9), (64, 31, 48)))
    b.add("Relu", b.add("MatMul", [data(b, m, k), scaled(b, k, k, n)]))


def convolution(b: Builder) -> None:
    """Of channels by eights or odd, 3×3 of stride 1 among them, of one to three dimensions."""
    channels, filters = b.one_of((8, 16, 24, 3, 17, 31)), b.one_of((8, 16, 40, 1, 5, 13))
    pixels = b.one_of(((13, 9), (7, 17), (31,), (5, 4, 3), (1, 31)))
    size = b.one_of((3, 3, 1, 5)) if len(pixels) < 3 else 3
    stride = b.one_of((1, 1, 2))
    attrs = {
        "kernel_shape": [size] * len(pixels),
        "pads": [size // 2] * 2 * len(pixels),
        "strides": [stride] * len(pixels),
    }
    fan_in = channels * size ** len(pixels)
    w = scaled(b, fan_in, filters, channels, *[size] * len(pixels))
    (y,) = b.add("Conv", [data(b, b.one_of((1, 2)), channels, *pixels), w, b.fresh((filters,), constant=True)], **attrs)
    if b.flag():
        (y,) = b.add("Relu", [y])
    if b.flag():
        b.add("GlobalAveragePool", [y])


def fold(b: Builder) -> None:
    """Of rows, columns or all, long enough to be shared."""
    shape = b.shuffled([b.one_of((1, 2, 5, 9)), b.one_of(LONG)])
    op = b.one_of(("ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceL2", "ReduceLogSumExp"))
    axes = b.one_of(([0], [1], [0, 1]))
    x = data(b, *shape)
    if b.flag():
        (x,) = b.add("Mul", [x, scaled(b, 1, shape[1])])
    b.add(op, [x, b.ints(*axes)], keepdims=b.whole(0, 1))


def position(b: Builder) -> None:
    shape = b.shuffled([b.one_of((1, 2, 5, 9)), b.one_of(LONG)])
    attrs = {"axis": b.whole(0, 1), "keepdims": b.whole(0, 1), "select_last_index": b.whole(0, 1)}
    x = data(b, *shape)
    if b.flag():  # with ties
        (x,) = b.add("Round", [x])
    b.add(b.one_of(("ArgMax", "ArgMin")), [x], **attrs)


def rows(b: Builder) -> None:
    shape = (b.one_of((1, 2, 5, 33)), b.one_of((*ODD, *LONG)))
    x = data(b, *shape)
    if b.flag():
        b.add(b.one_of(("Softmax", "LogSoftmax")), [x], axis=b.whole(0, 1))
    elif shape[1] > 1:
        b.add("LayerNormalization", [x, scaled(b, 1, shape[1]), scaled(b, 1, shape[1])], axis=1)


def turned(b: Builder) -> None:
    x = data(b, b.one_of((1, 3)), b.one_of((*ODD, 67)), b.one_of((*ODD, 33)))
    (y,) = b.add("Transpose", [x], perm=b.one_of(([0, 2, 1], [2, 1, 0], [1, 2, 0])))
    b.add("Add", [y, scaled(b, 1, y.shape[-1])])


def rounded(b: Builder) -> None:
    """Through a type of 16 bits and back."""
    (half,) = b.add("Cast", [data(b, b.one_of(ODD), b.one_of(ODD))], to=helper.np_dtype_to_tensor_dtype(np.dtype("f2")))
    b.add("Cast", b.add("Tanh", [half]), to=helper.np_dtype_to_tensor_dtype(np.dtype("f4")))


HEAVY: dict[str, Callable[[Builder], None]] = {
    f.__name__: f for f in (attention, recurrence, product, convolution, fold, position, rows, turned, rounded)
}


def heavy_model(seed: int, *, halves: bool = False) -> RandomModel:
    """Three to six of these side by side; with ``halves`` one that means the same in half precision."""
    b = Builder(Seeded(seed, 2), halves)
    for _ in range(b.whole(3, 6)):
        b.apply(b.one_of(list(HEAVY.values())))
    if not b.nodes:
        b.add("Relu", [data(b, 3, 5)])
    return b.finish()
