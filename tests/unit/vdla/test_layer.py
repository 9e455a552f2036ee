from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.errors import UnsupportedError
from mlc.ir.graph import Graph, Value
from mlc.rewrite.group import make_group
from mlc.vdla.layer import Convolution, Elementwise, Layer, read_layer
from tests.unit.rewrite.helpers import Net

CONV: dict[str, Any] = {"strides": (2, 1), "pads": (1, 0, 1, 2), "dilations": (1, 1)}


def integers(*shape: int, dtype: Any = np.int32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-100, 100, shape).astype(dtype)


def layer_of(graph: Graph) -> Layer:
    group = make_group(graph.nodes, graph.constants, 0)
    return read_layer(group, graph.constants)


def narrow(n: Net, sums: Value, shift: Any) -> Value:
    return n.cast(n.clip(n.round_shift(sums, shift), lo=-128, hi=127), to="i8")


def test_a_whole_layer() -> None:
    n = Net()
    x, res = n.x(1, 16, 6, 5, dtype="i8"), n.x(1, 32, 3, 5, dtype="i8", name="res")
    w, bias = n.c(integers(32, 16, 3, 3), np.int8), n.c(integers(1, 32, 1, 1), np.int32)
    sums = n.add(n.conv(x, w, **CONV), bias)
    sums = n.relu(n.add(sums, n.shl(n.cast(res, to="i32"), n.c([5], np.int32))))
    layer = layer_of(n(narrow(n, sums, n.c([9], np.int32))))
    assert isinstance(layer, Convolution)
    assert (layer.x, layer.residual) == (x, res)
    assert (layer.shape, layer.out_shape) == ((1, 16, 6, 5), (1, 32, 3, 5))
    assert layer.product.attrs == {**CONV, "groups": 1}
    assert layer.bias is not None
    assert layer.bias.tolist() == integers(32).tolist()
    assert layer.residual_shift is not None
    assert layer.shift is not None
    assert (layer.residual_shift.tolist(), layer.shift.tolist()) == ([5], [9])
    assert layer.relu
    assert layer.most is None
    assert layer.macs == 32 * 15 * 16 * 9


def test_a_convolution_in_groups() -> None:
    n = Net()
    w = n.c(integers(4, 2, 1, 1), np.int8)
    layer = layer_of(
        n(n.conv(n.x(1, 8, 3, 3, dtype="i8"), w, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), groups=4))
    )
    assert isinstance(layer, Convolution)
    assert (layer.weights.shape, layer.macs) == ((4, 2, 1, 1), 9 * 4 * 2)


def test_a_bare_product_keeps_its_sums() -> None:
    n = Net()
    x, w = n.x(4, 24, dtype="i8"), n.c(integers(24, 10), np.int8)
    layer = layer_of(n(n.matmul(x, w)))
    assert isinstance(layer, Convolution)
    assert (layer.shape, layer.out_shape) == ((1, 24, 4, 1), (1, 10, 4, 1))
    assert (layer.weights == integers(24, 10)).all()
    assert layer.macs == 4 * 10 * 24
    assert (layer.bias, layer.residual, layer.shift) == (None, None, None)


def test_parameters_of_channels() -> None:
    n = Net()
    x, w = n.x(1, 4, 3, 3, dtype="i8"), n.c(integers(4, 4, 1, 1), np.int8)
    sums = n.conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
    clipped = n.clip(n.add(sums, n.c([7], np.int32)), lo=0, hi=900)
    layer = layer_of(n(narrow(n, clipped, n.c(np.arange(4).reshape(1, 4, 1, 1), np.int32))))
    assert layer.bias is not None
    assert layer.bias.tolist() == [7] * 4
    assert layer.shift is not None
    assert layer.shift.tolist() == [0, 1, 2, 3]
    assert (layer.relu, layer.most) == (True, 900)


@pytest.mark.parametrize(
    ("limits", "shift", "most"),
    [
        ((490,), 2, 490),
        ((490, 300), 2, 300),
        ((300, 900), 2, 300),
        ((506,), 2, None),
        ((505,), 2, 505),
        ((None,), 2, None),
    ],
)
def test_a_limit_that_saturation_sets_anyway_is_none(
    limits: tuple[int | None, ...], shift: int, most: int | None
) -> None:
    n = Net()
    sums = product(n)
    for limit in limits:
        sums = n.clip(sums, lo=0, hi=limit)
    layer = layer_of(n(narrow(n, sums, n.c([shift], np.int32))))
    assert (layer.relu, layer.most) == (True, most)


def test_a_residual_addition_without_a_product() -> None:
    n = Net()
    a, b = n.x(2, 20, 3, 5, dtype="i8"), n.x(2, 20, 3, 5, dtype="i8", name="b")
    lifted = n.shl(n.cast(a, to="i32"), n.c([3], np.int32))
    sums = n.add(n.add(lifted, n.cast(b, to="i32")), n.c(integers(20, 1, 1), np.int32))
    layer = layer_of(n(narrow(n, n.relu(sums), n.c([4], np.int32))))
    assert isinstance(layer, Elementwise)
    assert (layer.x, layer.residual, layer.relu) == (a, b, True)
    assert layer.shape == layer.out_shape == (2, 20, 3, 5)
    assert layer.lift.tolist() == [3]
    assert layer.residual_shift is not None
    assert layer.residual_shift.tolist() == [0]
    assert layer.bias is not None
    assert layer.bias.tolist() == integers(20).tolist()


@pytest.mark.parametrize(
    ("shape", "image"), [((6, 20), (1, 20, 6, 1)), ((2, 20, 7), (2, 20, 7, 1)), ((1, 4, 2, 3, 5), (1, 4, 30, 1))]
)
def test_activations_of_any_rank(shape: tuple[int, ...], image: tuple[int, ...]) -> None:
    n = Net()
    layer = layer_of(n(n.relu(n.x(*shape, dtype="i8"))))
    assert isinstance(layer, Elementwise)
    assert (layer.shape, layer.relu) == (image, True)
    assert layer.shift is not None
    assert layer.shift.tolist() == [0]


def test_another_scale_and_two_limits() -> None:
    n = Net()
    wide = n.cast(n.x(1, 20, 3, 5, dtype="i8"), to="i32")
    layer = layer_of(n(narrow(n, n.clip(n.clip(wide, lo=0, hi=60), lo=0, hi=90), n.c([1], np.int32))))
    assert isinstance(layer, Elementwise)
    assert (layer.residual, layer.relu, layer.most) == (None, True, 60)


def test_sums_of_the_results_scale_are_clipped_only() -> None:
    n = Net()
    layer = layer_of(n(n.cast(n.clip(product(n), lo=-128, hi=127), to="i8")))
    assert layer.shift is not None
    assert layer.shift.tolist() == [0]


def product(n: Net, dtype: Any = "i8") -> Value:
    x = n.x(1, 4, 3, 3, dtype=dtype)
    return n.conv(x, n.c(integers(4, 4, 1, 1), np.int8), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))


REFUSED = {
    "no product, addition or activation": lambda n: n.softmax(n.x(4), axis=0),
    "works on f32": lambda n: n.relu(n.x(4)),
    "a conversion alone": lambda n: n.cast(n.x(2, 4, dtype="i8"), to="i32"),
    "a conversion to f32": lambda n: n.relu(n.cast(n.x(2, 4, dtype="i8"), to="f32")),
    "a tensor of 1 axes": lambda n: n.relu(n.x(4, dtype="i8")),
    "adds in i8": lambda n: n.add(n.relu(n.x(2, 4, dtype="i8")), n.x(2, 4, dtype="i8", name="b")),
    "neg after activations": lambda n: n.neg(n.relu(n.x(2, 4, dtype="i8"))),
    "the result has another shape": lambda n: n.add(product(n), n.c(np.ones((1, 1, 1, 1, 1)), np.int32)),
    "cast after the shift": lambda n: n.cast(n.round_shift(product(n), n.c([3], np.int32)), to="i8"),
    "a parameter of shape \\[1, 3\\]": lambda n: n.add(product(n), n.c(integers(1, 3), np.int32)),
    "a parameter of shape \\[3\\]": lambda n: n.add(product(n), n.c(integers(3), np.int32)),
    "works on i16": lambda n: product(n, "i16"),
    "a convolution over 1 axes": lambda n: n.conv(
        n.x(1, 4, 8, dtype="i8"), n.c(integers(4, 4, 3), np.int8), strides=(1,), pads=(0, 0), dilations=(1,)
    ),
    "weights are not constant": lambda n: n.matmul(n.x(4, 4, dtype="i8"), n.x(4, 4, dtype="i8", name="w")),
    "a batched product": lambda n: n.matmul(n.x(2, 4, 4, dtype="i8"), n.c(integers(4, 4), np.int8)),
    "its rows transposed": lambda n: n.matmul(n.x(4, 4, dtype="i8"), n.c(integers(4, 4), np.int8), transpose_a=True),
    "neg after a product": lambda n: n.neg(product(n)),
    "relu after the shift": lambda n: n.relu(n.round_shift(product(n), n.c([3], np.int32))),
    "not narrowed to i8": lambda n: n.round_shift(product(n), n.c([3], np.int32)),
    "a second bias": lambda n: n.add(n.add(product(n), n.c([1], np.int32)), n.c([2], np.int32)),
    "adds i32 that are no i8": lambda n: n.add(product(n), n.x(1, 4, 3, 3, dtype="i32", name="r")),
    "a tensor of another shape": lambda n: n.add(
        product(n), n.cast(n.x(1, 4, 1, 1, dtype="i8", name="r"), to="i32")
    ),
    "a parameter of shape": lambda n: n.add(product(n), n.c(integers(1, 1, 3, 3), np.int32)),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_layer_is_refused_with_a_reason(reason: str) -> None:
    n = Net()
    graph = n(REFUSED[reason](n))
    with pytest.raises(UnsupportedError, match=reason):
        layer_of(graph)


@pytest.mark.parametrize(
    "kernel, stride, dilation, pad, rows",
    [(3, 1, 1, 1, 12), (1, 2, 1, 0, 6), (3, 2, 1, 1, 12), (2, 4, 1, 0, 6), (2, 1, 5, 0, 12), (1, 1, 1, 0, 12)],
)
def test_bytes_of_a_layer_are_its_tensors(kernel: int, stride: int, dilation: int, pad: int, rows: int) -> None:
    n = Net()
    w, bias = n.c(integers(7, 5, kernel, kernel), np.int8), n.c(integers(1, 7, 1, 1), np.int32)
    attrs = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": (pad,) * 4}
    sums = n.add(n.conv(n.x(1, 5, 12, 12, dtype="i8"), w, **attrs), bias)
    out = sums.type.shape[2]
    layer = layer_of(n(narrow(n, sums, n.c([9], np.int32))))
    assert layer.macs == 7 * 5 * kernel**2 * out**2
    assert layer.nbytes == 5 * rows**2 + 7 * 5 * kernel**2 + 4 * 7 + 7 * out**2
