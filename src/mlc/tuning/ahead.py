"""Tuning in two places: candidates are built where a compiler is, and measured where the machine is."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from mlc.errors import UnsupportedError, UsageError, WorkloadError
from mlc.ir.graph import Graph
from mlc.lower.knobs import Config
from mlc.records.files import Log, read_records
from mlc.records.measurement import Measurement
from mlc.records.record import ALGORITHM, DECIDED, Fingerprint
from mlc.runtime.native import available_cores
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LEVELS, Target, Tunable, get_target
from mlc.tuning.algorithms import Chosen
from mlc.tuning.base import CostModel, Done
from mlc.tuning.candidates import Candidates, Purpose, key_of
from mlc.tuning.drive import Tuning
from mlc.tuning.journal import Journal
from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.building import Builders, BuildShop, Built, building
from mlc.tuning.options import TuneOptions
from mlc.tuning.searches import check_explorer, explorer_for
from mlc.tuning.session import FIRST, Session, known_config
from mlc.tuning.state import TaskState
from mlc.tuning.task import Task, chosen_tasks, task_of, tasks_of
from mlc.tuning.transfer import cost_models, learnt_from
from mlc.tuning.watcher import Watcher


@dataclass(frozen=True)
class BuiltAhead:
    """What came of building.

    Args:
        path: the file of candidates.
        built: of each task, by its name, how many the file holds now.
        failed: what became of configurations that could not be built.
    """

    path: Path
    built: Mapping[str, int]
    failed: tuple[Measurement, ...]


def build_ahead(
    graph: Graph,
    target: Target,
    compile_options: CompileOptions,
    options: TuneOptions,
    *,
    path: str | PathLike[str],
    records: str | PathLike[str] | None = None,
    threads: int | None = None,
    only: Sequence[int] | None = None,
    measure: MeasureOptions | None = None,
    transfer: Sequence[str | PathLike[str]] = (),
    goes_on: Callable[[int, int], None] = lambda done, total: None,
) -> BuiltAhead:
    """Builds candidates of a model's kernels, and measures nothing: no machine of the target's is needed.

    Args:
        graph, target, compile_options, options, only, transfer: as for :func:`~mlc.tuning.drive.tune_graph`;
            ``trials`` are the candidates of all tasks together.
        path: the file that they are appended to; what it holds is not built again.
        records: what was measured before: the explorer learns from it, and proposes nothing of it again.
        threads: that will run a kernel; as many as there are cores here unless given.
        measure: how to build.
        goes_on: is told how many of how many are done.
    Raises:
        UsageError: nothing to tune, no such task, or an option that the explorer or the cost model does not have.
        UnsupportedError: a task cannot be told in text, by which the other machine would have it again.
    """
    check_explorer(options)
    if options.template is not None:
        raise UsageError("templates can be asked for where candidates are measured, too", hint="leave --template out")
    threads = available_cores() if threads is None else threads
    measure = measure or MeasureOptions()
    log = read_records([records]) if records is not None and Path(records).exists() else Log()
    algorithms = [r for r in log.records if ALGORITHM in r.config]
    everything = tasks_of(graph, target, compile_options, Observer(), Chosen(algorithms, target, threads))
    tasks, _ = chosen_tasks(everything, only)
    try:  # as the other machine will have them: without the model, constants are inputs like any other
        tasks = [task_of(t.document, t.margins, target) for t in tasks]
    except WorkloadError as error:
        raise UnsupportedError(f"{compile_options.name}: cannot be measured elsewhere: {error.message}") from None
    model = cost_models(options, target, learnt_from(transfer, everything, target, options))
    purpose = Purpose(str(target.describe()["string"]), threads, compile_options.name)
    failed: list[Measurement] = []
    with Candidates(path, purpose) as file:
        wanted = [
            (k, config)
            for k, task in enumerate(tasks)
            for config in _proposed(task, target, options, model, log, threads, len(tasks))
            if key_of(config) not in file.of(task)
        ]
        shop = BuildShop(tasks, target, compile_options)
        done = 0

        def over() -> None:
            nonlocal done
            done += 1
            goes_on(done, len(wanted))

        def keep(number: int, built: Built) -> None:
            file.add(tasks[number], built)
            over()

        def fail(measurement: Measurement) -> None:
            failed.append(measurement)
            over()

        _build(shop, wanted, measure, keep, fail)
        return BuiltAhead(Path(path), {t.name: len(file.of(t)) for t in tasks}, tuple(failed))


def _proposed(
    task: Task,
    target: Target,
    options: TuneOptions,
    model: Callable[[Task], CostModel] | None,
    log: Log,
    threads: int,
    tasks: int,
) -> list[Config]:
    """What is to be built of a task: the untuned configuration, and what the explorer proposes."""
    trials = [
        (config, r.result)
        for r in log.measured(task.key, Fingerprint.of(target), threads)
        if r.explorer != DECIDED
        and LEVELS not in r.config
        and (config := known_config(task, r.config, target)) is not None
    ]
    each = task.space.size if options.trials is None else max(FIRST, options.trials // tasks)
    each = min(each, options.trials_per_task or each)
    explorer = explorer_for(task, target, options, model, trials)
    configs = [task.space.config(row) for row in explorer.propose(each)]
    return list({key_of(c): c for c in [dict(task.space.default), *configs]}.values())


def _build(
    shop: BuildShop,
    work: Sequence[tuple[int, Config]],
    options: MeasureOptions,
    keep: Callable[[int, Built], None],
    fail: Callable[[Measurement], None],
) -> None:
    """Builds by workers, one a core; a compiler that crashes or hangs costs its candidate."""
    with Builders(shop, options.builders, options.memory) as builders:
        waiting = deque(work)
        while waiting or builders.busy:
            while waiting and builders.idle:
                number, config = waiting.popleft()
                timeout = options.build_timeout
                builders.begin(building(number, 0, config, timeout, partial(keep, number), lambda _k, m: fail(m)))
            builders.wait()


def measure_candidates(
    path: str | PathLike[str],
    *,
    records: str | PathLike[str],
    options: TuneOptions | None = None,
    measure: MeasureOptions | None = None,
    watcher: Watcher | None = None,
) -> Tuning:
    """Measures what :func:`build_ahead` has built; neither the model nor a compiler is needed.

    Args:
        path: the file of candidates.
        records: the file that every trial is appended to; what it holds is gone on from.
        options: budget; all candidates unless given.
        measure: how to measure.
        watcher: is told how it goes on.
    Raises:
        UsageError: there are no candidates.
        DeviceError: this machine cannot run them.
    """
    options = options or TuneOptions(trials=None)
    with Candidates(path) as file:
        purpose = file.purpose
        target = get_target(purpose.target)
        tasks = file.tasks(target)
        built = [file.of(t) for t in tasks]
    if not tasks:
        raise UsageError(f"{path}: there is no candidate in it", hint="build some: mlc tune --build-only")
    for task, some in zip(tasks, built, strict=True):
        if key_of(task.space.default) not in some:
            raise UsageError(f"{path}: the untuned configuration of {task.name} was not built")
    own = tasks[0].constants is not None
    if any((t.constants is not None) != own for t in tasks):
        raise UsageError(f"{path}: has tasks of several machines", hint="build them apart: --tasks")
    accelerator = target.accelerator
    bench = accelerator.bench() if own and isinstance(accelerator, Tunable) else None
    compile_options = CompileOptions(purpose.model, str(path), "")
    rng = np.random.default_rng(options.seed)
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(
            LocalMeasurer(
                tasks, target, bench, threads=purpose.threads, compile_options=compile_options, options=measure, rng=rng
            )
        )
        journal = stack.enter_context(Journal(records))
        measurer = _BuiltMeasurer(local, built)
        given = {t.key: some for t, some in zip(tasks, built, strict=True)}
        session = Session(
            tasks, target, measurer, options, journal, watcher=watcher,
            explorer=lambda state: _Given(state, [b.config for b in given[state.task.key].values()]),
        )  # fmt: skip
        return Tuning(Path(records), session.run(), None, ())


class _Given:
    """An explorer that proposes what was built, in order, and nothing else."""

    def __init__(self, state: TaskState, configs: Sequence[Config]) -> None:
        rows = [tuple(int(i) for i in state.task.space.row(c)) for c in configs]
        self._left = dict.fromkeys(rows)
        self._knobs = len(state.task.space.knobs)

    def propose(self, n: int) -> np.ndarray:
        rows = list(self._left)[:n]
        for row in rows:
            del self._left[row]
        return np.array(rows, np.int64).reshape(len(rows), self._knobs)

    def observe(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        for row in rows:
            self._left.pop(tuple(int(i) for i in row), None)


class _BuiltMeasurer:
    """Implements :class:`~mlc.tuning.base.Measurer` for what was built before, by task and configuration."""

    def __init__(self, local: LocalMeasurer, built: Sequence[Mapping[object, Built]]) -> None:
        self._local, self._built = local, built
        self.threads = local.threads

    @property
    def flushed(self) -> bool:
        return self._local.flushed

    @property
    def peak(self) -> float:
        return self._local.peak

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        return self._go(task, configs, done, together=False)

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        return self._go(task, configs, None, together=True)

    def _go(self, task: int, configs: Sequence[Config], done: Done | None, *, together: bool) -> list[Measurement]:
        some = self._built[task]
        wanted = [some[key_of(c)] for c in configs]
        placed = [Built(k, b.config, b.scratch, b.obj, b.seconds) for k, b in enumerate(wanted)]
        untuned = some[key_of(self._local.tasks[task].space.default)]
        return self._local.measure_built(task, untuned, placed, together=together, done=done)
