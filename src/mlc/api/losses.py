"""What a compilation that computes less precisely loses, against the same model as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mlc.api.models import Model
from mlc.api.packages import Package, compile
from mlc.runtime import TensorSpec

if TYPE_CHECKING:
    from mlc.harness.accuracy import Accuracy

RANDOM_SAMPLES = 4


def losses(
    model: Model, package: Package, samples: Mapping[str, np.ndarray] | None = None, *, seed: int = 0
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
    Raises:
        DeviceError: this machine cannot run the package.
        UsageError: the samples do not fit the model.
    """
    from mlc.harness.accuracy import AccuracyMeter
    from mlc.harness.feeds import Fill, make_feeds
    from mlc.harness.samples import split_samples

    specs = [TensorSpec(t.name, t.dtype, t.shape) for t in model.inputs]
    if samples is None:
        feeds = [make_feeds(specs, Fill.RANDOM, seed + k) for k in range(RANDOM_SAMPLES)]
    else:
        feeds = split_samples(specs, {name: np.asarray(array) for name, array in samples.items()})
    after = package.load()
    before = compile(model, package.manifest.target.string.replace(" -tf32=on", ""), records=()).load()
    meter = AccuracyMeter()
    for feed in feeds:
        meter.add(before.run(feed, seed=seed), after.run(feed, seed=seed))
    return meter.result()
