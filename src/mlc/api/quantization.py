"""Models in integers of 8 bits or fewer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc.api.models import Model
from mlc.api.packages import Package, Report
from mlc.errors import DeviceError, UsageError
from mlc.ir.graph import Graph
from mlc.ir.types import i7
from mlc.runtime import TensorSpec
from mlc.settings import MAX_OPT_LEVEL, CompileOptions, Observer

if TYPE_CHECKING:
    from mlc.harness.accuracy import Accuracy
    from mlc.rewrite.quantization import Steps


@dataclass(frozen=True, eq=False)
class LayerError:
    """What a layer of a less precise model gives, all layers before it less precise likewise, beside the float model's.

    Args:
        name: the model's for its product; followed by the tensor's, where one node of the model makes several.
        operator: the core operator of the product.
        reason: why it stays in floating point; empty for a layer in integers.
        accuracy: of what it gives, with its bias and its limits; on all samples.
    """

    name: str
    operator: str
    reason: str
    accuracy: Accuracy

    def to_json(self) -> dict[str, Any]:
        a = self.accuracy
        errors = {"snr_db": a.snr_db, "error": a.error, "largest": a.largest, "mean": a.mean}
        return {"name": self.name, "operator": self.operator, "reason": self.reason, **errors}


@dataclass(frozen=True, eq=False)
class Quantization:
    """A quantised model, and what it lost.

    Args:
        model: the model in integers, ready to compile.
        precision: of the products, as it is called: ``int8``, ``w1a2`` (weights of 1 bit, data of 2) or ``w2a2``.
        tensors: how each quantised tensor is stored, by the tensor's name: ``(q - zero) * scale``, ``q`` an integer.
        products: how many convolutions and matrix products are in integers.
        floats: those that are not, by the model's name for them, with the reason.
        samples: how many there were.
        accuracy: of every output, against the float model on those samples.
        layers: what each layer lost on those samples, if asked for.
        seconds: that it took.
    """

    model: Model
    precision: str
    tensors: Mapping[str, Steps]
    products: int
    floats: Mapping[str, str]
    samples: int
    accuracy: tuple[Accuracy, ...]
    layers: tuple[LayerError, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision,
            "tensors": {name: {"scale": s.scale, "zero": s.zero} for name, s in self.tensors.items()},
            "products": self.products,
            "floats": dict(self.floats),
            "samples": self.samples,
            "accuracy": [a.to_json() for a in self.accuracy],
            "layers": [layer.to_json() for layer in self.layers],
            "seconds": self.seconds,
        }


def quantize(
    model: Model,
    samples: Mapping[str, np.ndarray],
    target: str = "x86",
    *,
    precision: str = "int8",
    calibration: str | None = None,
    per_channel: bool | None = None,
    ends: bool | None = None,
    keep: Sequence[str] = (),
    reduce_range: bool | None = None,
    by_layer: bool = False,
    observer: Observer | None = None,
) -> Quantization:
    """Quantise a model to integers of 8 bits or fewer.

    >>> found = mlc.quantize(model, np.load("images.npz"))                     # doctest: +SKIP
    >>> found.accuracy[0].snr_db                                               # doctest: +SKIP
    >>> mlc.compile(found.model).save("module.tar")                            # doctest: +SKIP

    Args:
        model: from ``load``, in floating point.
        samples: typical inputs by name, several along the first axis; some tens are enough.
        target: what it is for, which says which scales there can be: powers of two for an accelerator that rescales by
            shifts, any others.
        precision: ``int8``; or weights of one or two bits and data of two, ``w1a2`` or ``w2a2``, which are products of
            bits where the target is faster that way.
        calibration: how the ranges of tensors are chosen: ``minmax``, ``mse``, ``entropy`` or ``percentile=99.99``;
            unless given, ``minmax``, or ``mse`` for powers of two and for data of two bits.
        per_channel: a scale for each output channel of the weights, not one for all; by default, where scales are free.
        ends: also a first convolution of few channels and the last matrix product; by default, for ``int8`` where
            scales are free.
        keep: names of the model's nodes that stay in floats.
        reduce_range: weights use 7 of their 8 bits; by default, where the target is a processor that multiplies them
            faster then (one of x86 without VNNI), and scales are free.
        by_layer: find out what each layer loses.
        observer: is told how it goes on.
    Raises:
        UsageError: the samples do not fit the model, a node to keep is unknown, or the way to calibrate or the
            precision is; or the target cannot do that precision, or weights of 7 bits.
        UnsupportedError: nothing in the model can be quantised.
    """
    from mlc.harness.accuracy import AccuracyMeter
    from mlc.harness.samples import split_samples
    from mlc.rewrite.quantization import WATCHED, Calibration, Precision, QuantizeOptions
    from mlc.rewrite.quantization import quantize as quantize_graph
    from mlc.targets.base import Shifting, get_target

    start = time.perf_counter()
    machine = get_target(target)
    shifts = isinstance(machine.accelerator, Shifting)
    if shifts and reduce_range is not None:
        raise UsageError("where scales are powers of two, weights use all of their bits", hint="leave reduce_range out")
    if precision not in list(Precision):
        raise UsageError(f"there is no precision {precision!r}", hint=f"there are {', '.join(Precision)}")
    few = Precision(precision).few
    if shifts and few:
        raise UsageError(f"target {target} rescales by shifts, which {precision} has no scales for", hint="use int8")
    if few and reduce_range is not None:
        raise UsageError(f"weights of {precision} have fewer than 7 bits", hint="leave reduce_range out")
    reduced = (i7 in machine.weight_types() and not few) if reduce_range is None else reduce_range
    how = None if calibration is None else Calibration.parse(calibration)
    options = QuantizeOptions(Precision(precision), shifts, per_channel, ends, tuple(keep), how, reduced)
    specs = [TensorSpec(t.name, t.dtype, t.shape) for t in model.inputs]
    feeds = split_samples(specs, {name: np.asarray(array) for name, array in samples.items()})

    graph = optimised(model.graph)
    watch = observer or Observer()
    watch.stage("calibrate")
    found = quantize_graph(graph, feeds, options, _native, watch.kernel, by_layer=by_layer)
    watch.stage("compare with the float model")
    after = _native(found.watched if by_layer else found.graph)
    names = [f"{WATCHED}{k}" for k in range(len(found.layers))] if by_layer else []
    meter, layers = AccuracyMeter(), AccuracyMeter()
    for k, feed in enumerate(feeds):
        wanted, got = found.reference(feed), after(feed)
        meter.add({name: wanted[name] for name in graph.output_names}, got)
        layers.add({name: wanted[name] for name in names}, got)
        watch.kernel(k + 1, len(feeds))
    errors = tuple(
        LayerError(layer.name, layer.operator, layer.reason, accuracy)
        for layer, accuracy in zip(found.layers, layers.result(), strict=False)
    )
    return Quantization(
        Model(found.graph, replace(model.info, quantised=True), model.format),
        precision,
        found.tensors,
        found.products,
        found.floats,
        len(feeds),
        meter.result(),
        errors,
        time.perf_counter() - start,
    )


def optimised(graph: Graph) -> Graph:
    """A model's graph as layers are told from: clean, batch norms in the weights, not yet in groups."""
    from mlc.rewrite.pipeline import passes_for, run_passes
    from mlc.rewrite.recurrence import map_bodies, settle_bodies

    graph = run_passes(graph, [p for p in passes_for(MAX_OPT_LEVEL) if not p.groups])
    return map_bodies(settle_bodies(graph), optimised)


def check_calibration(text: str) -> str:
    """The name of a way to calibrate, if it is one.

    Raises:
        UsageError: it is none.
    """
    from mlc.rewrite.quantization import Calibration

    return str(Calibration.parse(text))


def _native(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    """Something that runs a graph on this machine: compiled where that is possible, else interpreted."""
    from mlc.build import build_package
    from mlc.rewrite.quantization import interpreted
    from mlc.targets.base import get_target

    built = build_package(graph, get_target("x86"), CompileOptions(graph.name, "", "0" * 64), Observer())
    package = Package(built.manifest, built.params, built.members, Report((), 0.0, 0))
    try:
        module = package.load()
    except DeviceError:
        seed = built.manifest.seed
        run = interpreted(graph)
        return run if seed is None else lambda feeds: run({**feeds, seed: np.array(0, np.uint64)})
    # what a model draws at random is the same wherever results are compared
    return lambda feeds: module.run(feeds, seed=0)
