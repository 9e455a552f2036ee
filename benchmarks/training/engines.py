"""What does a training step, or a forward pass: mlc, PyTorch as it stands, and ``torch.compile`` of that.

Each engine gives a call that does one and gives its loss. Ours is a package that is compiled beforehand where a folder
for that is given; PyTorch's compiler has a cache of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import mlc
from benchmarks.training.networks import Network
from benchmarks.training.report import COMPILED, EAGER, OURS
from mlc.api.training import wrapped
from mlc.runtime import load_module
from mlc.runtime.module import Module
from mlc.training.dynamic import updated
from mlc.training.loop import own
from mlc.training.optimizers import optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import LOSS, NUMBER

RATE, MOMENTUM = 1e-3, 0.9
# Weights are folded and packed.
FROZEN = {"freezing": True}

Call = Callable[[], float]


def steps(net: Network, threads: int, package: Path) -> dict[str, Callable[[], Call]]:
    """What makes a training step of each engine: forward, loss, all derivatives, and SGD with momentum."""
    learns = optimizer("sgd", momentum=MOMENTUM)
    step = net.step(learns, Schedule(RATE))
    batch = net.batch(step)

    def ours() -> Call:
        module = _loaded(wrapped(step.graph, step.updates), threads, package)
        tensors = own({**step.parameters, **step.statistics, **step.moments})
        number = np.ones(1, np.int64)

        def call() -> float:  # parameters and the like are updated in place, as `mlc train` does it
            return float(updated(module, {**batch, **tensors, NUMBER: number})[LOSS].reshape(-1)[0])

        return call

    def theirs(*, compiled: bool) -> Call:
        parameters = net.parameters(step)
        given = net.torch_batch(batch)
        update = torch.optim.SGD(list(parameters.values()), RATE, momentum=MOMENTUM)
        loss_of = torch.compile(net.torch_loss) if compiled else net.torch_loss
        advance = torch.compile(update.step) if compiled else update.step

        def call() -> float:
            update.zero_grad(set_to_none=True)
            loss = loss_of(parameters, given)
            loss.backward()
            advance()
            return float(loss.detach())

        return call

    return {OURS: ours, EAGER: lambda: theirs(compiled=False), COMPILED: lambda: theirs(compiled=True)}


def forwards(net: Network, threads: int, package: Path) -> dict[str, Callable[[], Call]]:
    """What makes a forward pass of each engine, with the loss of its batch."""
    step = net.step(optimizer("sgd"), Schedule(RATE))
    batch = net.batch(step)

    def ours() -> Call:
        module = _loaded(net.forward(step), threads, package)
        return lambda: float(module.run(batch)[LOSS].mean())

    def theirs(*, compiled: bool) -> Call:
        fixed = _Fixed(net, net.fixed(step)).eval()
        run = torch.compile(fixed, options=FROZEN) if compiled else fixed
        given = net.torch_batch(batch)

        def call() -> float:
            with torch.no_grad():
                return float(run(given))

        return call

    return {OURS: ours, EAGER: lambda: theirs(compiled=False), COMPILED: lambda: theirs(compiled=True)}


MAKERS = {"step": steps, "inference": forwards}


class _Fixed(torch.nn.Module):
    """A network with its parameters as buffers, which PyTorch's compiler may fold.

    Args:
        tensors: parameters and statistics by our names.
    """

    def __init__(self, net: Network, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.net = net
        self.places = {name: f"tensor{k}" for k, name in enumerate(tensors)}
        for name, place in self.places.items():
            self.register_buffer(place, tensors[name])

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.net.torch_loss({name: getattr(self, place) for name, place in self.places.items()}, batch)


def _loaded(model: mlc.Model, threads: int, package: Path) -> Module:
    """The package of a model: as it lies there, unless the compiler is newer than it."""
    sources = Path(mlc.__file__).parent.rglob("*.py")
    if not package.exists() or package.stat().st_mtime < max(f.stat().st_mtime for f in sources):
        package.parent.mkdir(parents=True, exist_ok=True)
        mlc.compile(model, threads=threads, max_kernels=None).save(package)
    return load_module(package, threads)
