"""Operators of public architectures that the zoo lacks, and ragged shapes that no template was written for.

Of each network one or two layers, with its sizes; none is in the zoo, in the papers' tables, or among those that
explorers are compared on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.types import TensorType, f32
from mlc.ops import get


@dataclass(frozen=True)
class Workload:
    """An operator to tune.

    Args:
        name: unique.
        text: what it is, with its sizes.
        graph: a graph whose last task it is.
    """

    name: str
    text: str
    graph: Callable[[], Graph]


Pair = tuple[int, int]


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else size


def _weight(shape: tuple[int, ...], terms: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * np.float32(terms**-0.5)


def _window(g: Builder, x: Value, outer: int, kernel: Pair, stride: Pair, groups: int, dilation: int) -> Value:
    inner = x.type.shape[1] // groups
    weight = _weight((outer, inner, *kernel), inner * kernel[0] * kernel[1])
    rows, columns = (dilation * (k - 1) // 2 for k in kernel)
    attrs: dict[str, Any] = {
        "strides": stride, "pads": (rows, columns, rows, columns), "dilations": (dilation, dilation), "groups": groups,
    }  # fmt: skip
    (y,) = g.add(get("conv"), [x, g.constant(weight, f"weight{len(weight)}x{inner}")], attrs, names=["y"])
    return y


def _convolution(
    batch: int,
    edge: Pair,
    inner: int,
    outer: int,
    kernel: Pair,
    stride: Pair,
    groups: int,
    dilation: int,
    first: bool,
) -> Graph:
    """A convolution, first of its network and so with row-major data, or behind a light one, which blocks channels."""
    g = Builder("convolution")
    if first:
        x = g.input("x", TensorType((batch, inner, *edge), f32))
    else:
        before = g.input("x", TensorType((batch, 4, *edge), f32))
        weight = g.constant(_weight((inner, 4, 1, 1), 4), "before.weight")
        attrs: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
        (x,) = g.add(get("conv"), [before, weight], attrs, names=["before"])
    return g.finish([_window(g, x, outer, kernel, stride, groups, dilation)])


def _conv(
    name: str,
    edge: int | Pair,
    inner: int,
    outer: int,
    kernel: int | Pair,
    stride: int | Pair = 1,
    *,
    groups: int = 1,
    dilation: int = 1,
    batch: int = 1,
    first: bool = False,
) -> Workload:
    rows, columns, steps = _pair(edge), _pair(kernel), _pair(stride)
    parts = [f"{'x'.join(map(str, rows))}, {inner} -> {outer}", f"{'x'.join(map(str, columns))}"]
    parts += [f"stride {'x'.join(map(str, dict.fromkeys(steps)))}"] if steps != (1, 1) else []
    parts += ["depthwise" if groups == inner else f"{groups} groups"] if groups > 1 else []
    parts += [f"dilation {dilation}"] if dilation > 1 else []
    parts += [f"batch {batch}"] if batch > 1 else []
    parts += ["row-major"] if first else []
    graph = partial(_convolution, batch, rows, inner, outer, columns, steps, groups, dilation, first)
    return Workload(name, ", ".join(parts), graph)


def _dense(rows: int, inner: int, columns: int) -> Graph:
    g = Builder("dense")
    x = g.input("x", TensorType((rows, inner), f32))
    (y,) = g.add(get("matmul"), [x, g.constant(_weight((inner, columns), inner), "weight")], names=["y"])
    return g.finish([y])


def _product(name: str, rows: int, inner: int, columns: int) -> Workload:
    return Workload(name, f"product {rows}x{inner}x{columns}, constant weight", partial(_dense, rows, inner, columns))


def _pairs(count: int, rows: int, inner: int, columns: int) -> Graph:
    g = Builder("pairs")
    operands = [g.input(n, TensorType((count, *s), f32)) for n, s in (("x", (rows, inner)), ("y", (inner, columns)))]
    (z,) = g.add(get("matmul"), operands, names=["z"])
    return g.finish([z])


def _batched(name: str, count: int, rows: int, inner: int, columns: int) -> Workload:
    text = f"{count} products {rows}x{inner}x{columns}"
    return Workload(name, text, partial(_pairs, count, rows, inner, columns))


WORKLOADS = {
    w.name: w
    for w in (
        # first layers: row-major images of few channels
        _conv("vgg16-first", 224, 3, 64, 3, first=True),
        _conv("efficientnet-first", 224, 3, 32, 3, 2, first=True),
        _conv("convnext-first", 224, 3, 96, 4, 4, first=True),
        _conv("vit-patches", 224, 3, 192, 16, 16, first=True),
        _conv("alexnet-first", 224, 3, 64, 11, 4, first=True),
        _conv("resnet20-first", 32, 3, 16, 3, first=True),
        _conv("lenet-first", 28, 1, 6, 5, first=True),
        _conv("fsrcnn-first", 96, 1, 56, 5, first=True),
        _conv("wav2vec-first", (1, 8000), 1, 512, (1, 10), (1, 5), first=True),
        _conv("whisper-first", (1, 1500), 80, 384, (1, 3), first=True),
        # within networks: blocks of channels
        _conv("inception-5x5", 35, 48, 64, 5),
        _conv("inception-1x7", 17, 128, 192, (1, 7)),
        _conv("inception-7x1", 17, 160, 160, (7, 1)),
        _conv("inception-reduce", 35, 288, 384, 3, 2),
        _conv("googlenet-5x5", 28, 16, 32, 5),
        _conv("densenet-growth", 28, 128, 32, 3),
        _conv("densenet-1x1", 14, 640, 128, 1),
        _conv("yolov3-3x3", 52, 64, 128, 3),
        _conv("yolov3-head", 13, 1024, 255, 1),
        _conv("unet-3x3", 120, 32, 32, 3),
        _conv("deeplab-dilated", 33, 128, 128, 3, dilation=2),
        _conv("deeplab-classes", 65, 256, 21, 1),
        _conv("efficientnet-expand", 112, 16, 96, 1),
        _conv("efficientnet-project", 7, 1152, 320, 1),
        _conv("regnet-groups", 28, 104, 104, 3, groups=13),
        _conv("resnext-groups", 28, 256, 256, 3, groups=32),
        _conv("efficientnet-5x5", 28, 240, 240, 5, groups=240),
        _conv("efficientnet-strided", 14, 672, 672, 5, 2, groups=672),
        _conv("convnext-7x7", 56, 96, 96, 7, groups=96),
        _conv("mixnet-9x9", 14, 120, 120, 9, groups=120),
        _conv("mnasnet-strided", 112, 48, 48, 3, 2, groups=48),
        # ragged: odd channels, odd and small images, batches
        _conv("ragged-3x3", 37, 50, 70, 3, first=True),
        _conv("ragged-strided", 57, 36, 100, 3, 2, first=True),
        _conv("ragged-1x1", 23, 90, 130, 1, first=True),
        _conv("ragged-depthwise", 45, 75, 75, 3, groups=75, first=True),
        _conv("small-image", 5, 100, 200, 3),
        _conv("small-strided", 9, 200, 100, 3, 2),
        _conv("batch8-3x3", 14, 96, 96, 3, batch=8),
        _conv("batch16-1x1", 7, 160, 320, 1, batch=16),
        _conv("batch8-strided", 28, 40, 80, 3, 2, batch=8, first=True),
        _product("vit-tiny", 197, 192, 768),
        _product("swin-window", 49, 96, 288),
        _product("gpt2-37-tokens", 37, 768, 2304),
        _product("t5-21-tokens", 21, 512, 2048),
        _product("whisper-tiny", 1500, 384, 384),
        _product("dlrm-batch128", 128, 479, 512),
        _product("mixer-tokens", 512, 196, 384),
        _product("classifier", 1, 1280, 1000),
        _batched("attention-37", 12, 37, 64, 37),
        _batched("attention-197", 6, 197, 64, 197),
    )
}
