"""Products of bytes as products of bits: the same numbers, where both operands have few bits."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, dtype_of
from mlc.ops import get
from mlc.ops.bits import Weights
from mlc.rewrite.bits import planes_of, use_bits

RNG = np.random.default_rng(5)
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
LEVELS = {"bipolar": (-3, -1, 1, 3), "ternary": (-1, 0, 1), "unsigned": (0, 1, 2, 3), "scaled": (-14, 0, 7)}


class Net:
    """A graph under construction with one input of floats."""

    def __init__(self, *shape: int) -> None:
        self.b, self.asked = Builder("net"), []
        self.array = RNG.uniform(-1, 5, shape).astype(np.float32)
        self.x = self.b.input("x", TensorType(shape, dtype_of("f32")))

    def add(self, name: str, *inputs: Value, **attrs: object) -> Value:
        return self.b.add(get(name), list(inputs), attrs)[0]

    def limited(self, x: Value, most: float) -> Value:
        """Floats in bytes from 0 to a limit."""
        return self.add("cast", self.add("clip", self.add("round", x), lo=0.0, hi=most), to="u8")

    def conv(self, x: Value, levels: tuple[int, ...], **attrs: object) -> Value:
        w = RNG.choice(levels, (5, x.type.shape[1], 3, 3)).astype(np.int8)
        return self.add("conv", x, self.b.constant(w, "w"), **{**CONV, **attrs})

    def prefers(self, node: Node, of_x: int, of_w: int) -> bool:
        self.asked.append((of_x, of_w))
        return True

    def converted(self, *outputs: Value) -> Graph:
        """The graph with bits, which computes the same."""
        graph = self.b.finish(list(outputs))
        found = use_bits(graph, self.prefers)
        pairs = zip(*(run_graph(g, {"x": self.array}).values() for g in (graph, found)), strict=True)
        for wanted, got in pairs:
            np.testing.assert_array_equal(got, wanted)
        return found


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("most", [1.0, 3.0])
def test_convolution(levels: tuple[int, ...], most: float) -> None:
    net = Net(1, 37, 5, 4)
    found = net.converted(net.conv(net.limited(net.x, most), levels))
    assert names(found)[3:5] == ["pack_bits", "conv_bits"]
    assert "conv" not in names(found)
    assert net.asked == [(int(most).bit_length(), 2)]


@pytest.mark.parametrize("shape", [(6, 70), (2, 3, 70)])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_product(shape: tuple[int, ...], transposed: bool) -> None:
    net = Net(*shape)
    w = RNG.choice((-1, 1), (9, 70) if transposed else (70, 9)).astype(np.int8)
    y = net.add("matmul", net.limited(net.x, 3.0), net.b.constant(w, "w"), transpose_b=transposed)
    assert "matmul_bits" in names(net.converted(y))
    assert net.asked == [(2, 1)]


def test_data_may_be_moved_on_their_way() -> None:
    net = Net(1, 8, 6, 6)
    pool = {"kernel": (2, 2), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "output_shape": (3, 3)}
    x = net.add("max_pool", net.limited(net.x, 3.0), **pool)
    both = net.add("concat", x, net.add("max_pool", net.limited(net.x, 1.0), **pool), axis=1)
    around = net.add("pad", both, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=2.0)
    assert "conv_bits" in names(net.converted(net.conv(around, (-1, 1), pads=(0,) * 4)))
    assert net.asked == [(2, 1)]


def test_bits_that_are_never_set_are_left_out() -> None:
    """As data of -1 and 1 are stored, which become 0 and 2 for a zero point of 1."""
    net = Net(1, 8, 5, 5)
    up = net.add("shl", net.limited(net.x, 1.0), net.b.constant(np.uint8(1), "one"))
    found = net.converted(net.conv(up, (-1, 1), pads=(0,) * 4))
    (packed,) = [n for n in found.nodes if n.op is get("pack_bits")]
    assert packed.attrs["bits"] == (1,)
    assert net.asked == [(1, 1)]


@pytest.mark.parametrize(
    ("levels", "most", "attrs"),
    [((-1, 1), 4.0, {}), ((-2, 0, 3), 3.0, {}), ((-5, 5, 1), 1.0, {}), ((0,), 1.0, {})],
    ids=["data of three bits", "weights of three bits", "five is too far", "nothing but zeros"],
)
def test_others_stay(levels: tuple[int, ...], most: float, attrs: dict) -> None:
    net = Net(1, 6, 5, 5)
    assert "conv" in names(net.converted(net.conv(net.limited(net.x, most), levels, **attrs)))
    assert not net.asked


def test_the_target_decides() -> None:
    net = Net(1, 6, 5, 5)
    graph = net.b.finish([net.conv(net.limited(net.x, 1.0), (-1, 1))])
    assert use_bits(graph, lambda node, of_x, of_w: False) is graph


def test_planes_of_weights() -> None:
    def kind(*numbers: int) -> tuple[Weights, int, int] | None:
        found = planes_of(np.array(numbers, np.int8))
        return None if found is None else (found.kind, found.count, found.factor)

    assert kind(-1, 1) == (Weights.BIPOLAR, 1, 1)
    assert kind(5, -5) == (Weights.BIPOLAR, 1, 5)
    assert kind(-3, 1) == (Weights.BIPOLAR, 2, 1)
    assert kind(0, 4) == (Weights.UNSIGNED, 1, 4)
    assert kind(0, 2, 3) == (Weights.UNSIGNED, 2, 1)
    assert kind(0, -1) == (Weights.SIGNED, 2, 1)
    assert kind(-2, 1) == (Weights.SIGNED, 2, 1)
    assert kind(-2, 2, 1) is None
