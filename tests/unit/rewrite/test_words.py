"""Products of bytes as products of words of 16 bits: the same numbers, and what is widened."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.graph import Builder, Graph, Value, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, dtype_of, i7, i16, u8
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.words import use_words

RNG = np.random.default_rng(3)
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def integers(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


class Net:
    """A graph under construction with one input."""

    def __init__(self, x: np.ndarray) -> None:
        self.b, self.array, self.algorithm, self.types = Builder("net"), x, Algorithm.DIRECT, [i16]
        self.x = self.b.input("x", TensorType(x.shape, dtype_of(x.dtype)))

    def add(self, name: str, *inputs: Value, **attrs: object) -> Value:
        return self.b.add(get(name), list(inputs), attrs)[0]

    def product(self, x: Value, filters: int, **attrs: object) -> Value:
        if x.type.rank == 2:
            w = integers((x.type.shape[1], filters), np.int8)
            return self.add("matmul", x, self.b.constant(w, "w"), **attrs)
        w = integers((filters, x.type.shape[1] // attrs.get("groups", 1), 3, 3), np.int8)
        return self.add("conv", x, self.b.constant(w, f"w{filters}"), **{**CONV, **attrs})

    def bytes(self, x: Value) -> Value:
        """Sums in bytes again."""
        scaled = self.add("mul", self.add("cast", x, to="f32"), self.b.constant(np.float32(0.01), "s"))
        return self.add("cast", self.add("clip", self.add("round", scaled), lo=0.0, hi=255.0), to="u8")

    def widened(self, *outputs: Value) -> Graph:
        """The graph with words, which computes the same."""
        graph = self.b.finish(list(outputs))
        found = use_words(graph, lambda node: self.algorithm, self.types)
        for (name, a), b in zip(
            run_graph(graph, {"x": self.array}).items(), run_graph(found, {"x": self.array}).values(), strict=True
        ):
            np.testing.assert_array_equal(a, b, name)
        return found


def products(graph: Graph) -> list[tuple[str, str]]:
    found = [n for n in graph.nodes if n.op in (get("conv"), get("matmul"))]
    return [(n.inputs[0].type.dtype.name, n.inputs[1].type.dtype.name) for n in found]


def operators(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def small(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of i7, the greatest among them."""
    w = RNG.integers(-64, 64, shape, endpoint=True).astype(np.int8)
    w.flat[:2] = -64, 64
    return w


@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (11, 6), (1, 6)])
def test_small_weights_are_multiplied_by_bytes(shape):
    net = Net(integers(shape, np.uint8))
    net.types = [i7, i16]
    w = small((4, 3, 3, 3) if len(shape) == 4 else (6, 4))
    attrs = CONV if len(shape) == 4 else {}
    graph = net.widened(net.add("conv" if attrs else "matmul", net.x, net.b.constant(w, "w"), **attrs))
    assert products(graph) == [("u8", "i7")]
    assert operators(graph) == ["conv" if attrs else "matmul"]


def test_greater_weights_are_not():
    net = Net(integers((11, 6), np.uint8))
    net.types = [i7, i16]
    w = small((6, 4))
    w[1, 1] = 65
    assert products(net.widened(net.add("matmul", net.x, net.b.constant(w, "w")))) == [("i16", "i16")]
    net = Net(integers((11, 6), np.uint8))
    assert products(net.widened(net.add("matmul", net.x, net.b.constant(small((6, 4)), "w")))) == [("i16", "i16")]


def test_data_that_others_want_in_words_are_read_in_words():
    net = Net(integers((1, 3, 5, 7), np.uint8))
    net.types = [i7, i16]
    y = net.bytes(net.add("conv", net.x, net.b.constant(small((4, 3, 3, 3)), "a"), **CONV))
    left = net.add("conv", y, net.b.constant(small((5, 4, 3, 3)), "b"), **CONV)
    right = net.product(y, 5)
    assert products(net.widened(net.add("add", left, right))) == [("u8", "i7"), ("i16", "i16"), ("i16", "i16")]


def test_each_channel_by_itself_stays():
    net = Net(integers((1, 4, 5, 7), np.uint8))
    net.types = [i7, i16]
    y = net.add("conv", net.x, net.b.constant(small((4, 1, 3, 3)), "w"), **CONV, groups=4)
    assert products(net.widened(y)) == [("u8", "i8")]


def test_constants_beyond_their_type_are_refused():
    b = Builder("net")
    x = b.input("x", TensorType((3, 2), u8))
    w = Value("w", TensorType((2, 2), i7))
    b.constants[w] = np.array([[64, -64], [0, 65]], np.int8)
    with pytest.raises(VerifyError, match=r"constant w: typed i7\[2,2\], but has numbers beyond 64"):
        verify(b.finish(b.add(get("matmul"), [x, w])))


@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (11, 6)])
def test_products_take_words(shape):
    net = Net(integers(shape, np.uint8))
    graph = net.widened(net.product(net.x, 4))
    assert products(graph) == [("i16", "i16")]
    assert operators(graph)[0] == "cast"


def test_who_makes_data_writes_words():
    net = Net(integers((1, 3, 5, 7), np.uint8))
    y = net.bytes(net.product(net.x, 4))
    graph = net.widened(net.product(y, 5))
    assert products(graph) == [("i16", "i16")] * 2
    assert operators(graph) == ["cast", "conv", "cast", "mul", "round", "clip", "cast", "conv"]


def test_what_is_not_limited_wraps_first():
    net = Net(integers((1, 3, 5, 7), np.int16))
    graph = net.widened(net.product(net.add("cast", net.x, to="u8"), 4))
    assert products(graph) == [("i16", "i16")]


def test_what_is_moved_is_moved_in_words():
    """And whatever else reads it reads words, too."""
    net = Net(integers((1, 3, 6, 8), np.uint8))
    a, b = (net.bytes(net.product(net.x, n)) for n in (4, 5))
    joined = net.add("concat", a, b, axis=1)
    pooled = net.add(
        "max_pool", joined, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1)
    )  # fmt: skip
    around = net.add("pad", pooled, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=7.0)
    floats = net.add("cast", joined, to="f32")
    graph = net.widened(net.product(around, 6, pads=(0, 0, 0, 0)), floats)
    assert products(graph) == [("i16", "i16")] * 3
    assert not any(v.type.dtype is u8 for n in graph.nodes for v in n.outputs)
    assert {v.type.dtype for n in graph.nodes if n.op.name in ("concat", "max_pool", "pad") for v in n.outputs} == {i16}


def test_few_rows_and_depthwise_windows_stay():
    net = Net(integers((1, 20), np.uint8))
    y = net.product(net.x, 4)
    assert products(net.widened(y)) == [("u8", "i8")]
    net = Net(integers((1, 4, 5, 7), np.uint8))
    assert products(net.widened(net.product(net.x, 4, groups=4))) == [("u8", "i8")]


def test_groups_of_several_channels_get_words():
    net = Net(integers((1, 4, 5, 7), np.uint8))
    assert products(net.widened(net.product(net.x, 4, groups=2))) == [("i16", "i16")]


def extremes(shape: tuple[int, ...], *values: int) -> np.ndarray:
    """What sums are greatest for."""
    return RNG.choice(np.array(values), shape)


@pytest.mark.parametrize(
    ("shape", "filters", "pads"),
    [((1, 16, 7, 9), 8, (1, 1, 1, 1)), ((2, 8, 5, 5), 16, (0, 1, 1, 0)), ((1, 8, 3, 6, 5), 8, (1,) * 6)],
)
def test_winograd_is_exact(shape, filters, pads):
    net = Net(extremes(shape, 0, 255).astype(np.uint8))
    net.algorithm = Algorithm.WINOGRAD_2
    rank = len(shape) - 2
    w = net.b.constant(extremes((filters, shape[1], *(3,) * rank), -128, 127).astype(np.int8), "w")
    attrs = {"strides": (1,) * rank, "pads": pads, "dilations": (1,) * rank}
    graph = net.widened(net.add("conv", net.x, w, **attrs))
    assert operators(graph) == ["cast", "conv_winograd"]


def test_winograd_by_small_weights_reads_bytes():
    net = Net(extremes((1, 16, 7, 9), 0, 255).astype(np.uint8))
    net.algorithm, net.types = Algorithm.WINOGRAD_2, [i7, i16]
    w = net.b.constant(extremes((8, 16, 3, 3), -64, 64).astype(np.int8), "w")
    graph = net.widened(net.add("conv", net.x, w, **CONV))
    assert operators(graph) == ["conv_winograd"]


@pytest.mark.parametrize("channels", [1827, 1828])
def test_sums_that_might_not_survive_the_scale_stay_direct(channels):
    """Of 9 * 1828 products of 255 by 128, four times as much has no 32 bits."""
    net = Net(np.full((1, channels, 3, 3), 255, np.uint8))
    net.algorithm = Algorithm.WINOGRAD_2
    w = net.b.constant(np.full((1, channels, 3, 3), -128, np.int8), "w")
    graph = net.widened(net.add("conv", net.x, w, **CONV))
    assert operators(graph)[-1] == ("conv_winograd" if channels == 1827 else "conv")


def test_windows_that_are_not_for_winograd_stay_direct():
    net = Net(integers((1, 8, 9, 9), np.uint8))
    net.algorithm = Algorithm.WINOGRAD_2
    assert operators(net.widened(net.product(net.x, 8, strides=(2, 2)))) == ["cast", "conv"]
