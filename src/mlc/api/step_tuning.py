"""Kernels of training steps, searched for before a run or beside it (NeoFlow, section 6)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlc.api.models import Model
from mlc.api.options import make_folder
from mlc.api.tuning import tune
from mlc.settings import Settings

if TYPE_CHECKING:
    from mlc.training.dynamic import Workers
    from mlc.tuning.watcher import Watcher

MODES = ("static", "dynamic")


@dataclass(frozen=True)
class StepTuning:
    """How the kernels of a step are searched for.

    Args:
        mode: ``static``, before training begins, or ``dynamic``, beside it: training begins at once, and takes better
            kernels as they are found. When that is, and so the last digits of results, differs from run to run.
        trials: configurations to measure, those that the records hold included.
        records: the file that every trial is appended to, and gone on from; unless given, one in the user's cache.
        watcher: is told how a search before training goes on.
    """

    mode: str
    trials: int = 1000
    records: str | os.PathLike[str] | None = None
    watcher: Watcher | None = None

    def journal(self, step: Model) -> Path:
        """The file that every trial of a step is appended to."""
        from mlc.records.places import journal_of

        if self.records is not None:
            return Path(self.records)
        cache = Settings.from_environment().cache
        return journal_of(cache, step.graph.name, step.info.sha256)

    def files(self) -> list[Path] | None:
        """Where a compilation looks for configurations; where it always does unless a file is named and there."""
        if self.records is None:
            return None
        return [path] if (path := Path(self.records)).exists() else []


def tune_before(step: Model, target: str, threads: int, how: StepTuning, seed: int) -> None:
    """Searches for the kernels of a step, which compilations then find.

    Raises:
        UsageError, DeviceError, CheckFailedError: as for :func:`mlc.api.tuning.tune`.
    """
    from mlc.tuning.options import TuneOptions

    options = TuneOptions(trials=how.trials, seed=seed)
    tune(step, target, options=options, records=how.records, threads=threads, watcher=how.watcher)


@contextmanager
def beside(step: Model, target: str, threads: int, how: StepTuning, seed: int, folder: Path) -> Iterator[Workers]:
    """Workers that search for the kernels of a step for as long as a run goes on.

    Args:
        folder: that they share, with the functions of the step as it begins.

    Raises:
        OutputError: the cache cannot be written.
    """
    from mlc.records.files import read_records
    from mlc.records.places import default_files
    from mlc.records.shelf import keep
    from mlc.targets.base import get_target
    from mlc.training.dynamic import Search, Workers

    journal, cache = how.journal(step), Settings.from_environment().cache
    known: list[Path] = []
    if how.records is None:
        make_folder(journal.parent)
        known = default_files(get_target(target), cache)
    step.save(folder / "step.mlc")
    search = Search(folder / "step.mlc", folder, journal, known, target, threads, how.trials, seed)
    try:
        with Workers(search) as workers:
            yield workers
    finally:
        if how.records is None and journal.exists():
            keep(cache, journal, read_records([journal]).records)
