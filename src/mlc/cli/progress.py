"""How a compilation goes on: a bar that moves for a person, a line a stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mlc.cli.console import Console
from mlc.settings import Observer

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """A bar for a person, which is gone after the block."""

    _bar: Progress | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class CompileProgress(Bar, Observer):
    """Shows stages and kernels; a context manager.

    Args:
        console: where to show them.
        print_after: passes after which to print the program, on standard output.
    """

    def __init__(self, console: Console, print_after: Sequence[str] = ()) -> None:
        self._console = console
        self._print_after = set(print_after)
        self._seen: dict[str, None] = {}
        self._start = time.perf_counter()

    def stage(self, name: str) -> None:
        if self._bar is not None:
            (task,) = self._bar.tasks
            # Not update(): for it, a total of None means to keep the old one.
            task.description, task.completed, task.total = name, 0, None
            task.fields["count"] = ""
        else:
            self._console.note(f"[{time.perf_counter() - self._start:6.2f} s] {name}")

    def passed(self, name: str, program: object, seconds: float) -> None:
        self._seen[name] = None
        if name in self._print_after:
            self._console.text(f"# after {name}\n{program}")

    def kernel(self, done: int, total: int) -> None:
        if self._bar is not None:
            (task,) = self._bar.tasks
            self._bar.update(task.id, completed=done, total=total, count=f"{done}/{total}")

    @property
    def passes(self) -> list[str]:
        """Names of the passes that ran, in order."""
        return list(self._seen)

    def __enter__(self) -> Self:
        if self._console.interactive:
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task("start", total=None, count="")
        return self


def _bar() -> Progress:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns: list[Any] = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    ]
    return Progress(*columns, console=RichConsole(stderr=True), transient=True)
