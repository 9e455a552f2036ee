"""Networks that learn to read digits as well as PyTorch's do: the same beginning, examples, order and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.training.data import examples_of
from mlc.training.loop import Plan
from mlc.training.losses import LOSSES
from mlc.training.optimizers import optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import TARGET, training_step

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")

from benchmarks.training import losses, novel  # noqa: E402  # it imports torch

NETWORKS = Path(__file__).resolve().parents[2] / "examples" / "networks"
HELD_OUT = 360
BATCH = 32

Forward = Callable[[Mapping[str, "torch.Tensor"], "torch.Tensor"], "torch.Tensor"]


def convnet(p: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    f = torch.nn.functional
    for layer in ("conv1", "conv2"):
        x = f.relu(f.conv2d(x, p[f"{layer}.weight"], p[f"{layer}.bias"].reshape(-1), padding=1))
    return f.max_pool2d(x, 2).flatten(1) @ p["head.weight"] + p["head.bias"]


def images(x: np.ndarray) -> np.ndarray:
    return x[:, None]


def larger_images(x: np.ndarray) -> np.ndarray:
    return np.kron(x[:, None], np.ones((2, 2), np.float32))


CASES: dict[str, tuple[Forward, Callable[[np.ndarray], np.ndarray], Mapping[str, int], str, int, float]] = {
    "convnet": (convnet, images, {"size": 8}, "cross_entropy", 8, 0.96),
    "capsule_net": (novel.capsule_net, larger_images, {"size": 16, "kinds": 2}, "margin", 8, 0.94),
    "mi_lstm": (novel.mi_lstm, lambda x: x, {"steps": 8, "features": 8, "hidden": 64}, "cross_entropy", 25, 0.93),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_digits_are_read_as_well_as_by_pytorch(name: str) -> None:
    twin, arranged, dims, loss, epochs, least = CASES[name]
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, labels = arranged((digits.images[order] / 16).astype(np.float32)), digits.target[order]
    data = {"x": x[HELD_OUT:], "label": labels[HELD_OUT:]}
    model = mlc.load(NETWORKS / f"{name}.py", dims={"batch": BATCH, **dims})
    plan = Plan(epochs, 2e-3, seed=1)
    held_out = {"x": x[:HELD_OUT], "label": labels[:HELD_OUT]}
    found = mlc.train(model, data, plan, loss=loss, threads=1, validation=held_out)
    ours = found.history[-1]["validation_accuracy"]

    step = training_step(model.graph, LOSSES[loss], optimizer("adam"), Schedule(plan.lr))
    theirs = {n: torch.tensor(step.parameters[n], requires_grad=True) for n in step.parameters}
    adam = torch.optim.Adam(list(theirs.values()), plan.lr)
    examples = examples_of(data, model.graph.inputs, step.target, TARGET, "digits")
    for epoch in range(epochs):
        for feeds in examples.shuffled(plan.seed, epoch):
            adam.zero_grad()
            losses.LOSSES[loss](twin(theirs, torch.from_numpy(feeds["x"])), torch.from_numpy(feeds[TARGET])).backward()
            adam.step()
    with torch.inference_mode():
        scores = twin(theirs, torch.from_numpy(x[:HELD_OUT]))
    their = float((scores.argmax(1).numpy() == labels[:HELD_OUT]).mean())
    print(f"{name}: {ours:.1%}, PyTorch {their:.1%}")
    assert ours >= least
    assert ours == pytest.approx(their, abs=4 / HELD_OUT)
