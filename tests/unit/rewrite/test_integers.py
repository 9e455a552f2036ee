"""Products of quantised numbers in integers: what becomes of graphs, and that they mean what they meant."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.interp import run_graph
from mlc.ir.types import DType, TensorType, f32, i8, u8
from mlc.ops import get
from mlc.rewrite.integers import use_integers

WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


class Net:
    """A graph under construction, in the operators that importers make."""

    def __init__(self) -> None:
        self.builder = Builder("net")
        self.rng = np.random.default_rng(1)

    def add(self, op: str, *inputs: Value, **attrs: object) -> Value:
        return self.builder.add(get(op), list(inputs), attrs, names=[op], sources=[op])[0]

    def constant(self, array: object, dtype: type = np.float32) -> Value:
        return self.builder.constant(np.asarray(array, dtype), "c")

    def quantize(self, x: Value, scale: float, zero: int, dtype: type) -> Value:
        return self.add("quantize", x, self.constant(scale), self.constant(zero, dtype))

    def dequantize(self, q: Value, scale: object, zero: object, dtype: type) -> Value:
        return self.add("dequantize", q, self.constant(scale), self.constant(zero, dtype))

    def weights(self, shape: tuple[int, ...], scale: object, dtype: type = np.int8, zero: int = 0) -> Value:
        info = np.iinfo(dtype)
        q = self.constant(self.rng.integers(max(info.min, zero - 127), min(info.max, zero + 127) + 1, shape), dtype)
        return self.dequantize(q, scale, np.full(np.shape(scale), zero), dtype)


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def same_steps(graph: Graph, x: np.ndarray, data: DType = u8) -> Graph:
    """The graph in integers, whose stored results are those of the original, or one step beside them."""
    made = use_integers(graph, data)
    for (name, a), b in zip(run_graph(graph, {"x": x}).items(), run_graph(made, {"x": x}).values(), strict=True):
        assert a.dtype == b.dtype
        assert np.abs(a.astype(np.float64) - b).max() <= (1 if a.dtype.kind in "iu" else 1e-4), name
    return made


@pytest.mark.parametrize(
    ("dtype", "zero"), [(np.uint8, 0), (np.uint8, 255), (np.uint8, 7), (np.int8, -128), (np.int8, 3)]
)
@pytest.mark.parametrize("data", [u8, i8])
def test_convolution_bias_and_limits(dtype, zero, data):
    """Zero points, also at the ends, join the bias, and a relu the limits; data get the sign that is wanted."""
    net = Net()
    x = net.builder.input("x", TensorType((1, 3, 5, 6), u8 if dtype is np.uint8 else i8))
    scales = np.linspace(0.01, 0.03, 4, dtype=np.float32)
    w = net.weights((4, 3, 3, 3), scales.reshape(4, 1, 1, 1))
    y = net.add("conv", net.dequantize(x, 0.5, zero, dtype), w, **WINDOW)
    bias = net.dequantize(net.constant(net.rng.integers(-999, 999, 4), np.int32), scales * 0.5, [0] * 4, np.int32)
    y = net.add("relu", net.add("add", y, net.add("reshape", bias, shape=(4, 1, 1))))
    graph = net.builder.finish([net.quantize(y, 0.7, zero, dtype)])
    info = np.iinfo(dtype)
    made = same_steps(graph, net.rng.integers(info.min, info.max + 1, (1, 3, 5, 6)).astype(dtype), data)
    assert not {"relu", "div"} & set(ops(made))
    (conv,) = (n for n in made.nodes if n.op is get("conv"))
    assert [v.type.dtype for v in conv.inputs] == [data, i8]
    around = zero - info.min + data.min_value
    assert [n.attrs["value"] for n in made.nodes if n.op is get("pad")] == [around] * (around != 0)
    moved = 0 if conv.inputs[0].type.dtype.numpy == dtype else 2  # the input's sign, and the result's
    assert ops(made).count("add") - moved <= 2  # the sums' offset, a zero point


def test_what_it_becomes():
    net = Net()
    x = net.builder.input("x", TensorType((2, 3), u8))
    w = net.weights((3, 2), 0.25)
    y = net.add("clip", net.add("matmul", net.dequantize(x, 0.5, 3, np.uint8), w), lo=0.0, hi=6.0)
    made = use_integers(net.builder.finish([net.quantize(y, 0.125, 10, np.uint8)]))
    assert ops(made) == ["matmul", "add", "cast", "mul", "nearest", "add", "clip", "cast"]
    assert made.nodes[6].attrs == {"lo": 10.0, "hi": 58.0}


def test_steps_that_may_fit_no_integer_are_limited_as_floats():
    """A scale that is so small that sums come to 2^31 of it, which converts to the least integer."""
    net = Net()
    x = net.builder.input("x", TensorType((2, 3), u8))
    y = net.add("matmul", net.dequantize(x, 0.5, 3, np.uint8), net.weights((3, 2), 0.25))
    graph = net.builder.finish([net.quantize(y, 1e-6, 10, np.uint8)])
    made = same_steps(graph, np.array([[255, 0, 255], [3, 3, 3]], np.uint8))
    assert ops(made) == ["matmul", "add", "cast", "mul", "round", "add", "clip", "cast"]


@pytest.mark.parametrize("data", [u8, i8])
def test_a_residual_operand_that_is_read_once_stays_where_it_was_rounded(data):
    """In floats, and not moved by its zero point, which would be moved back at once."""
    n = Net()
    x = n.builder.input("x", TensorType((1, 8, 5, 5), f32))
    stored = n.dequantize(n.quantize(x, 0.02, 100, np.uint8), 0.02, 100, np.uint8)
    y = n.add("conv", stored, n.weights((8, 8, 3, 3), np.full((8, 1, 1, 1), 0.01)), **WINDOW, groups=1)
    once = n.dequantize(n.quantize(y, 0.05, 90, np.uint8), 0.05, 90, np.uint8)
    total = n.add("relu", n.add("add", once, stored))
    graph = n.builder.finish([n.quantize(total, 0.04, 0, np.uint8)])
    made = same_steps(graph, np.random.default_rng(2).uniform(-3, 3, (1, 8, 5, 5)).astype(np.float32), data)
    limits = [m.attrs for m in made.nodes if m.op.name == "clip"]
    assert {"lo": -90.0, "hi": 165.0} in limits


def test_weights_lose_their_zero_point_where_they_fit():
    for zero, becomes_integers in ((128, True), (0, False)):
        net = Net()
        x = net.builder.input("x", TensorType((2, 8), u8))
        q = net.constant(np.array([[1] * 5, *[[255] * 5] * 7]), np.uint8)
        w = net.dequantize(q, 0.5, zero, np.uint8)
        y = net.add("matmul", net.dequantize(x, 0.5, 3, np.uint8), w)
        made = same_steps(net.builder.finish([y]), net.rng.integers(0, 256, (2, 8)).astype(np.uint8))
        assert (made.nodes[0].op is get("matmul")) == becomes_integers


@pytest.mark.parametrize("data", [u8, i8])
def test_moves_work_on_what_is_stored(data):
    net = Net()
    x = net.builder.input("x", TensorType((1, 2, 4, 4), i8))
    y = net.add(
        "max_pool", net.dequantize(x, 0.5, 1, np.int8), kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1)
    )
    y = net.add("transpose", y, perm=(0, 2, 3, 1))
    graph = net.builder.finish([net.quantize(net.add("reshape", y, shape=(8,)), 0.5, 1, np.int8)])
    made = same_steps(graph, net.rng.integers(-128, 128, (1, 2, 4, 4)).astype(np.int8), data)
    assert not {"mul", "div", "round"} & set(ops(made))


def test_concat_of_different_scales_is_quantised_before():
    """So that what makes the parts writes bytes."""
    net = Net()
    x = net.builder.input("x", TensorType((1, 2), f32))
    parts = [net.dequantize(net.quantize(x, s, 3, np.uint8), s, 3, np.uint8) for s in (0.5, 0.25)]
    graph = net.builder.finish([net.quantize(net.add("concat", *parts, axis=1), 0.5, 7, np.uint8)])
    made = same_steps(graph, net.rng.standard_normal((1, 2)).astype(np.float32))
    assert made.nodes[-1].op is get("concat")
    assert made.nodes[-1].outputs[0].type.dtype is u8


@pytest.mark.parametrize("data", [u8, i8])
@pytest.mark.parametrize(
    ("before", "after", "zero", "exact"),
    [(0.021280964836478233, 0.024394722655415535, 0, True), (0.03, 0.01, 77, True), (0.1, 1.4, 0, False)],
)
def test_stored_numbers_change_their_scale_by_a_product_where_all_round_alike(before, after, zero, exact, data):
    net = Net()
    x = net.builder.input("x", TensorType((2, 256), u8))
    y = net.dequantize(x, before, zero, np.uint8)
    graph = net.builder.finish([net.quantize(y, after, 3, np.uint8)])
    made = use_integers(graph, data)
    assert ("div" in ops(made)) != exact
    numbers = {"x": np.tile(np.arange(256, dtype=np.uint8), (2, 1))}
    want, have = (next(iter(run_graph(g, numbers).values())) for g in (graph, made))
    np.testing.assert_array_equal(have, want)


def test_sums_that_may_overflow_stay_floats():
    net = Net()
    x = net.builder.input("x", TensorType((1, 70000), u8))
    w = net.dequantize(net.constant(np.full((70000, 1), 127), np.int8), 1.0, 0, np.int8)
    y = net.add("matmul", net.dequantize(x, 1.0, 0, np.uint8), w)
    made = use_integers(net.builder.finish([y]))
    assert all(v.type.dtype is f32 for n in made.nodes if n.op is get("matmul") for v in n.inputs)


def test_others_are_left_alone():
    net = Net()
    x = net.builder.input("x", TensorType((2, 3), f32))
    graph = net.builder.finish([net.add("relu", x)])
    assert use_integers(graph) is graph
