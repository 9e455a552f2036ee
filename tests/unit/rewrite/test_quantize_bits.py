"""Quantisation to one and two bits: what is chosen, what is stored, and that integers give what floats in steps do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.graph import Graph, verify
from mlc.ir.interp import run_graph
from mlc.ops import get
from mlc.rewrite.bits import use_bits
from mlc.rewrite.integers import use_integers
from mlc.rewrite.quantization import Calibration, Method, Precision, Quantized, QuantizeOptions, quantize
from mlc.rewrite.quantization.ranges import Distribution, asymmetric
from mlc.rewrite.quantization.steps import odd_multiples
from tests.fuzz import examples
from tests.unit.rewrite.test_quantize import Floats, samples

few = pytest.mark.parametrize("precision", [Precision.W1A2, Precision.W2A2])


def network() -> Graph:
    """A first convolution, two more with a residual, and a product."""
    n = Floats()
    a = n.relu(n.layer(n.x(1, 3, 9, 7), 16, 1))
    b = n.relu(n.add(n.layer(n.relu(n.layer(a, 16, 3)), 16, 5), a))
    return n(n.layer(b, 5, 7, size=1))


def quantised(graph: Graph, precision: Precision, **options: Any) -> Quantized:
    return quantize(graph, samples(graph), QuantizeOptions(precision, **options))


@few
def test_products_are_of_bits_and_all_else_of_floats(precision: Precision) -> None:
    graph = network()
    found = quantised(graph, precision)
    assert list(found.floats.values()) == ["a first convolution, of 3 channels"]
    integers = use_integers(found.graph)
    bits = use_bits(integers, lambda node, of_x, of_w: (of_x, of_w) == (2, precision.weight_bits))
    verify(bits)
    assert [n.op.name for n in bits.nodes if n.op.name.startswith("conv")] == ["conv", *["conv_bits"] * found.products]
    # the residual operand is added in floats
    (total,) = (n for n in bits.nodes if n.op is get("add") and all(v not in bits.constants for v in n.inputs))
    assert {v.type.dtype.name for v in total.inputs} == {"f32"}
    for feeds in samples(graph):
        steps, words = (run_graph(g, feeds) for g in (found.graph, bits))
        for name, array in steps.items():
            np.testing.assert_allclose(words[name], array, atol=1e-4 * np.abs(array).max())


@few
def test_more_bits_lose_less(precision: Precision) -> None:
    graph = network()

    def lost(found: Quantized) -> float:
        pairs = [(run_graph(graph, feeds), run_graph(found.graph, feeds)) for feeds in samples(graph)]
        return sum(float(np.square(a[k] - b[k]).sum()) for a, b in pairs for k in a)

    assert lost(quantised(graph, Precision.INT8)) < 0.05 * lost(quantised(graph, precision))


def test_ends_may_be_quantised_too() -> None:
    assert quantised(network(), Precision.W1A2, ends=True).floats == {}


def test_channels_in_groups_stay_in_floats() -> None:
    n = Floats()
    x = n.relu(n.layer(n.x(1, 16, 6, 6), 16, 1))
    w = n.c(np.random.default_rng(0).standard_normal((16, 1, 3, 3)))
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    graph = n(n.conv(x, w, **attrs, groups=16))
    found = quantised(graph, Precision.W2A2)
    assert list(found.floats.values()) == ["its channels are in groups, which have no products of bits"]


@few
def test_weights_that_have_few_levels_are_found_again(precision: Precision) -> None:
    rng = np.random.default_rng(1)
    levels = (-1, 1) if precision is Precision.W1A2 else (-3, -1, 1, 3)
    numbers = rng.choice(levels, (6, 40))
    scales = rng.uniform(0.01, 2, (6, 1)).astype(np.float32)
    found, integers = odd_multiples(numbers * scales, 0, precision.weight_bits)
    np.testing.assert_array_equal(integers, numbers)
    np.testing.assert_allclose(found, scales[:, 0], rtol=1e-6)


@examples(30)
@given(seed=st.integers(0, 999), bits=st.integers(1, 2), channel=st.sampled_from([None, 0, 1]))
def test_scales_of_weights_are_of_least_squares(seed: int, bits: int, channel: int | None) -> None:
    weights = np.random.default_rng(seed).standard_normal((4, 7)).astype(np.float32)
    scales, numbers = odd_multiples(weights, channel, bits)
    assert set(np.abs(numbers).ravel().tolist()) <= ({1} if bits == 1 else {1, 3})
    along = scales.reshape([-1 if d == channel else 1 for d in range(2)]) if channel is not None else scales
    axes = None if channel is None else 1 - channel
    error = np.square(weights - along * numbers).sum(axis=axes)
    for factor in (0.98, 1.02):
        assert (error <= np.square(weights - factor * along * numbers).sum(axis=axes) + 1e-6).all()


def test_weights_of_nothing_but_zeros_multiply_by_next_to_nothing() -> None:
    scales, numbers = odd_multiples(np.zeros((2, 3), np.float32), 0, 1)
    assert (scales > 0).all()
    assert np.abs(scales[:, None] * numbers).max() < 1e-37


def test_ranges_of_two_bits_cut_off_what_is_rare() -> None:
    d = Distribution()
    d.add(np.abs(np.random.default_rng(0).standard_normal(4000)).astype(np.float32))
    d.add(np.array([40.0], np.float32))
    lo, hi = d.range(Calibration(Method.MSE), 3)
    assert lo == 0
    assert 1.5 < hi < 4
    assert asymmetric(lo, hi, 3) == (pytest.approx(hi / 3), 0)
    assert asymmetric(-1.0, 2.0, 3) == (1.0, 1)
