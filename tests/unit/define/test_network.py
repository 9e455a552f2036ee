"""Networks in Python: arithmetic as numpy's, recurrences, and each of their refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlc
from mlc import nn
from mlc.define.network import Network, Tensor
from mlc.errors import UnsupportedError, UsageError
from mlc.ir.interp.graph import run_graph

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10 + 1


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x + 1.5,
        lambda x: 2 - x / 4,
        lambda x: 1.0 / x * -x,
        lambda x: x[1],
        lambda x: x[:, -1, 1:3],
        lambda x: x[..., 0] if isinstance(x, np.ndarray) else x[:, :, 0],
        lambda x: x[:, ::-1],
        lambda x: x.reshape(-1, 4) @ x[0].transpose(1, 0),
        lambda x: x * x[0],
    ],
)
def test_arithmetic_is_that_of_numpy(formula: Callable[[Any], Any]) -> None:
    net = Network()
    net.output("y", formula(net.input("x", X.shape)))
    np.testing.assert_allclose(run_graph(net.graph(), {"x": X})["y"], formula(X), rtol=1e-6)


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_reductions(name: str) -> None:
    net = Network()
    x = net.input("x", X.shape)
    net.output("a", getattr(x, name)(-1, 0))
    net.output("b", getattr(x, name)(1, keepdims=True))
    found = run_graph(net.graph(), {"x": X})
    np.testing.assert_allclose(found["a"], getattr(X, name)((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["b"], getattr(X, name)(1, keepdims=True), rtol=1e-6)


def test_a_recurrence_reads_what_is_around_it() -> None:
    net = Network()
    x, w = net.input("x", X.shape), net.parameter("w", np.eye(4) * 0.5)

    def step(h: Tensor, row: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        after = nn.tanh(row + h @ w)
        return [after], [after, 1.0 - after]

    (last,), (rows, rest) = net.scan(step, [nn.zeros(net, "h", (3, 4))], [x])
    net.output("last", last)
    net.output("rows", rows)
    net.output("rest", rest)
    found = run_graph(net.graph(), {"x": X})
    h, wanted = np.zeros((3, 4)), []
    for row in X:
        h = np.tanh(row + h @ (np.eye(4) * 0.5))
        wanted.append(h)
    np.testing.assert_allclose(found["rows"], wanted, rtol=1e-5)
    np.testing.assert_allclose(found["rest"], 1 - np.array(wanted), rtol=1e-4)
    np.testing.assert_array_equal(found["last"], found["rows"][-1])


def test_layers_are_those_of_numpy() -> None:
    net = Network()
    x = net.input("x", (2, 3, 8, 8))
    y = nn.max_pool(nn.relu(nn.batch_norm(nn.conv2d(x, 4, 3, "conv", stride=2, pad=1), "norm")), 2)
    net.output("y", nn.softmax(nn.linear(nn.flatten(y), 5, "head")))
    graph = mlc.load(net).graph
    assert graph.outputs[0].type.shape == (2, 5)
    assert {"conv.weight", "norm.mean", "head.bias"} <= {v.name for v in graph.constants}
    found = run_graph(graph, {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)})
    np.testing.assert_allclose(found["y"].sum(1), 1, rtol=1e-5)


def test_other_layers_are_those_of_numpy() -> None:
    net = Network()
    x = net.input("x", (1, 2, 3, 4))
    net.output("norm", nn.layer_norm(x, "norm"))
    net.output("pool", nn.avg_pool(x, 3, 2, 1))
    net.output("gelu", nn.gelu(x))
    given = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    found = run_graph(mlc.load(net).graph, {"x": given})
    np.testing.assert_allclose(
        found["norm"], np.broadcast_to((given[:, :, :1] - 1.5)[:1, :1], given.shape) / 1.25**0.5, 1e-4
    )
    np.testing.assert_allclose(found["pool"][0, 0], [[2.5, 4.0], [6.5, 8.0]])
    np.testing.assert_allclose(found["gelu"].ravel()[:2], [0, 0.841345], rtol=1e-5)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda net, x: net.graph(), UsageError, "has no outputs"),
        (lambda net, x: x.apply("relo"), UnsupportedError, "no operator 'relo'"),
        (lambda net, x: x @ x[0], UsageError, "matmul(f32[2,3,4], f32[3,4])"),
        (lambda net, x: x[0, 0, 0, 0], UsageError, "has 3 axes, indexed with 4"),
        (lambda net, x: x + Network().input("z", X.shape), UsageError, "belongs to the network main, not to this one"),
        (lambda net, x: [net.output("y", x) for _ in range(2)], UsageError, "two outputs of net are called 'y'"),
    ],
)
def test_what_is_wrong_is_told(build: Callable[[Network, Tensor], Any], error: type[Exception], message: str) -> None:
    net = Network("net")
    with pytest.raises(error) as raised:
        build(net, net.input("x", X.shape))
    assert message in str(raised.value)
