"""What the tuner knows before its first trial: trees taught by random configurations of operators, in whole spaces.

    python -m benchmarks.papers.prior                                       # teaches again, from what is kept
    python -m benchmarks.papers.prior --measure --minutes 4.5 --core 1      # as often as it takes

The operators are those that explorers were designed with, and shapes that a generator drew for this
(:mod:`benchmarks.papers.drawn`): none of those compared, and none that was drawn for the comparison.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.papers.drawn import TAUGHT
from benchmarks.papers.held_out import TARGET, knowns_of
from benchmarks.papers.live import Arena, Known
from benchmarks.papers.unseen import DESIGN
from mlc.targets.base import get_target
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.prior import FILE, keep
from mlc.tuning.models.transfer import learn_globally

FOLDER = Path("benchmarks/papers/tables/prior")
ROUNDS = 150  # trees
LESSONS = 128  # random configurations of an operator that teach


def taught() -> list[Known]:
    """All operators that teach."""
    return knowns_of([*DESIGN, *(w.name for w in TAUGHT)], FOLDER)


def measure(minutes: float, core: int) -> bool:
    """Measures what is missing of those that are not compared; whether that is done."""
    knowns = taught()[::-1]  # those first that differ the most
    began = time.monotonic()
    with closing(Arena(knowns, core, began + 60 * minutes, print)) as arena:
        wanted = {k.name: [k.default, *k.numbers(k.pool[:LESSONS])] for k in knowns}
        arena.measure(wanted)
    return not any(k.missing(wanted[k.name]) for k in knowns)


def lessons(knowns: Sequence[Known]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and speeds of each, ``[n, features]`` and ``[n]``."""
    found = []
    for known in knowns:
        rows = np.array([known.setting.part.space.at(int(n)) for n in known.table.number])
        found.append((known.features(rows), known.speeds))
    return found


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.prior",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--measure", action="store_true", help="go on with measuring first")
    add("--minutes", type=float, default=4.5, metavar="M", help="measure for so long (default 4.5)")
    add("--core", type=int, default=0, metavar="N", help="core to take times on (default 0)")
    add("--out", type=Path, default=FILE, metavar="FILE", help=f"where the trees go (default {FILE})")
    options = parser.parse_args(arguments)
    if options.measure and not measure(options.minutes, options.core):
        raise SystemExit("something is missing: give the same command again")
    model = GradientBoosting(rounds=ROUNDS)
    learn_globally(lessons(taught()), model)
    keep(model, get_target(TARGET), options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
