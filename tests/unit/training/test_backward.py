"""Gradients of graphs: of every operator against differences in float64, of networks against PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from mlc.errors import UnsupportedError
from mlc.ir import te
from mlc.ir.graph import Builder, FusionKind, Graph, Value, express, verify
from mlc.ir.interp.graph import run_graph
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import TensorType, f32, f64, i64
from mlc.ops import get
from mlc.ops.registry import operators
from mlc.training.autodiff.expression import gradients
from mlc.training.backward import add_gradients
from tests.unit.training.operands import operands_of

STEP = 1e-6
WINDOW = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}
POOL = {"kernel": (3, 2), **WINDOW}
IMAGE = (2, 4, 7, 6)

# name -> shapes of operands, attributes; an operand that is an array is no variable
CASES: dict[str, tuple[Sequence[Any], Mapping[str, Any]]] = {
    **{
        name: ([(3, 5)], {})
        for name in [
            "abs",
            "acos",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "celu",
            "clip",
            "cos",
            "cosh",
            "elu",
            "erf",
            "exp",
            "gelu",
            "hard_sigmoid",
            "hard_swish",
            "identity",
            "leaky_relu",
            "log",
            "mish",
            "neg",
            "reciprocal",
            "relu",
            "rsqrt",
            "selu",
            "shrink",
            "sigmoid",
            "sin",
            "sinh",
            "softplus",
            "softsign",
            "sqrt",
            "swish",
            "tan",
            "tanh",
            "thresholded_relu",
            "softmax",
            "log_softmax",
        ]
    },
    **{name: ([(3, 1, 5), (4, 5)], {}) for name in ["add", "sub", "mul", "div", "pow", "max", "min", "fmod", "mod"]},
    **{f"reduce_{name}": ([(3, 4, 2)], {"axes": (0, 2)}) for name in ["sum", "mean", "max", "min", "prod"]},
    "avg_pool": ([IMAGE], POOL),
    "batch_norm": ([IMAGE, (4,), (4,), (4,), (4,)], {}),
    "broadcast_to": ([(3, 1)], {"shape": (2, 3, 4)}),
    "channel_shuffle": ([(2, 6, 2, 2)], {"groups": 3}),
    "concat": ([(2, 3), (2, 1)], {"axis": 1}),
    "conv": ([(2, 4, 7, 6), (6, 2, 3, 2)], {**WINDOW, "groups": 2}),
    "conv_transpose": ([(2, 4, 3, 4), (4, 3, 3, 2)], {**WINDOW, "groups": 2}),
    "einsum": ([(2, 3, 4), (2, 4, 5)], {"equation": "bij,bjk->bik"}),
    "cast": ([(3, 4)], {"to": f64}),
    "grid_sample": ([(1, 2, 4, 5), (1, 3, 2, 2)], {}),
    "gather": ([(5, 3), np.array([4, 1, 4])], {}),
    "gather_elements": ([(3, 2), np.array([[0, 2], [1, 1]])], {}),
    "gather_nd": ([(3, 2), np.array([[0, 1], [2, 0], [0, 1]])], {}),
    "group_norm": ([(2, 4, 3, 2), (4,), (4,)], {"groups": 2}),
    "instance_norm": ([(2, 4, 3, 2), (4,), (4,)], {}),
    "layer_norm": ([(3, 5), (5,), (5,)], {}),
    "lp_pool": ([IMAGE], POOL),
    "lrn": ([(2, 5, 2, 3)], {"size": 3}),
    "matmul": ([(2, 3, 4), (4, 5)], {}),
    "max_pool": ([IMAGE], POOL),
    "pad": ([(3, 4)], {"pads": (1, 2, 0, 1), "mode": "reflect"}),
    "prelu": ([(3, 4), (4,)], {}),
    "reshape": ([(3, 4)], {"shape": (2, 6)}),
    "resize_nearest": ([(1, 2, 3, 4)], {"shape": (1, 2, 6, 8)}),
    "rms_norm": ([(3, 5), (5,)], {}),
    "slice": ([(5, 6)], {"begin": (4, 1), "end": (0, 6), "step": (-2, 3)}),
    "tile": ([(2, 3)], {"repeats": (2, 3)}),
    "transpose": ([(2, 3, 4)], {"perm": (2, 0, 1)}),
    "trilu": ([(4, 4)], {}),
    "where": ([np.array([[True, False, True]]), (2, 3), (2, 1)], {}),
    "acosh": ([(3, 5)], {}),
}
# results are integers, truth values, steps, random numbers, or words of bits
CONSTANT = {
    "and",
    "argmax",
    "argmin",
    "bitwise_not",
    "ceil",
    "conv_bits",
    "eq",
    "fixed_scale",
    "floor",
    "ge",
    "gt",
    "isinf",
    "isnan",
    "le",
    "lt",
    "matmul_bits",
    "matmul_nibbles",
    "ne",
    "nearest",
    "not",
    "one_hot",
    "or",
    "pack_bits",
    "quantize",
    "reduce_all",
    "reduce_any",
    "round",
    "round_shift",
    "shl",
    "shr",
    "sign",
    "trunc",
    "uniform",
    "xor",
}
# made by passes, of what has a case above, or of weights that no training keeps
INTERNAL = {
    "attention",
    "conv_half",
    "conv_wide",
    "conv_winograd",
    "dequantize",
    "matmul_half",
    "matmul_wide",
    "max_pool_with_indices",
    "resample",
}


def built(name: str) -> tuple[Graph, list[Value], dict[str, np.ndarray]]:
    """A graph of an operator's results and its gradients, what is differentiated by, and feeds."""
    shapes, attrs = CASES[name]
    rng = np.random.default_rng(7)
    g = Builder(name)
    low, high = (1.1, 2.0) if name == "acosh" else (0.1, 0.9)
    operands, variables, feeds = operands_of(g, shapes, lambda shape: rng.uniform(low, high, shape))
    results = g.add(get(name), operands, attrs)
    seeds = [g.input(f"d{k}", v.type) for k, v in enumerate(results)]
    feeds |= {v.name: rng.standard_normal(v.type.shape) for v in seeds}
    found = add_gradients(g, list(zip(results, seeds, strict=True)), variables)
    assert all(v is not None for v in found)
    graph = g.finish([*results, *(v for v in found if v is not None)])
    verify(graph)
    return graph, variables, feeds


@pytest.mark.parametrize("name", sorted(CASES))
def test_operators(name: str) -> None:
    graph, variables, feeds = built(name)
    n = len(graph.outputs) - len(variables)
    rng = np.random.default_rng(1)
    got = list(run_graph(graph, feeds).values())[n:]
    for v, gradient in zip(variables, got, strict=True):
        along = rng.standard_normal(v.type.shape)

        def total(step: float, v: Value = v, along: np.ndarray = along) -> float:
            results = list(run_graph(graph, feeds | {v.name: feeds[v.name] + step * along}).values())[:n]
            return sum(float((feeds[f"d{k}"] * a).sum()) for k, a in enumerate(results))

        want = (total(STEP) - total(-STEP)) / (2 * STEP)
        size = float(np.abs(gradient * along).sum())
        assert float((gradient * along).sum()) == pytest.approx(want, rel=1e-5, abs=1e-6 * (1 + size)), v.name


def test_no_operator_is_forgotten() -> None:
    routines = {op.name for op in operators() if op.express is None}
    assert {op.name for op in operators()} == set(CASES) | CONSTANT | INTERNAL | routines


def test_routines_are_refused_by_name() -> None:
    g = Builder()
    x = g.input("x", TensorType((4,), f64))
    (y,) = g.add(get("cumprod"), [x], {"axis": 0}, sources=["running total"])
    with pytest.raises(UnsupportedError, match=r"cumprod \(running total\) has no gradient: it is a routine"):
        add_gradients(g, [(y, g.input("dy", y.type))], [x])


def test_values_that_several_read_receive_from_all() -> None:
    g = Builder()
    x = g.input("x", TensorType((3,), f64))
    (a,) = g.add(get("exp"), [x])
    (b,) = g.add(get("mul"), [a, x])
    (y,) = g.add(get("add"), [b, a])
    (dx,) = add_gradients(g, [(y, g.input("dy", y.type))], [x])
    assert dx is not None
    x_, dy = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    (got,) = run_graph(g.finish([dx]), {"x": x_, "dy": dy}).values()
    np.testing.assert_allclose(got, dy * np.exp(x_) * (x_ + 2), rtol=1e-12)


def test_what_nothing_depends_on_receives_nothing() -> None:
    g = Builder()
    x, k = g.input("x", TensorType((3,), f64)), g.input("k", TensorType((3,), i64))
    (y,) = g.add(get("exp"), [x])
    assert add_gradients(g, [(y, g.input("dy", y.type))], [k]) == [None]


def test_a_network_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shapes = {
        "x": (4, 3, 12, 12),
        "w": (8, 3, 3, 3),
        "b": (1, 8, 1, 1),
        "v": (8, 8, 3, 3),
        "u": (72, 10),
        "dy": (4, 10),
    }
    feeds = {name: rng.standard_normal(shape) * 0.3 for name, shape in shapes.items()}
    g = Builder()
    v = {name: g.input(name, TensorType(shape, f64)) for name, shape in shapes.items()}

    def add(name: str, *operands: Value, **attrs: Any) -> Value:
        return g.add(get(name), operands, attrs)[0]

    y = add("conv", v["x"], v["w"], strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    y = add("relu", add("add", y, v["b"]))
    y = add("max_pool", y, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    y = add("sigmoid", add("conv", y, v["v"], strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1)))
    y = add("log_softmax", add("matmul", add("reshape", y, shape=(4, 72)), v["u"]))
    wanted = [v[name] for name in "xwbvu"]
    found = add_gradients(g, [(y, v["dy"])], wanted)
    got = run_graph(g.finish([d for d in found if d is not None]), feeds).values()

    t = {name: torch.tensor(a, requires_grad=True) for name, a in feeds.items()}
    f = torch.nn.functional
    z = f.max_pool2d((f.conv2d(t["x"], t["w"], padding=1) + t["b"]).relu(), 2)
    z = f.conv2d(z, t["v"], stride=2, padding=1).sigmoid()
    f.log_softmax(z.reshape(4, 72) @ t["u"], -1).backward(t["dy"].detach())
    for name, a in zip("xwbvu", got, strict=True):
        np.testing.assert_allclose(a, t[name].grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("data", "weights", "attrs"),
    [
        ((2, 3, 7, 6), (4, 3, 3, 2), {"strides": (1, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1)}),
        (
            (2, 3, 8, 9),
            (4, 3, 3, 3),
            {"strides": (2, 3), "pads": (1, 1, 0, 2), "dilations": (1, 2)},
        ),  # taps are left over
        ((3, 5, 4, 4), (2, 5, 1, 1), {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}),
        ((3, 5, 4, 4), (2, 5, 1, 1), {"strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}),
        ((2, 3, 9), (4, 3, 5), {"strides": (2,), "pads": (2, 1), "dilations": (1,)}),
        ((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), {"strides": (1, 2, 1), "pads": (0, 1, 0, 1, 1, 0), "dilations": (1, 1, 1)}),
        ((2, 4, 7, 6), (4, 1, 3, 2), {"strides": (1, 1), "pads": (1, 0, 1, 1), "dilations": (2, 1), "groups": 4}),
        ((2, 4, 7, 6), (4, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 4}),
        ((2, 4, 5, 5), (8, 1, 3, 3), {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 4}),
        ((2, 6, 5, 5), (4, 3, 3, 1), {"strides": (1, 1), "pads": (1, 0, 1, 0), "dilations": (1, 1), "groups": 2}),
        ((2, 4, 5, 5), (6, 2, 2, 2), {"strides": (1, 2), "pads": (3, 1, 1, 0), "dilations": (1, 1), "groups": 2}),
        ((2, 4, 5, 5), (6, 2, 1, 1), {"strides": (1, 1), "pads": (1, 1, 0, 0), "dilations": (1, 1), "groups": 2}),
    ],
)
def test_gradients_of_convolutions_are_convolutions(
    data: tuple[int, ...], weights: tuple[int, ...], attrs: Mapping[str, Any]
) -> None:
    g = Builder()
    x, w = g.input("x", TensorType(data, f64)), g.input("w", TensorType(weights, f64))
    (y,) = g.add(get("conv"), [x, w], attrs)
    dy = g.input("dy", y.type)
    found = [d for d in add_gradients(g, [(y, dy)], [x, w]) if d is not None]
    graph = g.finish(found)
    sums = [n.op.name for n in graph.nodes if n.op.kind is FusionKind.COMPLEX]
    assert sums in (["conv", "conv_transpose", "dw"], ["conv", "conv", "dw"])
    operands = [te.placeholder(v.type.shape, f64, v.name) for v in (x, w, dy)]
    (result,) = express(graph.nodes[0], operands[:2])
    derived = gradients([result], operands[2:], operands[:2])
    rng = np.random.default_rng(0)
    feeds = {t: rng.standard_normal(t.shape) for t in operands}
    want = run_tensors([t for t in derived if t is not None], feeds)
    got = run_graph(graph, {t.name: a for t, a in feeds.items()}).values()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_rectifiers_keep_their_results_and_not_what_they_are_of() -> None:
    """Of a norm and a rectifier before a product, the norm's result then needs no memory."""
    g = Builder("net")
    x = g.input("x", TensorType((3, 4), f32))
    (n,) = g.add(get("tanh"), [x])
    (y,) = g.add(get("relu"), [n])
    before = len(g.nodes)
    seed = g.input("dy", TensorType((3, 4), f32))
    (dx,) = add_gradients(g, [(y, seed)], [n])
    assert dx is not None
    assert all(n not in node.inputs for node in g.nodes[before:])
    graph = g.finish([y, dx], ["y", "dx"])
    feeds = {"x": np.array([[-1, 0, 2, np.nan]] * 3, np.float32), "dy": np.full((3, 4), 5, np.float32)}
    found = run_graph(graph, feeds)
    np.testing.assert_array_equal(found["dx"], [[0, 0, 5, 0]] * 3)
