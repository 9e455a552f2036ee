"""How a tuning run goes on: a table that lives on a terminal, a line a batch elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mlc.cli.console import Console
from mlc.tuning.state import TaskState
from mlc.tuning.watcher import Watcher

if TYPE_CHECKING:
    from rich.live import Live

MOST_ROWS = 24
_REFRESH = 0.2  # seconds between two drawings at least
_LONGEST = 30 * 86400.0  # seconds left, beyond which an estimate is none


class TuneProgress(Watcher):
    """Shows tasks, best speeds, failures and the time left; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._states: Sequence[TaskState] = ()
        self._now: TaskState | None = None
        self._start = time.monotonic()
        self._drawn = 0.0
        self._first = self._done = 0
        self._trials: int | None = None
        self._seconds: float | None = None
        self._note = ""
        self._doing = ""  # after the search
        self._went_on = False

    def algorithms(self, name: str, done: int, total: int) -> None:
        self._after(f"{done + 1} of {total}: {name}")

    def layouts(self, name: str, done: int, total: int) -> None:
        self._doing = ""
        self._went_on = True  # from here, trials that are there are mostly those of this run
        self._after(f"layouts of operator {done + 1} of {total}: {name}")

    def began(
        self, tasks: Sequence[TaskState], done: int, trials: int | None, seconds: float | None, damaged: int
    ) -> None:
        self._states, self._first, self._done, self._trials, self._seconds = tasks, done, done, trials, seconds
        self._start = time.monotonic()
        self._doing = self._note = ""
        if damaged:
            self._console.note(f"warning: {damaged} damaged {'line' if damaged == 1 else 'lines'} of records left out")
        if done and not self._went_on:
            self._console.note(f"going on after {done} trials of earlier runs")
        self._draw(force=True)

    def measured(self, task: TaskState, config: Any, result: Any) -> None:
        self._done += 1
        self._now = task
        self._draw()

    def batch(self, task: TaskState, tasks: Sequence[TaskState]) -> None:
        if self._live is None:
            failed = sum(task.failures.values())
            best = f"{task.speed(task.best):.1f} GFLOP/s" if task.best < float("inf") else "nothing yet"
            self._console.note(
                f"[{time.monotonic() - self._start:6.1f} s, {self._left(time.monotonic())}] {self._progress}  "
                f"task {task.number} {task.task.name}: {len(task.trials)} trials, {failed} failed, best {best}"
            )
        self._draw(force=True)

    def stopped(self) -> None:
        self._console.note("stopped; what was found is timed once more (Ctrl-C again leaves that out)")

    def deciding(self, task: TaskState, done: int, total: int) -> None:
        if not done:
            self._after(f"the search is over; the fastest of {_tasks(total)} are timed once more, in turns")
        self._now = task
        self._after(f"{done + 1} of {total}: task {task.number} {task.task.name}")

    def checking(self, what: str, share: float = 0.0) -> None:
        self._now = None
        self._after(f"the whole model: {what}", share)

    def _after(self, what: str, share: float = 0.0) -> None:
        """Says what is done after the search, and how far it is: on a terminal again and again, elsewhere once."""
        new = what != self._doing
        self._doing = what
        self._note = f"{what}, {100 * share:.0f} %" if share else what
        if new and self._live is None:
            self._console.note(f"[{time.monotonic() - self._start:6.1f} s] {what}")
        self._draw(force=new)

    def __enter__(self) -> Self:
        if self._console.interactive:
            from rich.console import Console as RichConsole
            from rich.live import Live

            self._live = Live(console=RichConsole(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def _progress(self) -> str:
        return str(self._done) if self._trials is None else f"{self._done}/{self._trials}"

    def _left(self, now: float) -> str:
        """How long the search still takes, for people: until the trials or the time are used up."""
        spent = now - self._start
        left = float("inf") if self._seconds is None else max(0.0, self._seconds - spent)
        new = self._done - self._first
        if self._trials is not None and new:
            left = min(left, (self._trials - self._done) * spent / new)
        if left > _LONGEST:
            return "time left unknown"
        return f"{left:.0f} s left" if left < 100 else f"{left / 60:.0f} min left"

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if self._live is None or (not force and now - self._drawn < _REFRESH):
            return
        self._drawn = now
        self._live.update(self._table(now), refresh=True)

    def _table(self, now: float) -> Any:
        from rich.table import Table

        rate = (self._done - self._first) / max(now - self._start, 1e-9)
        title = f"{self._progress} trials, {rate:.1f} a second, {self._left(now)}"
        if self._note:
            title = f"{self._progress} trials, {now - self._start:.0f} s; {self._note}"
        table = Table(title=title, title_justify="left", box=None)
        for name in ("task", "name", "calls", "trials", "failed", "GFLOP/s", "% of peak", "x untuned"):
            table.add_column(name, justify="left" if name == "name" else "right")
        shown = sorted(self._states, key=lambda s: s.progress.weight * s.task.flops, reverse=True)[:MOST_ROWS]
        for s in shown:
            known = s.best < float("inf")
            gain = "" if s.gain is None else f"{s.gain:.2f}"
            table.add_row(
                str(s.number),
                s.task.name,
                str(s.task.weight),
                str(len(s.trials)),
                str(sum(s.failures.values()) or ""),
                f"{s.speed(s.best):.1f}" if known else "",
                "" if s.share_of_peak is None else f"{100 * s.share_of_peak:.0f}",
                gain,
                style="bold" if s is self._now else None,
            )
        return table


def _tasks(count: int) -> str:
    return "one task" if count == 1 else f"{count} tasks"
