"""The networks of NeoFlow, section 7: ours, and PyTorch's over the same parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import mlc
from benchmarks.peers.torch_graph import OnnxModule
from benchmarks.training.twins import LOSSES, TWINS
from benchmarks.zoo import build
from mlc.define.frontend import kept_constants
from mlc.training.losses import LOSSES as OUR_LOSSES
from mlc.training.optimizers import Optimizer
from mlc.training.step import TARGET, TrainingStep, training_step

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "networks"
NOVEL = tuple(TWINS)
KNOWN = ("shufflenet_v1", "mobilenet_v1", "resnet18", "resnet50", "bert_base")
NETWORKS = (*NOVEL, *KNOWN)
# sizes of the small variants, for what goes through an interpreter
_SMALL: Mapping[str, Mapping[str, int]] = {
    "capsule_net": {"size": 12, "kinds": 2, "classes": 3},
    "sc_rnn": {"steps": 5, "features": 4, "hidden": 6, "slow": 3, "classes": 3},
    **{name: {"steps": 5, "features": 4, "hidden": 6, "classes": 3} for name in ("mi_lstm", "sub_lstm", "lltm")},
}
_RATE = 0.01


@dataclass(frozen=True, eq=False)
class Network:
    """A network to train.

    Args:
        name: see :data:`NETWORKS`.
        model: ours.
        loss: name of what is made small.
        frozen: parameters that are not learned.
        twin: PyTorch's loss, from parameters by our names, inputs and targets.
        shapes: of PyTorch's parameters, where they differ from ours.
    """

    name: str
    model: mlc.Model
    loss: str
    frozen: tuple[str, ...]
    twin: Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor]
    predictions: str | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)

    def step(self, optimizer: Optimizer, **options: Any) -> TrainingStep:
        """Our training step."""
        how = {"output": self.predictions, "frozen": self.frozen, **options}
        return training_step(self.model.graph, OUR_LOSSES[self.loss], optimizer, **how)

    def batch(self, step: TrainingStep, seed: int = 0) -> dict[str, np.ndarray]:
        """A batch of random examples, the target included."""
        rng = np.random.default_rng(seed)
        found: dict[str, np.ndarray] = {}
        for info in self.model.inputs:
            if info.dtype == "f32":
                found[info.name] = rng.standard_normal(info.shape).astype(np.float32)
            elif info.dtype == "f64":
                found[info.name] = rng.standard_normal(info.shape)
            else:
                found[info.name] = rng.integers(0, self.bounds.get(info.name, 2), info.shape)
        (output,) = [o for o in self.model.outputs if o.name == step.prediction]
        if OUR_LOSSES[self.loss].classes:
            found[TARGET] = rng.integers(0, output.shape[1], step.target.shape)
        else:
            found[TARGET] = rng.standard_normal(step.target.shape).astype(step.dtype.numpy)
        return found

    def parameters(self, step: TrainingStep, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        """PyTorch's parameters, beginning as ours."""
        return {n: torch.tensor(a, dtype=dtype, requires_grad=True) for n, a in step.parameters.items()}

    def torch_batch(
        self, batch: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float32
    ) -> dict[str, torch.Tensor]:
        """A batch for PyTorch."""
        return {n: torch.tensor(a, dtype=dtype if a.dtype.kind == "f" else None) for n, a in batch.items()}

    def torch_loss(self, parameters: Mapping[str, torch.Tensor], batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """PyTorch's loss."""
        return self.twin(parameters, {n: t for n, t in batch.items() if n != TARGET}, batch[TARGET])


def network(name: str, batch: int, *, small: bool = False, double: bool = False) -> Network:
    """A network by its name.

    Args:
        small: a smaller variant, for what goes through an interpreter.
        double: ours in float64, for a check that rounding does not blur; known networks only.
    """
    return _novel(name, batch, small) if name in NOVEL else _known(name, batch, small, double)


def _novel(name: str, batch: int, small: bool) -> Network:
    model = mlc.load(EXAMPLES / f"{name}.py", dims={"batch": batch, **(_SMALL[name] if small else {})})
    loss = "margin" if name == "capsule_net" else "cross_entropy"

    def twin(p: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return LOSSES[loss](TWINS[name](p, inputs["x"]), target)

    return Network(name, model, loss, tuple(kept_constants(model.info)), twin)


def _known(name: str, batch: int, small: bool, double: bool) -> Network:
    narrow = build(name, batch, small)
    proto = _widened(narrow) if double else narrow
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.onnx", Path(folder) / "theirs.onnx"
        onnx.save(proto, ours)
        onnx.save(narrow, theirs)
        model, module = mlc.load(ours), OnnxModule(theirs, training=True)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    names = _places(model, stored)
    prediction = proto.graph.output[0].name
    classes = "bert" not in name
    frozen = tuple(v.name for v in model.graph.constants if "embedding" in v.name or v.name not in names)
    bounds = {e.key.partition(":")[2]: int(e.value) for e in proto.metadata_props if ":" in e.key}

    places = {n: (module.weights[place], stored[place].shape) for n, place in names.items()}
    buffers = [n for n, b in module.named_buffers() if b.dtype.is_floating_point]

    def twin(p: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        dtype = next(iter(p.values())).dtype
        given = {places[n][0]: t.reshape(places[n][1]) for n, t in p.items()}
        others = {n: module.get_buffer(n).to(dtype) for n in buffers if n not in given}
        (y, *_) = torch.func.functional_call(module, {**others, **given}, tuple(inputs[n] for n in module.inputs))
        if classes:
            return LOSSES["cross_entropy"](y, target)
        return torch.nn.functional.mse_loss(y, target)

    loss = "cross_entropy" if classes else "mse"
    return Network(name, model, loss, frozen, twin, None if classes else prediction, bounds)


def _widened(narrow: onnx.ModelProto) -> onnx.ModelProto:
    """A model with float64 in place of all float32."""
    proto = onnx.ModelProto()
    proto.CopyFrom(narrow)
    graph = proto.graph
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("t"):
                _widen_tensor(a.t)
            if node.op_type == "Cast" and a.name == "to" and a.i == onnx.TensorProto.FLOAT:
                a.i = onnx.TensorProto.DOUBLE
    return proto


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.FLOAT:
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))


def _places(model: mlc.Model, stored: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The initializer that each float constant of a graph is, whatever its shape has become."""
    by_bytes: dict[bytes, list[str]] = {}
    for name, array in stored.items():
        by_bytes.setdefault(array.tobytes(), []).append(name)
    found: dict[str, str] = {}
    for v, array in model.graph.constants.items():
        if array.dtype.kind != "f" or array.size < 2:
            continue
        same = by_bytes.get(np.ascontiguousarray(array).tobytes(), [])
        if v.name in same:
            found[v.name] = v.name
        elif len(same) == 1:
            found[v.name] = same[0]
    return found
