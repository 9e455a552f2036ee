"""Small networks made like public TensorFlow Lite models, which hold more than convolutions, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc
from tests.unit.frontend.tflite.writer import Array, Op, T, const, litert, write

pytest.importorskip("ai_edge_litert", reason="LiteRT, the reference")

Feeds = dict[str, Array]


class Net:
    """A model that grows operator by operator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.tensors: list[T] = []
        self.operators: list[Op] = []

    def add(self, tensor: T) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def w(self, *shape: int) -> T:
        """Weights that keep numbers about 1."""
        scale = np.sqrt(max(1, np.prod(shape[1:])))
        return const((self.rng.standard_normal(shape) / scale).astype(np.float32))

    def op(
        self, name: str, ins: Sequence[int | T], shape: Sequence[int], table: str = "", dtype: str = "float32",
        version: int = 1, **options: Any,
    ) -> int:  # fmt: skip
        places = [k if isinstance(k, int) else self.add(k) for k in ins]
        out = self.add(T(shape, dtype))
        self.operators.append(Op(name, places, [out], options, table or None, version))
        return out

    def conv(self, x: int, filters: T, shape: Sequence[int], stride: int = 1, act: int = 0) -> int:
        facts = {"StrideW": stride, "StrideH": stride, "DilationWFactor": 1, "DilationHFactor": 1}
        ins = [x, filters, self.w(filters.shape[0])]
        return self.op("CONV_2D", ins, shape, "Conv2DOptions", FusedActivationFunction=act, **facts)

    def mean(self, x: int, axes: list[int], shape: Sequence[int], keep: bool = False) -> int:
        return self.op("MEAN", [x, integers(axes)], shape, "ReducerOptions", KeepDims=keep)

    def two(self, name: str, a: int | T, b: int | T, shape: Sequence[int], dtype: str = "float32") -> int:
        table = {"SQUARED_DIFFERENCE": "SquaredDifferenceOptions", "FLOOR_DIV": "FloorDivOptions"}.get(name)
        return self.op(name, [a, b], shape, table or f"{name.title()}Options", dtype)

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        return self.op("RESHAPE", [x, integers(shape)], shape, "ReshapeOptions")

    def resize(self, x: int, shape: Sequence[int], **options: bool) -> int:
        return self.op("RESIZE_BILINEAR", [x, integers(shape[1:3])], shape, "ResizeBilinearOptions", **options)


def integers(values: Any) -> T:
    return const(values, np.int32)


def number(value: float) -> T:
    return const(np.float32(value))


def keypoints() -> tuple[bytes, Feeds]:
    """Like MoveNet: bytes in, heat maps, and what is gathered from them at their greatest values."""
    n = Net()
    x = n.add(T((1, 32, 32, 3), "uint8", name="image"))
    y = n.op("CAST", [x], (1, 32, 32, 3), "CastOptions")
    y = n.two("SUB", n.two("MUL", y, number(2 / 255), (1, 32, 32, 3)), number(1), (1, 32, 32, 3))
    y = n.conv(y, n.w(8, 3, 3, 3), (1, 16, 16, 8), 2, act=3)
    heat = n.op("LOGISTIC", [n.resize(y, (1, 8, 8, 8), HalfPixelCenters=True)], (1, 8, 8, 8))
    place = n.op("ARG_MAX", [n.reshape(heat, (1, 64, 8)), integers(1)], (1, 8), "ArgMaxOptions", "int32", OutputType=2)
    row = n.two("FLOOR_DIV", place, integers(8), (1, 8), "int32")
    column = n.two("SUB", place, n.two("MUL", row, integers(8), (1, 8), "int32"), (1, 8), "int32")
    parts = [integers(np.zeros((1, 8))), row, column, integers(np.arange(8)[None])]
    at = n.op("PACK", parts, (1, 8, 4), "PackOptions", "int32", ValuesCount=4, Axis=-1)
    scores = n.op("GATHER_ND", [heat, at], (1, 8), "GatherNdOptions")
    down, right = (n.op("CAST", [k], (1, 8), "CastOptions") for k in (row, column))
    apart = n.op("SQRT", [n.two("SQUARED_DIFFERENCE", down, right, (1, 8))], (1, 8))
    apart = n.two("DIV", apart, number(8), (1, 8))
    out = n.op("PACK", [down, right, scores, apart], (1, 8, 4), "PackOptions", ValuesCount=4, Axis=2)
    out = n.op("EXPAND_DIMS", [out, integers(1)], (1, 1, 8, 4), "ExpandDimsOptions")
    image = n.rng.integers(0, 256, (1, 32, 32, 3)).astype(np.uint8)
    return write(n.tensors, n.operators, [x], [out]), {"image": image}


def segments() -> tuple[bytes, Feeds]:
    """Like DeepLab: dilation by way of the batch, a branch that sees the whole image, and a class a pixel."""
    n = Net()
    x = n.add(T((1, 17, 17, 3), name="image"))
    y = n.conv(x, n.w(8, 3, 3, 3), (1, 9, 9, 8), 2, act=3)
    block, crops = integers([2, 2]), integers([[0, 1], [0, 1]])
    pads = integers([[2, 3], [2, 3]])
    s = n.op("SPACE_TO_BATCH_ND", [y, block, pads], (4, 7, 7, 8), "SpaceToBatchNDOptions")
    s = n.op(
        "DEPTHWISE_CONV_2D", [s, n.w(1, 3, 3, 8), n.w(8)], (4, 5, 5, 8), "DepthwiseConv2DOptions", Padding=1,
        StrideW=1, StrideH=1, DilationWFactor=1, DilationHFactor=1, DepthMultiplier=1, FusedActivationFunction=3,
    )  # fmt: skip
    s = n.op("BATCH_TO_SPACE_ND", [s, block, crops], (1, 9, 9, 8), "BatchToSpaceNDOptions")
    p = n.op(
        "AVERAGE_POOL_2D", [y], (1, 1, 1, 8), "Pool2DOptions", Padding=1, StrideW=9, StrideH=9, FilterWidth=9,
        FilterHeight=9,
    )  # fmt: skip
    p = n.resize(n.conv(p, n.w(8, 1, 1, 8), (1, 1, 1, 8), act=1), (1, 9, 9, 8), AlignCorners=True)
    c = n.op("CONCATENATION", [p, s], (1, 9, 9, 16), "ConcatenationOptions", Axis=3)
    c = n.resize(n.conv(c, n.w(21, 1, 1, 16), (1, 9, 9, 21)), (1, 17, 17, 21), AlignCorners=True)
    a = n.op("ARG_MAX", [c, integers(3)], (1, 17, 17), "ArgMaxOptions", "int32", OutputType=2)
    image = n.rng.standard_normal((1, 17, 17, 3)).astype(np.float32)
    return write(n.tensors, n.operators, [x], [c, a]), {"image": image}


def sounds() -> tuple[bytes, Feeds]:
    """Like YAMNet: frames of a wave, their spectra by matrices, logarithms, and convolutions of these."""
    n = Net()
    x = n.add(T((1600,), name="wave"))
    frames = n.op("GATHER", [x, integers(np.arange(9)[:, None] * 160 + np.arange(320))], (9, 320), "GatherOptions")
    frames = n.two("MUL", frames, const(np.hanning(320).astype(np.float32)), (9, 320))
    halves = [n.op("FULLY_CONNECTED", [frames, n.w(65, 320), -1], (9, 65), "FullyConnectedOptions") for _ in range(2)]
    squares = [n.op("SQUARE", [h], (9, 65), "SquareOptions") for h in halves]
    size = n.op("SQRT", [n.two("ADD", *squares, (9, 65))], (9, 65))
    size = n.op("MAXIMUM", [size, number(1e-3)], (9, 65), "MaximumMinimumOptions")
    y = n.reshape(n.op("LOG", [size], (9, 65)), (1, 9, 65, 1))
    y = n.mean(n.conv(y, n.w(8, 3, 3, 1), (1, 5, 33, 8), 2, act=1), [1, 2], (1, 8))
    y = n.op("FULLY_CONNECTED", [y, n.w(21, 8), n.w(21)], (1, 21), "FullyConnectedOptions")
    y = n.op("LOGISTIC", [y], (1, 21))
    return write(n.tensors, n.operators, [x], [y]), {"wave": n.rng.standard_normal(1600).astype(np.float32)}


def words() -> tuple[bytes, Feeds]:
    """Like MobileBERT: embeddings, norms spelled out, attention with a mask, and the first word's row."""
    n = Net()
    ids, mask = n.add(T((1, 12), "int32", name="ids")), n.add(T((1, 12), "int32", name="mask"))
    wide, row, scores = (1, 12, 16), (1, 12, 1), (1, 4, 12, 12)

    def norm(v: int) -> int:
        m = n.mean(v, [2], row, True)
        variance = n.mean(n.two("SQUARED_DIFFERENCE", v, m, wide), [2], row, True)
        factor = n.op("RSQRT", [n.two("ADD", variance, number(1e-6), row)], row)
        factor = n.two("MUL", factor, n.w(16), wide)
        offset = n.two("SUB", n.w(16), n.two("MUL", m, factor, wide), wide)
        return n.two("ADD", n.two("MUL", v, factor, wide), offset, wide)

    def head(v: int) -> int:
        ins = [v, n.w(16, 16), n.w(16)]
        y = n.op("FULLY_CONNECTED", ins, wide, "FullyConnectedOptions", version=5, KeepNumDims=True)
        perm = integers([0, 2, 1, 3])
        return n.op("TRANSPOSE", [n.reshape(y, (1, 12, 4, 4)), perm], (1, 4, 12, 4), "TransposeOptions")

    e = norm(n.two("ADD", n.op("GATHER", [n.w(50, 16), ids], wide, "GatherOptions"), n.w(12, 16), wide))
    hidden = n.two("SUB", number(1), n.op("CAST", [mask], (1, 12), "CastOptions"), (1, 12))
    hidden = n.reshape(n.two("MUL", hidden, number(-10000), (1, 12)), (1, 1, 1, 12))
    q, k, v = head(e), head(e), head(e)
    s = n.op("BATCH_MATMUL", [q, k], scores, "BatchMatMulOptions", AdjY=True)
    s = n.two("ADD", n.two("MUL", s, number(0.5), scores), hidden, scores)
    s = n.op("SOFTMAX", [s], scores, "SoftmaxOptions", Beta=1.0)
    o = n.op("BATCH_MATMUL", [s, v], (1, 4, 12, 4), "BatchMatMulOptions")
    o = n.op("TRANSPOSE", [o, integers([0, 2, 1, 3])], (1, 12, 4, 4), "TransposeOptions")
    o = norm(n.two("ADD", n.reshape(o, wide), e, wide))
    o = n.op("GELU", [o], wide, "GeluOptions", Approximate=True)
    ends = [integers(a) for a in ([0, 0, 0], [0, 1, 0], [1, 1, 1])]
    masks = {"BeginMask": 5, "EndMask": 5, "ShrinkAxisMask": 2}
    first = n.op("STRIDED_SLICE", [o, *ends], (1, 16), "StridedSliceOptions", **masks)
    feeds = {"ids": n.rng.integers(0, 50, (1, 12)), "mask": (np.arange(12) < 9)[None]}
    return write(n.tensors, n.operators, [ids, mask], [first]), {k: v.astype(np.int32) for k, v in feeds.items()}


@pytest.mark.parametrize("build", [keypoints, segments, sounds, words], ids=lambda f: f.__name__)
def test_networks(build: Any, tmp_path: Path) -> None:
    data, feeds = build()
    wanted = litert(data, feeds)
    (tmp_path / "m.tflite").write_bytes(data)
    with mlc.compile(mlc.load(tmp_path / "m.tflite"), verify_passes=True).load(1) as module:
        results = list(module.run(feeds).values())
    for got, want in zip(results, wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
