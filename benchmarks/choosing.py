"""How fast the tuner chooses: ``python -m benchmarks.choosing``, on one core.

Candidates a second that are described by their loops and judged by the cost model, and what a batch of proposals takes
the default explorer, over what measuring that batch takes at six trials a second.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from benchmarks.report import table

SPACES = ("C1", "C6", "C7", "C9", "W2", "Matmul-1024", "MM1", "BMM1")
CANDIDATES = 50_000  # at a time
KNOWN = 512  # configurations that the model has learnt from
BATCH, BATCHES = 64, 6
RATE = 6.0  # trials a second


def candidates_a_second(name: str, target: str) -> float:
    """Features and predictions together, the best of three."""

    from benchmarks.papers.spaces import WORKLOADS, Setting
    from mlc.targets.base import get_target
    from mlc.tuning.models.gbt import GradientBoosting

    setting = Setting(WORKLOADS[name], get_target(target))
    space, features, rng = setting.task.space, setting.features, np.random.default_rng(0)
    model = GradientBoosting()
    model.fit(features(space.sample(rng, KNOWN)), rng.random(KNOWN))
    seconds = []
    for _ in range(4):  # the first one meets every way through the template
        rows = space.sample(rng, CANDIDATES)
        start = time.perf_counter()
        model.predict(features(rows))
        seconds.append(time.perf_counter() - start)
    return CANDIDATES / min(seconds[1:])


def seconds_a_batch(name: str, target: str) -> float:
    """What the default explorer takes to propose and observe, once it knows something; the median of some batches."""
    from threadpoolctl import threadpool_limits

    from benchmarks.papers.spaces import WORKLOADS, Setting
    from mlc.targets.base import get_target
    from mlc.tuning.explorers import get_explorer
    from mlc.tuning.options import TuneOptions

    setting = Setting(WORKLOADS[name], get_target(target))
    features, rng = setting.features, np.random.default_rng(0)
    make = get_explorer(TuneOptions().explorer)
    explorer = make(setting.task.space, rng, featurizer=features, valid=features.valid)
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
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for name in options.spaces:
        seconds = seconds_a_batch(name, options.target)
        share = seconds / (seconds + BATCH / RATE)
        rate = candidates_a_second(name, options.target)
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
