"""Tuning a model from its graph to its records: tasks, search, decision, and the check of the whole."""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from mlc.errors import CheckFailedError, OutputError, UsageError
from mlc.ir.graph import Graph
from mlc.lower.knobs import Config, Discrete, Space
from mlc.pipeline.configurations import Configurations
from mlc.records.best import best_of
from mlc.records.files import Log, read_records
from mlc.records.lookup import Tuned
from mlc.records.measurement import Measurement
from mlc.records.record import ALGORITHM, DECIDED, Fingerprint, Record
from mlc.runtime.native import available_cores
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, Tunable, Whole
from mlc.tuning.algorithms import Chosen, choices_of, measure_algorithms
from mlc.tuning.apart import apart
from mlc.tuning.base import CostModel, Elsewhere, Measurer
from mlc.tuning.explorers import get_explorer
from mlc.tuning.in_order import Joint, Network, is_network, search_in_order
from mlc.tuning.journal import Journal
from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.split import SplitMeasurer
from mlc.tuning.measure.turns import Turns as DeviceTurns
from mlc.tuning.models.choice import cost_model
from mlc.tuning.models.transfer import Additive
from mlc.tuning.regions import FASTEST, LIKELY, best_together
from mlc.tuning.session import Outcome, Session, TuneOptions, Watcher
from mlc.tuning.task import Task, tasks_of
from mlc.tuning.transfer import learn_from
from mlc.tuning.whole import Comparison, TurnsHere, build_file
from mlc.tuning.whole import Turns as WholeTurns

_LOGGER = logging.getLogger("mlc")
TOLERANCE = 1e-3  # of the largest output, between the untuned and the tuned model
SLOWER = 0.98  # times as fast as untuned, below which noise is no excuse


@dataclass(frozen=True)
class Tuning:
    """What came of tuning a model.

    Args:
        records: the file with all trials.
        outcome: tasks, trials and decisions.
        whole: the model untuned and tuned, or where ``regions`` says so, the accelerator's part of it; ``None`` where
            that was not compared.
        reverted: names of tasks that are faster untuned in the model.
    """

    records: Path
    outcome: Outcome
    whole: Comparison | None
    reverted: tuple[str, ...]
    regions: bool = False


def tune_graph(
    graph: Graph,
    target: Target,
    compile_options: CompileOptions,
    options: TuneOptions,
    *,
    records: str | PathLike[str],
    threads: int | None = None,
    only: Sequence[int] | None = None,
    measure: MeasureOptions | None = None,
    fresh: bool = False,
    check_whole: bool = True,
    transfer: Sequence[str | PathLike[str]] = (),
    elsewhere: Elsewhere | None = None,
    watcher: Watcher | None = None,
) -> Tuning:
    """Tunes the kernels of a model.

    Args:
        graph: an imported model.
        target: what to compile for; this machine has to run it, unless others do.
        compile_options: as for a compilation.
        options: budget and explorer.
        records: the file that every trial is appended to; what it holds is gone on from.
        threads: that run a kernel; all cores unless given.
        only: positions of the tasks to tune, as ``tasks_of`` lists them; all unless given.
        measure: how to measure.
        fresh: begin anew though the file holds records of this model; they are kept under another name.
        check_whole: compare the whole model before and after; where an accelerator has some of the tasks, its regions,
            and choose what is fastest in them.
        transfer: record files, or folders of such, of any models, that the cost model learns from before anything is
            measured.
        elsewhere: makes what measures on other machines, and compares the whole model there.
        watcher: is told how it goes on.
    Raises:
        UsageError: nothing to tune, no such task, an option that the explorer or the cost model does not have, or
            caches to be emptied for an accelerator.
        DeviceError: this machine cannot run the target's code.
        CheckFailedError: the tuned model's results differ.
    """
    wanted = threads
    threads = available_cores() if threads is None else threads
    check_explorer(options)
    if elsewhere is not None and options.template is not None:
        raise UsageError("templates can be asked for on this machine only", hint="leave --template or --pool out")
    if elsewhere is not None and options.algorithms:
        raise UsageError("algorithms can be measured on this machine only", hint="leave --algorithms or --pool out")
    path = Path(records)
    watch = watcher or Watcher()
    before = [] if fresh or not path.exists() else read_records([path]).records
    measured: list[Record] = []
    if options.algorithms:
        choices = choices_of(graph, target, compile_options)
        compared = partial(
            measure_algorithms, choices, before, target, compile_options, threads, seed=options.seed,
            goes_on=lambda choice, done: watch.algorithms(choice.name, done, len(choices)),
        )  # fmt: skip
        measured = compared() if target.accelerator is None else apart(compared, "comparing algorithms")
    algorithms = [r for r in [*before, *measured] if ALGORITHM in r.config]
    chosen = Chosen(algorithms, target, threads)
    everything = tasks_of(graph, target, compile_options, Observer(), chosen, options.template)
    if options.template is not None and not everything:
        raise UsageError(
            f"no kernel of the model takes the template {options.template!r}",
            hint="mlc tune --template help lists those that there are",
        )
    tasks, numbers = chosen_tasks(everything, only)
    rng = np.random.default_rng(options.seed)
    known = learnt_from(transfer, everything, target, options)
    near = best_of([*before, *(read_records(transfer).records if transfer else ())], Fingerprint.of(target), threads)
    own = [t for t in tasks if t.constants is not None]
    if own and measure is not None and measure.rule.flush:
        raise UsageError(
            f"there are no caches to empty for {own[0].name}, which the accelerator runs",
            hint="leave --flush-cache out, or name the host's tasks with --tasks",
        )
    arrange = partial(
        _measuring, target=target, compile_options=compile_options, options=measure, elsewhere=elsewhere,
        threads=threads, wanted=wanted, rng=rng,
    )  # fmt: skip
    joint = Joint()
    if is_network(tasks, target, options):
        if fresh and path.exists():
            set_aside(path)
        fresh = False
        flushed = measure is not None and measure.rule.flush
        network = Network(graph, target, compile_options, chosen, threads, path, {s for t in tasks for s in t.sources})

        def search(task: Task, limited: TuneOptions) -> Outcome:
            with arrange([task]) as place, Journal(path) as journal:
                similar = best_of([*journal.log.records, *near.hits.values()], Fingerprint.of(target), place.threads)
                model = cost_models(limited, known)
                return Session(
                    [task], target, place.measurer, limited, journal, model=model, near=similar, watcher=watcher
                ).run()

        joint = search_in_order(network, search, flushed, options, watch.layouts)
        tasks, numbers = network.tasks()
        left = None if options.time_budget is None else max(0.0, options.time_budget - joint.seconds)
        options = replace(options, joint=0.0, time_budget=left)
        if joint.interrupted:
            return Tuning(path, joint.alone(), None, ())
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(arrange(tasks))
        measurer, there, threads = place.measurer, place.whole, place.threads
        if fresh and path.exists():
            set_aside(path)
        journal = stack.enter_context(Journal(path))
        for number, record in enumerate(measured, journal.log.next_trial):
            journal.append(replace(record, trial=number))
        model = cost_models(options, known)
        session = Session(
            tasks, target, measurer, options, journal, numbers=numbers, model=model, near=near, watcher=watcher
        )
        outcome = session.run()
        outcome = joint.before(outcome)
        if outcome.interrupted or not check_whole or (elsewhere is not None and there is None):
            return Tuning(path, outcome, None, ())
        try:
            if elsewhere is None and own and not isinstance(target.accelerator, Whole):
                # what it takes is not this machine's time
                whole, reverted = _check_regions(graph, target, compile_options, threads, session, journal, watch)
                return Tuning(path, outcome, whole, reverted, regions=True)
            turns = there
            if turns is None:
                stack.enter_context(place.turns.mine())
                turns = stack.enter_context(TurnsHere(threads))
            whole, reverted = _check(
                graph, target, compile_options, threads, turns, session, algorithms, journal, watch
            )
        except KeyboardInterrupt:
            return Tuning(path, replace(outcome, interrupted=True), None, ())
    return Tuning(path, outcome, whole, reverted)


@dataclass(frozen=True)
class _Place:
    """Where trials are measured.

    Args:
        measurer: of the tasks.
        threads: that run a kernel there.
        whole: what compares whole models there, where that is another machine that can.
        turns: on this machine, or its accelerator, otherwise.
    """

    measurer: Measurer
    threads: int
    whole: WholeTurns | None
    turns: DeviceTurns


@contextlib.contextmanager
def _measuring(
    tasks: Sequence[Task],
    target: Target,
    compile_options: CompileOptions,
    options: MeasureOptions | None,
    elsewhere: Elsewhere | None,
    threads: int,
    wanted: int | None,
    rng: np.random.Generator,
) -> Iterator[_Place]:
    """What measures some tasks: on this machine, on its accelerator, or on others."""
    with contextlib.ExitStack() as stack:
        if elsewhere is not None:
            remote = stack.enter_context(
                elsewhere(tasks, target, threads=wanted, compile_options=compile_options, options=options, rng=rng)
            )
            yield _Place(remote, remote.threads, remote.whole, DeviceTurns(""))
            return
        hosts, own = ([t for t in tasks if (t.constants is not None) is there] for there in (False, True))
        measurers: dict[bool, LocalMeasurer] = {}
        for device, some in ((False, hosts), (True, own)):
            if some:
                bench = target.accelerator.bench() if device and isinstance(target.accelerator, Tunable) else None
                measurers[device] = stack.enter_context(
                    LocalMeasurer(
                        some, target, bench, threads=threads, compile_options=compile_options, options=options, rng=rng
                    )
                )
        places = {id(t): (device, k) for device, some in ((False, hosts), (True, own)) for k, t in enumerate(some)}
        parts = [(measurers[device], k) for device, k in (places[id(t)] for t in tasks)]
        yield _Place(SplitMeasurer(parts, threads), threads, None, measurers[bool(own)].turns)


def check_explorer(options: TuneOptions) -> None:
    """Complains of options that the explorer does not have, or a cost model that is not installed, before any trial."""
    space = Space((Discrete("n", (1, 2)),), {"n": 1})
    try:
        get_explorer(options.explorer)(space, np.random.default_rng(0), **options.explorer_options)
    except TypeError as error:
        reason = str(error).split("() ", 1)[-1]
        raise UsageError(f"explorer {options.explorer}: {reason}", hint="see docs/cli.md for its options") from None
    if options.cost_model != TuneOptions.cost_model:
        cost_model(options.cost_model).make(0)


def learnt_from(
    transfer: Sequence[str | PathLike[str]], tasks: Sequence[Task], target: Target, options: TuneOptions
) -> Additive | None:
    """A model of what some files of records tell; nothing where there are none."""
    if not transfer:
        return None
    log = read_records(transfer)
    for complaint in log.complaints(Fingerprint.of(target)):
        _LOGGER.warning("%s", complaint)
    return learn_from(log.records, tasks, target, cost_model(options.cost_model), options.seed)


def cost_models(options: TuneOptions, known: Additive | None) -> Callable[[Task], CostModel] | None:
    """Makes the cost model of each task; nothing where the explorer's own will do."""
    if known is None and options.cost_model == TuneOptions.cost_model:
        return None
    choice = cost_model(options.cost_model)
    return lambda task: choice.make(options.seed + int(task.key[:6], 16), known)


def set_aside(path: Path) -> None:
    """Renames a record file to ``NAME.old``, or ``NAME.old2`` and so on where there is one already.

    Raises:
        UsageError: another process writes to it, or it holds no records.
        OutputError: it cannot be renamed.
    """
    with Journal(path):
        aside = path.with_name(path.name + ".old")
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.old{number}")
        try:
            path.rename(aside)
        except OSError as error:
            raise OutputError(f"{path}: cannot be renamed to {aside.name}: {error.strerror}") from None


def chosen_tasks(tasks: list[Task], only: Sequence[int] | None) -> tuple[list[Task], list[int]]:
    numbers = list(range(len(tasks))) if only is None else list(only)
    if not tasks or not numbers:
        raise UsageError("the model has nothing to tune", hint="its kernels have no choices on this target")
    if only is not None:
        missing = [k for k in only if not 0 <= k < len(tasks)]
        if missing:
            raise UsageError(
                f"there is no task {missing[0]}", hint=f"there are tasks 0 to {len(tasks) - 1}; see --list"
            )
    return [tasks[k] for k in numbers], numbers


def _check(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    threads: int,
    turns: WholeTurns,
    session: Session,
    algorithms: Sequence[Record],
    journal: Journal,
    watch: Watcher,
) -> tuple[Comparison, tuple[str, ...]]:
    """The whole model before and after; kernels that lose in it go back, and that is recorded."""
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        names = (Path(folder) / f"model{k}.tar" for k in itertools.count())

        def compiled(configurations: Configurations | None) -> Path:
            return build_file(graph, target, options, configurations, next(names))

        def tuned_now() -> Tuned:
            return _decided(session, target, threads, algorithms)

        watch.checking("compiling the model untuned and tuned")
        untuned = same = compiled(None)
        if algorithms:  # steps can only be compared with those of the same algorithms
            same = compiled(Chosen(algorithms, target, threads))
        lookup = tuned_now()
        tuned = compiled(lookup)
        sources = {f.workload: f.sources for f in lookup.all_findings()}
        profiling = partial(watch.checking, "profiling both in turns")
        reverted = _revert(session, turns.losers(same, tuned, sources, profiling))
        if reverted:
            watch.checking(f"compiling without {len(reverted)} of the tuned kernels")
            tuned = compiled(tuned_now())
        timing = partial(watch.checking, "timing both in turns")
        whole = turns.compare(untuned, tuned, timing)
        if whole.speedup < SLOWER and turns.compare(untuned, tuned, timing).speedup < SLOWER:  # twice is no accident
            reverted += _revert(session, set(sources))
            watch.checking("compiling untuned: the tuned model is slower")
            tuned = compiled(tuned_now())
            whole = turns.compare(untuned, tuned, timing)
    if not whole.error <= TOLERANCE:
        raise CheckFailedError(
            f"{journal.path}: the tuned model's results differ by {whole.error:.2g} of the largest output",
            hint="please report this with the record file; compile without --records meanwhile",
        )
    return whole, tuple(reverted)


def _check_regions(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    threads: int,
    session: Session,
    journal: Journal,
    watch: Watcher,
) -> tuple[Comparison, tuple[str, ...]]:
    """An accelerator's regions before and after; what is fastest in them is decided for, and that is recorded."""
    assert isinstance(target.accelerator, Tunable)
    states = [s for s in session.states if s.task.constants is not None]
    for s in states:
        if s.decided is None:  # no trial of its own, but what the region chooses for it is recorded with a time, too
            session.decide(s)
    trials: dict[str, list[Config]] = {}
    for s in states:
        likely = target.accelerator.likely(s.task.node, s.task.constants or {})
        wanted = [*s.fastest(FASTEST), *likely[:LIKELY], s.task.space.default]
        trials[s.task.key] = list({tuple(sorted(c.items())): c for c in wanted}.values())
    spaces = {s.task.key: s.task.space for s in states}
    goes_on = partial(watch.checking, "trying what was fastest in the accelerator's regions")
    stand = target.accelerator.bench().open(threads)
    found = best_together(graph, target, options, stand, spaces, trials, goes_on=goes_on)
    reverted = []
    for state in states:
        config = found.chosen.get(state.task.key, state.task.space.default)
        if state.decided is None or dict(config) != dict(state.decided):
            session.settle(state, config, Measurement(state.seconds_of(config)))
            if dict(config) == dict(state.task.space.default):
                reverted.append(state.task.name)
    if not found.error <= TOLERANCE:
        raise CheckFailedError(
            f"{journal.path}: the tuned regions' results differ by {found.error:.2g} of the largest output",
            hint="please report this with the record file; compile without --records meanwhile",
        )
    return Comparison(found.untuned, found.tuned, found.error), tuple(reverted)


def _revert(session: Session, workloads: Collection[str]) -> list[str]:
    """Decides for what some tasks have untuned; the names of those that had something else."""
    reverted = []
    for state in session.states:
        default = state.task.untuned
        if state.task.key in workloads and state.decided is not None and dict(state.decided) != dict(default):
            known = state.untuned if state.untuned < float("inf") else state.best
            session.settle(state, default, Measurement(known))
            reverted.append(state.task.name)
    return reverted


def _decided(session: Session, target: Target, threads: int, algorithms: Sequence[Record]) -> Tuned:
    """What a compilation would look up now."""
    log = Log(list(algorithms))
    fingerprint = Fingerprint.of(target)
    for state in session.states:
        if state.decided is not None:
            result = Measurement(state.best)
            log.records.append(
                Record.of(
                    state.task, state.decided, result, fingerprint=fingerprint, threads=threads, explorer=DECIDED,
                    seed=0, trial=0,
                )
            )  # fmt: skip
    return Tuned(best_of(log.records, fingerprint, threads), target)
