from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Graph, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import bf16
from mlc.rewrite.precision import precisions
from mlc.rewrite.weights import in_pairs, quantised, quantised_coarsely, store_weights, use_bf16
from tests.unit.rewrite.helpers import Net

BITS = {"f16": 11, "bf16": 8, "int8": 7}  # that a number is rounded to


def stored(graph: Graph, kind: str) -> Graph:
    found = store_weights(graph, kind)
    verify(found)
    return found


def types(graph: Graph) -> list[str]:
    return sorted(str(v.type.dtype) for v in graph.constants)


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_are_as_close_as_the_type_allows(kind, transpose_b, batch):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(*batch, *((5, 7) if transpose_b else (7, 5)))).astype(np.float32)
    n = Net()
    graph = n(n.matmul(n.x(2, 7), n.c(w), transpose_b=transpose_b))
    small = stored(graph, kind)
    feeds = {"x": rng.normal(size=(2, 7)).astype(np.float32)}
    got, want = run_graph(small, feeds)["out0"], run_graph(graph, feeds)["out0"]
    terms = np.abs(feeds["x"]) @ np.abs(w.swapaxes(-1, -2) if transpose_b else w)
    greatest = np.abs(feeds["x"]).sum() * np.abs(w).max()
    bound = greatest / 254 if kind == "int8" else terms * 2.0 ** -BITS[kind]
    assert (np.abs(got - want) <= bound + 1e-6).all()
    assert got.shape == want.shape
    assert types(small) == (["f32", "i8"] if kind == "int8" else [kind])


def test_columns_have_scales_of_their_own():
    w = np.array([[1e-3, 1000.0, 0.0], [-5e-4, 250.0, 0.0]], np.float32)
    integers, scale = quantised(w, 0)
    assert np.abs(integers).max(axis=0).tolist() == [127, 127, 0]
    np.testing.assert_allclose(integers * scale, w, atol=np.abs(w).max(axis=0).max() / 254, rtol=1e-2)
    assert (integers[:, 2] * scale[:, 2] == 0).all()


def test_what_underflows_becomes_zero():
    assert not quantised(np.full((2, 2), 1e-45, np.float32), 0)[0].any()


@pytest.mark.parametrize("worst", [np.inf, np.nan])
@pytest.mark.parametrize("kind", BITS)
def test_numbers_that_are_none_stay(kind, worst):
    n = Net()
    graph = n(n.matmul(n.x(1, 2), n.c([[1.0, worst], [2.0, 3.0]])))
    assert store_weights(graph, kind) is graph


def test_what_a_type_does_not_reach_stays():
    n = Net()
    graph = n(n.matmul(n.x(1, 2), n.c([[1.0, 1e5], [2.0, 3.0]])))
    assert store_weights(graph, "f16") is graph
    assert types(stored(graph, "bf16")) == ["bf16"]


def test_others_stay_as_they_are():
    n = Net()
    x = n.x(2, 3, 5, 5)
    products = n.matmul(n.x(4, 4, name="a"), n.x(4, 4, name="b")), n.matmul(n.c(np.ones((2, 3))), n.x(3, 2, name="c"))
    wide = n.matmul(n.x(2, 3, dtype="f64", name="d"), n.c(np.ones((3, 2)), "float64"))
    graph = n(n.conv(x, n.w(4, 3, 3, 3), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)), *products, wide)
    assert store_weights(graph, "int8") is graph


@pytest.mark.parametrize("kind, table", [("f16", "f16"), ("bf16", "bf16"), ("int8", "f16")])
def test_tables_that_are_looked_up_have_16_bits(kind, table):
    n = Net()
    graph = n(n.gather(n.w(9, 4), n.x(3, dtype="i64", name="i"), axis=0))
    small = stored(graph, kind)
    assert types(small) == [table]
    feeds = {"i": np.array([8, 0, 5])}
    np.testing.assert_array_equal(run_graph(small, feeds)["out0"], run_graph(graph, feeds)["out0"])


def test_weights_of_two_products_are_stored_once():
    n = Net()
    w = n.w(4, 4)
    small = stored(n(n.matmul(n.matmul(n.x(1, 4), w), w)), "int8")
    assert types(small) == ["f32", "i8"]


def rounded(a: np.ndarray) -> np.ndarray:
    return a.astype(bf16.numpy).astype(np.float32)


@pytest.mark.parametrize("depth", [6, 7])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_in_bf16_round_their_operands(depth, transpose_b):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(5, depth) if transpose_b else (depth, 5)).astype(np.float32)
    n = Net()
    wide = use_bf16(n(n.matmul(n.x(2, depth), n.c(w), transpose_b=transpose_b)))
    verify(wide)
    x = rng.normal(size=(2, depth)).astype(np.float32)
    want = rounded(x) @ (rounded(w).T if transpose_b else rounded(w))
    np.testing.assert_allclose(run_graph(wide, {"x": x})["out0"], want, rtol=1e-6, atol=1e-6)
    assert types(wide) == ["bf16"]
    assert str(precisions(wide)["out0"]) == "bfloat16_products"


def test_products_of_few_rows_may_stay_out_of_bf16():
    n = Net()
    graph = n(n.matmul(n.x(1, 4), n.w(4, 4)))
    assert use_bf16(graph, 2) is graph
    assert types(use_bf16(graph)) == ["bf16"]


@pytest.mark.parametrize("depth", [6, 7])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_numbers_of_4_bits_lie_in_pairs(depth, transpose_b):
    rng = np.random.default_rng(0)
    w = rng.integers(-7, 8, (depth, 5)).astype(np.float32)
    w[0] = -7
    w *= 2.0 ** np.arange(-2, 3)
    n = Net()
    small = stored(n(n.matmul(n.x(2, depth), n.c(w.T if transpose_b else w), transpose_b=transpose_b)), "int4")
    assert sorted((v.type.shape, str(v.type.dtype)) for v in small.constants) == [
        (((depth + 1) // 2, 5), "i8"),
        ((5,), "f32"),
    ]
    x = rng.normal(size=(2, depth)).astype(np.float32)
    np.testing.assert_allclose(run_graph(small, {"x": x})["out0"], x @ w, rtol=1e-6, atol=1e-5)


def test_cutting_off_is_better_than_coarse_steps():
    w = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    integers, scale = quantised_coarsely(w)
    plain = np.abs(w).max(axis=0) / 7
    error = np.square(integers * scale - w).mean()
    assert error < 0.8 * np.square(np.rint(w / plain) * plain - w).mean()
    assert 10 * np.log10(1 / error) > 18.5  # decibels


def test_every_pair_keeps_its_sign():
    rows = np.array([[a, b] for a in range(-8, 8) for b in range(-8, 8)], np.int8).T
    (packed,) = in_pairs(rows)
    np.testing.assert_array_equal((packed.astype(np.int32) << 28) >> 28, rows[0])
    np.testing.assert_array_equal(packed >> 4, rows[1])


def test_batches_of_matrices_get_8_bits():
    n = Net()
    small = stored(n(n.matmul(n.x(3, 2, 4), n.w(3, 4, 5))), "int4")
    assert types(small) == ["f32", "i8"]
    assert [node.op.name for node in small.nodes] == ["matmul", "mul"]
