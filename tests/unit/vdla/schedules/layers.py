"""Layers with random numbers, and what they are to give, in int64 and without blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mlc.ir.graph import Node, Value
from mlc.ir.layout import blocked as blocked_layout
from mlc.ir.types import DType, TensorType, i8, i32
from mlc.ops import get
from mlc.vdla.layer import Convolution, Elementwise, Layer


def make_layer(
    channels: tuple[int, int] = (32, 48),
    image: tuple[int, int] = (7, 6),
    kernel: tuple[int, int] = (3, 3),
    *,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    pads: tuple[int, int] | None = None,
    groups: int = 1,
    seed: int = 0,
    bias: int | None = None,
    residual: int | str | None = None,
    relu: bool = False,
    most: int | None = None,
    shift: int | str | None = 9,
) -> Convolution:
    """A product; ``bias`` is its greatest magnitude, ``"vector"`` stands for numbers of channels."""
    rng = np.random.default_rng(seed)
    c, o = channels
    top, left = pads if pads is not None else (kernel[0] // 2, kernel[1] // 2)
    rows, columns = (
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(image, (top, left), dilations, kernel, strides, strict=True)
    )
    shape, result = (1, c, *image), (1, o, rows, columns)
    x = Value("x", typed(shape, i8))
    out = Value("out", typed(result, i8 if shift is not None else i32))
    weights = rng.integers(-127, 128, (o, c // groups, *kernel)).astype(np.int8)
    attrs = {"strides": strides, "dilations": dilations, "pads": (top, left, top, left), "groups": groups}
    layer = Convolution(x, out, shape, result, product_of("conv", x, weights, attrs), weights, relu=relu, most=most)

    def places(value: int | str, most: int) -> np.ndarray:
        return rng.integers(0, most, o).astype(np.int32) if value == "vector" else np.array([value], np.int32)

    if bias is not None:
        numbers = rng.integers(-bias, bias + 1, o).astype(np.int32)
        numbers[:2] = (bias, -bias)[:o]
        layer = replace(layer, bias=numbers)
    if residual is not None:
        value = Value("residual", typed(result, i8))
        layer = replace(layer, residual=value, residual_shift=places(residual, 7))
    if shift is not None:
        layer = replace(layer, shift=places(shift, 12))
    return layer


def product_of(name: str, x: Value, weights: np.ndarray, attrs: Mapping[str, Any]) -> Node:
    """An operator applied to activations and weights."""
    op, w = get(name), Value("w", TensorType(weights.shape, i8))
    plain = [TensorType(v.type.shape, v.type.dtype) for v in (x, w)]
    (sums,) = op.infer(plain, attrs)
    return Node(op, (x, w), attrs, (Value("sums", sums),), ())


def make_elementwise(
    shape: tuple[int, int, int, int] = (1, 37, 7, 5),
    *,
    lift: int | str = 0,
    seed: int = 0,
    bias: int | None = None,
    residual: int | str | None = None,
    relu: bool = False,
    most: int | None = None,
    shift: int | str | None = 2,
) -> Elementwise:
    """A layer without a product; ``bias`` is its greatest magnitude, ``"vector"`` stands for numbers of channels."""
    rng = np.random.default_rng(seed)

    def places(value: int | str, most: int) -> np.ndarray:
        return rng.integers(0, most, shape[1]).astype(np.int32) if value == "vector" else np.array([value], np.int32)

    x, out = Value("x", typed(shape, i8)), Value("out", typed(shape, i8 if shift is not None else i32))
    return Elementwise(
        x, out, shape, shape, places(lift, 7), relu=relu, most=most,
        bias=None if bias is None else rng.integers(-bias, bias + 1, shape[1]).astype(np.int32),
        residual=None if residual is None else Value("residual", typed(shape, i8)),
        residual_shift=None if residual is None else places(residual, 7),
        shift=None if shift is None else places(shift, 9),
    )  # fmt: skip


def typed(shape: tuple[int, ...], dtype: DType) -> TensorType:
    """A tensor of the accelerator, in blocks of 16 channels."""
    return TensorType(shape, dtype).with_layout(blocked_layout(shape, 1, 16))


def inputs_of(layer: Layer, seed: int = 1) -> dict[str, np.ndarray]:
    """Random i8 values of what a layer reads, row-major."""
    rng = np.random.default_rng(seed)
    found = {"x": rng.integers(-128, 128, layer.shape).astype(np.int8)}
    if layer.residual is not None:
        found["residual"] = rng.integers(-128, 128, layer.out_shape).astype(np.int8)
    return found


def convolved(layer: Convolution, x: np.ndarray) -> np.ndarray:
    """The sums of a product, i64 ``[n, o, h, w]``."""
    (n, c, high, wide), (_, _, rows, columns) = layer.shape, layer.out_shape
    attrs = layer.product.attrs
    (top, left, *_), (sy, sx), (dy, dx), groups = (attrs[k] for k in ("pads", "strides", "dilations", "groups"))
    kh, kw = layer.weights.shape[2:]
    reach = (
        max((rows - 1) * sy + (kh - 1) * dy + 1, top + high),
        max((columns - 1) * sx + (kw - 1) * dx + 1, left + wide),
    )
    padded = np.zeros((n, c, *reach), np.float64)
    padded[:, :, top : top + high, left : left + wide] = x
    sums = np.zeros(layer.out_shape, np.float64)  # exact below 2^53
    for r in range(kh):
        for t in range(kw):
            window = padded[:, :, r * dy :: sy, t * dx :: sx][:, :, :rows, :columns]
            parts = window.reshape(n, groups, -1, rows, columns)
            taps = layer.weights[:, :, r, t].astype(np.float64).reshape(groups, layer.weights.shape[0] // groups, -1)
            sums += np.einsum("ngchw,goc->ngohw", parts, taps, optimize=True).reshape(sums.shape)
    return sums.astype(np.int64)


def wanted(layer: Layer, values: dict[str, np.ndarray]) -> np.ndarray:
    """What a layer gives, i8 or i32 ``[n, o, h, w]``."""

    def by_channel(numbers: np.ndarray) -> np.ndarray:
        return np.broadcast_to(numbers.astype(np.int64), (layer.out_shape[1],))[None, :, None, None]

    if isinstance(layer, Convolution):
        total = convolved(layer, values["x"])
    else:
        assert isinstance(layer, Elementwise)
        total = values["x"].astype(np.int64) << by_channel(layer.lift)
    if layer.bias is not None:
        total += by_channel(layer.bias)
    if layer.residual_shift is not None:
        total += values["residual"].astype(np.int64) << by_channel(layer.residual_shift)
    if layer.relu:
        total = np.maximum(total, 0)
    if layer.most is not None:
        total = np.minimum(total, layer.most)
    if layer.shift is None:
        return total.astype(np.int32)
    down = by_channel(layer.shift)
    half = np.where(down > 0, 1 << np.maximum(down - 1, 0), 0)
    return np.clip((total + half) >> down, -128, 127).astype(np.int8)


def blocked(array: np.ndarray) -> np.ndarray:
    """``[n, c, h, w]`` as ``[n, c / 16, h, w, 16]``, padded with zeros."""
    n, c, h, w = array.shape
    whole = np.zeros((n, -(-c // 16) * 16, h, w), array.dtype)
    whole[:, :c] = array
    return np.ascontiguousarray(whole.reshape(n, -1, 16, h, w).transpose(0, 1, 3, 4, 2))
