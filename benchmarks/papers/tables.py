"""Measured tables of whole spaces, for explorers to be replayed on.

    python -m benchmarks.papers.tables --list
    python -m benchmarks.papers.tables C6 C9 --core 3 --lock /tmp/bench.lock

Every configuration of a subspace (:mod:`benchmarks.papers.spaces`) is built, checked and timed by the tuner's own
measurer, in random order, and the fastest ones again, in turns. A table that is cut short is a random
sample, and goes on where it stopped. Other programs that take times on this machine are kept apart by a lock file.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine
from benchmarks.papers.spaces import WORKLOADS, Setting
from mlc.errors import UsageError
from mlc.lower.knobs import Knob
from mlc.records.measurement import Failure, Measurement
from mlc.runtime import atomic_write
from mlc.settings import CompileOptions
from mlc.targets.base import get_target
from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.timing import Rule

FOLDER = Path("benchmarks/papers/tables")
# A few samples say enough of a configuration that is not among the fastest.
FAST = Rule(sample_seconds=0.004, samples=3, budget=0.05, limit=0.3)
CAREFUL = Rule(samples=15)
CHUNK = 48  # configurations that are measured together
WORTH = 0.85  # part of the best speed from which on a configuration is measured again
# How slow, by the fastest of all others, may be what their times are scaled by, and how many those are.
LOW, SCALES = 0.5, 15
ROUNDS, MOST_ROUNDS = 3, 6
FINALISTS = 48  # that are measured in turns, a sample each, so that what disturbs one disturbs all
_PAUSE = 1.5  # seconds between two slices, for whoever waits for the lock
_FAILURES = tuple(Failure)


@dataclass
class Table:
    """What is known of a subspace.

    Args:
        name: of the workload.
        text: what it is.
        flops: operations of a call.
        knobs: names and values, to tell whether the templates still ask the same.
        untuned: seconds of a call of the whole space's default.
        about: the machine.
        number: of each configuration (:meth:`mlc.lower.knobs.Space.index`), int64 ``[n]``.
        seconds: of a call, float32 ``[n]``; NaN for failures.
        failure: position in :class:`~mlc.tuning.base.Failure`, int8 ``[n]``; -1 for none.
        again: seconds by the more careful measurements, float32 ``[n]``; NaN where there are none.
        turns: of how many of those it is the mean, where it is one, int8 ``[n]``.
    """

    name: str
    text: str
    flops: int
    knobs: list[list[Any]]
    untuned: float = float("nan")
    about: dict[str, str] = field(default_factory=dict)
    number: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    failure: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))
    again: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    turns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))

    @property
    def best_seconds(self) -> np.ndarray:
        """The most careful time of each configuration, float32 ``[n]``."""
        return np.where(np.isnan(self.again), self.seconds, self.again)

    @property
    def speeds(self) -> np.ndarray:
        """10^9 operations a second, float64 ``[n]``; 0 for failures."""
        return np.nan_to_num(self.flops / self.best_seconds.astype(np.float64) / 1e9, nan=0.0, posinf=0.0)

    def add(self, numbers: Sequence[int], results: Sequence[Measurement]) -> None:
        """Appends measurements."""
        seconds = [np.nan if m.seconds is None else m.seconds for m in results]
        failure = [-1 if m.failure is None else _FAILURES.index(m.failure) for m in results]
        self.number = np.concatenate([self.number, np.array(numbers, np.int64)])
        self.seconds = np.concatenate([self.seconds, np.array(seconds, np.float32)])
        self.failure = np.concatenate([self.failure, np.array(failure, np.int8)])
        self.again = np.concatenate([self.again, np.full(len(numbers), np.nan, np.float32)])
        self.turns = np.concatenate([self.turns, np.zeros(len(numbers), np.int8)])

    def middling(self) -> np.ndarray:
        """Positions of some configurations that are slower than all finalists, evenly from fast to slow."""
        order = np.argsort(-self.speeds, kind="stable")[FINALISTS:]
        between = order[self.speeds[order] > LOW * self.speeds[order].max(initial=0.0)]
        return between[np.linspace(0, len(between) - 1, min(len(between), SCALES)).astype(np.int64)]

    def finalists(self) -> np.ndarray:
        """Positions of the fastest configurations, fastest first."""
        return np.argsort(-self.speeds, kind="stable")[:FINALISTS]

    def settled(self) -> bool:
        """Whether all that may be among the best has been measured again."""
        at = self.finalists()
        worth = at[self.speeds[at] >= WORTH * self.speeds.max(initial=0.0)]
        return not np.isnan(self.again[worth]).any()

    def save(self, folder: Path) -> None:
        """Writes ``NAME.npz``, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        head = {"name": self.name, "text": self.text, "flops": self.flops, "knobs": self.knobs}
        head |= {"untuned": self.untuned, "about": self.about, "failures": [f.value for f in _FAILURES]}
        with atomic_write(folder / f"{self.name}.npz") as file:
            np.savez_compressed(
                file,
                head=np.frombuffer(json.dumps(head).encode(), np.uint8),
                number=self.number,
                seconds=self.seconds,
                failure=self.failure,
                again=self.again,
                turns=self.turns,
            )

    @classmethod
    def load(cls, name: str, folder: Path = FOLDER) -> Table:
        """Reads a table.

        Raises:
            UsageError: there is none of that name.
        """
        file = folder / f"{name}.npz"
        if not file.is_file():
            raise UsageError(f"{file}: no such table", hint=f"python -m benchmarks.papers.tables {name}")
        with np.load(file) as data:
            head = json.loads(data["head"].tobytes())
            rows = {key: data[key] for key in ("number", "seconds", "failure", "again")}
            turns = data["turns"] if "turns" in data else (~np.isnan(rows["again"])).astype(np.int8)
        return cls(
            head["name"], head["text"], head["flops"], head["knobs"], head["untuned"], head["about"],
            rows["number"].astype(np.int64), rows["seconds"], rows["failure"], rows["again"], turns,
        )  # fmt: skip


def knob_list(knobs: Sequence[Knob]) -> list[list[Any]]:
    """Names and values of knobs as JSON has them."""
    found: list[list[Any]] = json.loads(json.dumps([[k.name, list(k.values)] for k in knobs]))
    return found


def table_for(setting: Setting, folder: Path) -> Table:
    """The table of a setting as far as it has been measured, or an empty one.

    Raises:
        UsageError: the stored table is of other knobs.
    """
    work, knobs = setting.workload, knob_list(setting.part.space.knobs)
    if not (folder / f"{work.name}.npz").is_file():
        return Table(work.name, work.text, setting.task.flops, knobs)
    table = Table.load(work.name, folder)
    if table.knobs != knobs:
        raise UsageError(f"{folder / work.name}.npz was measured for other knobs", hint="measure it elsewhere: --out")
    return table


class Recorder:
    """Measures tables, one after the other.

    Args:
        settings: what to measure.
        folder: where tables are.
        core: on which times are taken.
        builders: worker processes that build.
        lock: file that is locked while anything runs; none if empty.
        slice_seconds: how long it is kept locked.
    """

    def __init__(
        self, settings: Sequence[Setting], folder: Path, core: int, builders: int, lock: str, slice_seconds: float
    ) -> None:
        self.settings, self.folder = settings, folder
        self._lock, self._slice = lock, slice_seconds
        options = {"cores": (core,), "builders": builders, "retries": 1}
        compile_options = CompileOptions("tables", "onnx", "")
        tasks, target, rng = [s.task for s in settings], settings[0].target, np.random.default_rng(0)
        common: dict[str, Any] = {"threads": 1, "compile_options": compile_options, "rng": rng}
        self._fast = LocalMeasurer(tasks, target, options=MeasureOptions(rule=FAST, **options), **common)
        self._careful = LocalMeasurer(tasks, target, options=MeasureOptions(rule=CAREFUL, **options), **common)

    def close(self) -> None:
        self._fast.close()
        self._careful.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[float]:
        """Until when the machine is ours."""
        if not self._lock:
            yield time.monotonic() + self._slice
            return
        with open(self._lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield time.monotonic() + self._slice
        time.sleep(_PAUSE)

    def record(self, k: int, most: int | None, deadline: float, console: Console) -> None:
        """Measures what is missing of a table, or so much that it has ``most`` configurations."""
        setting = self.settings[k]
        table = table_for(setting, self.folder)
        table.about = machine.describe()
        part = setting.part
        numbers = np.array([part.space.index(row) for row in setting.accepted()])
        numbers = np.random.default_rng(0).permutation(numbers)[:most]
        missing = numbers[~np.isin(numbers, table.number)]
        while len(missing) and time.monotonic() < deadline:
            began, count = time.monotonic(), 0
            with self._locked() as until:
                if np.isnan(table.untuned):
                    (result,) = self._careful.measure(k, [setting.task.space.default])
                    table.untuned = float("nan") if result.seconds is None else result.seconds
                while len(missing) and time.monotonic() < until:
                    some, missing = missing[:CHUNK], missing[CHUNK:]
                    table.add(some.tolist(), self._fast.measure(k, self._configs(setting, some)))
                    count += len(some)
            table.save(self.folder)
            rate = count / (time.monotonic() - began)
            best = table.flops / table.untuned / 1e9
            console.print(
                f"{table.name}: {len(table.number)} of {len(numbers)}, {rate:.1f} a second with waiting, best "
                f"{table.speeds.max():.1f}, untuned {best:.1f} GFLOP/s",
                highlight=False,
            )
        turns: dict[int, list[float]] = {}
        for done in range(MOST_ROUNDS):
            if len(missing) or (table.settled() and done >= ROUNDS) or time.monotonic() > deadline:
                break
            at = table.finalists()
            for place, seconds in zip(at.tolist(), self._in_turns(k, table, at).tolist(), strict=True):
                turns.setdefault(place, []).append(seconds)
                table.again[place] = median(turns[place])
            table.save(self.folder)
            best = np.sort(table.speeds)[::-1]
            console.print(f"{table.name}: the fastest again, best {best[:4].round(1)} GFLOP/s", highlight=False)

    def _in_turns(self, k: int, table: Table, at: np.ndarray) -> np.ndarray:
        """Seconds of some configurations, on the scale of slower ones, which say how fast the machine is now."""
        scales = table.middling()
        with self._locked():
            results = self._careful.compare(k, self._configs(self.settings[k], table.number[[*at, *scales]]))
        seconds = np.array([np.nan if m.seconds is None else m.seconds for m in results])
        scale = float(np.nanmedian(table.seconds[scales] / seconds[len(at) :])) if len(scales) else 1.0
        found: np.ndarray = np.where(np.isnan(seconds), np.inf, seconds * scale)[: len(at)]
        return found

    @staticmethod
    def _configs(setting: Setting, numbers: np.ndarray) -> list[dict[str, Any]]:
        rows = setting.part.lift(np.array([setting.part.space.at(int(n)) for n in numbers]))
        return [setting.task.space.config(row) for row in rows]


def _listed(setting: Setting) -> str:
    """A line about a workload and its space on the target."""
    work = setting.workload
    try:
        space = setting.part.space
    except UsageError as error:
        return f"{work.name}: none here, {error}; {work.text}"
    knobs = ", ".join(f"{k.name} {len(k.values)}" for k in space.knobs)
    return f"{work.name}: {len(setting.accepted())} of {space.size} ({knobs}); {work.text}"


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.tables", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="workloads (default: all)")
    add("--list", action="store_true", help="show workloads and their spaces, measure nothing")
    add("--most", type=int, metavar="N", help="a random sample of so many configurations (default: all)")
    add("--target", default="x86", help="what to compile for (default x86: this machine)")
    add("--core", type=int, default=0, metavar="N", help="core to take times on (default 0)")
    add("--builders", type=int, default=0, metavar="N", help="processes that build (default: one a core)")
    add("--lock", default="", metavar="FILE", help="lock this file while anything is timed")
    add("--slice", type=float, default=45.0, metavar="S", help="seconds for which it is locked at a time (default 45)")
    add("--minutes", type=float, default=1e6, metavar="M", help="stop after so long")
    add("--out", type=Path, default=FOLDER, metavar="DIR", help=f"where tables are (default {FOLDER})")
    options = parser.parse_args(arguments)
    console = Console(width=150)
    target = get_target(options.target)
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    settings = [Setting(WORKLOADS[name], target) for name in options.names or WORKLOADS]
    if options.list:
        for s in settings:
            console.print(_listed(s), highlight=False, markup=False)
        return
    try:
        _measure(settings, options, console)
    except UsageError as error:
        raise SystemExit(f"python -m benchmarks.papers.tables: {error}; --list tells what there is") from None


def _measure(settings: Sequence[Setting], options: argparse.Namespace, console: Console) -> None:
    """Measures what is missing of tables.

    Raises:
        UsageError: a workload has no such space on the target, or its table is of other knobs.
    """
    for setting in settings:
        table_for(setting, options.out)  # before the first of them takes an hour
    deadline = time.monotonic() + 60 * options.minutes
    recorder = Recorder(settings, options.out, options.core, options.builders, options.lock, options.slice)
    try:
        for k in range(len(settings)):
            recorder.record(k, options.most, deadline, console)
    finally:
        recorder.close()


if __name__ == "__main__":
    main()
