"""Schedules measured, on this machine or on others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlc.api.models import Model
from mlc.api.options import compile_options, make_folder
from mlc.settings import MAX_OPT_LEVEL, Observer, Settings

if TYPE_CHECKING:
    from mlc.pool.wish import Wish
    from mlc.tuning.ahead import BuiltAhead
    from mlc.tuning.drive import Tuning
    from mlc.tuning.measure import MeasureOptions
    from mlc.tuning.options import TuneOptions
    from mlc.tuning.task import Task
    from mlc.tuning.watcher import Watcher


def tuning_tasks(
    model: Model,
    target: str = "x86",
    *,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
    weights: str | None = None,
    bf16: bool = False,
    fp16: bool = False,
    keep_f32: Sequence[str] = (),
    threads: int | None = None,
    template: str | None = None,
) -> list[Task]:
    """The kernels of a model that have something to choose; arguments as for :func:`compile`.

    With a ``template``, see :func:`template_names`, those that it fits.
    """
    from mlc.targets.base import get_target
    from mlc.tuning.task import tasks_of

    options = compile_options(
        model,
        None,
        opt_level,
        disabled_passes,
        fast_math,
        weights=weights,
        bf16=bf16,
        fp16=fp16,
        keep_f32=keep_f32,
        threads=threads,
    )
    return tasks_of(model.graph, get_target(target), options, Observer(), template=template)


def template_names() -> list[str]:
    """Names of the templates that can be asked for; of all others, the one that fits a kernel is taken by itself."""
    from mlc.targets.cpu.schedules.templates import named_templates

    return sorted(named_templates())


def build_candidates(
    model: Model,
    target: str,
    path: str | os.PathLike[str],
    *,
    options: TuneOptions | None = None,
    records: str | os.PathLike[str] | None = None,
    measure: MeasureOptions | None = None,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
    weights: str | None = None,
    bf16: bool = False,
    fp16: bool = False,
    keep_f32: Sequence[str] = (),
    threads: int | None = None,
    only: Sequence[int] | None = None,
    transfer: Sequence[str | os.PathLike[str]] = (),
    goes_on: Callable[[int, int], None] = lambda done, total: None,
) -> BuiltAhead:
    """Builds schedules of a model's kernels into a file, which ``measure_candidates`` measures on another machine.

    Args:
        model, target, options, opt_level, disabled_passes, fast_math, weights, bf16, fp16, keep_f32: as for ``tune``.
        path, records, measure, threads, only, transfer, goes_on: see :func:`mlc.tuning.ahead.build_ahead`.
    Raises:
        UsageError, UnsupportedError, OutputError: as there.
    """
    from mlc.targets.base import get_target
    from mlc.tuning.ahead import build_ahead
    from mlc.tuning.options import TuneOptions

    compiling = compile_options(
        model,
        None,
        opt_level,
        disabled_passes,
        fast_math,
        weights=weights,
        bf16=bf16,
        fp16=fp16,
        keep_f32=keep_f32,
        threads=threads,
    )
    return build_ahead(
        model.graph,
        get_target(target),
        compiling,
        options or TuneOptions(),
        path=path,
        records=records,
        threads=threads,
        only=only,
        measure=measure,
        transfer=transfer,
        goes_on=goes_on,
    )


def measure_candidates(
    path: str | os.PathLike[str],
    records: str | os.PathLike[str],
    *,
    measure: MeasureOptions | None = None,
    watcher: Watcher | None = None,
) -> Tuning:
    """Measures what ``build_candidates`` has built; see :func:`mlc.tuning.ahead.measure_candidates`."""
    from mlc.tuning import ahead

    return ahead.measure_candidates(path, records=records, measure=measure, watcher=watcher)


def tune(
    model: Model,
    target: str = "x86",
    *,
    trials: int | None = None,
    records: str | os.PathLike[str] | None = None,
    options: TuneOptions | None = None,
    measure: MeasureOptions | None = None,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
    weights: str | None = None,
    bf16: bool = False,
    fp16: bool = False,
    keep_f32: Sequence[str] = (),
    threads: int | None = None,
    only: Sequence[int] | None = None,
    fresh: bool = False,
    check_whole: bool = True,
    transfer: Sequence[str | os.PathLike[str]] = (),
    pool: Wish | None = None,
    watcher: Watcher | None = None,
) -> Tuning:
    """Measures schedules of a model's kernels, and keeps the fastest for ``compile``.

    >>> tuning = mlc.tune(model, trials=600)                   # doctest: +SKIP
    >>> tuning.whole.speedup                                   # doctest: +SKIP
    1.31
    >>> package = mlc.compile(model)                           # doctest: +SKIP

    Args:
        trials: configurations to measure for the whole model, those that the records hold included; as ``options``
            say unless given.
        records: the file that every trial is appended to; what it holds is gone on from. Unless given, it is one in the
            user's cache, and the best of it is put where ``compile`` looks by itself.
        transfer: record files, or folders of such, of any models, that the cost model learns from before anything is
            measured.
        weights, bf16, fp16, keep_f32: in which types things are computed, as for :func:`compile`; bf16 where the
            processor has it, or else emulated.
        pool: measure on the boards of a pool, not on this machine, and compare the whole model there.
        model, target, options, measure, opt_level, disabled_passes, fast_math, threads, only, fresh, check_whole,
            watcher: see :func:`mlc.tuning.drive.tune_graph`.
    Returns:
        the file of records, every task with its trials and decision, and the model's times before and after.
    Raises:
        UsageError, DeviceError, CheckFailedError: as there.
    """
    from mlc.records.files import read_records
    from mlc.records.places import journal_of
    from mlc.records.shelf import keep
    from mlc.targets.base import get_target
    from mlc.tuning.drive import tune_graph
    from mlc.tuning.options import TuneOptions

    elsewhere = None
    if pool is not None:
        from mlc.pool.measurer import PoolMeasurer

        elsewhere = partial(PoolMeasurer, pool)
    options = options or TuneOptions()
    if trials is not None:
        options = replace(options, trials=trials)
    cache = Settings.from_environment().cache
    compiling = compile_options(
        model,
        None,
        opt_level,
        disabled_passes,
        fast_math,
        weights=weights,
        bf16=bf16,
        fp16=fp16,
        keep_f32=keep_f32,
        threads=threads,
    )
    journal = journal_of(cache, compiling.name, model.info.sha256) if records is None else Path(records)
    if records is None:
        make_folder(journal.parent)
    tuning = tune_graph(
        model.graph,
        get_target(target),
        compiling,
        options,
        records=journal,
        threads=threads,
        only=only,
        measure=measure,
        fresh=fresh,
        check_whole=check_whole,
        transfer=transfer,
        elsewhere=elsewhere,
        watcher=watcher,
    )
    if records is None:
        keep(cache, journal, read_records([journal]).records)
    return tuning
