"""Tuning a model from its graph to its records: tasks, search, decision, and the check of the whole."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Graph
from mlc.records.best import Best, best_of
from mlc.records.files import read_records
from mlc.records.record import ALGORITHM, Fingerprint, Record
from mlc.runtime.native import available_cores
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, Whole
from mlc.tuning.algorithms import Chosen, choices_of, measure_algorithms
from mlc.tuning.apart import apart
from mlc.tuning.base import Elsewhere
from mlc.tuning.check import Check
from mlc.tuning.in_order import Joint, Network, is_network, search_in_order
from mlc.tuning.joint import layout_space
from mlc.tuning.journal import Journal, set_aside
from mlc.tuning.measure import MeasureOptions
from mlc.tuning.models.transfer import Additive
from mlc.tuning.options import TuneOptions
from mlc.tuning.place import Place, measuring
from mlc.tuning.searches import check_explorer
from mlc.tuning.session import Outcome, Session
from mlc.tuning.task import Task, chosen_tasks, tasks_of
from mlc.tuning.transfer import cost_models, learnt_from
from mlc.tuning.watcher import Watcher
from mlc.tuning.whole import Comparison, TurnsHere

_LOGGER = logging.getLogger("mlc")


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
        UsageError: nothing to tune, no such task, an option that the explorer or the cost model does not have,
            layouts beside a template, or caches to be emptied for an accelerator.
        DeviceError: this machine cannot run the target's code.
        CheckFailedError: the tuned model's results differ.
    """
    check_explorer(options)
    if options.layouts and options.template is not None:
        raise UsageError(
            "a template has layouts of its own: there are none to search beside its loops",
            hint="leave --layouts or --template out",
        )
    _require_here(options, elsewhere)
    wanted, threads = threads, available_cores() if threads is None else threads
    path, watch, flushed = Path(records), watcher or Watcher(), measure is not None and measure.rule.flush
    before = [] if fresh or not path.exists() else read_records([path]).records
    measured = _algorithms(graph, target, compile_options, options, before, threads, watch)
    algorithms = [r for r in [*before, *measured] if ALGORITHM in r.config]
    chosen = Chosen(algorithms, target, threads)
    everything = tasks_of(graph, target, compile_options, Observer(), chosen, options.template)
    _require_template(options, everything)
    tasks, numbers = chosen_tasks(everything, only)
    _require_caches(tasks, flushed)
    if options.layouts and all(layout_space(t, target, options.layouts) is None for t in tasks):
        _LOGGER.warning(
            "no operator here has layouts to choose: loops alone are searched (layouts are of convolutions and "
            "products in float32 on processors and GPUs, where what reads the result takes any layout, and of what "
            "those in a region of an accelerator read of each other)"
        )
    known = learnt_from(transfer, everything, target, options)
    near = best_of([*before, *(read_records(transfer).records if transfer else ())], Fingerprint.of(target), threads)
    arrange = partial(
        measuring, target=target, compile_options=compile_options, options=measure, elsewhere=elsewhere,
        threads=threads, wanted=wanted, rng=np.random.default_rng(options.seed),
    )  # fmt: skip
    joint = Joint()
    if is_network(tasks, target, options):
        if fresh and path.exists():
            set_aside(path)
        fresh = False
        network = Network(graph, target, compile_options, chosen, threads, path, {s for t in tasks for s in t.sources})
        joint = _layouts(network, arrange, options, known, near, flushed, watch)
        if joint.interrupted:
            return Tuning(path, joint.alone(), None, ())
        tasks, numbers = network.tasks()
        left = None if options.time_budget is None else max(0.0, options.time_budget - joint.seconds)
        options = replace(options, joint=0.0, time_budget=left)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(arrange(tasks))
        if fresh and path.exists():
            set_aside(path)
        journal = stack.enter_context(Journal(path))
        for number, record in enumerate(measured, journal.log.next_trial):
            journal.append(replace(record, trial=number))
        model = cost_models(options, target, known)
        session = Session(
            tasks, target, place.measurer, options, journal, numbers=numbers, model=model, near=near, watcher=watch
        )
        outcome = joint.before(session.run())
        if outcome.interrupted or not check_whole or (elsewhere is not None and place.whole is None):
            return Tuning(path, outcome, None, ())
        check = Check(graph, target, compile_options, place.threads, session, path, watch, options.layouts)
        own = any(t.constants is not None for t in tasks)
        try:
            if elsewhere is None and own and not isinstance(target.accelerator, Whole):
                # what it takes is not this machine's time
                return Tuning(path, outcome, *check.regions(), regions=True)
            turns = place.whole
            if turns is None:
                stack.enter_context(place.turns.mine())
                turns = stack.enter_context(TurnsHere(place.threads))
            return Tuning(path, outcome, *check.model(turns, algorithms))
        except KeyboardInterrupt:
            return Tuning(path, replace(outcome, interrupted=True), None, ())


def _require_here(options: TuneOptions, elsewhere: Elsewhere | None) -> None:
    """Complains of what other machines cannot do."""
    for asked, what, option in (
        (options.template is not None, "templates can be asked for", "--template"),
        (options.algorithms, "algorithms can be measured", "--algorithms"),
    ):
        if elsewhere is not None and asked:
            raise UsageError(f"{what} on this machine only", hint=f"leave {option} or --pool out")


def _require_template(options: TuneOptions, tasks: Sequence[Task]) -> None:
    """Complains of a template that no kernel takes."""
    if options.template is not None and not tasks:
        raise UsageError(
            f"no kernel of the model takes the template {options.template!r}",
            hint="mlc tune --template help lists those that there are",
        )


def _require_caches(tasks: Sequence[Task], flushed: bool) -> None:
    """Complains of caches that are to be emptied where there are none."""
    own = [t for t in tasks if t.constants is not None]
    if own and flushed:
        raise UsageError(
            f"there are no caches to empty for {own[0].name}, which the accelerator runs",
            hint="leave --flush-cache out, or name the host's tasks with --tasks",
        )


def _algorithms(
    graph: Graph,
    target: Target,
    compile_options: CompileOptions,
    options: TuneOptions,
    before: Sequence[Record],
    threads: int,
    watch: Watcher,
) -> list[Record]:
    """Records of the algorithms that operators are fastest by, where that is wanted and not known before."""
    if not options.algorithms:
        return []
    choices = choices_of(graph, target, compile_options)
    compared = partial(
        measure_algorithms, choices, before, target, compile_options, threads, seed=options.seed,
        goes_on=lambda choice, done: watch.algorithms(choice.name, done, len(choices)),
    )  # fmt: skip
    return compared() if target.accelerator is None else apart(compared, "comparing algorithms")


def _layouts(
    network: Network,
    arrange: Callable[[Sequence[Task]], AbstractContextManager[Place]],
    options: TuneOptions,
    known: Additive | None,
    near: Best,
    flushed: bool,
    watch: Watcher,
) -> Joint:
    """The joint stage of a network: each operator's layouts are searched by a session of its own."""

    def search(task: Task, number: int, limited: TuneOptions) -> Outcome:
        with arrange([task]) as place, Journal(network.path) as journal:
            fingerprint = Fingerprint.of(network.target)
            similar = best_of([*journal.log.records, *near.hits.values()], fingerprint, place.threads)
            model = cost_models(limited, network.target, known)
            return Session(
                [task], network.target, place.measurer, limited, journal, numbers=[number], model=model, near=similar,
                watcher=watch,
            ).run()  # fmt: skip

    return search_in_order(network, search, flushed, options, watch.layouts)
