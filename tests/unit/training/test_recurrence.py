"""Gradients of recurrences against PyTorch, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc.define import nn
from mlc.define.network import Network, Tensor
from mlc.ir.graph import verify
from mlc.ir.interp.graph import run_graph
from mlc.ops.scan import SCAN
from mlc.training.backward import add_gradients

ROUNDS, N, INNER, H = 4, 3, 5, 6
SHAPES = {"x": (ROUNDS, N, INNER), "w": (INNER, H), "u": (H, H), "b": (H,), "h": (N, H)}

Step = Callable[..., tuple[list[Tensor], list[Tensor]]]


def ours(build: Callable[[Network, dict[str, Tensor]], Tensor], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    net = Network("net")
    t = {name: net.input(name, shape, "f64") for name, shape in SHAPES.items()}
    loss = build(net, t)
    seed = net.input("seed", (), "f64")
    found = add_gradients(net.builder, [(loss.value, seed.value)], [v.value for v in t.values()])
    given = [(f"d{name}", d) for name, d in zip(t, found, strict=True) if d is not None]
    graph = net.builder.finish([d for _, d in given], [name for name, _ in given])
    verify(graph)
    assert sum(node.op is SCAN for node in graph.nodes) == 2
    return run_graph(graph, {**feeds, "seed": np.ones(())})


def gated(net: Network, t: dict[str, Tensor]) -> Tensor:
    def step(h: Tensor, c: Tensor, row: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        z = nn.tanh(row @ t["w"] + h @ t["u"] + t["b"])
        c = c * 0.5 + z * z
        h = z * nn.sigmoid(c)
        return [h, c], [h]

    (h, c), (rows,) = net.scan(step, [t["h"], t["h"] * 2.0], [t["x"]])
    return (rows * rows).sum() + (h * c).sum()


def gated_torch(torch: Any, t: dict[str, Any]) -> Any:
    h, c, total = t["h"], t["h"] * 2, 0
    for row in t["x"]:
        z = torch.tanh(row @ t["w"] + h @ t["u"] + t["b"])
        c = c * 0.5 + z * z
        h = z * torch.sigmoid(c)
        total = total + (h * h).sum()
    return total + (h * c).sum()


def backward_rows(net: Network, t: dict[str, Tensor]) -> Tensor:
    """Weights that a round turns before it uses them, and a state that the last round's result does not depend on."""

    def step(h: Tensor, forgotten: Tensor, row: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        z = nn.sigmoid(h @ t["u"].transpose(1, 0) + row @ (t["w"] + t["w"]))
        return [z, row @ t["w"]], [z * t["b"], forgotten]

    (h, last), (rows, old) = net.scan(step, [t["h"], t["h"]], [t["x"][::-1]])
    return (rows * rows * rows).sum() + (h * last).sum() + (old * old).sum()


def backward_rows_torch(torch: Any, t: dict[str, Any]) -> Any:
    h = forgotten = t["h"]
    total = 0
    for row in t["x"].flip(0):
        z = torch.sigmoid(h @ t["u"].T + row @ (2 * t["w"]))
        total = total + ((z * t["b"]) ** 3).sum() + (forgotten**2).sum()
        h, forgotten = z, row @ t["w"]
    return total + (h * forgotten).sum()


@pytest.mark.parametrize(("build", "theirs"), [(gated, gated_torch), (backward_rows, backward_rows_torch)])
def test_gradients_are_those_of_pytorch(build: Any, theirs: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape) * 0.5 for name, shape in SHAPES.items()}
    found = ours(build, feeds)
    t = {name: torch.tensor(a, requires_grad=True) for name, a in feeds.items()}
    theirs(torch, t).backward()
    assert set(found) == {f"d{name}" for name, tensor in t.items() if tensor.grad is not None}
    for name, tensor in t.items():
        if tensor.grad is not None:
            np.testing.assert_allclose(found[f"d{name}"], tensor.grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_what_rounds_share_receives_one_sum_over_all_rounds() -> None:
    net = Network("net")
    t = {name: net.input(name, shape, "f64") for name, shape in SHAPES.items()}
    loss = gated(net, t)
    seed = net.input("seed", (), "f64")
    found = add_gradients(net.builder, [(loss.value, seed.value)], [t["u"].value, t["b"].value])
    makers = {v: node for node in net.builder.nodes for v in node.outputs}
    for d in found:
        assert d is not None
        assert makers[d].op is not SCAN
        assert all(v.type.shape[:2] == (ROUNDS, N) for v in makers[d].inputs)
