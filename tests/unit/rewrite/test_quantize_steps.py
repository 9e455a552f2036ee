"""Quantisation with scales of any value: against the float model, in the form that integers are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.harness.accuracy import decibels
from mlc.ir.graph import Graph, Value, verify
from mlc.ir.interp import run_graph
from mlc.ops import get
from mlc.rewrite.integers import use_integers
from mlc.rewrite.quantization import Calibration, Method, Quantized, QuantizeOptions, interpreted, quantize
from mlc.rewrite.quantization.calibrate import Run
from tests.unit.rewrite.helpers import op_names
from tests.unit.rewrite.test_quantize import POINT, WINDOW, Floats, samples


def steps(graph: Graph, *, by_layer: bool = False, **options: Any) -> Quantized:
    return quantize(graph, samples(graph), QuantizeOptions(**options), by_layer=by_layer)


def snr(graph: Graph, found: Quantized) -> float:
    """The worst output's, in quantize and dequantize and in the integers that become of them, which agree."""
    integers = use_integers(found.graph)
    verify(integers)
    worst = np.inf
    for feeds in samples(graph):
        a, b, c = (run_graph(g, feeds) for g in (graph, found.graph, integers))
        for k in a:
            np.testing.assert_allclose(b[k], c[k], atol=0.05 * np.abs(a[k]).max())
        worst = min([worst, *(decibels(np.square(a[k]).sum(), np.square(a[k] - c[k]).sum()) for k in a)])
    return worst


def products(graph: Graph) -> set[str]:
    """Element types of the sums of convolutions and matrix products."""
    return {n.outputs[0].type.dtype.name for n in graph.nodes if n.op in (get("conv"), get("matmul"))}


def residual() -> tuple[Floats, Value]:
    n = Floats()
    x = n.x(1, 3, 9, 7)
    a = n.relu(n.layer(x, 8, 1))
    b = n.layer(n.relu(n.layer(a, 8, 3)), 8, 5)
    return n, n.relu(n.add(b, a))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("method", list(Method))
def test_a_residual_network_is_in_integers_throughout(per_channel: bool, method: Method) -> None:
    n, y = residual()
    graph = n(n.layer(y, 5, 7, size=1))
    found = steps(graph, per_channel=per_channel, calibration=Calibration(method))
    assert (found.products, found.floats) == (4, {})
    assert products(use_integers(found.graph)) == {"i32"}
    assert snr(graph, found) > (20 if method is Method.ENTROPY else 28)


def test_weights_of_seven_bits() -> None:
    """All but those that each channel has for itself; an error of twice the step is 6 dB."""
    n = Floats()
    y = n.relu(n.layer(n.x(1, 3, 9, 7), 8, 1))
    z = n.conv(y, n.weights(8, 1, 3, 3, seed=3), **{**WINDOW, "groups": 8})
    graph = n(n.layer(n.relu(z), 8, 5))
    greatest = []
    for reduced in (False, True):
        found = steps(graph, reduced=reduced)
        weights = [a for a in found.graph.constants.values() if a.dtype == np.int8 and a.ndim == 4]
        greatest.append([int(np.abs(a).max()) for a in weights])
        assert snr(graph, found) > (22 if reduced else 28)
    assert greatest == [[127, 127, 127], [64, 127, 64]]


def test_operands_of_a_total_are_read_in_bytes() -> None:
    n, y = residual()
    found = steps(n(n.layer(y, 5, 7, size=1)))
    # the input, and what each convolution reads; the longer sums take in the other operand as it is stored
    assert len(found.tensors) == 4
    assert op_names(found.graph).count("quantize") == 4


def test_what_is_moved_keeps_its_scale() -> None:
    n = Floats()
    x = n.x(1, 4, 8, 8)
    pool: dict[str, Any] = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = n.max_pool(n.relu(n.layer(x, 8, 1)), **pool)
    graph = n(n.layer(y, 4, 3))
    found = steps(graph)
    assert len(found.tensors) == 2
    integers = use_integers(found.graph)
    assert [m.inputs[0].type.dtype.name for m in integers.nodes if m.op is get("max_pool")] == ["u8"]
    assert snr(graph, found) > 30


def test_zero_points_surround_what_is_convolved() -> None:
    n = Floats()
    x = n.x(1, 3, 7, 5)
    graph = n(n.layer(n.layer(x, 8, 1), 4, 3))
    found = steps(graph)
    assert all(s.zero not in (0, 255) for s in found.tensors.values())
    assert snr(graph, found) > 30


@pytest.mark.parametrize("by_rows", [False, True])
def test_products_of_matrices_beside_floats(by_rows: bool) -> None:
    n = Floats()
    x = n.x(3, 12)
    h = n.softmax(n.matmul(x, n.weights(12, 12), transpose_b=by_rows), axis=1)
    y = n.add(n.matmul(h, n.weights(12, 5, seed=1)), n.weights(5, seed=2))
    scores = n.matmul(x, h, transpose_b=True, sources=["scores"])
    graph = n(y, scores)
    found = steps(graph)
    assert found.floats == {"scores": "its weights are computed"}
    assert snr(graph, found) > 28


def test_nodes_are_kept_in_floats_and_unknown_ones_refused() -> None:
    n, y = residual()
    graph = n(n.add(n.conv(y, n.weights(4, 8, 1, 1), **POINT, sources=["head"]), n.c(0.5)))
    found = steps(graph, keep=("head",))
    assert found.floats == {"head": "kept on demand"}
    assert products(use_integers(found.graph)) == {"i32", "f32"}
    with pytest.raises(UsageError, match="there is no node 'haed' to keep in floating point") as refused:
        steps(graph, keep=("haed",))
    assert refused.value.hint == "did you mean 'head'?"


def test_every_layer_can_be_compared() -> None:
    n, y = residual()
    graph = n(n.layer(y, 5, 7, size=1))
    for found in (steps(graph, by_layer=True), steps(graph, by_layer=True, shifts=True, ends=True)):
        feeds = samples(graph)[0]
        a, b = found.reference(feeds), run_graph(found.watched, feeds)
        assert list(a)[:5] == list(b) == ["out0", "layer0", "layer1", "layer2", "layer3"]
        for k in b:
            assert decibels(np.square(a[k]).sum(), np.square(a[k] - b[k]).sum()) > 20


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_is_calibrated_with_is_the_reference(by_layer: bool) -> None:
    n, y = residual()
    graph = replace(n(n.layer(y, 5, 7, size=1)), output_names=("tap0",))  # as what is calibrated would be called
    prepared = []

    def prepare(graph: Graph) -> Run:
        prepared.append(graph)
        return interpreted(graph)

    found = quantize(graph, samples(graph), QuantizeOptions(), prepare, by_layer=by_layer)
    assert len(prepared) == 1 + by_layer
    assert found.tensors == steps(graph).tensors
    for feeds in samples(graph):
        np.testing.assert_array_equal(found.reference(feeds)["tap0"], run_graph(graph, feeds)["tap0"])


def test_channels_may_be_dead_and_biases_large() -> None:
    n = Floats()
    w = np.random.default_rng(0).standard_normal((4, 3, 1, 1))
    w[1] = 0
    w[2] *= 1e-7
    bias = np.array([0.5, 3.0, -1000.0, 0.0]).reshape(1, 4, 1, 1)
    graph = n(n.add(n.conv(n.x(1, 3, 4, 4), n.c(w), **POINT), n.c(bias)))
    found = steps(graph)
    for feeds in samples(graph):
        a, b = run_graph(graph, feeds)["out0"], run_graph(use_integers(found.graph), feeds)["out0"]
        np.testing.assert_allclose(a, b, atol=0.1)


def test_products_in_recurrences_are_calibrated_over_all_rounds() -> None:
    inner = Floats()
    h, row = inner.x(1, 6, name="h"), inner.x(1, 6, name="row")
    after = inner.tanh(inner.add(inner.matmul(h, inner.weights(6, 6, seed=3)), row))
    body = inner(after, inner.mul(after, inner.c(1.0)))
    n = Floats()
    x = n.x(5, 1, 6)
    attrs = {"body": body, "rounds": 5, "carried": 1, "scanned": 1, "backwards": (False, False)}
    last, rows = n.builder.add(get("scan"), [n.c(np.zeros((1, 6))), x], attrs)
    graph = n(last, rows)
    found = steps(graph)
    assert (found.products, list(found.tensors)) == (1, ["h"])
    (scan,) = [m for m in found.graph.nodes if m.op is get("scan")]
    assert products(use_integers(scan.attrs["body"])) == {"i32"}
    for feeds in samples(graph):
        a, b = run_graph(graph, feeds), run_graph(found.graph, feeds)
        for k in a:
            assert decibels(np.square(a[k]).sum(), np.square(a[k] - b[k]).sum()) > 28
