"""Dynamic mode: training begins with the kernels that there are, and takes better ones as they are found.

Three workers (NeoFlow, section 6 and figure 8): *exploration* measures schedules in a process of its own, which appends
every trial to a file of records, the queue between the two; *generation* compiles the best of them, in a process as
well, but for those that the function cache holds (:mod:`mlc.targets.functions`), a folder that execution began with;
*execution* is the training loop itself, which takes what was compiled on trial between its steps: results are
compared, then both versions do the next steps in turns, and the faster one stays. No step is done for its time alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from mlc.runtime.module import Module
from mlc.training.watch import Exchange, Watcher

TURNS, MOST_TURNS, SECONDS = 8, 200, 0.1  # steps by each of two versions before one is taken, and how long those last
GAIN = 1.01  # by which the new one has to be faster
TOLERANCE = 1e-3  # of the largest element of a result: rounding of sums in another order
# A worker shall not outlive the run, however that ends: the kernel kills it. Its records are whole at any moment.
_MORTAL = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0);"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Search:
    """What the workers share.

    Args:
        model: the file with the graph of a step, as ``Model.save`` writes it.
        folder: for what they write for one another, with the function cache; emptied by whoever made it.
        records: the file that trials are appended to.
        known: other files of records that a compilation looks into.
        target, threads: what runs the steps.
        trials: configurations to measure.
        seed: of the search.
        interval: seconds between two looks at what was found.
    """

    model: Path
    folder: Path
    records: Path
    known: Sequence[Path]
    target: str
    threads: int
    trials: int
    seed: int
    interval: float = 15.0

    def exploring(self) -> list[str]:
        """The command that measures schedules."""
        return [
            *(sys.executable, "-m", "mlc", "tune", str(self.model), "--target", self.target),
            *("--threads", str(self.threads), "--records", str(self.records), "--trials", str(self.trials)),
            *("--seed", str(self.seed), "--no-check", "--quiet"),
        ]

    def generating(self, package: Path) -> list[str]:
        """The command that compiles with what was found so far."""
        files = [f for path in (*self.known, self.records) for f in ("--records", str(path))]
        return [
            *(sys.executable, "-m", "mlc", "compile", str(self.model), "--target", self.target),
            *("--threads", str(self.threads), *files, "--max-kernels", "1000000", "--quiet", "-o", str(package)),
            *("--functions", str(functions_in(self.folder)), "--json", str(package.with_suffix(".json"))),
        ]


def functions_in(folder: Path) -> Path:
    """The function cache in a folder that workers share."""
    return folder / "functions"


@dataclass(frozen=True)
class Generated:
    """A version of a step to try.

    Args:
        package: the file.
        made, found: kernels that were compiled for it, and that the function cache held.
    """

    package: Path
    made: int
    found: int

    @staticmethod
    def of(package: Path) -> Generated:
        """With what the compiler said of it, in a file beside it."""
        counts = json.loads(package.with_suffix(".json").read_text())["functions"]
        return Generated(package, counts.get("made", 0), counts.get("found", 0))


class Workers:
    """Exploration and generation, beside a run. A context manager: they end with it.

    Args:
        search: what they do.
    Attributes:
        complaint: what a worker said that failed; nothing if none did.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._ready: Generated | None = None
        self.complaint = ""
        self._thread = threading.Thread(target=self._generate, name="mlc-generation", daemon=True)

    def take(self) -> Generated | None:
        """The newest version that nobody has taken yet."""
        with self._lock:
            ready, self._ready = self._ready, None
            return ready

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._ended.is_set():
                return None
            with self._log(len(self._processes)).open("wb") as log:
                # a session of its own: Ctrl-C is for the run, which ends its workers by itself
                process = subprocess.Popen(
                    [sys.executable, "-c", _MORTAL, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
                )  # fmt: skip
            self._processes.append(process)
            return process

    def _log(self, number: int) -> Path:
        return self._search.folder / f"{number}.log"

    def _generate(self) -> None:
        """Compiles whenever there is news, until exploration has ended and all that it found is compiled."""
        search, number, seen, due = self._search, 0, _size(self._search.records), 0.0
        exploring = self._start(search.exploring())
        if exploring is None:
            return
        over = False
        while not over and not self._ended.wait(1.0):
            over = exploring.poll() is not None
            size = _size(search.records)
            if size == seen or not (over or time.monotonic() >= due):
                continue
            seen, number = size, number + 1
            package = search.folder / f"{number}.tar"
            if self._done(self._start(search.generating(package))):
                ready = Generated.of(package)
                with self._lock:
                    self._ready = ready
            due = time.monotonic() + search.interval
        if over:
            self._done(exploring)

    def _done(self, process: subprocess.Popen[bytes] | None) -> bool:
        """Whether a worker, which is waited for, has done its work; else what it said is kept."""
        if process is None or process.wait() == 0:
            return process is not None
        if not self._ended.is_set():
            text = self._log(self._processes.index(process)).read_text("utf-8", "replace")
            self.complaint = next((line for line in text.splitlines() if line.startswith("error: ")), text.strip())
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended.set()
        for process in self._processes:
            process.kill()
            process.wait()
        self._thread.join()


class Execution:
    """A step that runs, in the best version that there is so far.

    Args:
        module: the first version.
        load: makes a package run.
        watcher: is told of every version that was tried.
    Attributes:
        take: gives a version to try, if there is one; there is none unless somebody sets it.
        exchanges: the versions that were tried so far.
    """

    def __init__(self, module: Module, load: Callable[[Path], Module], watcher: Watcher) -> None:
        self._module, self._load, self._watcher = module, load, watcher
        self.take: Callable[[], Generated | None] = lambda: None
        self._other: Module | None = None
        self._tried: Generated | None = None
        self._times: tuple[list[float], list[float]] = ([], [])
        self._steps = 0
        self.exchanges: list[Exchange] = []

    def __call__(self, feeds: Arrays) -> Arrays:
        """The results of a step; parameters and what is remembered of them may be written over."""
        self._steps += 1
        if self._other is None:
            self._tried = self.take()
            return updated(self._module, feeds) if self._tried is None else self._compared(self._tried.package, feeds)
        turn = sum(map(len, self._times)).bit_count() % 2  # no period of its own that others could fall in with
        begin = time.perf_counter()
        results = updated((self._module, self._other)[turn], feeds)
        self._times[turn].append(time.perf_counter() - begin)
        count, seconds = min(map(len, self._times)), sum(map(sum, self._times))
        if count >= MOST_TURNS or (count >= TURNS and seconds >= 2 * SECONDS):
            self._decide()
        return results

    def _compared(self, package: Path, feeds: Arrays) -> Arrays:
        """A step by both versions, whose results are compared."""
        results = self._module.run(feeds)
        other = self._load(package)
        package.unlink()  # a loaded module maps it
        difference = _difference(results, other.run(feeds))
        if difference <= TOLERANCE:
            self._other, self._times = other, ([], [])
        else:
            other.close()
            self._tell(None, None, difference, taken=False)
        return results

    def _decide(self) -> None:
        assert self._other is not None
        before, after = map(statistics.median, self._times)
        taken = before >= GAIN * after
        loser = self._module if taken else self._other
        self._module, self._other = self._other if taken else self._module, None
        loser.close()
        self._tell(before, after, None, taken=taken)

    def _tell(self, before: float | None, after: float | None, difference: float | None, *, taken: bool) -> None:
        assert self._tried is not None
        exchange = Exchange(self._steps, before, after, difference, taken, self._tried.made, self._tried.found)
        self.exchanges.append(exchange)
        self._watcher.exchanged(exchange)

    def close(self) -> None:
        """Ends all versions."""
        self._module.close()
        if self._other is not None:
            self._other.close()


def updated(module: Module, feeds: Arrays) -> Arrays:
    """A step that writes what it makes of parameters and the like over those."""
    return module.run(feeds, {new: feeds[old] for new, old in module.manifest.updates.items()})


def _difference(one: Arrays, other: Arrays) -> float:
    """The greatest difference of two versions' results, as a share of the greatest element of each result."""
    worst = 0.0
    for name, a in one.items():
        if a.size == 0:
            continue
        b = other[name]
        largest = float(np.abs(a).max())
        gap = float(np.abs(a - b).max()) / (largest or 1.0)
        worst = max(worst, gap if np.isfinite(gap) else float("inf"))
    return worst


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
