"""The networks of NeoFlow, section 7: ours, and PyTorch's over the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mlc
from benchmarks.training import known, novel
from benchmarks.training.losses import LOSSES
from mlc.api.training import wrapped
from mlc.define.frontend import kept_constants
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32, f64
from mlc.training.losses import LOSSES as OUR_LOSSES
from mlc.training.optimizers import Optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import TARGET, TrainingStep, training_step

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "networks"
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """How a network of the examples is built.

    Args:
        file: in ``examples/networks``, without suffix.
        twin: PyTorch's scores, from parameters by our names and inputs.
        small: sizes of a small variant, for what goes through an interpreter or takes many steps.
        dims: sizes that tell it from others of its file.
        loss: what is made small.
    """

    file: str
    twin: Callable[[Tensors, torch.Tensor], torch.Tensor]
    small: Mapping[str, int]
    dims: Mapping[str, int] = field(default_factory=dict)
    loss: str = "cross_entropy"


_ROWS = {"steps": 5, "features": 4, "hidden": 6, "classes": 3}
_IMAGES = {"size": 33, "width": 8, "classes": 5}
NOVEL = {
    "capsule_net": Entry("capsule_net", novel.capsule_net, {"size": 12, "kinds": 2, "classes": 3}, loss="margin"),
    "mi_lstm": Entry("mi_lstm", novel.mi_lstm, _ROWS),
    "sc_rnn": Entry("sc_rnn", novel.sc_rnn, {**_ROWS, "slow": 3}),
    "sub_lstm": Entry("sub_lstm", novel.sub_lstm, _ROWS),
    "lltm": Entry("lltm", novel.lltm, _ROWS),
}
LIGHT = {
    "shufflenet": Entry("shufflenet", known.shufflenet, {**_IMAGES, "stem": 6, "width": 24, "units": 1}),
    "mobilenet": Entry("mobilenet", known.mobilenet, {**_IMAGES, "pairs": 4}),
}
HEAVY = {
    "resnet18": Entry("resnet", known.resnet, {**_IMAGES, "depth": 10}, {"depth": 18}),
    "resnet50": Entry("resnet", known.resnet, {**_IMAGES, "width": 4}, {"depth": 50}),
    "bert_encoder": Entry(
        "bert_encoder", known.bert_encoder, {"steps": 5, "features": 24, "heads": 12, "layers": 2, "classes": 3}
    ),
}
NETWORKS = {**NOVEL, **LIGHT, **HEAVY}


@dataclass(frozen=True, eq=False)
class Network:
    """A network to train.

    Args:
        name: see :data:`NETWORKS`.
        graph: ours.
        frozen: parameters that are not learned.
    """

    name: str
    graph: Graph
    frozen: tuple[str, ...]

    @property
    def loss(self) -> str:
        """The name of what is made small."""
        return NETWORKS[self.name].loss

    def step(self, optimizer: Optimizer, schedule: Schedule, **options: Any) -> TrainingStep:
        """Our training step."""
        return training_step(self.graph, OUR_LOSSES[self.loss], optimizer, schedule, frozen=self.frozen, **options)

    def batch(self, step: TrainingStep, seed: int = 0) -> dict[str, np.ndarray]:
        """A batch of random examples, the target included."""
        rng = np.random.default_rng(seed)
        found = {v.name: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in self.graph.inputs}
        (scores,) = self.graph.outputs
        return {**found, TARGET: rng.integers(0, scores.type.shape[1], step.target.shape)}

    def forward(self, step: TrainingStep) -> mlc.Model:
        """Scores and losses of a batch with the parameters as they begin, as what is compiled."""
        stored = {**step.parameters, **step.statistics}
        given = {v: stored[v.name] for v in step.loss.inputs if v.name in stored}
        inputs = tuple(v for v in step.loss.inputs if v not in given)
        return wrapped(replace(step.loss, inputs=inputs, constants={**step.loss.constants, **given}))

    def parameters(self, step: TrainingStep, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """PyTorch's parameters, beginning as ours."""
        return {n: torch.tensor(a, dtype=dtype, requires_grad=True) for n, a in step.parameters.items()}

    def fixed(self, step: TrainingStep) -> dict[str, torch.Tensor]:
        """PyTorch's parameters and statistics of batch norms for a forward pass."""
        return {n: torch.tensor(a) for n, a in {**step.parameters, **step.statistics}.items()}

    def torch_batch(
        self, batch: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float32
    ) -> dict[str, torch.Tensor]:
        """A batch for PyTorch."""
        return {n: torch.tensor(a, dtype=dtype if a.dtype.kind == "f" else None) for n, a in batch.items()}

    def torch_loss(self, parameters: Tensors, batch: Tensors) -> torch.Tensor:
        """PyTorch's loss; batch norms measure where no statistics are among the parameters."""
        return LOSSES[self.loss](NETWORKS[self.name].twin(parameters, batch["x"]), batch[TARGET])


def network(
    name: str, batch: int, *, small: bool = False, double: bool = False, dims: Mapping[str, int] | None = None
) -> Network:
    """A network by its name.

    Args:
        small: a small variant.
        dims: other sizes than its own.
        double: ours in float64, for a check that rounding does not blur; not for recurrences.
    """
    entry = NETWORKS[name]
    sizes = {"batch": batch, **entry.dims, **(entry.small if small else {}), **(dims or {})}
    model = mlc.load(EXAMPLES / f"{entry.file}.py", dims=sizes)
    graph = _widened(model.graph) if double else model.graph
    return Network(name, graph, tuple(kept_constants(model.info)))


def _widened(narrow: Graph) -> Graph:
    """A graph with float64 in place of all float32."""
    g = Builder(narrow.name)
    env = {}
    for v in narrow.inputs:
        env[v] = g.input(v.name, TensorType(v.type.shape, f64) if v.type.dtype is f32 else v.type)
    for v, array in narrow.constants.items():
        env[v] = g.constant(array.astype(np.float64) if v.type.dtype is f32 else array, v.name)
    for node in narrow.nodes:
        outs = g.add(node.op, [env[v] for v in node.inputs], node.attrs, names=[v.name for v in node.outputs])
        env.update(zip(node.outputs, outs, strict=True))
    return g.finish([env[v] for v in narrow.outputs], list(narrow.output_names))
