"""Operators by expression: against numpy and PyTorch, and each of their refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlc
from mlc import te
from mlc.define.network import Network, Tensor
from mlc.define.operator import OwnOperator
from mlc.errors import UsageError
from mlc.ir.graph import FusionKind
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import f32
from mlc.training.backward import add_gradients


@mlc.operator
def capsule_conv(x: Any, w: Any, *, stride: int = 1) -> Any:
    n, c, h, wide, i, k = x.shape
    o, _, r, s, _, j = w.shape
    axes = rc, rr, rs, rk = [te.reduce_axis(e, name) for e, name in zip((c, r, s, k), "crsk", strict=True)]
    shape = (n, o, (h - r) // stride + 1, (wide - s) // stride + 1, i, j)

    def element(b: Any, v: Any, p: Any, q: Any, a: Any, d: Any) -> Any:
        return te.sum(x[b, rc, p * stride + rr, q * stride + rs, a, rk] * w[v, rc, rr, rs, rk, d], axes)

    return te.compute(shape, element, "capsules")


@mlc.operator
def squashed(x: Any) -> Any:
    *outer, inner = x.shape
    r = te.reduce_axis(inner, "r")
    square = te.compute(outer, lambda *at: te.sum(x[(*at, r)] * x[(*at, r)], r), "square")
    return te.compute(
        x.shape, lambda *at: x[at] * te.sqrt(square[at[:-1]] + 1e-7) / (1.0 + square[at[:-1]]), "squashed"
    )


@mlc.operator
def split(x: Any) -> Any:
    half = x.shape[0] // 2
    return (
        te.compute((half,), lambda i: x[2 * i], "even"),
        te.compute((half,), lambda i: te.where(te.inside(i + 1, 0, half), x[2 * i + 3], 0.0), "odd"),
    )


def test_what_has_no_name_is_called_like_the_operator() -> None:
    @mlc.operator
    def doubled(x: Any) -> Any:
        return te.compute(x.shape, lambda i: 2.0 * x[i])

    net = mlc.graph("net")
    net.output("y", doubled(net.input("x", (3,))))
    assert [n.op.name for n in mlc.load(net).graph.nodes] == ["doubled"]


def test_a_network_of_own_operators_computes_what_they_say() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 7, 6, 4, 5), (4, 3, 3, 2, 5, 3)))
    net = mlc.graph("capsules")
    y = squashed(capsule_conv(net.input("x", x.shape), net.parameter("w", w), stride=2))
    assert isinstance(y, Tensor)
    net.output("y", y * 2.0 - 1.0)
    model = mlc.load(net)
    expected = np.zeros((2, 4, 3, 3, 4, 3))
    for p in range(3):
        for q in range(3):
            window = x[:, :, 2 * p : 2 * p + 3, 2 * q : 2 * q + 2].astype(np.float64)
            expected[:, :, p, q] = np.einsum("bcrsik,ocrskj->boij", window, w)
    square = (expected**2).sum(-1, keepdims=True)
    expected = expected * np.sqrt(square + 1e-7) / (1 + square) * 2 - 1
    with mlc.compile(model).load(1) as module:
        np.testing.assert_allclose(module.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)
    assert [n.op.kind for n in model.graph.nodes[:2]] == [FusionKind.COMPLEX, FusionKind.REDUCTION]


def test_gradients_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s) for s in ((2, 3, 7, 6, 4, 5), (4, 3, 3, 2, 5, 3)))
    net = Network("capsules")
    a, b = net.input("x", x.shape, "f64"), net.input("w", w.shape, "f64")
    y = squashed(capsule_conv(a, b, stride=2))
    seed = net.input("dy", y.shape, "f64")
    found = add_gradients(net.builder, [(y.value, seed.value)], [a.value, b.value])
    graph = net.builder.finish([v for v in found if v is not None], ["dx", "dw"])
    dy = rng.standard_normal(y.shape)
    ours = run_graph(graph, {"x": x, "w": w, "dy": dy})
    tx, tw = (torch.tensor(t, requires_grad=True) for t in (x, w))
    windows = tx.unfold(2, 3, 2).unfold(3, 2, 2)  # [b, c, p, q, i, k, r, s]
    v = torch.einsum("bcpqikrs,vcrskj->bvpqij", windows, tw)
    square = (v**2).sum(-1, keepdim=True)
    (v * torch.sqrt(square + 1e-7) / (1 + square)).backward(torch.tensor(dy))
    np.testing.assert_allclose(ours["dx"], tx.grad.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours["dw"], tw.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_several_results_and_operators_of_operators() -> None:
    @mlc.operator
    def both(x: Any) -> Any:
        even, odd = split(x)
        return te.compute(even.shape, lambda i: even[i] + odd[i], "sum")

    net = Network("both")
    x = net.input("x", (6,))
    parts = split(x)
    net.output("even", parts[0])
    net.output("odd", parts[1])
    net.output("sum", both(x))
    found = run_graph(net.graph(), {"x": np.arange(6, dtype=np.float32)})
    assert [found[n].tolist() for n in ("even", "odd", "sum")] == [[0, 2, 4], [3, 5, 0], [3, 7, 4]]


LOG_SUM = te.combiner(lambda a, b: te.maximum(a, b) + te.log(1.0 + te.exp(-te.abs(a - b))), -1e30, "log_sum")
TIMES = te.combiner(lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]), (1.0, 0.0), "times")


@mlc.operator
def log_sums(x: Any, w: Any) -> Any:
    k = te.reduce_axis(x.shape[1], "k")
    return te.compute((x.shape[0], w.shape[1]), lambda i, j: LOG_SUM(x[i, k] * w[k, j], k), "log_sums")


@mlc.operator
def turned(x: Any) -> Any:
    k = te.reduce_axis(x.shape[1], "k")
    return te.compute_many(x.shape[::2], lambda i, j: TIMES((x[i, k, j], 0.5 * x[i, k, j] + 0.1), k), "turned")


@pytest.mark.parametrize("columns", [1, 5, 19])
def test_folds_of_ones_own_are_compiled_and_differentiated(columns: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x, w, dy = (rng.standard_normal(s) for s in ((3, 11), (11, columns), (3, columns)))
    net = Network("log_sums")
    a, b, seed = (net.input(n, t.shape) for n, t in (("x", x), ("w", w), ("dy", dy)))
    y = log_sums(a, b)
    found = add_gradients(net.builder, [(y.value, seed.value)], [a.value, b.value])
    net.output("y", y)
    for name, v in zip(("dx", "dw"), found, strict=True):
        assert v is not None
        net.output(name, Tensor(net, v))
    feeds = {n: t.astype(np.float32) for n, t in (("x", x), ("w", w), ("dy", dy))}
    with mlc.compile(mlc.load(net)).load(1) as module:
        ours = module.run(feeds)
    tx, tw = (torch.tensor(t, requires_grad=True) for t in (x, w))
    theirs = torch.logsumexp(tx[:, :, None] * tw[None], 1)
    theirs.backward(torch.tensor(dy))
    for name, want in (("y", theirs.detach()), ("dx", tx.grad), ("dw", tw.grad)):
        np.testing.assert_allclose(ours[name], want.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("shape", [(3, 5, 17), (2, 33, 1), (1, 4, 64)])
def test_folds_of_several_values_are_compiled(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    net = Network("turned")
    for name, part in zip(("real", "imaginary"), turned(net.input("x", shape)), strict=True):
        net.output(name, part)
    with mlc.compile(mlc.load(net)).load(1) as module:
        ours = module.run({"x": x})
    want = np.prod(x.astype(np.float64) * (1 + 0.5j) + 0.1j, axis=1)
    np.testing.assert_allclose(ours["real"] + 1j * ours["imaginary"], want, rtol=1e-4, atol=1e-5)


def test_folds_of_one_name_are_told_apart_by_what_they_say() -> None:
    def over(fold: Any) -> Any:
        return mlc.operator(name="folded")(lambda x: te.compute((4,), lambda i: fold(x[i, K], K), "folded"))

    net = Network("two")
    x = net.input("x", (4, 6))
    net.output("either", over(te.combiner(lambda a, b: a + b - a * b, 0.0))(x))
    net.output("neither", over(te.combiner(lambda a, b: a * b, 1.0))(x))
    values = np.random.default_rng(5).random((4, 6)).astype(np.float32)
    with mlc.compile(mlc.load(net)).load(1) as module:
        found = module.run({"x": values})
    np.testing.assert_allclose(found["either"], 1 - np.prod(1 - values, 1), rtol=1e-5)
    np.testing.assert_allclose(found["neither"], np.prod(values, 1), rtol=1e-5)


K = te.reduce_axis(6, "k")
X = te.placeholder((6,), f32, "x")


@pytest.mark.parametrize(
    ("fold", "message"),
    [
        (lambda: te.combiner(lambda a, b: a + b, 0.0, "sum"), "a fold is called 'sum' already"),
        (lambda: TIMES(X[K], K), "times: is given 1 values, 2 are folded together"),
        (lambda: te.combiner(lambda a, b: (a, b), 0.0)(X[K], K), "fold: combine gives 2 values, 1 are folded together"),
        (lambda: te.combiner(lambda a, b: te.less(a, b), 0.0)(X[K], K), "fold: values of f32 become bool"),
        (lambda: te.combiner(lambda a, b: a + b * X[0], 0.0)(X[K], K), "fold: depends on more than the values"),
    ],
)
def test_what_is_no_fold_is_told(fold: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        OwnOperator(lambda x: te.compute((1,), lambda i: fold(), "folded"), "folded", "")(Network("w").input("x", (6,)))
    assert message in str(raised.value)


def raising(x: Any) -> Any:
    raise ValueError("not that")


STRAY = te.placeholder((4,), f32, "stray")


@pytest.mark.parametrize(
    ("express", "message"),
    [
        (lambda x: te.compute(x.shape, lambda i: x[i + 1]), "reads x[i + 1], which reaches from 1 to 4 along axis 0"),
        (lambda x: 3, "gives a int, not a tensor"),
        (lambda x, y: x, "missing a required argument: 'y'"),
        (lambda x: te.compute(x.shape, lambda i: x[i, i]), "x has 1 axes, indexed with 2"),
        (lambda x: te.compute(x.shape, lambda i: x[i] + STRAY[i]), "reads 'stray', which is none of its operands"),
        (lambda x: te.compute(x.shape, lambda i: x[te.reduce_axis(2, "r")]), "['r'] is no axis of it"),
        (raising, "operator raising (test_operator.py, line"),
        (raising, "ValueError: not that"),
    ],
)
def test_what_is_no_operator_is_told(express: Callable[..., Any], message: str) -> None:
    net = Network("wrong")
    with pytest.raises(UsageError) as raised:
        OwnOperator(express, express.__name__, "")(net.input("x", (4,)))
    assert message in str(raised.value)


def test_attributes_are_given_by_name() -> None:
    net = Network("wrong")
    with pytest.raises(UsageError, match="is given 2 among tensors"):
        capsule_conv(net.input("x", (1,)), 2)
    with pytest.raises(UsageError, match="unexpected keyword argument 'by'"):
        squashed(net.input("y", (1,)), by=1)
