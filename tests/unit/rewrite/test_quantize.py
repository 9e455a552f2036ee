"""Quantised graphs against the same arithmetic in numpy, and against the float model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import UnsupportedError, UsageError
from mlc.harness.accuracy import decibels
from mlc.ir.graph import Graph, Value, verify
from mlc.ir.interp import run_graph
from mlc.rewrite.quantization import Quantized, QuantizeOptions, quantize
from mlc.rewrite.quantization.exponents import quantised, weight_exponents
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, op_names

ENDS = QuantizeOptions(shifts=True, ends=True)
WINDOW: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
POINT: dict[str, Any] = {**WINDOW, "pads": (0, 0, 0, 0)}


class Floats(Net):
    def weights(self, *shape: int, seed: int = 0) -> Value:
        return self.c(np.random.default_rng(seed).standard_normal(shape) / np.sqrt(np.prod(shape[1:])))

    def layer(self, x: Value, channels: int, seed: int = 0, size: int = 3, **attrs: Any) -> Value:
        w = self.weights(channels, x.type.shape[1], size, size, seed=seed)
        bias = self.weights(1, channels, 1, 1, seed=seed + 1)
        return self.add(
            self.conv(x, w, **{**(WINDOW if size == 3 else POINT), **attrs}), bias, sources=[f"layer{seed}"]
        )


def samples(graph: Graph, count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [{v.name: rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs} for _ in range(count)]


def snr(graph: Graph, found: Quantized) -> float:
    """The worst output's."""
    verify(found.graph)
    worst = np.inf
    for feeds in samples(graph):
        a, b = run_graph(graph, feeds), run_graph(found.graph, feeds)
        assert [(x.shape, x.dtype) for x in a.values()] == [(x.shape, x.dtype) for x in b.values()]
        worst = min([worst, *(decibels(np.square(a[k]).sum(), np.square(a[k] - b[k]).sum()) for k in a)])
    return worst


def net(graph: Graph, options: QuantizeOptions = ENDS) -> Quantized:
    return quantize(graph, samples(graph), options)


def shifted(x: np.ndarray, by: Any) -> np.ndarray:
    """Rounded half up, saturated to bytes: in 64 bits, so nothing overflows."""
    by = np.asarray(by, np.int64)
    half = np.where(by > 0, 1 << np.maximum(by - 1, 0), 0)
    return np.clip((x.astype(np.int64) + half) >> by, -128, 127)


def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """3x3, pads of 1, in int64."""
    n, _, h, wide = x.shape
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((n, len(w), h, wide), np.int64)
    for r in range(3):
        for s in range(3):
            out += np.einsum("nchw,oc->nohw", padded[:, :, r : r + h, s : s + wide], w[:, :, r, s].astype(np.int64))
    return out


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_residual_block_is_the_arithmetic_that_it_says(per_channel: bool) -> None:
    n = Floats()
    x = n.x(1, 8, 5, 5)
    first = n.relu(n.layer(x, 8, 10))
    second = n.layer(first, 8, 20)
    graph = n(n.relu(n.add(second, x)))
    found = net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))
    e = {name: -round(np.log2(s.scale)) for name, s in found.tensors.items()}
    assert set(e) == {"x", first.name}
    w = [a for v, a in graph.constants.items() if v.type.shape[2:] == (3, 3)]
    b = [a for v, a in graph.constants.items() if v.type.shape[2:] == (1, 1)]
    axis = 0 if per_channel else None
    ew = [weight_exponents(a, axis) for a in w]
    w8 = [quantised(a, k, axis) for a, k in zip(w, ew, strict=True)]
    ew = [k.reshape(1, -1, 1, 1) for k in ew]
    for feeds in samples(graph):
        x8 = np.clip(np.rint(feeds["x"] * 2.0 ** e["x"]), -128, 127)
        at = ew[0] + e["x"]
        acc = np.maximum(conv(x8, w8[0]) + np.rint(b[0] * 2.0**at), 0)
        y8 = shifted(acc, at - e[first.name])
        at = ew[1] + e[first.name]
        acc = conv(y8, w8[1]) + np.rint(b[1] * 2.0**at) + x8 * 2.0 ** (at - e["x"])
        (got,) = run_graph(found.graph, feeds).values()
        np.testing.assert_array_equal(got, (np.maximum(acc, 0) * 2.0**-at).astype(np.float32))
    assert snr(graph, found) > 20


@pytest.mark.parametrize("swapped", [False, True])
def test_an_addition_of_two_narrow_tensors_rounds_neither(swapped: bool) -> None:
    n = Floats()
    y = n.relu(n.layer(n.x(1, 8, 5, 5), 8, 1))
    coarse = n.max_pool(y, kernel=(3, 3), **WINDOW)
    fine = n.mul(n.abs(y), n.c(1 / 50))
    found = net(n(n.layer(n.relu(n.add(fine, coarse) if swapped else n.add(coarse, fine)), 8, 2)))
    names = op_names(found.graph)
    assert (names.count("round_shift"), names.count("shl")) == (2, 1)
    (lifted,) = (node for node in found.graph.nodes if node.op.name == "shl")
    (places,) = (found.graph.constants[v] for v in lifted.inputs if v in found.graph.constants)
    e = {name: -round(np.log2(s.scale)) for name, s in found.tensors.items()}
    assert places == e[fine.name] - e[y.name] > 0


def test_every_product_is_narrowed_once() -> None:
    n = Floats()
    x = n.x(1, 8, 4, 4)
    found = net(n(n.relu(n.layer(n.relu(n.layer(x, 8, 1)), 8, 2))))
    names = op_names(found.graph)
    # the model's result keeps the bits of its sums
    assert (names.count("conv"), names.count("round_shift"), names.count("round")) == (2, 1, 1)
    assert found.products == 2
    assert not found.floats


def test_sums_that_several_read_are_narrowed_for_all() -> None:
    n = Floats()
    x = n.x(1, 8, 4, 4)
    y = n.layer(x, 8, 1)
    graph = n(n.layer(y, 8, 2), n.layer(n.relu(y), 8, 3))
    found = net(graph)
    readers = found.graph.consumers()
    wide = [n.outputs[0] for n in found.graph.nodes if n.op.name == "conv"]
    assert all(len(readers[v]) == 1 for v in wide)
    assert snr(graph, found) > 20


def test_ends_stay_in_floats_with_a_reason() -> None:
    n = Floats()
    x = n.x(1, 3, 6, 6)
    y = n.relu(n.layer(n.relu(n.layer(x, 8, 1)), 8, 2))
    flat = n.reshape(n.reduce_mean(y, axes=(2, 3), keepdims=False), shape=(1, 8))
    graph = n(n.add(n.matmul(flat, n.weights(8, 10, seed=3), sources=["head"]), n.c(np.ones(10))))
    found = net(graph, QuantizeOptions(shifts=True))
    assert found.products == 1
    assert dict(found.floats) == {"conv": "a first convolution, of 3 channels", "head": "the last product"}
    whole = net(graph)
    assert whole.products == 3
    assert snr(graph, found) > snr(graph, whole) > 15
    # few numbers keep the bits of their sums
    assert found.graph.outputs[0].type.dtype.name == "f32"
    assert [m.op.name for m in whole.graph.nodes][-3:] == ["add", "cast", "mul"]


def test_nodes_are_kept_in_floats_on_demand() -> None:
    n = Floats()
    x = n.x(1, 8, 4, 4)
    w = n.weights(8, 8, 1, 1, seed=4)
    first = n.conv(x, w, **POINT, sources=["a"])
    graph = n(n.conv(n.sigmoid(first), w, **POINT, sources=["b"]))
    found = net(graph, QuantizeOptions(shifts=True, ends=True, keep=("b",)))
    assert dict(found.floats) == {"b": "kept on demand"}
    assert snr(graph, found) > 25
    with pytest.raises(UsageError, match="there is no node 'c' to keep"):
        net(graph, QuantizeOptions(shifts=True, keep=("c",)))


OTHERS: dict[str, Any] = {
    "max_pool": lambda n, x: n.max_pool(
        x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1)
    ),
    "concat": lambda n, x: n.concat(x, n.relu(n.layer(x, 4, 7)), n.mul(n.layer(x, 4, 8), n.c(4.0)), axis=1),
    "concat of integers": lambda n, x: n.concat(n.layer(x, 4, 7), n.relu(x), axis=1),
    "relu6": lambda n, x: n.clip(n.layer(x, 8, 9), lo=0.0, hi=0.5),
    "clip of channels": lambda n, x: n.clip(x, lo=-0.5, hi=0.5),
    "transpose": lambda n, x: n.transpose(x, perm=(0, 1, 3, 2)),
    "add of two": lambda n, x: n.add(n.relu(x), n.max_pool(
        x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))),
    "add to itself": lambda n, x: n.add(x, x),
    "add broadcast": lambda n, x: n.add(x, n.reduce_mean(x, axes=(2, 3), keepdims=True)),
    "add of a constant row": lambda n, x: n.add(x, n.c(np.ones(4))),
    "bias before": lambda n, x: n.add(n.c(np.ones((1, 8, 1, 1))), n.conv(x, n.weights(8, 8, 1, 1, seed=6), **POINT)),
    "depthwise": lambda n, x: n.conv(x, n.weights(8, 1, 3, 3, seed=6), **WINDOW, groups=8),
    "softmax": lambda n, x: n.softmax(x, axis=1),
    "huge bias": lambda n, x: n.add(n.layer(x, 8, 9), n.c(np.full((1, 8, 1, 1), 3e9))),
}  # fmt: skip


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("what", OTHERS)
def test_other_operators_between_products(what: str, per_channel: bool) -> None:
    n = Floats()
    x = n.layer(n.x(1, 8, 4, 4), 8, 1)
    y = OTHERS[what](n, x)
    channels = y.type.shape[1]
    graph = n(n.conv(y, n.weights(8, channels, 1, 1, seed=5), **POINT))
    found = net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))
    assert not found.floats
    assert snr(graph, found) > 15


def test_products_of_matrices() -> None:
    n = Floats()
    x = n.x(6, 16)
    y = n.relu(n.add(n.matmul(x, n.weights(16, 24)), n.c(np.full(24, 0.1))))
    graph = n(n.matmul(y, n.weights(4, 24, seed=2), transpose_b=True))
    for per_channel in (False, True):
        found = net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))
        assert found.products == 2
        assert snr(graph, found) > 25


@examples(20)
@given(st.data())
def test_random_networks_stay_near_and_typed(data: st.DataObject) -> None:
    n = Floats()
    values = [n.x(1, 8, 4, 4)]
    for k in range(data.draw(st.integers(1, 6))):
        x = data.draw(st.sampled_from(values))
        kind = data.draw(st.sampled_from(["layer", "relu", "add", "tanh", "point"]))
        if kind == "layer":
            values.append(n.layer(x, 8, 10 * k))
        elif kind == "point":
            values.append(n.layer(x, 8, 10 * k, size=1))
        elif kind == "add":
            values.append(n.add(x, data.draw(st.sampled_from(values))))
        else:
            values.append(n.relu(x) if kind == "relu" else n.tanh(x))
    outputs = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
    graph = n(n.layer(values[-1], 8, 99), *outputs)
    per_channel = data.draw(st.booleans())
    assert snr(graph, net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))) > 8


def scaled(n: Floats, x: Value, scales: Any, bias: Any, seed: int = 0) -> Value:
    """A 3x3 layer whose output channels' weights are as large as ``scales`` say."""
    channels = len(scales)
    w = np.random.default_rng(seed).standard_normal((channels, x.type.shape[1], 3, 3)) / 9
    w = n.c(w * np.reshape(scales, (-1, 1, 1, 1)))
    return n.add(n.conv(x, w, **WINDOW), n.c(np.reshape(np.broadcast_to(bias, channels), (1, -1, 1, 1))))


ONE = np.ones(8)
DEAD = np.where(np.arange(8) < 2, 1e-9, 1.0)
UNEVEN: dict[str, tuple[Any, Any]] = {  # how large each channel's weights are, and its bias
    "a nearly dead channel": (DEAD, 0.3),
    "a nearly dead channel, hardly ever above zero": (DEAD, np.where(DEAD < 1, -40.0, 0.1)),
    "a channel of zeros": (np.where(DEAD < 1, 0.0, 1.0), 0.3),
    "zeros": (0.0 * ONE, np.arange(1, 9) / 7),
    "tiny weights": (1e-8 * ONE, 0.3),
    "tiny weights, tiny bias": (1e-8 * ONE, 1e-9),
    "very different channels": (10.0 ** np.arange(-20, 4, 3), 1.0),
    "a huge bias": (ONE, 3e9),
    "subnormal weights": (1e-39 * ONE, 1.0),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("what", UNEVEN)
def test_channels_may_be_dead_or_as_different_as_can_be(what: str, per_channel: bool) -> None:
    scales, bias = UNEVEN[what]
    n = Floats()
    x = n.x(1, 8, 5, 5)
    y = n.relu(n.layer(x, 8, 1))
    y = n.relu(scaled(n, y, scales, bias))
    graph = n(n.layer(y, 8, 2))
    found = net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))
    assert (found.products, dict(found.floats)) == (3, {})
    assert [m.op.name for m in found.graph.nodes].count("mul") == 2  # no floats on the way
    assert snr(graph, found) > 20


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("what", UNEVEN)
def test_a_residual_addition_fits_beside_any_sums(what: str, per_channel: bool) -> None:
    scales, bias = UNEVEN[what]
    n = Floats()
    y = n.relu(n.layer(n.x(1, 8, 5, 5), 8, 1))
    z = n.relu(n.add(y, scaled(n, n.relu(n.layer(y, 8, 3)), scales, bias)))
    graph = n(n.layer(z, 8, 2))
    found = net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))
    assert [m.op.name for m in found.graph.nodes].count("mul") == 2
    assert snr(graph, found) > 20


def test_limits_beyond_the_sums_reach_are_kept() -> None:
    n = Floats()
    x = n.layer(n.x(1, 8, 4, 4), 8, 1)
    low = n.clip(n.conv(x, n.c(np.full((8, 8, 1, 1), 1e-9)), **POINT), lo=3.0, hi=6.0)
    graph = n(n.layer(low, 8, 2))
    assert snr(graph, net(graph)) > 20


def test_a_weight_of_zeros_costs_the_bias_no_digits() -> None:
    n = Floats()
    graph = n(n.add(n.matmul(n.x(2, 8), n.c(np.zeros((8, 4)))), n.c([0.1, -0.2, 0.3, 0.7])))
    for per_channel in (False, True):
        assert snr(graph, net(graph, QuantizeOptions(shifts=True, ends=True, per_channel=per_channel))) > 40


@examples(60)
@given(st.data())
def test_any_scales_of_channels_are_quantised_as_planned(data: st.DataObject) -> None:
    powers = st.floats(-45, 3)
    n = Floats()
    values = [n.x(1, 4, 3, 3)]
    for k in range(data.draw(st.integers(1, 5))):
        x = data.draw(st.sampled_from(values))
        kind = data.draw(st.sampled_from(["layer", "layer", "relu", "add", "concat", "clip"]))
        if kind == "layer":
            scales = [data.draw(st.sampled_from([0.0, 1.0, 10.0 ** data.draw(powers)])) for _ in range(4)]
            bias = [data.draw(st.sampled_from([0.0, -1.0, 10.0 ** data.draw(powers)])) for _ in range(4)]
            values.append(scaled(n, x, scales, bias, k))
        elif kind == "add":
            values.append(n.add(x, data.draw(st.sampled_from(values))))
        elif kind == "concat":
            y = n.concat(x, data.draw(st.sampled_from(values)), axis=1)
            values.append(scaled(n, y, [1.0, 1e-3, 1e-12, 0.0], 0.1, k))
        else:
            values.append(n.relu(x) if kind == "relu" else n.clip(x, lo=-1.0, hi=data.draw(st.floats(0, 1e4))))
    graph = n(n.layer(values[-1], 4, 99), data.draw(st.sampled_from(values)))
    options = QuantizeOptions(shifts=True, ends=True, per_channel=data.draw(st.booleans()))
    found = net(graph, options)
    verify(found.graph)
    for feeds in samples(graph):
        wanted, got = run_graph(graph, feeds), run_graph(found.graph, feeds)
        for name, y in wanted.items():
            assert np.isfinite(got[name]).all()
            # one scale for channels as different as these may lose the small ones, but nothing wraps around
            assert np.abs(got[name] - y).max() <= 1.5 * np.abs(y).max() + 1e-6


def test_what_cannot_be_quantised_is_told() -> None:
    n = Floats()
    x, w = n.x(4, 8), n.x(8, 3, name="w")
    bad = n.c(np.full((3, 3), np.inf))
    batch = n.weights(2, 3, 3)
    computed = n.matmul(x, w, sources=["p"])
    rows = n.matmul(n.matmul(computed, bad, sources=["q"]), batch, sources=["r"])
    graph = n(n.matmul(n.c(np.ones((2, 2))), n.c(np.ones((2, 2))), sources=["s"]), rows)
    with pytest.raises(UnsupportedError, match="nothing in the model can be quantised") as error:
        net(graph)
    for reason in (
        "p: its weights are computed", "q: its weights are not all finite",
        "r: its weights are a batch of matrices", "s: its data are constant",
    ):  # fmt: skip
        assert reason in error.value.message
    n = Floats()
    with pytest.raises(UnsupportedError, match="it has no product with constant weights"):
        net(n(n.relu(n.x(3))))


def test_sums_that_could_exceed_32_bits_stay_in_floats() -> None:
    n = Floats()
    terms = 1 << 19
    graph = n(n.matmul(n.x(1, terms), n.c(np.random.default_rng(0).uniform(0.5, 1, (terms, 1)))))
    with pytest.raises(UnsupportedError, match="its sums may exceed 32 bits"):
        net(graph)
