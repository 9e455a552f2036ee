"""Transposes sink until they cancel, whoever else reads the transposed tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.graph import Graph
from mlc.rewrite.algebra import simplify_algebra
from mlc.rewrite.transposes import sink_transposes
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, assert_same, op_names
from tests.unit.rewrite.random_graphs import random_graph

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def conv(n: Net, x: Any, channels: int, seed: int = 0) -> Any:
    """A 1×1 convolution over channels last."""
    first = n.transpose(x, perm=FIRST)
    w = n.w(channels, first.type.shape[1], 1, 1, seed=seed)
    return n.transpose(n.conv(first, w, **CONV), perm=LAST)


def test_skip_connections_and_biases_lose_their_transposes() -> None:
    n = Net()
    a = n.relu(n.add(conv(n, n.x(1, 3, 5, 2), 4), n.w(4)))
    b = n.add(conv(n, a, 4, seed=1), a)
    before = n(conv(n, b, 2))
    after = sink_transposes(before)
    assert op_names(after) == ["transpose", "conv", "add", "relu", "conv", "add", "conv", "transpose"]
    assert_same(before, after)


def test_the_input_itself_may_be_added_once_it_was_transposed_anyway() -> None:
    n = Net()
    x = n.x(2, 3, 4, 5)
    before = n(conv(n, n.add(x, conv(n, x, 5)), 3))
    after = sink_transposes(before)
    assert op_names(after) == ["transpose", "conv", "add", "conv", "transpose"]
    assert_same(before, after)


def test_gates_of_channels_are_reshaped() -> None:
    n = Net()
    y = conv(n, n.x(2, 4, 4, 3), 6)
    gate = n.reshape(n.sigmoid(n.reduce_mean(y, axes=(1, 2), keepdims=False)), shape=(2, 1, 1, 6))
    before = n(conv(n, n.mul(y, gate), 2))
    after = sink_transposes(before)
    assert op_names(after).count("transpose") == 2
    assert_same(before, after, rtol=1e-6)


WAYS: dict[str, Callable[[Net, Any], Any]] = {
    "concat": lambda n, y: n.concat(y, n.neg(y), axis=3),
    "pad": lambda n, y: n.pad(y, pads=(0, 1, 2, 0, 0, 3, 0, 1)),
    "slice": lambda n, y: n.slice(y, begin=(0, 1, 0, 1), end=(2, 4, 3, 4), step=(1, 2, 1, 1)),
    "resize": lambda n, y: n.resize_nearest(y, shape=(2, 8, 6, 5)),
    "tile": lambda n, y: n.tile(y, repeats=(1, 1, 2, 1)),
    "mean": lambda n, y: n.sub(y, n.reduce_mean(y, axes=(3,), keepdims=True)),
    "argmax": lambda n, y: n.cast(n.argmax(y, axis=2, keepdims=True), to="f32"),
    "prelu": lambda n, y: n.prelu(y, n.w(1, 1, 5)),
    "where": lambda n, y: n.where(n.gt(y, n.c(0.0)), y, n.c([[[[1.0]]]])),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_stands_between_keeps_its_meaning(way: str) -> None:
    n = Net()
    before = n(conv(n, WAYS[way](n, conv(n, n.x(2, 4, 3, 2), 5)), 3))
    after = sink_transposes(before)
    assert op_names(after).count("transpose") == 2
    assert_same(before, after, rtol=1e-6)


@pytest.mark.parametrize("axes", [(1, 2), (3,), (0, 3), (2,)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions(axes: tuple[int, ...], keepdims: bool) -> None:
    n = Net()
    y = conv(n, n.x(2, 4, 3, 2), 5)
    before = n(n.reduce_max(y, axes=axes, keepdims=keepdims), n.reduce_max(n.relu(y), axes=axes, keepdims=keepdims))
    assert_same(before, sink_transposes(before))


def test_a_graph_that_would_gain_nothing_stays_as_it_is() -> None:
    n = Net()
    y = n.transpose(n.x(2, 3, 4), perm=(0, 2, 1))
    before = n(n.relu(y), n.exp(y), n.neg(y))
    assert sink_transposes(before) is before
    n = Net()
    before = n(n.relu(n.x(3)))
    assert sink_transposes(before) is before


@examples(60)
@given(st.data())
def test_random_graphs_compute_the_same(data: st.DataObject) -> None:
    before: Graph = random_graph(data)
    assert_same(before, sink_transposes(before), rtol=1e-4, atol=1e-5)


def test_padding_of_an_input_comes_to_stand_before_its_convolution() -> None:
    n = Net()
    first = n.transpose(n.x(1, 5, 5, 2), perm=FIRST)
    padded = n.transpose(n.pad(first, pads=(0, 0, 1, 1, 0, 0, 1, 1)), perm=LAST)
    before = n(conv(n, padded, 3))
    after = simplify_algebra(sink_transposes(before))
    assert op_names(after) == ["transpose", "conv", "transpose"]
    assert_same(before, after)
