"""Batches in slices: what becomes a recurrence, when that pays, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.cost import Peaks
from mlc.ir.graph import Graph, Value
from mlc.ir.interp import run_graph
from mlc.rewrite.recurrence import body_of_scan, is_scan
from mlc.rewrite.slices import use_slices
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, assert_same, inputs_of
from tests.unit.rewrite.random_graphs import random_graph

# far caches are slow, and memory slower; a step takes no time beside its work
CACHED = Peaks(transfer=1.0, compute=64.0, launch=0.0, caches=((1 << 12, 64.0), (1 << 14, 16.0)))
UNCACHED = Peaks(transfer=1.0, compute=64.0, launch=0.0)


def conv(n: Net, x: Value, filters: int, size: int = 3) -> Value:
    w = n.w(filters, x.type.shape[1], size, size, seed=filters)
    return n.conv(x, w, strides=(1, 1), pads=(size // 2,) * 4, dilations=(1, 1))


def network(batch: int = 8, classes: int = 10) -> Graph:
    """Two convolutions, a mean and a classifier."""
    n = Net()
    x = n.relu(conv(n, n.x(batch, 3, 10, 10), 4))
    x = n.relu(n.add(conv(n, x, 4), x))
    x = n.reshape(n.reduce_mean(x, axes=(2, 3), keepdims=True), shape=(batch, 4))
    return n(n.add(n.matmul(x, n.w(4, classes)), n.w(classes)))


def slices_of(graph: Graph) -> list[tuple[int, int, int]]:
    """Rounds, images of a slice and nodes of every recurrence."""
    scans = [n for n in graph.nodes if is_scan(n)]
    return [(n.attrs["rounds"], body_of_scan(n).inputs[0].type.shape[0], len(body_of_scan(n).nodes)) for n in scans]


def test_a_small_graph_in_slices() -> None:
    n = Net()
    x = n.x(4, 2, 3)
    y = n.reshape(n.add(n.matmul(x, n.w(3, 5)), n.w(5)), shape=(8, 5), sources=["flat"])
    graph = use_slices(n(y, n.reduce_sum(y, axes=(0,), keepdims=False)), CACHED, images=2)
    assert str(graph) == (
        "@graph main(%x: f32[4,2,3]) -> (f32[8,5], f32[5]):\n"
        "  %x.slices: f32[2,2,2,3] = reshape(%x, shape=(2, 2, 2, 3))\n"
        "  %reshape.slices: f32[2,4,5] = scan(%x.slices, rounds=2, carried=0, scanned=1, backwards=(False, False))"
        "  # flat\n"
        "    @graph slice(%x: f32[2,2,3]) -> (f32[4,5]):\n"
        "      %const: const f32[3,5]\n"
        "      %const.1: const f32[5]\n"
        "      %matmul: f32[2,2,5] = matmul(%x, %const)\n"
        "      %add: f32[2,2,5] = add(%matmul, %const.1)\n"
        "      %reshape.slice: f32[4,5] = reshape(%add, shape=(4, 5))  # flat\n"
        "      return %reshape.slice\n"
        "  %reshape: f32[8,5] = reshape(%reshape.slices, shape=(8, 5))\n"
        "  %reduce_sum: f32[5] = reduce_sum(%reshape, axes=(0), keepdims=False)\n"
        "  return %reshape, %reduce_sum"
    )


@examples(150)
@given(st.data(), st.integers(2, 17))
def test_random_graphs_in_slices_of_any_size_are_the_same(data: st.DataObject, batch: int) -> None:
    graph = random_graph(data, batch=batch)
    for images in [k for k in range(1, batch) if batch % k == 0]:
        assert_same(graph, use_slices(graph, UNCACHED, images), rtol=1e-5, atol=1e-6)


def test_random_graphs_are_sliced_at_all() -> None:
    """The property above would hold as well if nothing ever were."""
    sliced = []

    @examples(150)
    @given(st.data())
    def count(data: st.DataObject) -> None:
        graph = use_slices(random_graph(data, batch=6), UNCACHED, 2)
        sliced.append(sum(nodes for _, _, nodes in slices_of(graph)))

    count()
    assert sum(nodes >= 3 for nodes in sliced) > len(sliced) // 4


@pytest.mark.parametrize("images", [1, 2, 4])
def test_a_network_is_the_same_bit_by_bit(images: int) -> None:
    graph = network()
    sliced = use_slices(graph, CACHED, images)
    assert slices_of(sliced) == [(8 // images, images, 9)]
    assert_same(graph, sliced)


@pytest.mark.parametrize("images", [3, 5, 8, 16])
def test_slices_are_equal_and_fewer_than_the_batch(images: int) -> None:
    graph = network()
    assert use_slices(graph, CACHED, images) is graph


def test_as_many_images_as_pay() -> None:
    """Of an image, what a layer reads and leaves takes 3.2 KB; the caches hold 4 KB and 16 KB."""
    found = []
    for launch in (0.0, 3000.0, 10_000.0, 30_000.0):
        peaks = Peaks(CACHED.transfer, CACHED.compute, launch, CACHED.caches)
        found.append([images for _, images, _ in slices_of(use_slices(network(16), peaks))])
    assert found == [[4], [4], [8], []]


def test_nothing_changes_without_caches_or_where_a_batch_fits_them() -> None:
    graph = network()
    assert use_slices(graph, UNCACHED) is graph
    assert use_slices(graph, Peaks(1.0, 64.0, 0.0, ((1 << 20, 64.0),))) is graph


def test_nothing_changes_where_computing_takes_longer() -> None:
    graph = network()
    assert use_slices(graph, Peaks(1.0, 0.1, 0.0, CACHED.caches)) is graph


def test_nothing_changes_where_a_kernel_has_nobody_to_leave_something_for() -> None:
    n = Net()
    graph = n(n.relu(conv(n, n.x(16, 3, 10, 10), 4)))
    assert use_slices(graph, CACHED) is graph


@pytest.mark.parametrize("shape", [(1, 3, 4), (), (0, 3)])
def test_nothing_changes_without_a_batch(shape: tuple[int, ...]) -> None:
    n = Net()
    graph = n(n.relu(n.relu(n.x(*shape))))
    assert use_slices(graph, CACHED, 1) is graph
    graph = n()
    assert use_slices(graph, CACHED, 1) is graph


def test_large_weights_at_the_end_are_read_once() -> None:
    """A classifier of 160 KB would be read from memory for every slice."""
    ((_, _, nodes),) = slices_of(use_slices(network(16, classes=10_000), CACHED))
    assert nodes == 7


def test_what_mixes_images_parts_the_graph() -> None:
    n = Net()
    x = n.relu(conv(n, n.x(8, 3, 10, 10), 4))
    x = n.sub(x, n.reduce_mean(x, axes=(0, 2, 3), keepdims=True))  # as batch norms in training do
    graph = n(n.relu(conv(n, x, 4)))
    sliced = use_slices(graph, CACHED, 2)
    assert slices_of(sliced) == [(4, 2, 2), (4, 2, 3)]
    assert_same(graph, sliced)


def test_weights_that_are_given_stay_outside() -> None:
    """They would be packed in every slice."""
    n = Net()
    x, w = n.x(8, 4), n.x(4, 6, name="w")
    graph = n(n.relu(n.matmul(n.relu(x), w)))
    assert slices_of(use_slices(graph, CACHED, 2)) == [(4, 2, 1), (4, 2, 1)]


def test_operands_without_a_batch_are_captured_and_made_before() -> None:
    n = Net()
    x, y = n.x(8, 4), n.x(4, name="y")
    a = n.relu(x)
    scale = n.exp(y)  # between nodes that read the batch
    graph = n(n.mul(a, scale), scale)
    sliced = use_slices(graph, CACHED, 2)
    assert slices_of(sliced) == [(4, 2, 2)]
    (scan,) = [node for node in sliced.nodes if is_scan(node)]
    assert [v.name for v in scan.inputs] == ["x.slices", "exp"]
    assert_same(graph, sliced)


def test_a_constant_with_a_row_an_image_is_cut_at_compile_time() -> None:
    n = Net()
    x, rows = n.x(8, 3), n.w(8, 3)
    graph = n(n.add(n.mul(x, rows), n.matmul(x, n.w(3, 3))))
    sliced = use_slices(graph, CACHED, 4)
    assert slices_of(sliced) == [(2, 4, 3)]
    assert [v.type.shape for v in sliced.constants] == [(2, 4, 3)]
    assert_same(graph, sliced)


def test_a_table_whose_rows_are_as_many_as_the_images() -> None:
    """The same constant is read whole by one operator, and by rows by another."""
    n = Net()
    x, w = n.x(4, 4), n.w(4, 4)
    graph = n(n.add(n.matmul(x, w), w))
    sliced = use_slices(graph, CACHED, 1)
    assert slices_of(sliced) == [(4, 1, 2)]
    assert_same(graph, sliced)


def test_several_inputs_and_outputs_one_of_which_has_no_batch() -> None:
    n = Net()
    x, y, z = n.x(6, 5), n.x(6, 5, name="y"), n.x(5, 7, name="z")
    a = n.mul(x, y)
    graph = n(n.relu(a), n.neg(z), a, n.reduce_max(a, axes=(0,), keepdims=False), x)
    sliced = use_slices(graph, CACHED, 3)
    assert slices_of(sliced) == [(2, 3, 2)]
    assert_same(graph, sliced)


def test_a_result_whose_images_lie_apart_ends_before() -> None:
    n = Net()
    a = n.relu(conv(n, n.x(4, 3, 5, 5), 4))
    graph = n(n.transpose(conv(n, a, 4), perm=(1, 0, 2, 3)))
    sliced = use_slices(graph, CACHED, 2)
    assert slices_of(sliced) == [(2, 2, 2)]
    assert_same(graph, sliced)


def test_names_stay_different() -> None:
    n = Net()
    x = n.x(4, 3, name="x")
    other = n.x(3, name="x.slices")
    a = n.relu(x)
    m = n.sub(a, n.reduce_max(a, axes=(0,), keepdims=True))
    graph = n(n.mul(n.add(m, other), x))
    sliced = use_slices(graph, CACHED, 2)
    assert len(slices_of(sliced)) == 2
    assert_same(graph, sliced)


def test_every_image_is_computed_with_its_own() -> None:
    """Results are those of the images one by one."""
    graph, single = network(6), network(1)
    given = inputs_of(graph)
    (whole,) = run_graph(use_slices(graph, CACHED, 2), given).values()
    rows = [run_graph(single, {"x": given["x"][k : k + 1]})["out0"] for k in range(6)]
    np.testing.assert_array_equal(whole, np.concatenate(rows))


def test_a_long_chain_is_looked_through_soon() -> None:
    """Thousands of nodes, of which any two could be ends: only some are tried."""
    n = Net()
    x = n.x(4, 2, 3)
    for _ in range(1500):
        x = n.relu(n.matmul(x, n.w(3, 3)))
    ((_, _, nodes),) = slices_of(use_slices(n(x), CACHED, 2))
    assert nodes == 3000
