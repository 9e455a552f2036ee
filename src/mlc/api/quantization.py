"""Models in 8-bit integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc.api.models import Model
from mlc.api.packages import Package, Report
from mlc.errors import DeviceError
from mlc.ir.graph import Graph
from mlc.runtime import TensorSpec
from mlc.settings import MAX_OPT_LEVEL, CompileOptions, Observer

if TYPE_CHECKING:
    from mlc.harness.accuracy import Accuracy


@dataclass(frozen=True, eq=False)
class Quantization:
    """A quantised model, and what it lost.

    Args:
        model: the model in integers, ready to compile.
        exponents: a number ``x`` of a quantised tensor is stored as ``round(x * 2**exponent)``; by the tensor's name.
        products: how many convolutions and matrix products are in integers.
        floats: those that are not, by the model's name for them, with the reason.
        samples: how many there were.
        accuracy: of every output, against the float model on those samples.
        seconds: that it took.
    """

    model: Model
    exponents: Mapping[str, int]
    products: int
    floats: Mapping[str, str]
    samples: int
    accuracy: tuple[Accuracy, ...]
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "exponents": dict(self.exponents),
            "products": self.products,
            "floats": dict(self.floats),
            "samples": self.samples,
            "accuracy": [a.to_json() for a in self.accuracy],
            "seconds": self.seconds,
        }


def quantize(
    model: Model,
    samples: Mapping[str, np.ndarray],
    *,
    per_channel: bool = False,
    ends: bool = False,
    keep: Sequence[str] = (),
    observer: Observer | None = None,
) -> Quantization:
    """Quantise a model to 8-bit integers with power-of-two scales.

    >>> found = mlc.quantize(model, np.load("images.npz"), per_channel=True)   # doctest: +SKIP
    >>> found.accuracy[0].snr_db                                               # doctest: +SKIP
    >>> mlc.compile(found.model, "vdla").save("module.tar")                    # doctest: +SKIP

    Args:
        model: from ``load``, in floating point.
        samples: typical inputs by name, several along the first axis; some tens are enough.
        per_channel: a scale for each output channel of the weights, not one for all.
        ends: also a first convolution of few channels and the last matrix product, which stay in floats otherwise.
        keep: names of the model's nodes that stay in floats.
        observer: is told how it goes on.
    Raises:
        UsageError: the samples do not fit the model, or a node to keep is unknown.
        UnsupportedError: nothing in the model can be quantised.
    """
    from mlc.harness.accuracy import AccuracyMeter
    from mlc.harness.samples import split_samples
    from mlc.rewrite.pipeline import passes_for, run_passes
    from mlc.rewrite.quantize import QuantizeOptions
    from mlc.rewrite.quantize import quantize as quantize_graph

    start = time.perf_counter()
    specs = [TensorSpec(t.name, t.dtype, t.shape) for t in model.inputs]
    feeds = split_samples(specs, {name: np.asarray(array) for name, array in samples.items()})
    graph = run_passes(model.graph, [p for p in passes_for(MAX_OPT_LEVEL) if not p.groups])
    options = QuantizeOptions(per_channel, ends, tuple(keep))
    watch = observer or Observer()
    watch.stage("calibrate")
    found = quantize_graph(graph, feeds, options, _native, watch.kernel)
    watch.stage("compare with the float model")
    before, after, meter = _native(graph), _native(found.graph), AccuracyMeter()
    for k, feed in enumerate(feeds):
        meter.add(before(feed), after(feed))
        watch.kernel(k + 1, len(feeds))
    return Quantization(
        Model(found.graph, model.info, model.format),
        found.exponents,
        found.products,
        found.floats,
        len(feeds),
        meter.result(),
        time.perf_counter() - start,
    )


def _native(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    """Something that runs a graph on this machine: compiled where that is possible, else interpreted."""
    from mlc.build import build_package
    from mlc.rewrite.quantize import interpreted
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
