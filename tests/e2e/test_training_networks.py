"""Whole networks against PyTorch: gradients in one step, losses over many steps, and what they learn."""

from __future__ import annotations

import numpy as np
import pytest

import mlc
from mlc.api.training import wrapped
from mlc.training.losses import LOSSES
from mlc.training.optimizers import optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import LOSS, gradient_graph

torch = pytest.importorskip("torch")

from benchmarks.training.networks import HEAVY, LIGHT, NOVEL, network  # noqa: E402  # it imports torch
from benchmarks.training.trajectories import OPTIMIZERS, losses, pytorch  # noqa: E402


def whole_gradients(
    name: str, batch: int, *, small: bool, double: bool = False, batches: int = 1
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All derivatives in one row: ours (of float32 or float64), PyTorch's of float32, and those of float64."""
    net = network(name, batch, small=small, double=double)
    step = net.step(optimizer("sgd"), Schedule(1e-3))
    graph = gradient_graph(net.graph, LOSSES[net.loss], frozen=net.frozen)
    result = []
    with mlc.compile(wrapped(graph), max_kernels=None).load(1) as module:
        for seed in range(batches):
            examples = net.batch(step, seed)
            found = module.run({**examples, **step.parameters, **step.statistics})
            losses, rows = [], []
            names = [n for n in step.parameters if f"d{n}" in found]
            for dtype in (torch.float32, torch.float64):
                theirs = net.parameters(step, dtype)
                loss = net.torch_loss(theirs, net.torch_batch(examples, dtype))
                loss.backward()
                grads = [t.grad if t.grad is not None else torch.zeros_like(t) for t in map(theirs.__getitem__, names)]
                losses.append(loss.item())
                rows.append(np.concatenate([t.double().numpy().ravel() for t in grads]))
                assert all(t.grad is None or not t.grad.any() for n, t in theirs.items() if n not in names)
            lost = 0.0 if double else 3 * abs(losses[0] - losses[1])
            assert found[LOSS][0] == pytest.approx(losses[1], rel=1e-5, abs=lost)
            result.append((np.concatenate([found[f"d{n}"].ravel() for n in names]), rows[0], rows[1]))
    return result


def whole_gradient(
    name: str, batch: int, *, small: bool, double: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one batch."""
    (found,) = whole_gradients(name, batch, small=small, double=double)
    return found


def distance(row: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(row - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", NOVEL)
def test_gradients_of_small_networks_are_those_of_pytorch(name: str) -> None:
    ours, _, want = whole_gradient(name, 3, small=True)
    assert distance(ours, want) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", NOVEL)
def test_gradients_of_networks_are_those_of_pytorch(name: str) -> None:
    ours, _, want = whole_gradient(name, 2, small=False)
    assert distance(ours, want) <= 1e-5


def test_gradients_of_a_network_in_float64_are_those_of_pytorch() -> None:
    ours, _, want = whole_gradient("resnet18", 2, small=True, double=True)
    assert distance(ours, want) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LIGHT, *HEAVY])
def test_gradients_of_networks_in_float64_are_those_of_pytorch(name: str) -> None:
    ours, _, want = whole_gradient(name, 2, small=False, double=True)
    assert distance(ours, want) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet", "mobilenet", "resnet18", "resnet50"])
def test_gradients_through_batch_norms_lose_what_float32_loses(name: str) -> None:
    """Rectifiers behind norms over two examples multiply rounding: PyTorch's own float32 is up to 1e-2 away.

    Which of them change sides is chance, another one for each engine and batch, so medians are compared.
    """
    found = whole_gradients(name, 2, small=False, batches=5)
    ours, theirs = (float(np.median([distance(row[k], row[2]) for row in found])) for k in (0, 1))
    assert ours <= 3 * theirs


def trajectory(name: str, how: str, steps: int, *, double: bool = False) -> None:
    """Losses step by step; where PyTorch's float32 has left, at a rectifier that rounding decides, its float64 counts.

    So it is with the CapsuleNet by Adam: ours stay within 2e-6 of PyTorch's float64, its float32 leaves it by 2e-3.
    """
    net = network(name, 8, small=True, double=double)
    ours, theirs = np.array(list(losses(net, how, steps))).T
    if not double and not np.allclose(ours, theirs, rtol=1e-3, atol=1e-5):
        learns, made, rate = OPTIMIZERS[how]
        theirs = np.array(list(pytorch(net, net.step(learns, Schedule(rate)), made, rate, steps, torch.float64)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_trajectory_is_that_of_pytorch() -> None:
    trajectory("mi_lstm", "adam", 20)


@pytest.mark.slow
@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("name", [*NOVEL, "bert_encoder"])
def test_trajectories_are_those_of_pytorch(name: str, how: str) -> None:
    trajectory(name, how, 200)


@pytest.mark.slow
@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("name", ["shufflenet", "mobilenet", "resnet18", "resnet50"])
def test_trajectories_through_batch_norms_are_those_of_pytorch(name: str, how: str) -> None:
    """In float64: of a small MobileNet, PyTorch's float32 leaves its own float64 by 7e-3 within 200 steps."""
    trajectory(name, how, 200, double=True)
