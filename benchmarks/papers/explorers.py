"""How explorers compare: trials until most of the best known speed, on every measured table.

    python -m benchmarks.papers.explorers

All explorers of the tuner are replayed (:mod:`benchmarks.papers.replay`) with their default options in batches of 16,
as the tuner does, until they get there: to 99 %, from a random configuration on and from the template's own choice on,
as a tuning run begins. A table that is a sample of its space restricts all of them alike.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks import plots
from benchmarks.papers import held_out
from benchmarks.papers.curves import about_tables
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.papers.replay import Job, Method, replay_of, run_all, trials_until
from benchmarks.report import table
from benchmarks.stats import geometric_mean
from mlc.errors import UsageError
from mlc.tuning.options import TuneOptions

NAME = "explorers"
# Every measured table but C1 and C3 to C5, samples that only serve as sources of transfer.
SPACES = ("C2", "C6", "C7", "C8", "C9", "C12")
SPACES += ("MM1", "MM2", "MM3", "BMM1", "BMM2", "BMM3", "Matmul-1024")
EXPLORERS = ("random", "genetic", "gbfs", "na2c", "opevo", "descent", "annealing", "guided")
SEEDS, BATCH = 10, 16
FOUND = 0.99  # part of the best speed that searches look for; kernels of a register tile are within some percent
_ALL = 1 << 30  # trials: until it is found

Medians = dict[str, dict[str, float]]  # of trials, by explorer, by space


def measure(spaces: Sequence[str], explorers: Sequence[str], processes: int, *, untuned: bool = False) -> Medians:
    """Runs all searches.

    Args:
        spaces: to search.
        explorers: to compare.
        processes: that search.
        untuned: whether searches begin with the template's own choice.
    """
    keys = [(e, w) for w in spaces for e in explorers]
    ways = [(w, Method(e, untuned=untuned)) for e, w in keys]
    jobs = [Job(w, way, seed, _ALL, BATCH, until=FOUND) for w, way in ways for seed in range(SEEDS)]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(NAME, total=len(jobs))
        runs = run_all(jobs, processes, lambda done: progress.update(bar, completed=done))
    found: Medians = {e: {} for e in explorers}
    for k, (e, w) in enumerate(keys):
        mine = runs[k * SEEDS : (k + 1) * SEEDS]
        found[e][w] = float(np.median([trials_until(r, FOUND * replay_of(w).best) for r in mine]))
    return found


def steep(spaces: Sequence[str]) -> list[str]:
    """Those in which the template's own choice was measured, and there is something better to find."""
    return [w for w in spaces if 0 < replay_of(w).untuned < FOUND * replay_of(w).best]


def means(medians: Medians) -> dict[str, float]:
    """Geometric means over the spaces, fewest trials first."""
    found = {e: geometric_mean(by_space.values()) for e, by_space in medians.items()}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def markdown(medians: Medians, untuned: Medians, about: Mapping[str, str], picture: str) -> str:
    """The tables, and whether the default deserves to be it."""
    lines = ["# Trials to most of the best known speed", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    lines += [f"![{picture}]({picture})", ""] if picture else []
    lines += [f"## To {FOUND:.0%} from a random configuration", "", *_compared(medians)]
    lines += ["", f"## To {FOUND:.0%} from the template's own choice", "", *_compared(untuned)]
    spaces = [w for w in medians["random"] if w not in untuned["random"]]
    flat = [w for w in spaces if replay_of(w).untuned]
    lines += [
        f"That choice is within {1 - FOUND:.0%} of the best on {', '.join(flat) or 'none'}, where there is nothing to",
        f"find, and not in the table of {', '.join(w for w in spaces if w not in flat) or 'none'}.",
    ]
    return "\n".join(lines) + "\n"


def _compared(medians: Medians) -> list[str]:
    """Trials, and what the default needs of them."""
    mean, default = means(medians), TuneOptions().explorer
    rows = [_row(w, [medians[e][w] for e in mean]) for w in medians["random"]]
    rows.append(("mean", *(f"{value:.1f}" for value in mean.values()), "", "", ""))
    others = min(value for e, value in mean.items() if e != default)
    return [
        *table(("space", *mean, "configurations", "good ones", "untuned, % of the best"), rows, left=1),
        "",
        f"Medians over {SEEDS} seeds, batches of {BATCH}; the mean is the geometric one. All explorers begin alike.",
        f"The default, `{default}`, needs {mean[default] / mean['random']:.2f} times the trials of random draws and",
        f"{mean[default] / others:.2f} times those of the best other explorer.",
    ]


def _row(space: str, medians: Sequence[float]) -> tuple[str, ...]:
    """A space, the trials of every explorer, and how hard it is."""
    replay = replay_of(space)
    good = int((replay.speeds >= FOUND * replay.best).sum())
    untuned = f"{100 * replay.untuned / replay.best:.0f}" if replay.untuned else ""
    return (space, *(f"{median:.0f}" for median in medians), str(len(replay.rows)), str(good), untuned)


def as_json(medians: Medians, untuned: Medians, about: Mapping[str, str]) -> dict[str, Any]:
    """The same for programs."""
    plan = {"seeds": SEEDS, "batch": BATCH, "found": FOUND}
    found = {"medians": medians, "means": means(medians)}
    return {
        "machine": dict(about), "plan": plan, **found, "untuned": {"medians": untuned, "means": means(untuned)}
    }  # fmt: skip


def write(medians: Medians, untuned: Medians, out: Path) -> list[str]:
    """Writes report, numbers and picture of searches from random and untuned configurations; their names."""
    spaces = list(next(iter(medians.values())))
    about = about_tables(spaces)

    def draw(file: Path) -> None:
        random = medians["random"]
        series = {e: [medians[e][w] / random[w] for w in spaces] for e in means(medians) if e != "random"}
        plots.bars(file, spaces, series, "Trials to 99 % of the best, random draws being 1", "trials", cut=2.0)

    def page(picture: str) -> str:
        return markdown(medians, untuned, about, picture)

    return keep(NAME, out, as_json(medians, untuned, about), page, draw)


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.papers.{NAME}",
        description=f"{__doc__}\n{held_out.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--held-out", choices=held_out.PROCESSORS, metavar="CPU",
        help=f"whole spaces of held-out workloads instead of the papers' tables: {', '.join(held_out.PROCESSORS)}",
    )  # fmt: skip
    add("--measure", action="store_true", help="go on with the searches of held-out workloads first")
    add("--replay", action="store_true", help="run these searches once more on the kept times, and compare")
    add("--workloads", metavar="A,B", help="measure some of those compared")
    add("--minutes", type=float, default=4.5, metavar="M", help="measure for so long (default 4.5)")
    add("--core", type=int, default=0, metavar="N", help="core to take times on (default 0)")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes that replay tables")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help=f"where results go (default {RESULTS})")
    options = parser.parse_args(arguments)
    names = options.workloads.split(",") if options.workloads else []
    if (options.measure or options.replay or names) and not options.held_out:
        parser.error("--measure, --replay and --workloads are for --held-out")
    known = held_out.names_of_all(options.held_out) if names else []
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no workload {unknown[0]}; there are {', '.join(known)}")
    require(NAME, "matplotlib", "xgboost")
    os.environ["OMP_NUM_THREADS"] = "1"  # many threads a search would share the cores
    console = Console()
    try:
        if options.held_out:
            names = held_out.run(
                options.out, processor=options.held_out, measuring=options.measure, again=options.replay,
                minutes=options.minutes, core=options.core, names=names, console=console,
            )  # fmt: skip
        else:
            medians = measure(SPACES, EXPLORERS, options.jobs)
            untuned = measure(steep(SPACES), EXPLORERS, options.jobs, untuned=True)
            names = write(medians, untuned, options.out)
    except UsageError as error:  # such as a table of other knobs
        raise SystemExit(f"python -m benchmarks.papers.{NAME}: {error}") from None
    if names:
        console.print(f"{options.out}/: {', '.join(names)}", highlight=False)


if __name__ == "__main__":
    main()
