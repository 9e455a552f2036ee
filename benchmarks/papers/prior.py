"""What the tuner knows before its first trial: trees taught by some configurations of operators, in whole spaces.

    python -m benchmarks.papers.prior znver4                                       # teaches again, from what is kept
    python -m benchmarks.papers.prior znver4 --measure --minutes 4.5 --core 1      # as often as it takes
    python -m benchmarks.papers.prior znver4 --judge                               # on operators that did not teach

The operators are those that explorers were designed with, and shapes that a generator drew for this
(:mod:`benchmarks.papers.drawn`): none of those compared, and none that was drawn for the comparison. Of each, random
configurations teach, and some that trees taught by the others expect to be fast: those are what a search asks about.
Each processor teaches its own trees: of those of another one, or of both, a Zen 4 would learn less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.papers.drawn import TAUGHT
from benchmarks.papers.live import Arena, Known, known_of
from benchmarks.papers.unseen import DESIGN
from mlc.records.record import Fingerprint
from mlc.targets.base import get_target
from mlc.tuning.explorers.topology import Topology
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.prior import FOLDER, file_of, keep
from mlc.tuning.models.transfer import learn_globally

PROCESSORS = ("sapphirerapids", "znver3", "znver4", "znver5")  # on which there are tables
ROUNDS = 150  # trees
LESSONS = 128  # random configurations of an operator that teach
# ... and how many that others' trees expect to be fast: the first, and some of so many, of the default's neighbours and
# so many random draws; and how many of the fastest are measured again with them, for a common scale.
EXPECTED, TOP, AMONG, DRAWN, SCALES = 14, 6, 96, 6000, 4
ASKED, FIRST = 4, 8  # of so many operators one is asked about; so many configurations that trees name are looked at


def taught(processor: str) -> list[Known]:
    """All operators that teach, as measured on a processor."""
    return known_of([*DESIGN.values(), *TAUGHT], processor, "prior")


def measure(processor: str, minutes: float, core: int) -> bool:
    """Measures what is missing of those that are not compared; whether that is done.

    Raises:
        SystemExit: this is another processor.
    """
    if (here := Fingerprint.of(get_target("x86")).cpu) != processor:
        raise SystemExit(f"the tables are of a {processor}, and this is a {here}")
    knowns = taught(processor)[::-1]  # those first that differ the most
    began = time.monotonic()
    with closing(Arena(knowns, core, began + 60 * minutes, print)) as arena:
        wanted = {k.name: [k.default, *k.numbers(k.pool[:LESSONS])] for k in knowns}
        arena.measure(wanted)
        if any(k.missing(wanted[k.name]) for k in knowns):
            return False
        random = dict(zip((k.name for k in knowns), lessons(knowns), strict=True))
        for known in knowns:
            if not arena.over and len(known.table.number) < 1 + LESSONS + EXPECTED:
                others = [lesson for name, lesson in random.items() if name != known.name]
                arena.measure_again({known.name: expected(known, trees_of(others))}, SCALES)
        return not arena.over  # few of the draws can be built of some, and then fewer are expected than wanted


def trees_of(some: Sequence[tuple[np.ndarray, np.ndarray]]) -> GradientBoosting:
    """Trees that lessons have taught."""
    model = GradientBoosting(rounds=ROUNDS)
    learn_globally(some, model)
    return model


def expected(known: Known, trees: GradientBoosting) -> list[int]:
    """Numbers of configurations that were not measured yet and may be fast: the first few that trees name, and others
    of the first hundred.
    """
    space, rng = known.setting.part.space, np.random.default_rng(1)
    around, _ = Topology(space).neighbours(space.row({}))
    rows = np.unique(np.concatenate([around, space.sample(rng, DRAWN)]), axis=0)
    rows = rows[known.valid(rows)]
    rows = rows[~np.isin(known.numbers(rows), known.table.number)]
    order = np.argsort(-trees.predict(known.features(rows)), kind="stable")
    chosen = np.concatenate([order[:TOP], rng.permutation(order[TOP:AMONG])[: EXPECTED - TOP]])
    return known.numbers(rows[chosen])


def lessons(knowns: Sequence[Known]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and speeds of each, ``[n, features]`` and ``[n]``."""
    found = []
    for known in knowns:
        rows = np.array([known.setting.part.space.at(int(n)) for n in known.table.number])
        found.append((known.features(rows), known.speeds))
    return found


def judged(processor: str) -> list[tuple[str, float, float]]:
    """How well trees know operators of a processor that have not taught them: every fourth of all.

    Returns:
        by whom trees were taught (the other operators here, or another processor's), the rank correlation of what they
        say with speeds, and the best of the first eight that they name over the best; means over operators.
    """
    every = lessons(taught(processor))
    asked, others = every[::ASKED], [lesson for k, lesson in enumerate(every) if k % ASKED]
    models = {f"the others of {processor}": trees_of(others)}
    for other in (p for p in PROCESSORS if p != processor):
        models[other] = GradientBoosting.load(file_of(get_target(f"x86 -mcpu={other}")))[0]
    found = []
    for name, model in models.items():
        said = [(model.predict(features), speeds) for features, speeds in asked]
        ranks = [spearmanr(p, speeds).statistic for p, speeds in said]
        firsts = [speeds[np.argsort(-p, kind="stable")[:FIRST]].max() / speeds.max() for p, speeds in said]
        found.append((name, float(np.mean(ranks)), float(np.mean(firsts))))
    return found


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.prior",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("processor", choices=PROCESSORS, metavar="CPU", help=f"whose tables: {', '.join(PROCESSORS)}")
    add("--measure", action="store_true", help="go on with measuring first")
    add("--judge", action="store_true", help="say how well trees know operators that did not teach them, and leave")
    add("--minutes", type=float, default=4.5, metavar="M", help="measure for so long (default 4.5)")
    add("--core", type=int, default=0, metavar="N", help="core to take times on (default 0)")
    add("--out", type=Path, metavar="FILE", help=f"where the trees go (default: what the tuner reads, in {FOLDER})")
    options = parser.parse_args(arguments)
    if options.measure and not measure(options.processor, options.minutes, options.core):
        raise SystemExit("something is missing: give the same command again")
    if options.judge:
        for name, rank, first in judged(options.processor):
            print(f"{name}: rank correlation {rank:.2f}, the best of the first {FIRST} {first:.1%} of the best")
        return
    target = get_target(f"x86 -mcpu={options.processor}")
    out = options.out or file_of(target)
    keep(trees_of(lessons(taught(options.processor))), target, out)
    print(f"{out}: {out.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
