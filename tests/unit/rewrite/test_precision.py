from __future__ import annotations

import numpy as np

from mlc.ir.graph import Graph
from mlc.rewrite.fuse import fuse
from mlc.rewrite.precision import Precision, precisions
from mlc.rewrite.quantization import QuantizeOptions, quantize
from mlc.rewrite.weights import store_weights
from mlc.runtime.tensor_spec import PRECISIONS
from tests.unit.rewrite.helpers import Net


def outputs(graph: Graph) -> dict[str, str]:
    found = precisions(graph)
    assert precisions(fuse(graph)).items() >= {k: v for k, v in found.items() if k in graph.output_names}.items()
    return {name: str(found[name]) for name in graph.output_names if name in found}


def test_the_names_are_those_that_packages_hold() -> None:
    assert tuple(map(str, Precision)) == PRECISIONS


def test_what_is_computed_in_its_own_type_is_not_mentioned() -> None:
    n = Net()
    assert precisions(n(n.relu(n.x(4)), n.exp(n.x(3, dtype="f16", name="h")))) == {}


def test_floats_of_16_bits_leave_their_mark_on_everything_after_them() -> None:
    n = Net()
    x = n.x(4)
    half = n.cast(n.exp(n.cast(x, to="f16")), to="f32")
    graph = n(n.mul(half, x), n.relu(x), n.cast(half, to="bf16"), n.cast(half, to="i32"))
    assert outputs(graph) == {"out0": "float16"}


def test_constants_are_exact_whatever_their_type() -> None:
    n = Net()
    assert outputs(n(n.add(n.x(4), n.cast(n.c(np.ones(4), "float16"), to="f32")))) == {}


def test_integers_that_stand_for_floats_are_steps() -> None:
    n = Net()
    x = n.x(4)
    for bits, name in ((8, "int8"), (16, "int16")):
        stepped = n.cast(n.cast(n.round(n.mul(x, n.c(10.0))), to=f"i{bits}"), to="f32")
        assert outputs(n(n.relu(stepped))) == {"out0": name}
    indices = n.cast(n.cast(x, to="i32"), to="f32")
    assert outputs(n(indices)) == {}


def test_bytes_that_come_in_are_exact() -> None:
    n = Net()
    assert outputs(n(n.mul(n.cast(n.x(4, dtype="u8"), to="f32"), n.c(1 / 255)))) == {}


def test_a_model_that_was_quantised_says_so() -> None:
    n = Net()
    w = n.c(np.random.default_rng(0).standard_normal((8, 8)))
    graph = n(n.matmul(n.relu(n.matmul(n.x(2, 8), w)), w))
    samples = [{"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}]
    assert outputs(quantize(graph, samples, QuantizeOptions(shifts=True, ends=True)).graph) == {"out0": "quantised"}


def test_weights_that_are_widened_leave_theirs() -> None:
    for kind, name in (
        ("f16", "float16"),
        ("bf16", "bfloat16_products"),
        ("int8", "int8_weights"),
        ("int4", "int4_weights"),
    ):
        n = Net()
        assert outputs(store_weights(n(n.relu(n.matmul(n.x(2, 8), n.w(8, 8)))), kind)) == {"out0": name}


def test_integers_that_this_compiler_made_are_told_from_the_models_own() -> None:
    n = Net()
    scale, zero = n.c(0.5), n.c(3, dtype="uint8")
    graph = n(n.dequantize(n.quantize(n.x(4), scale, zero), scale, zero))
    assert {k: str(p) for k, p in precisions(graph).items()}["out0"] == "int8"
    assert {k: str(p) for k, p in precisions(graph, quantised=True).items()}["out0"] == "quantised"


def test_products_of_tensor_cores_have_bits_of_halves() -> None:
    n = Net()
    graph = n(n.matmul(n.x(4, 3), n.c(np.ones((3, 2), np.float32))))
    assert precisions(graph) == {}
    assert precisions(graph, tf32=True)["out0"] is Precision.FLOAT16
