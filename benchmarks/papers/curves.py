"""Figures that compare searches: best speed over trials, mean and deviation over seeds, on replayed tables."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks import plots
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.papers.replay import GOOD, Job, Method, Replay, replay_of, run_all, trials_until
from benchmarks.papers.tables import FOLDER
from benchmarks.report import table
from benchmarks.stats import geometric_mean
from mlc.errors import UsageError


@dataclass(frozen=True)
class Figure:
    """What a figure compares.

    Args:
        name: of its files.
        title: of the report.
        panels: by title, a table and the methods that search it, by label.
        remarks: what differs from the paper's figure, and why; lines of Markdown.
        trials: of each search.
        batch: configurations that are proposed together.
        seeds: searches of each method.
        good: part of the best speed that counts as found.
    """

    name: str
    title: str
    panels: Mapping[str, tuple[str, Mapping[str, Method]]]
    remarks: str
    trials: int = 400
    batch: int = 16
    seeds: int = 5
    good: float = 0.99  # kernels that the arithmetic units limit are within some percent of each other

    @property
    def labels(self) -> list[str]:
        """Of all methods."""
        return list(dict.fromkeys(label for _, methods in self.panels.values() for label in methods))


def everywhere(workloads: Sequence[str], methods: Mapping[str, Method]) -> dict[str, tuple[str, Mapping[str, Method]]]:
    """The same methods on some tables, a panel each."""
    return {w: (w, methods) for w in workloads}


@dataclass(frozen=True)
class Curve:
    """Searches of one method on one table.

    Args:
        mean: 10^9 operations a second after each trial, ``[trials]``.
        deviation: standard deviation over the seeds, ``[trials]``.
        reached: trials until most of the best speed was found, one a seed; infinite where it was not.
    """

    mean: np.ndarray
    deviation: np.ndarray
    reached: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[np.ndarray], trials: int, good: float) -> Curve:
        """That of some searches until a good speed; one that came to the end of its space stays where it was."""
        padded = np.stack([np.concatenate([r, np.full(trials - len(r), r[-1])]) for r in runs])
        return cls(padded.mean(axis=0), padded.std(axis=0), tuple(trials_until(r, good) for r in runs))

    @property
    def median(self) -> float:
        return float(np.median(self.reached))


Curves = dict[str, dict[str, Curve]]  # by panel, by label


def measure(figure: Figure, processes: int, folder: Path = FOLDER) -> Curves:
    """Runs all searches."""
    keys = [(panel, w, label, m) for panel, (w, methods) in figure.panels.items() for label, m in methods.items()]
    jobs = [
        Job(w, method, seed, figure.trials, figure.batch, folder=folder)
        for _, w, _, method in keys
        for seed in range(figure.seeds)
    ]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(figure.name, total=len(jobs))
        runs = run_all(jobs, processes, lambda done: progress.update(bar, completed=done))
    found: Curves = {panel: {} for panel in figure.panels}
    for k, (panel, w, label, _) in enumerate(keys):
        mine = runs[k * figure.seeds : (k + 1) * figure.seeds]
        found[panel][label] = Curve.of(mine, figure.trials, figure.good * replay_of(w, folder).best)
    return found


def markdown(figure: Figure, curves: Curves, about: Mapping[str, str], picture: str) -> str:
    """A table of trials and speeds, with the machine and what differs from the paper."""
    lines = [f"# {figure.title}", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    lines += [f"![{picture}]({picture})", ""] if picture else []
    rows = []
    for panel, found in curves.items():
        best = _table(figure, panel).best
        for label, curve in found.items():
            speed = f"{curve.mean[-1]:.1f} ±{curve.deviation[-1]:.1f}"
            rows.append((panel, label, _trials(curve.median), speed, f"{100 * curve.mean[-1] / best:.0f}"))
    reached, after = f"trials to {_percent(figure.good)}", f"GFLOP/s after {figure.trials}"
    headings = ("space", "search", reached, after, "% of the best known")
    lines += [*table(headings, rows, left=2), "", _landscape(figure), ""]
    if len({tuple(methods) for _, methods in figure.panels.values()}) == 1:
        lines += [*_summary(figure, curves), ""]
    return "\n".join([*lines, figure.remarks.strip()]) + "\n"


def _landscape(figure: Figure) -> str:
    """How many configurations are good enough: in flat spaces random draws find some as soon as any search."""
    replays = {name: replay_of(name) for name, _ in figure.panels.values()}
    lines = []
    for part in dict.fromkeys((figure.good, GOOD)):
        shares = (f"{n} {100 * (r.speeds >= part * r.best).mean():.1f} %" for n, r in replays.items())
        lines.append(f"Configurations that are within {_percent(1 - part)} of the best: {', '.join(shares)}.")
    return "\n".join(lines)


def _summary(figure: Figure, curves: Curves) -> list[str]:
    """Geometric means over the spaces, where every search got there."""
    rows = []
    early = figure.trials // 4
    for label in figure.labels:
        medians = [found[label].median for found in curves.values()]
        parts = [found[label].mean[early - 1] / _table(figure, panel).best for panel, found in curves.items()]
        mean = geometric_mean(medians) if all(map(math.isfinite, medians)) else math.inf
        rows.append((label, _trials(mean), f"{100 * geometric_mean(parts):.1f}"))
    return table(("all spaces", f"trials to {_percent(figure.good)}", f"% of the best after {early}"), rows, left=1)


def _trials(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "not reached"


def _percent(part: float) -> str:
    return f"{100 * part:.3g}%"


def _table(figure: Figure, panel: str) -> Replay:
    return replay_of(figure.panels[panel][0])


def as_json(figure: Figure, curves: Curves, about: Mapping[str, str]) -> dict[str, Any]:
    """The same for programs; every fourth trial."""
    plan = {"trials": figure.trials, "batch": figure.batch, "seeds": figure.seeds, "good": figure.good}
    results = {}
    for panel, found in curves.items():
        replay = _table(figure, panel)
        results[panel] = {
            "table": replay.table.name,
            "configurations": len(replay.rows),
            "best": replay.best,
            "untuned": replay.table.flops / replay.table.untuned / 1e9,
            "searches": {
                label: {
                    "explorer": figure.panels[panel][1][label].explorer,
                    "options": dict(figure.panels[panel][1][label].options),
                    "mean": np.round(curve.mean[3::4], 2).tolist(),
                    "deviation": np.round(curve.deviation[3::4], 2).tolist(),
                    "reached": list(curve.reached),
                }
                for label, curve in found.items()
            },
        }
    return {"machine": dict(about), "plan": plan, "results": results}


def draw(figure: Figure, curves: Curves, file: Path) -> None:
    """A panel a space, as in the paper."""
    panels = {
        panel: {label: (curve.mean, curve.deviation) for label, curve in found.items()}
        for panel, found in curves.items()
    }
    best = {panel: _table(figure, panel).best for panel in curves}
    plots.curves(file, panels, figure.title, "trials", "GFLOP/s", best)


def about_tables(workloads: Sequence[str]) -> dict[str, str]:
    """The machines that the tables are of, and when they were measured."""
    tables = [replay_of(w).table for w in dict.fromkeys(workloads)]
    about: dict[str, str] = {}
    for key in tables[0].about:
        if key in ("date", "load"):
            continue
        values = dict.fromkeys(t.about[key] for t in tables)
        about[key] = next(iter(values))
        if len(values) > 1:
            names = {v: ", ".join(t.name for t in tables if t.about[key] == v) for v in values}
            about[key] = "; ".join(f"{v} ({names[v]})" for v in values)
    about["tables"] = ", ".join(f"{t.name} ({len(t.number)} configurations)" for t in tables)
    about["measured"] = f"{min(t.about['date'] for t in tables)} to {max(t.about['date'] for t in tables)}, one thread"
    return about


def write(figure: Figure, curves: Curves, out: Path) -> list[str]:
    """Writes report, numbers and picture; their names."""
    about = about_tables([w for w, _ in figure.panels.values()])
    return keep(
        figure.name,
        out,
        as_json(figure, curves, about),
        lambda picture: markdown(figure, curves, about, picture),
        lambda file: draw(figure, curves, file),
        indent=None,
    )


def main(figure: Figure, description: str | None, arguments: list[str] | None = None) -> None:
    """The command line of a figure; ``arguments`` default to those of the process."""
    networks = any("TreeGRU" in label for label in figure.labels)
    command(figure.name, description, lambda jobs, out: write(figure, measure(figure, jobs), out), arguments, networks)


def command(
    name: str,
    description: str | None,
    run: Callable[[int, Path], list[str]],
    arguments: list[str] | None,
    torch: bool = False,
) -> None:
    """A command line that replays searches.

    Args:
        name: of its module.
        description: shown by ``--help``.
        run: given how many processes and the folder of results, measures, writes, and returns the names of the files.
        arguments: those of the process unless given.
        torch: whether networks are among the cost models.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.papers.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes (default: one a core)")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help=f"where results go (default {RESULTS})")
    options = parser.parse_args(arguments)
    require(name, "matplotlib", "xgboost", *(["torch"] if torch else []))
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that search: many threads a search would share the cores
    try:
        names = run(options.jobs, options.out)
    except UsageError as error:  # such as a table of other knobs
        raise SystemExit(f"python -m benchmarks.papers.{name}: {error}") from None
    Console().print(f"{options.out}/: {', '.join(names)}", highlight=False)
