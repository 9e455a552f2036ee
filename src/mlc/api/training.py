"""Training: a model, examples, and what it is like afterwards."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc.api.models import Model, load, survey
from mlc.api.packages import compile
from mlc.api.step_tuning import StepTuning, beside, tune_before
from mlc.define.frontend import kept_constants
from mlc.errors import OutputError, UnsupportedError, UsageError
from mlc.frontend.base import ModelSource, TensorInfo
from mlc.ir.graph import Graph
from mlc.runtime import atomic_write, load_module
from mlc.runtime.native import available_cores
from mlc.settings import Observer

if TYPE_CHECKING:
    from mlc.training.data import Stream
    from mlc.training.loop import Plan
    from mlc.training.watch import Exchange, Watcher

_FIRST = re.compile(r"\w+\[(?P<first>[^,\]]+)")
EVERY = 600.0  # seconds between checkpoints within an epoch


@dataclass(frozen=True, eq=False)
class Training:
    """What a run has come to.

    Args:
        model: with the parameters that were learned.
        before: its graph as it was.
        parameters: those, by name.
        history: what was told of each epoch: losses, accuracies, seconds.
        notes: what whoever trains should know.
        target, threads, records: what ran the steps, and where its kernels' configurations were looked for.
        exchanges: other kernels that were tried on the way, in dynamic mode.
    """

    model: Model
    before: Graph
    parameters: Mapping[str, np.ndarray]
    history: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    target: str
    threads: int
    records: Sequence[Path] | None = None
    exchanges: tuple[Exchange, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trained model.

        As ``.onnx`` it is the file it was with other initializers; there are ``.mlc`` and, compiled, ``.tar`` besides.
        A module takes as many examples at once as a step did, and runs on what ran those.

        Raises:
            OutputError: the file cannot be written.
            UnsupportedError: it was no ONNX file, or keeps its parameters elsewhere.
        """
        match Path(path).suffix:
            case ".onnx":
                data = _onnx(self.model.info, self.before, self.parameters)
                with atomic_write(path) as file:
                    file.write(data)
            case ".tar":
                compile(self.model, self.target, threads=self.threads, records=self.records).save(path)
            case _:
                self.model.save(path)


def batched(path: str | os.PathLike[str], batch: int | None, **options: Any) -> Model:
    """A model file, imported with so many examples at once where it leaves that open.

    Args:
        batch: examples in a step.
        options: as for ``load``.
    Raises:
        UsageError: the model takes another number.
        ImportModelError, UnsupportedError: as for ``load``.
    """
    dims, shapes = dict(options.pop("dims", None) or {}), options.get("shapes") or {}
    if batch is not None:
        for name, type in survey(path, limits=options.get("limits"), frontend=options.get("frontend")).inputs:
            first = _FIRST.match(type)
            if first and first["first"].isidentifier() and name not in shapes:
                dims.setdefault(first["first"], batch)
    model = load(path, dims=dims, **options)
    counts = {spec.shape[0] for spec in model.inputs if spec.shape}
    if batch is not None and counts != {batch}:
        told = ", ".join(map(str, sorted(counts)))
        raise UsageError(
            f"{os.fspath(path)}: takes {told} examples at once, not {batch}",
            hint="export it with a dynamic first axis, or leave --batch out",
        )
    return model


def train(
    model: Model,
    data: Mapping[str, np.ndarray] | Stream,
    plan: Plan,
    *,
    loss: str = "cross_entropy",
    optimizer: str = "adam",
    momentum: float = 0.0,
    decay: float = 0.0,
    clip: float | None = None,
    output: str | None = None,
    frozen: Collection[str] = (),
    measures: bool = True,
    validation: Mapping[str, np.ndarray] | float | None = None,
    target: str = "x86",
    threads: int | None = None,
    memory: int | None = None,
    tuning: StepTuning | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    where: str = "the data",
    observer: Observer | None = None,
    watcher: Watcher | None = None,
) -> Training:
    """Trains a model.

    Args:
        model: from ``load``, with a batch of examples.
        data: arrays of examples by name of the model's inputs, and one more: what is to be predicted. Mapped files are
            read as batches need them. Or batches that are made on the way: :class:`mlc.training.data.Stream`.
        plan: how long to learn, and how fast.
        loss: ``cross_entropy`` of classes, ``margin`` of lengths of capsules, or ``mse``.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        momentum, decay: see :func:`mlc.training.optimizers.optimizer`.
        clip: the largest norm of all derivatives together.
        output: the name of the output that is compared, where there are several.
        frozen: names of parameters that stay as they are.
        measures: batch norms take the means and variances of each batch while learning.
        validation: examples to measure after each epoch, or which share of ``data`` to keep for that.
        target: that runs the steps; this machine has to be one.
        threads: that run them; all cores unless given, all but one where kernels are searched for beside the run.
        memory: bytes that a step may take, with examples, parameters and what the optimizer remembers: results of the
            forward pass are made again where keeping them would take more.
        tuning: how kernels are searched for; not at all unless given.
        checkpoint: a file to keep the state of the run in.
        resume: go on from there, if it is there.
        where: what messages call the data.
        observer, watcher: are told how compilation and training go on.
    Returns:
        the trained model. Interrupted, the run stands in its checkpoint.
    Raises:
        UsageError: data or an option do not fit the model, or the checkpoint is of another run.
        UnsupportedError: an operator has no gradient; a step takes more memory than allowed.
        CheckFailedError: the loss or what is learned is no number any more.
        OutputError: the checkpoint cannot be written.
    """
    from mlc.training.checkpoint import Checkpoint, load_checkpoint
    from mlc.training.data import Batches, Examples, Stream, Streamed, examples_of
    from mlc.training.dynamic import Execution, functions_in
    from mlc.training.loop import Trainer
    from mlc.training.losses import LOSSES
    from mlc.training.optimizers import optimizer as by_name
    from mlc.training.step import TARGET, target_type, training_step
    from mlc.training.watch import Watcher

    if memory is not None and tuning is not None and tuning.mode == "dynamic":
        raise UsageError(
            "memory cannot be limited where kernels are searched for beside the run: two versions of a step are there "
            "while they are compared",
            hint="search before it: --tune static",
        )
    learns, kind = by_name(optimizer, momentum, decay), LOSSES[loss]
    stays = {*frozen, *kept_constants(model.info)}
    inputs, wanted = model.graph.inputs, target_type(model.graph, kind, output)
    examples: Batches
    checked: Examples | None = None
    if isinstance(data, Stream):
        if isinstance(validation, float):
            raise UsageError(f"{where}: are made on the way, so no share of them can be kept", hint="give arrays")
        examples = Streamed(data, inputs, wanted, TARGET, where)
    elif isinstance(validation, float):
        examples, checked = examples_of(data, inputs, wanted, TARGET, where).split(validation)
        if not examples.steps:
            raise UsageError(f"{where}: what is left of {validation:g} for validation is less than a batch")
    else:
        examples = examples_of(data, inputs, wanted, TARGET, where)
    if validation is not None and not isinstance(validation, float):
        checked = examples_of(validation, inputs, wanted, TARGET, "the data for validation")
    step = training_step(
        model.graph,
        kind,
        learns,
        plan.rates(examples.steps),
        output=output,
        frozen=stays,
        clip=clip,
        measures=measures,
    )
    options = (loss, optimizer, momentum, decay, clip, output, sorted(frozen), measures)
    # a rate that goes down to nothing would have been another one from the first step on
    rates = (plan.lr, plan.schedule, plan.warmup, *((plan.epochs,) if plan.schedule != "constant" else ()))
    about = {
        "model": model.info.sha256,
        "data": examples.identity(),
        "batch": examples.batch,
        "options": [str(o) for o in (*options, *rates)],
        "seed": plan.seed,
        "kept": hashlib.sha256("\n".join([*step.parameters, *step.moments]).encode()).hexdigest(),
    }
    notes: list[str] = []
    found: Checkpoint | None = None
    if resume and checkpoint is not None:
        found, notes = load_checkpoint(checkpoint)
        if found is not None and dict(found.run) != about:
            differs = ", ".join(k for k in about if found.run.get(k) != about[k])
            raise UsageError(f"{os.fspath(checkpoint)}: is of another run: {differs} differ", hint="leave --resume out")
    if threads is None:
        threads = max(1, available_cores() - (tuning is not None and tuning.mode == "dynamic"))
    stepped = wrapped(step.graph, step.updates)
    how: dict[str, Any] = {"threads": threads, "observer": observer, "max_kernels": None, "memory": memory}
    if tuning is not None and tuning.mode == "static":
        tune_before(stepped, target, threads, tuning, plan.seed)
    compared = compile(wrapped(step.loss), target, **how) if checked is not None else None

    def keep(state: Checkpoint) -> None:
        if checkpoint is not None:
            state.save(checkpoint)

    def last() -> Checkpoint | None:
        return load_checkpoint(checkpoint)[0] if checkpoint is not None else None

    told = watcher or Watcher()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mlc-")))
        functions = functions_in(folder) if tuning is not None and tuning.mode == "dynamic" else None
        records = tuning.files() if tuning is not None else None
        module = compile(stepped, target, records=records, functions=functions, **how).load(threads)
        other = stack.enter_context(compared.load(threads)) if compared is not None else None
        execution = Execution(module, partial(load_module, threads=threads), told)
        stack.callback(execution.close)
        workers = None
        if tuning is not None and tuning.mode == "dynamic":
            workers = stack.enter_context(beside(stepped, target, threads, tuning, plan.seed, folder))
            execution.take = workers.take
        trainer = Trainer(step, plan, execution, (other or module).run, kind.classes, keep, about, last)
        if found is not None:
            trainer.resume(found)
        try:
            trainer.train(examples, checked, EVERY, told)
        except OutputError:  # the checkpoint itself
            raise
        except BaseException:
            if trainer.steps and trainer.sound:
                keep(trainer.checkpoint())
            raise
    if workers is not None and workers.complaint:
        notes.append(f"kernels were not searched for to the end: {workers.complaint}")
    learned = trainer.parameters
    constants = {v: learned.get(v.name, a) for v, a in model.graph.constants.items()}
    graph = replace(model.graph, constants=constants)
    return Training(
        Model(graph, model.info, model.format),
        model.graph,
        learned,
        tuple(trainer.history),
        tuple(notes),
        target,
        threads,
        tuning.files() if tuning is not None else None,
        tuple(execution.exchanges),
    )


def wrapped(graph: Graph, updates: Mapping[str, str] | None = None) -> Model:
    """A graph that comes from no file, as what is compiled.

    Args:
        updates: outputs by name, and the input whose next value each is, and whose memory it may be given.
    """
    text = hashlib.sha256(str(graph).encode()).hexdigest()
    inputs = tuple(TensorInfo(v.name, v.type.shape, str(v.type.dtype)) for v in graph.inputs)
    outputs = tuple(
        TensorInfo(n, v.type.shape, str(v.type.dtype)) for n, v in zip(graph.output_names, graph.outputs, strict=True)
    )
    source = ModelSource("mlc", "", graph.name, "", text, inputs, outputs, updates=dict(updates or {}))
    return Model(graph, source, "mlc")


def _onnx(info: ModelSource, before: Graph, parameters: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an ONNX file with other initializers.

    Args:
        before: the graph that was imported from it.
    Raises:
        UnsupportedError: a parameter cannot be told there.
    """
    import onnx

    if info.format != "onnx" or not info.path:
        raise UnsupportedError(f"the model was no ONNX file but {info.format}", hint="write a .mlc file instead")
    proto = onnx.load(info.path)
    stored = {t.name: t for t in proto.graph.initializer}
    originals = {v.name: a for v, a in before.constants.items()}
    for name, array in parameters.items():
        place = _stored_as(proto, stored, name, originals[name])
        if place is None:
            raise UnsupportedError(
                f"{info.path}: the parameter {name!r} is made of others there, or part of one",
                hint=f"write a .mlc file instead, or keep it as it is with --freeze {name}",
            )
        shape = tuple(stored[place].dims)
        stored[place].CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(shape), place))
    data: bytes = proto.SerializeToString()
    return data


def _stored_as(proto: Any, stored: Mapping[str, Any], name: str, original: np.ndarray) -> str | None:
    """The initializer that a constant of the graph is, in its own shape or another: biases get axes on their way."""
    import onnx

    if name in stored:
        return name if tuple(stored[name].dims) == original.shape else None
    node, _, _ = name.rpartition("/")
    for found in proto.graph.node:
        if node and (found.name == node or node in found.output):
            for place in found.input:
                tensor = stored.get(place)
                if tensor is None or int(np.prod(tensor.dims)) != original.size:
                    continue
                if np.array_equal(onnx.numpy_helper.to_array(tensor).reshape(-1), original.reshape(-1)):
                    return str(place)
    return None
