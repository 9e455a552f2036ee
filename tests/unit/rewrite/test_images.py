"""Which operators keep the images of a batch apart, and what they are for fewer images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.graph import FusionKind, Node, Operator, Value
from mlc.ir.types import f32, i64
from mlc.ops import get
from mlc.rewrite.images import Images, Rows
from tests.unit.rewrite.helpers import Net

BATCH = 6
FIRST = Rows(0)

Build = Callable[[Net, Value], Value]

# of a batch of 6 times 8 channels of 5 by 4 along the first axis
APART: dict[str, tuple[Build, Rows]] = {
    "relu": (lambda n, x: n.relu(x), FIRST),
    "constant operand": (lambda n, x: n.add(x, n.w(8, 1, 1)), FIRST),
    "conv": (lambda n, x: n.conv(x, n.w(4, 8, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)), FIRST),
    "pool": (lambda n, x: n.max_pool(x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1)), FIRST),
    "mean": (lambda n, x: n.reduce_mean(x, axes=(2, 3), keepdims=True), FIRST),
    "softmax": (lambda n, x: n.softmax(x, axis=1), FIRST),
    "moments": (lambda n, x: n.layer_norm(x, n.w(4), n.w(4)), FIRST),
    "transpose": (lambda n, x: n.transpose(x, perm=(1, 2, 0, 3)), Rows(2)),
    "flatten": (lambda n, x: n.reshape(x, shape=(6, 160)), FIRST),
    "merge": (lambda n, x: n.reshape(x, shape=(48, 20)), Rows(0, 8)),
    "merge all": (lambda n, x: n.reshape(x, shape=(960,)), Rows(0, 160)),
    "split": (lambda n, x: n.reshape(n.reshape(x, shape=(48, 20)), shape=(6, 2, 4, 20)), FIRST),
    "split in parts of images": (lambda n, x: n.reshape(x, shape=(12, 80)), Rows(0, 2)),
    "behind others": (lambda n, x: n.reshape(n.transpose(x, perm=(1, 0, 2, 3)), shape=(8, 120)), Rows(1, 20)),
    "product of merged rows": (lambda n, x: n.matmul(n.reshape(x, shape=(240, 4)), n.w(4, 3)), Rows(0, 40)),
    "concat": (lambda n, x: n.concat(x, n.relu(x), axis=1), FIRST),
    "slice": (lambda n, x: n.slice(x, begin=(0, 2, 0, 0), end=(6, 5, 5, 4), step=(1, 1, 2, 1)), FIRST),
    "pad": (lambda n, x: n.pad(x, pads=(0, 0, 1, 0, 0, 0, 1, 2)), FIRST),
    "broadcast": (lambda n, x: n.broadcast_to(n.reduce_max(x, axes=(3,), keepdims=True), shape=(6, 8, 5, 4)), FIRST),
    "resize": (lambda n, x: n.resize_nearest(x, shape=(6, 8, 10, 8)), FIRST),
    "table": (lambda n, x: n.gather(n.w(9, 3), n.cast(x, to="i64"), axis=0), FIRST),
    "tile": (lambda n, x: n.tile(x, repeats=(1, 1, 2, 1)), FIRST),
}

MIXED: dict[str, Build] = {
    "sum of images": lambda n, x: n.reduce_sum(x, axes=(0,), keepdims=True),
    "sum of all": lambda n, x: n.reduce_sum(x, axes=(0, 1, 2, 3), keepdims=False),
    "softmax over images": lambda n, x: n.softmax(x, axis=0),
    "concat of batches": lambda n, x: n.concat(x, x, axis=0),
    "some images": lambda n, x: n.slice(x, begin=(1, 0, 0, 0), end=(4, 8, 5, 4), step=(1, 1, 1, 1)),
    "images backwards": lambda n, x: n.slice(x, begin=(5, 0, 0, 0), end=(-1, 8, 5, 4), step=(-1, 1, 1, 1)),
    "more images": lambda n, x: n.pad(x, pads=(1, 0, 0, 0, 0, 0, 0, 0)),
    "images next to each other": lambda n, x: n.reshape(n.transpose(x, perm=(1, 0, 2, 3)), shape=(48, 20)),
    "across images": lambda n, x: n.reshape(x, shape=(4, 240)),
    "copies of the batch": lambda n, x: n.tile(x, repeats=(2, 1, 1, 1)),
    "other images": lambda n, x: n.gather(x, n.c([5, 4, 3, 2, 1, 0], "int64"), axis=0),
    "a number by image": lambda n, x: n.trilu(n.reshape(x, shape=(6, 160))),
    "a routine": lambda n, x: n.builder.add(get("top_k"), [x], {"k": 2, "axis": 3})[0],
}


def looked_at(build: Build) -> list[tuple[Node, tuple[Rows | None, ...], tuple[Rows | None, ...] | None]]:
    """Every node that reads the batch, where its operands' images lie and where its results' do."""
    n = Net()
    x = n.x(BATCH, 8, 5, 4)
    graph, look = n(build(n, x)), Images(BATCH)
    rows = {x: FIRST}
    found = []
    for node in graph.nodes:
        operands = tuple(rows.get(v) for v in node.inputs)
        results = look(node, operands)
        found.append((node, operands, results))
        rows.update({v: r for v, r in zip(node.outputs, results or (), strict=False) if r is not None})
    return found


@pytest.mark.parametrize("name", APART)
def test_images_are_followed(name: str) -> None:
    build, where = APART[name]
    assert looked_at(build)[-1][2] == (where,)


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("images", [1, 2, 3])
def test_an_operator_is_the_same_for_fewer_images(name: str, images: int) -> None:
    look = Images(BATCH)
    for node, operands, results in looked_at(APART[name][0]):
        assert results is not None
        fewer = look.fewer(node, operands, images)
        assert fewer is not None
        for v, rows, type in zip(node.outputs, results, fewer[1], strict=True):
            assert rows is not None
            assert type == rows.resized(v.type, images)


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_images_is_refused(name: str) -> None:
    assert looked_at(MIXED[name])[-1][2] is None


def test_a_product_of_two_batches_pairs_their_images() -> None:
    n = Net()
    x, y = n.x(BATCH, 3, 4), n.x(BATCH, 4, 5, name="y")
    (node,) = n(n.matmul(x, y)).nodes
    look = Images(BATCH)
    assert look(node, (FIRST, FIRST)) == (FIRST,)
    assert look(node, (FIRST, None)) is None  # whose images would be read as they are numbered in the batch
    n = Net()
    (node,) = n(n.matmul(n.x(18, 4), n.w(4, 6))).nodes
    assert look(node, (Rows(0, 3), None)) == (Rows(0, 3),)


def test_batches_of_an_operator_may_lie_differently() -> None:
    n = Net()
    x, y = n.x(BATCH, 4), n.x(4, BATCH, name="y")
    (node,) = n(n.einsum(x, y, equation="na,an->n")).nodes
    look = Images(BATCH)
    assert look(node, (FIRST, Rows(1))) == (FIRST,)
    assert look.fewer(node, (FIRST, Rows(1)), 2) is not None
    assert look(node, (FIRST, FIRST)) is None


def test_what_depends_on_how_many_images_there_are_has_no_smaller_form() -> None:
    """Each image by itself, but divided by their number."""

    def express(inputs, attrs):
        (x,) = inputs
        return [te.compute(x.shape, lambda i, j: x[i, j] / float(x.shape[0]), "share")]

    share = Operator("share", FusionKind.INJECTIVE, lambda types, attrs: [types[0]], express)
    n = Net()
    x = n.x(BATCH, 3)
    (node,) = n(*n.builder.add(share, [x])).nodes
    look = Images(BATCH)
    assert look(node, (FIRST,)) == (FIRST,)
    assert look.fewer(node, (FIRST,), 2) is None
    assert look.fewer(node, (FIRST,), BATCH) is not None


def test_an_operator_whose_shape_is_its_own_has_no_smaller_form() -> None:
    def infer(types, attrs):
        if types[0].shape != (BATCH, 3):
            raise VerifyError("fixed: another shape")
        return [types[0]]

    def express(inputs, attrs):
        return [te.compute((BATCH, 3), lambda i, j: inputs[0][i, j])]

    fixed = Operator("fixed", FusionKind.INJECTIVE, infer, express)
    n = Net()
    (node,) = n(*n.builder.add(fixed, [n.x(BATCH, 3)])).nodes
    assert Images(BATCH)(node, (FIRST,)) == (FIRST,)
    assert Images(BATCH).fewer(node, (FIRST,), 2) is None


def test_images_of_positions_in_the_batch_are_refused() -> None:
    """ONNX counts the positions of maxima from the begin of the whole tensor."""
    n = Net()
    attrs = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    outputs = n.builder.add(get("max_pool_with_indices"), [n.x(BATCH, 3, 4, 4)], attrs)
    (node,) = n(*outputs).nodes
    assert Images(BATCH)(node, (FIRST,)) is None


def test_rows_of_what_no_batch_is_are_left_alone() -> None:
    n = Net()
    index = n.x(BATCH, 2, dtype=i64, name="index")
    (node,) = n(n.gather(n.c(np.ones((7, 3))), index, axis=0)).nodes
    found = Images(BATCH).fewer(node, (None, FIRST), 3)
    assert found is not None
    assert found[1][0].shape == (3, 2, 3)
    assert found[1][0].dtype is f32


def test_expressions_that_cannot_be_written_out_are_refused() -> None:
    """Forty squares of squares: a few nodes, but 2^40 in their text."""

    def express(inputs, attrs):
        def element(i, j):
            value = inputs[0][i, j]
            for _ in range(attrs["times"]):
                value = value * value
            return value

        return [te.compute(inputs[0].shape, element)]

    squares = Operator("squares", FusionKind.INJECTIVE, lambda types, attrs: [types[0]], express, attrs={"times": ...})
    for times, found in ((10, (FIRST,)), (40, None)):
        n = Net()
        (node,) = n(*n.builder.add(squares, [n.x(BATCH, 3)], {"times": times})).nodes
        assert Images(BATCH)(node, (FIRST,)) == found
