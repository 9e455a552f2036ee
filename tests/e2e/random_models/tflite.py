"""Random TensorFlow Lite models of images: floats, or integers of 8 and 16 bits that fill their ranges.

Only operators whose results the reference kernels define to the last bit in integers are drawn: whole networks can be
compared exactly, whatever is fused.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.unit.frontend.tflite.writer import Op, T, const, write

Array = np.ndarray
_WINDOW = {"DilationWFactor": 1, "DilationHFactor": 1}
_UNIT = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}
_SIGNED_UNIT = {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)}
_SPREAD = {"int8": 60.0, "uint8": 60.0, "int16": 8000.0}  # steps that numbers are about from their zero points


@dataclass
class Drawn:
    """A model while it grows.

    Args:
        kind: element type of activations, as numpy calls it.
        rng: draws all.
    """

    kind: str
    rng: random.Random
    tensors: list[T] = field(default_factory=list)
    operators: list[Op] = field(default_factory=list)
    live: list[int] = field(default_factory=list)  # tensors [1, h, w, c] to go on with

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.getrandbits(32))
        self.quantised = self.kind != "float32"

    # -- tensors ------------------------------------------------------------------------------------------------
    def add(self, tensor: T) -> int:
        self.tensors.append(replace(tensor, name=f"t{len(self.tensors)}"))
        return len(self.tensors) - 1

    def activation(self, shape: tuple[int, ...], scale: float) -> T:
        """A result whose numbers spread about ``_SPREAD`` steps; zero points are anywhere near the middle."""
        if not self.quantised:
            return T(shape)
        zero = 0 if self.kind == "int16" else self.rng.randint(-40, 40) + (128 if self.kind == "uint8" else 0)
        return T(shape, self.kind, scale=float(np.float32(scale)), zero=zero)

    def like(self, k: int, shape: tuple[int, ...] | None = None) -> T:
        t = self.tensors[k]
        return T(shape or tuple(t.shape), t.dtype, scale=t.scale, zero=t.zero)

    def unit(self, shape: tuple[int, ...], units: dict[str, tuple[float, int]]) -> T:
        scale, zero = units.get(self.kind, (0.0, 0))
        return T(shape, self.kind, scale=scale, zero=zero)

    def weights(self, k: int, shape: tuple[int, ...], axis: int, taps: int) -> tuple[int, int, float]:
        """Weights, the place of their biases, and what a result's scale is times the input's."""
        channels = shape[axis]
        if not self.quantised:
            w = const((self.numbers.standard_normal(shape) / math.sqrt(taps)).astype(np.float32))
            return self.add(w), self.add(const(self.numbers.standard_normal(channels).astype(np.float32))), 1.0
        signed = self.kind != "uint8"
        stored = self.numbers.integers(-127 if signed else 0, 128 if signed else 256, shape)
        scales = np.float32(self.numbers.uniform(0.002, 0.004, channels if signed else 1))
        place = self.add(
            const(stored, "int8" if signed else "uint8", scale=scales, zero=0 if signed else 121, axis=axis)
        )
        offsets = self.numbers.integers(-3000, 3000, channels)
        width = np.int64 if self.kind == "int16" else np.int32
        bias = self.add(const(offsets, width, scale=scales * np.float32(self.scale(k))))
        return place, bias, float(scales.mean()) * 74 * math.sqrt(taps)

    def apply(
        self, name: str, ins: list[int], result: T, table: str | None = None, version: int = 1, **options: Any
    ) -> None:
        out = self.add(result)
        self.operators.append(Op(name, ins, [out], options, table, version))
        if len(result.shape) == 4:
            self.live.append(out)

    # -- operators ----------------------------------------------------------------------------------------------
    def pick(self) -> tuple[int, tuple[int, int, int]]:
        k = self.rng.choice(self.live[-3:])
        _, h, w, c = self.tensors[k].shape
        return k, (h, w, c)

    def fused(self) -> int:
        return self.rng.choice((0, 0, 1, 3))

    def conv(self) -> None:
        k, (h, w, c) = self.pick()
        side, stride = self.rng.choice((1, 2, 3)), self.rng.choice((1, 1, 2))
        if self.rng.random() < 0.35:
            many = self.rng.choice((1, 1, 2))
            place, bias, grows = self.weights(k, (1, side, side, c * many), 3, side * side)
            name, options, channels = "DEPTHWISE_CONV_2D", {"DepthMultiplier": many}, c * many
        else:
            channels = self.rng.choice((1, 3, 5, 8, 16, 17))
            place, bias, grows = self.weights(k, (channels, side, side, c), 0, side * side * c)
            name, options = "CONV_2D", {}
        shape = (1, -(-h // stride), -(-w // stride), channels)
        result = self.activation(shape, self.scale(k) * grows)
        table = "Conv2DOptions" if name == "CONV_2D" else "DepthwiseConv2DOptions"
        facts = {"StrideW": stride, "StrideH": stride, "FusedActivationFunction": self.fused(), **_WINDOW}
        self.apply(name, [k, place, bias], result, table, 3, **facts, **options)

    def scale(self, k: int) -> float:
        return float(np.max(self.tensors[k].scale))

    def arithmetic(self) -> None:
        k, (h, w, c) = self.pick()
        same = [j for j in self.live if self.tensors[j].shape == self.tensors[k].shape]
        other = self.rng.choice(same)
        name = self.rng.choice(("ADD", "SUB", "MUL"))
        scale = max(self.scale(k), self.scale(other)) * self.rng.uniform(0.8, 2)
        if name == "MUL":
            scale = self.scale(k) * self.scale(other) * _SPREAD.get(self.kind, 1)
        options = {"FusedActivationFunction": self.fused()}
        self.apply(name, [k, other], self.activation((1, h, w, c), scale), f"{name.title()}Options", 2, **options)

    def pool(self) -> None:
        k, (h, w, c) = self.pick()
        name = self.rng.choice(("AVERAGE_POOL_2D", "MAX_POOL_2D"))
        options = {"FilterWidth": 2, "FilterHeight": 3, "StrideW": 2, "StrideH": 1, "Padding": 0}
        self.apply(name, [k], self.like(k, (1, h, -(-w // 2), c)), "Pool2DOptions", 2, **options)

    def activate(self) -> None:
        k, (h, w, c) = self.pick()
        shape = (1, h, w, c)
        names = ["RELU", "RELU6", "LEAKY_RELU", "LOGISTIC", "TANH"]
        names += ["HARD_SWISH"] if self.kind != "int16" else []
        # with ELU among them, LiteRT takes its usual kernels for all operators, which round some halves another way
        names += ["ELU"] if self.kind == "float32" else []
        name = self.rng.choice(names)
        if name == "LOGISTIC":
            self.apply(name, [k], self.unit(shape, _UNIT), version=3)
        elif name == "TANH":
            self.apply(name, [k], self.unit(shape, _SIGNED_UNIT), version=3)
        elif name == "LEAKY_RELU":
            alpha = self.rng.choice((0.1, 0.3))
            self.apply(name, [k], self.activation(shape, self.scale(k)), "LeakyReluOptions", 2, Alpha=alpha)
        else:
            result = self.activation(shape, self.scale(k) * self.rng.uniform(0.7, 1.2))
            if name == "HARD_SWISH":
                self.apply(name, [k], result, "HardSwishOptions")
            else:
                self.apply(name, [k], result, version=1 if name == "ELU" else 2)

    def move(self) -> None:
        k, (h, w, c) = self.pick()
        match self.rng.randrange(6):
            case 0:
                pads = self.add(const([[0, 0], [1, 0], [0, 2], [0, 0]], np.int32))
                self.apply("PAD", [k, pads], self.like(k, (1, h + 1, w + 2, c)), "PadOptions", 2)
            case 1:
                perm = self.add(const([0, 2, 1, 3], np.int32))
                self.apply("TRANSPOSE", [k, perm], self.like(k, (1, w, h, c)), "TransposeOptions", 2)
            case 2:
                shape = (1, h * w, 1, c)
                to = self.add(const(shape, np.int32))
                self.apply("RESHAPE", [k, to], self.like(k, shape), "ReshapeOptions")
            case 3:
                self.apply("CONCATENATION", [k, k], self.like(k, (1, h, w, 2 * c)), "ConcatenationOptions", 2, Axis=3)
            case 4:
                size = self.add(const([h + 1, 2 * w], np.int32))
                to = self.like(k, (1, h + 1, 2 * w, c))
                self.apply("RESIZE_NEAREST_NEIGHBOR", [k, size], to, "ResizeNearestNeighborOptions", 2)
            case _:
                ends = [const(v, np.int32) for v in ([0, 0, 0, 0], [1, h, w, c], [1, 2, 1, 1])]
                places = [self.add(v) for v in ends]
                to = self.like(k, (1, -(-h // 2), w, c))
                self.apply("STRIDED_SLICE", [k, *places], to, "StridedSliceOptions", 2)

    def average(self) -> None:
        k, (_, _, c) = self.pick()
        axes = self.add(const([1, 2], np.int32))
        result = self.activation((1, 1, 1, c), self.scale(k) / 2)
        self.apply("MEAN", [k, axes], result, "ReducerOptions", 2, KeepDims=True)

    def end(self) -> None:
        """A dense layer and a softmax."""
        k, (h, w, c) = self.pick()
        units = self.rng.choice((1, 5, 10))
        flat = self.add(const([1, h * w * c], np.int32))
        self.apply("RESHAPE", [k, flat], self.like(k, (1, h * w * c)), "ReshapeOptions")
        row = len(self.tensors) - 1
        place, bias, grows = self.weights(k, (units, h * w * c), 0, h * w * c)
        if self.quantised:  # one scale for all units, and for the biases the products'
            one = float(np.float32(np.max(self.tensors[place].scale)))
            self.tensors[place] = replace(self.tensors[place], scale=one)
            self.tensors[bias] = replace(self.tensors[bias], scale=float(np.float32(self.scale(k)) * np.float32(one)))
        result = self.activation((1, units), self.scale(k) * grows)
        self.apply("FULLY_CONNECTED", [row, place, bias], result, "FullyConnectedOptions", 4)
        to = self.unit((1, units), _UNIT)
        self.apply("SOFTMAX", [len(self.tensors) - 1], to, "SoftmaxOptions", 2, Beta=1.0)


@dataclass(frozen=True)
class TfliteModel:
    """A drawn model and what to feed it."""

    data: bytes
    feeds: dict[str, Array]
    operators: tuple[str, ...]


def draw(seed: int, kind: str) -> TfliteModel:
    """A model of about ten operators.

    Args:
        seed: decides everything.
        kind: ``float32``, ``int8``, ``uint8`` or ``int16``.
    """
    rng = random.Random(f"{kind} {seed}")
    made = Drawn(kind, rng)
    shape = (1, rng.randint(1, 11), rng.randint(1, 9), rng.choice((1, 3, 4, 7)))
    made.live.append(made.add(made.activation(shape, 0.02 if kind != "int16" else 0.0002)))
    steps: list[Callable[[], None]] = [made.conv, made.arithmetic, made.pool, made.activate, made.move, made.average]
    for _ in range(rng.randint(3, 10)):
        rng.choices(steps, (6, 3, 1, 4, 3, 1))[0]()
    if rng.random() < 0.5:
        made.end()
    read = {k for op in made.operators for k in op.inputs}
    outputs = [k for op in made.operators for k in op.outputs if k not in read]
    if kind == "float32":
        x = made.numbers.standard_normal(shape).astype(np.float32)
    else:
        info = np.iinfo(kind)
        x = made.numbers.integers(info.min, info.max + 1, shape).astype(kind)
    data = write(made.tensors, made.operators, [0], outputs)
    return TfliteModel(data, {"t0": x}, tuple(op.name for op in made.operators))
