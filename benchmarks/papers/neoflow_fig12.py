"""Figure 12 of the NeoFlow paper: training MI-LSTM in dynamic mode, its latency and its iterations over time.

    python -m benchmarks.papers.neoflow_fig12 --minutes 4

Zheng et al., "NeoFlow: A Flexible Framework for Enabling Efficient Compilation for High Performance DNN Training",
section 7.3. Ours is ``mlc train --tune dynamic``: it trains with one core less than there are, which searches for
kernels and compiles them. PyTorch has all cores and begins when ours does; it is run after ours, for a while, and goes
on at its median. Time counts from the first line that builds a network, compiling included.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import mlc
from benchmarks import machine, plots
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from mlc.api.step_tuning import StepTuning
from mlc.runtime.native import available_cores
from mlc.training.loop import Plan
from mlc.training.watch import Exchange, Watcher

NETWORK, BATCH, BATCHES = "mi_lstm", 64, 16
RATE, MOMENTUM = 1e-3, 0.9
BINS = 240  # of time, whose medians are drawn
OURS = "mlc, dynamic"


@dataclass(frozen=True)
class Run:
    """One way to train.

    Args:
        name: what it is called.
        threads: that run its steps.
        begins: seconds until the first iteration is done.
        at, latency, iterations: seconds, median milliseconds of an iteration around them, and iterations done by then.
        median: milliseconds of an iteration, of the last quarter of the time.
        exchanges: seconds, and both versions' milliseconds, of kernels that took the place of others.
    """

    name: str
    threads: int
    begins: float
    at: Sequence[float]
    latency: Sequence[float]
    iterations: Sequence[int]
    median: float
    exchanges: Sequence[tuple[float, float, float]] = ()

    def done(self, seconds: float) -> float:
        """Iterations by a time; after what was measured it goes on at its median."""
        if seconds <= self.at[-1]:
            return float(np.interp(seconds, self.at, self.iterations)) if seconds > self.begins else 0.0
        return self.iterations[-1] + 1e3 * (seconds - self.at[-1]) / self.median


class _Over(Exception):
    """The time is over."""


class _Clock(Watcher):
    """Writes down when steps are over, until the time is.

    Args:
        seconds: after which the run is left.
    """

    def __init__(self, seconds: float) -> None:
        self.begin = time.perf_counter()
        self.seconds = seconds
        self.ends: list[float] = []
        self.exchanges: list[tuple[float, float, float]] = []

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.begin

    def stepped(self, epoch: int, batch: int, batches: int, loss: float, rate: float) -> None:
        self.ends.append(self.now())
        if self.ends[-1] > self.seconds:
            raise _Over

    def exchanged(self, exchange: Exchange) -> None:
        if exchange.taken and exchange.before and exchange.after:
            self.exchanges.append((self.now(), 1e3 * exchange.before, 1e3 * exchange.after))


def ours(seconds: float, trials: int) -> Run:
    """Trains in dynamic mode, with nothing found before."""
    from benchmarks.training.networks import EXAMPLES

    threads = max(1, available_cores() - 1)
    rng = np.random.default_rng(0)
    clock = _Clock(seconds)
    model = mlc.load(EXAMPLES / f"{NETWORK}.py", dims={"batch": BATCH})
    (spec,) = model.inputs
    count = BATCH * BATCHES
    x = rng.standard_normal((count, *spec.shape[1:])).astype(np.float32)
    data = {spec.name: x, "label": rng.integers(0, 10, count)}
    with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder, contextlib.suppress(_Over):
        tuning = StepTuning("dynamic", trials, Path(folder, "records.jsonl"))
        plan = Plan(10**9, RATE)
        how = {"optimizer": "sgd", "momentum": MOMENTUM, "threads": threads, "tuning": tuning, "watcher": clock}
        mlc.train(model, data, plan, **how)
    return _run(OURS, threads, clock.ends, clock.exchanges)


def theirs(seconds: float, engine: str) -> Run:
    """Trains with PyTorch on all cores."""
    import torch

    from benchmarks.training.engines import steps
    from benchmarks.training.networks import network

    threads = available_cores()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.compiler.reset()
    clock = _Clock(seconds)
    call = steps(network(NETWORK, BATCH), threads, Path("unused"))[engine]()
    end = float("inf")
    while clock.now() < end or len(clock.ends) < 50:
        call()
        clock.ends.append(clock.now())
        end = clock.ends[0] + seconds  # compiling does not count
    return _run(f"PyTorch, {engine}", threads, clock.ends, ())


def _run(name: str, threads: int, ends: Sequence[float], exchanges: Sequence[tuple[float, float, float]]) -> Run:
    gaps = np.diff(ends) * 1e3
    at, latency, iterations = [], [], []
    edges = np.linspace(ends[0], ends[-1], max(1, min(BINS, len(ends) // 4)) + 1)
    for low, high in pairwise(edges):
        first, last = bisect.bisect_left(ends, low), bisect.bisect_right(ends, high)
        if last - first > 1:
            at.append(float(high))
            latency.append(float(np.median(gaps[first : last - 1])))
            iterations.append(last)
    late = [g for g, end in zip(gaps, ends[1:], strict=True) if end >= ends[0] + 0.75 * (ends[-1] - ends[0])]
    return Run(name, threads, ends[0], at, latency, iterations, statistics.median(late), tuple(exchanges))


def overtakes(runs: Sequence[Run], other: Run, seconds: float) -> float | None:
    """When ours has done more iterations than another one for good, up to a time."""
    mine = runs[0]
    grid = np.linspace(mine.begins, seconds, 2000)
    behind = [t for t in grid if mine.done(t) <= other.done(t)]
    if not behind:
        return mine.begins
    return None if behind[-1] >= grid[-2] else float(behind[-1])


def markdown(runs: Sequence[Run], seconds: float, about: Mapping[str, str], picture: str) -> str:
    """The page."""
    rows = []
    for run in runs:
        crossing = overtakes(runs, run, seconds) if run is not runs[0] else None
        rows.append(
            (
                run.name,
                str(run.threads),
                f"{run.begins:.1f}",
                f"{run.latency[0]:.2f}",
                f"{run.median:.2f}",
                f"{run.done(seconds):.0f}",
                "" if run is runs[0] else "not yet" if crossing is None else f"{crossing:.1f}",
            )
        )
    heads = ("training", "threads", "first iteration after, s", "first latency, ms", "last latency, ms",
             f"iterations in {seconds / 60:.1f} min", "overtaken by mlc after, s")  # fmt: skip
    mine = runs[0]
    told = [f"- {t:.0f} s: {before:.2f} to {after:.2f} ms" for t, before, after in mine.exchanges]
    return "\n".join(
        [
            "# Figure 12 of the NeoFlow paper: MI-LSTM in dynamic mode",
            "",
            *(f"- {k}: {v}" for k, v in about.items()),
            "",
            *([f"![{picture}]({picture})", ""] if picture else []),
            *table(heads, rows),
            "",
            f"{BATCH} examples an iteration, 28 steps of 28 features, 128 units, SGD with momentum.",
            "Kernels that took the place of others, and both versions' median times in turns:",
            "",
            *(told or ["- none"]),
            "",
            "The paper trains for ten hours on a GPU: its first iteration comes after 3.96 minutes, its latency falls",
            "from 27.8 to 5.35 ms within 19 minutes, and it overtakes PyTorch's iterations after 41. Here training",
            "begins with schedules of a cost model, and one core searches beside it. Minutes stand for hours.",
            "",
        ]
    )


def draw(runs: Sequence[Run], seconds: float, file: Path) -> None:
    """Both panels of the figure."""
    grid = list(np.linspace(0.0, seconds, 300))
    latency = {r.name: ([*r.at, seconds], [*r.latency, r.median]) for r in runs}
    done = {r.name: (grid, [r.done(t) for t in grid]) for r in runs}
    most = {"latency, ms": 2.0 * max(r.median for r in runs)}
    plots.lines(
        file, {"latency, ms": latency, "iterations": done}, "MI-LSTM, dynamic mode against PyTorch", "seconds", most
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.neoflow_fig12", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=4.0, metavar="N", help="of training in dynamic mode (default 4)")
    add("--peer-minutes", type=float, default=0.5, metavar="N", help="of each way of PyTorch's (default 0.5)")
    add("--trials", type=int, default=1000, metavar="N", help="configurations to measure (default 1000)")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("neoflow_fig12", "matplotlib", "torch")
    seconds = 60 * options.minutes
    about = machine.describe()
    runs = [ours(seconds, options.trials), *(theirs(60 * options.peer_minutes, e) for e in ("eager", "torch.compile"))]
    for run in runs:
        print(f"{run.name}: {run.median:.3f} ms, {run.done(seconds):.0f} iterations in {options.minutes:g} minutes")
    files = keep(
        "neoflow_fig12",
        options.out,
        {"machine": about, "seconds": seconds, "runs": [asdict(r) for r in runs]},
        lambda picture: markdown(runs, seconds, about, picture),
        lambda file: draw(runs, seconds, file),
        indent=None,
    )
    print(f"{options.out}/: {', '.join(files)}")


if __name__ == "__main__":
    main()
