"""How fast the tuner chooses: ``python -m benchmarks.choosing``, on one core.

Candidates a second that are described by their loops and judged by the cost model, and what a batch of proposals takes
the default explorer, over what measuring that batch takes at six trials a second.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from benchmarks.report import table

if TYPE_CHECKING:
    from mlc.lower.knobs import Space
    from mlc.targets.base import Target
    from mlc.tuning.features import LoopFeatures

TILED = "tiled"  # the loops of a convolution like C6 under a layout of the layout space
SPACES = ("C1", "C6", "C7", "C9", "W2", "Matmul-1024", "MM1", "BMM1", TILED)
CANDIDATES = 50_000  # at a time
KNOWN = 512  # configurations that the model has learnt from
BATCH, BATCHES = 64, 6
RATE = 6.0  # trials a second


def candidates_a_second(space: Space, features: LoopFeatures) -> float:
    """Features and predictions together, the best of three."""
    from mlc.tuning.models.gbt import GradientBoosting

    rng = np.random.default_rng(0)
    model = GradientBoosting()
    model.fit(features(space.sample(rng, KNOWN)), rng.random(KNOWN))
    seconds = []
    for _ in range(4):  # the first one meets every way through the template
        rows = space.sample(rng, CANDIDATES)
        start = time.perf_counter()
        model.predict(features(rows))
        seconds.append(time.perf_counter() - start)
    return CANDIDATES / min(seconds[1:])


def searched_at(name: str, target: Target) -> tuple[Space, LoopFeatures]:
    """A space and what describes its configurations; of loops under a searched layout where the name says so."""
    from dataclasses import replace

    from benchmarks.papers.alt import convolution, in_network
    from benchmarks.papers.spaces import WORKLOADS, Setting
    from mlc.tuning.features import LoopFeatures
    from mlc.tuning.joint import layout_space, loop_space

    if name != TILED:
        setting = Setting(WORKLOADS[name], target)
        return setting.task.space, setting.features
    task = in_network(convolution(128, 128, 28, 3, pad=1), target)
    layouts = None if task is None else layout_space(task, target)
    if task is None or layouts is None:
        raise SystemExit(f"python -m benchmarks.choosing: {name}: the target follows no layouts")
    space = loop_space(task, target, layouts.config(layouts.sample(np.random.default_rng(0), 1)[0]))
    features = None if space is None else LoopFeatures.of(replace(task, space=space), target)
    assert space is not None, "one that the target follows"
    assert features is not None, "loops of a processor"
    return space, features


def seconds_a_batch(space: Space, features: LoopFeatures) -> float:
    """What the default explorer takes to propose and observe, once it knows something; the median of some batches."""
    from threadpoolctl import threadpool_limits

    from mlc.tuning.explorers import get_explorer
    from mlc.tuning.options import TuneOptions

    rng = np.random.default_rng(0)
    make = get_explorer(TuneOptions().explorer)
    explorer = make(space, rng, featurizer=features, valid=features.valid)
    seconds = []
    with threadpool_limits(1, "blas"):
        for _ in range(BATCHES):
            start = time.perf_counter()
            rows = explorer.propose(BATCH)
            explorer.observe(rows, 1 + np.cos(rows).sum(axis=1) / rows.shape[1])
            seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[2:]))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choosing", description=__doc__)
    parser.add_argument("spaces", nargs="*", default=SPACES, help=f"of the papers (default: {' '.join(SPACES)})")
    parser.add_argument("--target", default="x86", help="what to compile for; nothing is run on it")
    from mlc.targets.base import get_target

    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    target, rows = get_target(options.target), []
    for name in options.spaces:
        space, features = searched_at(name, target)
        seconds = seconds_a_batch(space, features)
        share = seconds / (seconds + BATCH / RATE)
        rate = candidates_a_second(space, features)
        rows.append((name, f"{rate:,.0f}", f"{seconds:.2f}", f"{100 * share:.1f}"))
    columns = (
        "space",
        "candidates a second",
        f"s for {BATCH} proposals",
        f"% of the time at {RATE:.0f} trials a second",
    )
    Console(width=200).print("\n".join(table(columns, rows, left=1)), highlight=False)


if __name__ == "__main__":
    main()
