"""Tensors of rank 0, of no elements, and of one: every family of operators takes them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlc
from tests.e2e.compiled import Arrays, assert_same, check, compiled, interpreted, load, network, reference

node = helper.make_node
F = np.float32


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(prod(shape)).standard_normal(shape).astype(F)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ELEMENTWISE = (
    "Abs", "Neg", "Exp", "Tanh", "Sigmoid", "Erf", "Relu", "Floor", "Sign", "Identity", "Softplus", "HardSwish",
    "Gelu", "Clip", "Add", "Mul", "Sub", "Div", "Max", "Min", "Less", "Equal", "Sum", "Mean", "PRelu", "Where",
    "Cast", "Not", "IsNaN",
)  # fmt: skip


def elementwise_nodes(ops: Sequence[str]) -> list[onnx.NodeProto]:
    """One node an operator, over ``x``, ``y`` and ``c``, results named after them."""
    two = {"Add", "Mul", "Sub", "Div", "Max", "Min", "Less", "Equal", "Sum", "Mean", "PRelu"}
    nodes = []
    for op in ops:
        operands = ["c", "x", "y"] if op == "Where" else ["c"] if op == "Not" else ["x", "y"] if op in two else ["x"]
        nodes.append(node(op, operands, [op], **({"to": TensorProto.INT64} if op == "Cast" else {})))
    return nodes


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (1, 0, 5), (1, 1, 1), (0, 0)], ids=str)
def test_elementwise(shape: tuple[int, ...]) -> None:
    feeds = {"x": normal(*shape), "y": np.asarray(normal(*shape) + F(3)), "c": np.asarray(normal(*shape) > 0)}
    check(network(elementwise_nodes(ELEMENTWISE), feeds, ELEMENTWISE), feeds)


@pytest.mark.parametrize(
    "left, right",
    [
        ((), (3,)),
        ((0,), ()),
        ((0,), (1,)),
        ((3, 0), (3, 1)),
        ((2, 1, 0), (4, 1)),
        ((1,), (5, 1)),
        ((1, 1), ()),
        ((1, 7, 1), (5, 1, 3)),
    ],
    ids=str,
)
def test_broadcast_of_few_or_no_elements(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    ops = ["Add", "Mul", "Less", "Max", "Where"]
    feeds = {"x": normal(*left), "y": normal(*right), "c": np.asarray(normal(*left) > 0)}
    check(network(elementwise_nodes(ops), feeds, ops), feeds)


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((), ()),
        ((1,), (0,)),
        ((1, 1, 1), (0, 2)),
        ((0,), (0,)),
        ((3, 0), (1,)),
        ((3, 0), (0,)),
        ((0, 4, 5), (1,)),
        ((2, 0, 5), (0, 1, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int) -> None:
    """A sum of nothing is 0, a product of nothing 1; a maximum of nothing is the least number there is."""
    x = normal(*shape)
    plain: dict[str, Any] = {"ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min}
    empty = {"ReduceMax": -np.inf, "ReduceMin": np.inf}
    want: dict[str, np.ndarray] = {}
    for op, fn in plain.items():
        extra = {"initial": empty[op]} if op in empty else {}
        want[op] = np.asarray(fn(x, axis=axes, keepdims=bool(keepdims), **extra), F)
    want["ReduceL1"] = np.asarray(np.abs(x).sum(axes, keepdims=bool(keepdims)), F)
    want["ReduceSumSquare"] = np.asarray((x * x).sum(axes, keepdims=bool(keepdims)), F)
    # without axes every one is reduced, unless told otherwise
    nodes = [node(op, ["x", "axes"], [op], keepdims=keepdims, noop_with_empty_axes=1) for op in want]
    if not axes:
        want |= {"ReduceL1": np.abs(x), "ReduceSumSquare": x * x}
    check(network(nodes, {"x": x}, list(want), {"axes": ints(*axes)}), {"x": x}, want)


def test_mean_of_nothing_is_nan() -> None:
    x = normal(3, 0)
    nodes = [node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)]
    want = {"y": np.full(3, np.nan, F)}
    check(network(nodes, {"x": x}, ["y"], {"axes": ints(1)}), {"x": x}, want)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0, 5), (3, 1), (1, 5, 1), (2, 0, 3)], ids=str)
def test_softmax_norms_and_positions(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    scale = normal(shape[-1])
    nodes = [
        node("Softmax", ["x"], ["soft"], axis=-1),
        node("LogSoftmax", ["x"], ["logsoft"], axis=-1),
        node("LayerNormalization", ["x", "scale", "scale"], ["norm"], axis=-1),
        node("CumSum", ["x", "axis"], ["cumulated"]),
        node("LpNormalization", ["x"], ["unit"], axis=-1),
    ]
    outputs = ["soft", "logsoft", "norm", "cumulated", "unit"]
    if x.size:
        nodes += [
            node("ArgMax", ["x"], ["position"], axis=-1),
            node("TopK", ["x", "k"], ["top", "places"], axis=-1),
            node("Hardmax", ["x"], ["hard"], axis=-1),
        ]
        outputs += ["position", "top", "places", "hard"]
    if shape[-1] == 1:
        # a norm of one number is its sign, and onnxruntime agrees only away from rounding
        nodes, outputs = [n for n in nodes if n.op_type != "LpNormalization"], [o for o in outputs if o != "unit"]
    model = network(nodes, {"x": x}, outputs, {"scale": scale, "axis": np.array(-1, np.int64), "k": ints(1)})
    check(model, {"x": x})


SHAPE_CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "rank 0 into shapes": (
        [
            node("Reshape", ["x", "one"], ["reshape"]),
            node("Unsqueeze", ["x", "axis"], ["unsqueeze"]),
            node("Expand", ["x", "two"], ["expand"]),
            node("Flatten", ["x"], ["flatten"], axis=0),
            node("Transpose", ["x"], ["transpose"]),
            node("Identity", ["x"], ["identity"]),
        ],
        {"x": normal()},
        {"one": ints(1, 1), "axis": ints(0), "two": ints(2, 3)},
    ),
    "shapes into rank 0": (
        [
            node("Reshape", ["x", "none"], ["reshape"]),
            node("Squeeze", ["x"], ["squeeze"]),
            node("Gather", ["v", "place"], ["gather"]),
            node("ReduceSum", ["v"], ["sum"], keepdims=0),
            node("ArgMax", ["v"], ["argmax"], axis=0, keepdims=0),
        ],
        {"x": normal(1, 1), "v": normal(7)},
        {"none": np.zeros(0, np.int64), "place": np.array(-2, np.int64)},
    ),
    "no elements": (
        [
            node("Reshape", ["x", "shape"], ["reshape"], allowzero=1),
            node("Transpose", ["x"], ["transpose"], perm=[2, 0, 1]),
            node("Concat", ["x", "full"], ["concat"], axis=1),
            node("Concat", ["x", "x"], ["both"], axis=0),
            node("Slice", ["full", "zero", "zero", "axis1"], ["slice"]),
            node("Split", ["full", "sizes"], ["first", "second"], axis=1),
            node("Expand", ["thin", "wide"], ["expand"]),
            node("Tile", ["full", "none"], ["tile"]),
            node("Gather", ["full", "nobody"], ["gather"], axis=1),
            node("Squeeze", ["x", "axis0"], ["squeeze"]),
            node("Pad", ["x", "pads"], ["pad"]),
            node("Where", ["c", "x", "x"], ["where"]),
        ],
        {"x": normal(1, 0, 4), "full": normal(1, 3, 4), "thin": normal(1, 1, 4), "c": np.zeros((1, 0, 1), bool)},
        {
            "shape": ints(4, 0),
            "zero": ints(0),
            "axis0": ints(0),
            "axis1": ints(1),
            "sizes": ints(0, 3),
            "wide": ints(2, 0, 4),
            "none": ints(1, 0, 1),
            "nobody": np.zeros((2, 0), np.int64),
            "pads": ints(0, 1, 0, 0, 2, 0),
        },
    ),
    "one of everything": (
        [
            node("Concat", ["x"], ["concat"], axis=0),
            node("Split", ["x", "all"], ["split"], axis=1),
            node("Tile", ["x", "once"], ["tile"]),
            node("Slice", ["x", "zero", "three", "axis1"], ["slice"]),
            node("Pad", ["x", "nothing"], ["pad"]),
            node("Transpose", ["x"], ["transpose"], perm=[0, 1]),
            node("Expand", ["x", "same"], ["expand"]),
            node("Sum", ["x"], ["sum"]),
            node("Max", ["x"], ["max"]),
            node("Mean", ["x"], ["mean"]),
        ],
        {"x": normal(2, 3)},
        {
            "all": ints(3),
            "once": ints(1, 1),
            "zero": ints(0),
            "three": ints(3),
            "axis1": ints(1),
            "nothing": ints(0, 0, 0, 0),
            "same": ints(1, 3),
        },
    ),
    "mixed pads": (
        [
            node("Pad", ["x", "pads", "value"], ["constant"]),
            node("Pad", ["x", "crop"], ["cropped"]),
            node("Pad", ["x", "pads"], ["edge"], mode="edge"),
            node("Pad", ["x", "mirror"], ["reflect"], mode="reflect"),
            node("Pad", ["x", "mirror"], ["wrap"], mode="wrap"),
        ],
        {"x": normal(5, 6)},
        {
            "pads": ints(2, -1, -2, 3),
            "value": np.array(1.5, F),
            "crop": ints(-1, -2, -1, 0),
            "mirror": ints(2, 0, 1, 3),
        },
    ),
    "slices backwards": (
        [
            node("Slice", ["x", "last", "before", "axis0", "back"], ["reversed"]),
            node("Slice", ["x", "far", "least", "axis1", "back2"], ["skipping"]),
            node("Slice", ["x", "minus3", "far", "axis1"], ["tail"]),
            node("Slice", ["x", "far", "far", "axis0"], ["nothing"]),
        ],
        {"x": normal(5, 7)},
        {
            "last": ints(-1),
            "before": ints(-6),
            "axis0": ints(0),
            "axis1": ints(1),
            "back": ints(-1),
            "back2": ints(-2),
            "far": ints(2**31 - 1),
            "least": ints(-(2**63)),
            "minus3": ints(-3),
        },
    ),
}


def outputs_of(nodes: list[onnx.NodeProto]) -> list[str]:
    return [o for n in nodes for o in n.output]


@pytest.mark.parametrize("case", SHAPE_CASES)
def test_shape_operators(case: str) -> None:
    nodes, feeds, stored = SHAPE_CASES[case]
    if case == "mixed pads":
        want = mixed_pads(feeds["x"])
        check(network(nodes, feeds, outputs_of(nodes), stored), feeds, want)
    else:
        check(network(nodes, feeds, outputs_of(nodes), stored), feeds)


def mixed_pads(x: np.ndarray) -> dict[str, np.ndarray]:
    """What onnxruntime gets wrong in some modes: negative pads crop first."""
    return {
        "constant": np.pad(x[:3, 1:], ((2, 0), (0, 3)), constant_values=1.5),
        "cropped": x[1:4, 2:],
        "edge": np.pad(x[:3, 1:], ((2, 0), (0, 3)), mode="edge"),
        "reflect": np.pad(x, ((2, 1), (0, 3)), mode="reflect"),
        "wrap": np.pad(x, ((2, 1), (0, 3)), mode="wrap"),
    }


@pytest.mark.sweep(9)
@pytest.mark.parametrize(
    "left, right",
    [
        ((1, 1), (1, 1)), ((0, 3), (3, 4)), ((2, 0), (0, 3)), ((3,), (3,)), ((1,), (1, 5)), ((0, 2, 3), (3, 4)),
        ((2, 3), (0, 3, 4)), ((5, 1), (1, 5)), ((1, 17), (17, 1)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (3, 4, 2)),
        ((3, 2, 4), (4,)), ((2, 3, 0), (2, 0, 1)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("constant", [False, True])
def test_products(left: tuple[int, ...], right: tuple[int, ...], constant: bool) -> None:
    """Vectors, nothing to sum (zeros), nothing to give; the right operand given or stored."""
    x, y = normal(*left), normal(*right)
    feeds, stored = ({"x": x}, {"y": y}) if constant else ({"x": x, "y": y}, {})
    model = network([node("MatMul", ["x", "y"], ["z"])], feeds, ["z"], stored)
    check(model, feeds, {"z": np.asarray(np.matmul(x, y))})


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (7, 13, 5), (25, 40, 9), (24, 16, 32)])
@pytest.mark.parametrize("batch, repeats", [((64,), False), ((3, 32), False), ((2, 32), True)])
def test_products_of_many_matrices_with_transposed_ones(
    batch: tuple[int, ...], repeats: bool, m: int, n: int, k: int
) -> None:
    """Each matrix transposed by itself, or one for all."""
    x, y = normal(*batch, m, k), normal(*(() if repeats else batch), n, k)
    turn = [*range(y.ndim - 2), y.ndim - 1, y.ndim - 2]
    nodes = [node("Transpose", ["y"], ["t"], perm=turn), node("MatMul", ["x", "t"], ["z"])]
    feeds = {"x": x, "y": y}
    check(network(nodes, feeds, ["z"]), feeds, {"z": np.asarray(np.matmul(x, y.swapaxes(-1, -2)))})


@pytest.mark.parametrize("batch, channels, extent", [(0, 3, 5), (1, 1, 1), (2, 1, 1), (1, 17, 1)])
def test_windows(batch: int, channels: int, extent: int) -> None:
    """Images of one pixel, and batches of none."""
    x = normal(batch, channels, extent, extent)
    nodes = [
        node("Conv", ["x", "w"], ["conv"], pads=[1, 1, 1, 1]),
        node("Conv", ["x", "point"], ["pointwise"]),
        node("Conv", ["x", "depth"], ["depthwise"], pads=[1, 1, 1, 1], group=channels),
        node("MaxPool", ["x"], ["max"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("AveragePool", ["x"], ["mean"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["x"], ["global"]),
        node("ConvTranspose", ["x", "turned"], ["transposed"], strides=[2, 2]),
        node("BatchNormalization", ["x", "s", "s", "s", "v"], ["normal"]),
        node("Resize", ["x", "", "scales"], ["resized"], mode="nearest"),
    ]
    stored = {
        "w": normal(16, channels, 3, 3),
        "point": normal(9, channels, 1, 1),
        "depth": normal(channels, 1, 3, 3),
        "turned": normal(channels, 8, 3, 3),
        "s": normal(channels),
        "v": np.abs(normal(channels)) + F(1),
        "scales": np.array([1, 1, 2, 2], F),
    }
    model = network(nodes, {"x": x}, outputs_of(nodes), stored)
    if batch:
        check(model, {"x": x})
        return
    # onnxruntime refuses some of them without a batch: shapes and nothing else are at stake
    one = reference(
        network(nodes, {"x": normal(1, channels, extent, extent)}, outputs_of(nodes), stored),
        {"x": normal(1, channels, extent, extent)},
    )
    check(model, {"x": x}, {name: a[:0] for name, a in one.items()})


def test_lookups_of_nothing_and_one() -> None:
    nodes = [
        node("Gather", ["x", "i0"], ["gather0"], axis=1),
        node("GatherElements", ["x", "i2"], ["elements"], axis=1),
        node("GatherND", ["x", "nd"], ["nd_"]),
        node("ScatterElements", ["x", "i2", "u2"], ["scattered"], axis=1),
        node("ScatterND", ["x", "nd", "u1"], ["scattered_nd"]),
        node("OneHot", ["i2", "depth", "values"], ["hot"]),
        node("Trilu", ["x"], ["upper"]),
    ]
    feeds = {
        "x": normal(1, 4),
        "i0": np.array(-1, np.int64),
        "i2": ints(2).reshape(1, 1),
        "u2": normal(1, 1),
        "u1": normal(1),
    }
    stored = {"nd": ints(0, 3).reshape(1, 2), "depth": np.array(3, np.int64), "values": np.array([0, 5], F)}
    check(network(nodes, feeds, outputs_of(nodes), stored), feeds)
    empty: Arrays = {
        "x": normal(3, 4),
        "i": np.zeros((0,), np.int64),
        "j": np.zeros((0, 2), np.int64),
        "u": np.zeros((0,), F),
    }
    nodes = [
        node("Gather", ["x", "i"], ["rows"], axis=0),
        node("GatherND", ["x", "j"], ["points"]),
        node("ScatterND", ["x", "j", "u"], ["same"]),
    ]
    want = {"rows": np.zeros((0, 4), F), "points": np.zeros(0, F), "same": empty["x"]}
    check(network(nodes, empty, list(want)), empty, want)


@pytest.mark.parametrize("axis", range(-4, 4))
def test_every_axis_counts_from_either_end(axis: int) -> None:
    x = normal(2, 3, 5, 4)
    last = np.array(axis, np.int64)
    nodes = [
        node("Softmax", ["x"], ["softmax"], axis=axis),
        node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
        node("ArgMin", ["x"], ["argmin"], axis=axis),
        node("CumSum", ["x", "axis"], ["cumsum"], reverse=1),
        node("Concat", ["x", "x"], ["concat"], axis=axis),
        node("Split", ["x", "sizes"], ["one", "rest"], axis=axis),
        node("Gather", ["x", "i"], ["gather"], axis=axis),
        node("TopK", ["x", "k"], ["top", "places"], axis=axis),
        node("LayerNormalization", ["x", "w"], ["layer"], axis=axis),
        node("Unsqueeze", ["x", "axes"], ["unsqueeze"]),
        node("Flatten", ["x"], ["flat"], axis=axis),
    ]
    stored = {
        "axes": last.reshape(1),
        "axis": last,
        "sizes": ints(1, x.shape[axis] - 1),
        "i": ints(1, 0),
        "k": ints(2),
        "w": normal(*x.shape[axis:]),
    }
    check(network(nodes, {"x": x}, outputs_of(nodes), stored), {"x": x})


def test_recurrent_layer_of_one() -> None:
    """One step, one sequence, one number, one cell."""
    x = normal(1, 1, 1)
    nodes = [node("LSTM", ["x", "w", "r"], ["all", "last", "cell"], hidden_size=1)]
    model = network(nodes, {"x": x}, ["all", "last", "cell"], {"w": normal(1, 4, 1), "r": normal(1, 4, 1)})
    check(model, {"x": x})


def test_many_dimensions() -> None:
    """Rank 8, most of its extents one."""
    x = normal(1, 2, 1, 3, 1, 2, 1, 2)
    nodes = [
        node("Transpose", ["x"], ["turned"], perm=[7, 6, 5, 4, 3, 2, 1, 0]),
        node("ReduceMax", ["x", "axes"], ["max"]),
        node("Add", ["turned", "x"], ["sum"]),
    ]
    model = network(nodes, {"x": x}, ["turned", "max", "sum"], {"axes": ints(1, -1)})
    want = {"turned": x.T, "max": x.max((1, 7), keepdims=True), "sum": x.T + x}
    assert_same(compiled(model, {"x": x}), {k: np.ascontiguousarray(v) for k, v in want.items()})


@pytest.mark.parametrize("extent", [65_537, 70_000])
def test_positions_beyond_32_bits(extent: int) -> None:
    """Five billion elements that are never stored: a vector repeated, flattened, and read near the end.

    A vector for each reader, since what has several readers is stored.
    """
    total = extent * extent
    places = [total - 5, total - 1, 2**31 - 1, 2**31, 2**32 + 1, 0]
    readers = {
        "tail": (["Slice", "start", "end"], np.arange(total - 7, total)),
        "some": (["Gather", "places"], np.array(places)),
        "reversed": (["Slice", "last", "far", "axis", "back"], np.arange(total - 1, total - 4, -1)),
    }
    stored = {
        "square": ints(extent, extent),
        "flat": ints(-1),
        "start": ints(total - 7),
        "end": ints(total),
        "places": ints(*places),
        "last": ints(-1),
        "far": ints(total - 4),
        "axis": ints(0),
        "back": ints(-1),
    }
    nodes, feeds, want = [], {}, {}
    for k, (name, ((op, *operands), positions)) in enumerate(readers.items()):
        x = feeds[f"x {name}"] = (np.arange(extent) * (k + 1)).astype(np.uint8)
        nodes += [
            node("Expand", [f"x {name}", "square"], [f"many {name}"]),
            node("Reshape", [f"many {name}", "flat"], [f"long {name}"]),
            node(op, [f"long {name}", *operands], [name]),
        ]
        want[name] = x[positions % extent]
    with mlc.compile(load(network(nodes, feeds, list(want), stored)), verify_passes=True).load(1) as module:
        assert module.manifest.memory.workspace_bytes < 1 << 20
        got = module.run(feeds)
    assert_same(got, want)


def test_joined_steps_read_by_a_ragged_window() -> None:
    """Guards over one index decide one another: what remains never reads past an operand."""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((3, 3, 8)).astype(np.float32)}
    stored = {
        "w": rng.standard_normal((1, 16, 8)).astype(np.float32),
        "r": rng.standard_normal((1, 16, 16)).astype(np.float32),
    }
    window = {"kernel_shape": [5, 2], "pads": [2, 1, 0, 0], "strides": [2, 1], "ceil_mode": 1}
    nodes = [
        helper.make_node("RNN", ["x", "w", "r"], ["t", "last"], direction="forward", hidden_size=16),
        helper.make_node("LpPool", ["t"], ["y"], p=2, **window),
    ]
    model = network(nodes, feeds, ["y"], stored)
    assert_same(compiled(model, feeds), interpreted(model, feeds), tolerance=1e-5)
