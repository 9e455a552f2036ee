"""What a compilation that computes less precisely loses, against the same model as it was."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlc.api.models import Model
from mlc.api.packages import Package, compile
from mlc.api.quantization import LayerError, optimised
from mlc.runtime import Module, TensorSpec, emulate_module
from mlc.runtime.outside import OutsideModule
from mlc.runtime.toolchain import is_here

if TYPE_CHECKING:
    from mlc.harness.accuracy import Accuracy

RANDOM_SAMPLES = 4


def losses(
    model: Model,
    package: Package,
    samples: Mapping[str, np.ndarray] | None = None,
    *,
    seed: int = 0,
    emulate: bool = False,
) -> tuple[Accuracy, ...]:
    """How far the outputs of a package are from those of its model in full precision, run side by side here.

    >>> package = mlc.compile(model, weights="int8")                  # doctest: +SKIP
    >>> losses(model, package)[0].error                               # doctest: +SKIP
    0.0041

    Args:
        model: from ``load``.
        package: the model compiled with small weights, say.
        samples: inputs by name, several along the first axis; four random ones unless given.
        seed: of random inputs.
        emulate: whether a package for another processor family is run under an emulator.
    Raises:
        DeviceError: this machine cannot run the package.
        MissingDependencyError: there is no emulator, or nothing that links for it.
        UsageError: the samples do not fit the model.
    """
    before = compile(model, _in_full(package.manifest.target.string), records=())
    return _compared(before, package, _feeds(model, samples, seed), seed, emulate=emulate)


def losses_by_layer(
    model: Model,
    small: Callable[[Model], Package],
    target: str,
    samples: Mapping[str, np.ndarray] | None = None,
    *,
    seed: int = 0,
    emulate: bool = False,
) -> tuple[LayerError, ...]:
    """How far what each product gives, with its bias and its limits, is from the same in full precision.

    >>> losses_by_layer(model, lambda m: mlc.compile(m, weights="int8"), "x86")      # doctest: +SKIP

    Args:
        model: from ``load``.
        small: compiles the model, or another that gives the layers' results as well, less precisely.
        target: to compile for, in full precision.
        samples: inputs by name, several along the first axis; four random ones unless given.
        seed: of random inputs.
        emulate: as for :func:`losses`.
    Returns:
        products of the optimised model in order, those in recurrences over all rounds.
    Raises:
        DeviceError: this machine cannot run the package.
        MissingDependencyError: there is no emulator, or nothing that links for it.
        UsageError: the samples do not fit the model.
    """
    from mlc.rewrite.quantization import layers_of, tapped

    graph = optimised(model.graph)
    layers = layers_of(graph, defaultdict(str))
    outputs = len(graph.outputs)
    watched = replace(model, graph=tapped(graph, [layer.result for layer in layers], "layer"))
    before = compile(watched, _in_full(target), records=())
    found = _compared(before, small(watched), _feeds(model, samples, seed), seed, emulate=emulate)[outputs:]
    return tuple(
        LayerError(layer.name, layer.operator, "", accuracy) for layer, accuracy in zip(layers, found, strict=True)
    )


def _in_full(target: str) -> str:
    """The target without what makes its floats shorter."""
    return target.replace(" -tf32=on", "").replace(" -sums=f16", "")


def _feeds(model: Model, samples: Mapping[str, np.ndarray] | None, seed: int) -> Sequence[Mapping[str, np.ndarray]]:
    """Inputs one after the other."""
    from mlc.harness.feeds import Fill, make_feeds
    from mlc.harness.samples import split_samples

    specs = [TensorSpec(t.name, t.dtype, t.shape) for t in model.inputs]
    if samples is None:
        return [make_feeds(specs, Fill.RANDOM, seed + k) for k in range(RANDOM_SAMPLES)]
    return split_samples(specs, {name: np.asarray(array) for name, array in samples.items()})


def _compared(
    before: Package, after: Package, feeds: Sequence[Mapping[str, np.ndarray]], seed: int, *, emulate: bool
) -> tuple[Accuracy, ...]:
    from mlc.harness.accuracy import AccuracyMeter

    meter = AccuracyMeter()
    with _opened(before, emulate=emulate) as first, _opened(after, emulate=emulate) as second:
        for feed in feeds:
            meter.add(first.run(feed, seed=seed), second.run(feed, seed=seed))
    return meter.result()


@contextmanager
def _opened(package: Package, *, emulate: bool) -> Iterator[Module | OutsideModule]:
    """A package, ready to run."""
    if not emulate or is_here(package.manifest.target.triple):
        with package.load() as module:
            yield module
        return
    with tempfile.TemporaryDirectory(prefix="mlc-losses-") as folder:
        path = Path(folder) / "module.tar"
        package.save(path)
        with emulate_module(path) as outside:
            yield outside
