"""A run over a few tasks, with a measurer that makes its times up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlc.ir.graph import Builder, Node
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config, Discrete, Knobs, Space
from mlc.lower.schedule import Schedule
from mlc.ops import get
from mlc.records.best import best_of
from mlc.records.files import read_records
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import DECIDED, Checkpoint, Fingerprint, Record
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning import session as session_module
from mlc.tuning.allocate import HOPELESS
from mlc.tuning.drive import Tuning
from mlc.tuning.journal import Journal, set_aside
from mlc.tuning.options import TuneOptions
from mlc.tuning.report import report_html
from mlc.tuning.session import Limit, Outcome, Session
from mlc.tuning.state import Ended, TaskState
from mlc.tuning.task import Task, tasks_of
from mlc.tuning.watcher import Watcher
from mlc.tuning.whole import Comparison

SMALL = TuneOptions(trials=12, batch=4, explorer="random", seed=1)


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("x86 -mcpu=haswell")


@pytest.fixture(scope="module")
def tasks(target: Target) -> list[Task]:
    g = Builder("products")
    a = g.input("a", TensorType((30, 64), f32))
    w = g.constant(np.ones((64, 48), np.float32), "w")
    v = g.constant(np.ones((48, 40), np.float32), "v")
    (p,) = g.add(get("matmul"), [a, w], names=["p"])
    (q,) = g.add(get("matmul"), [p, v], names=["q"])
    found = tasks_of(g.finish([q]), target, CompileOptions("products", "onnx", ""), Observer())
    assert len(found) == 2
    return found


class Fake:
    """A measurer: the time of a configuration follows from its place in the space."""

    def __init__(self, tasks: Sequence[Task], *, stop: int = -1, stop_comparing: bool = False) -> None:
        self.peak, self.threads, self.flushed = 1e11, 1, False
        self.tasks = tasks
        self.calls: list[tuple[int, dict[str, Any]]] = []
        self.compared: list[int] = []
        self.fails: set[int] = set()
        self.stop, self.stop_comparing = stop, stop_comparing

    def seconds(self, task: int, config: Config) -> float:
        space = self.tasks[task].space
        return 1e-4 * (1 + space.index(space.row(config)) * 7919 % 1009)

    def measure(
        self, task: int, configs: Sequence[Config], done: Callable[[int, Measurement], None]
    ) -> list[Measurement]:
        found = []
        for k, config in enumerate(configs):
            if len(self.calls) == self.stop:
                raise KeyboardInterrupt
            self.calls.append((task, dict(config)))
            failed = task in self.fails
            found.append(
                Measurement(None, failure=Failure.RUN_CRASH, message="<SIGSEGV>")
                if failed
                else Measurement(self.seconds(task, config))
            )
            done(k, found[-1])
        return found

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        if self.stop_comparing and set(self.compared) - {task}:
            raise KeyboardInterrupt
        self.compared.append(task)
        return [Measurement(self.seconds(task, c)) for c in configs]


def run(
    path: Path, tasks: Sequence[Task], target: Target, fake: Fake, options: TuneOptions = SMALL, **more: Any
) -> Outcome:
    with Journal(path) as journal:
        return Session(tasks, target, fake, options, journal, **more).run()


def test_a_run_measures_keeps_and_decides(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    fake = Fake(tasks)
    outcome = run(tmp_path / "r.jsonl", tasks, target, fake)
    assert (outcome.trials, outcome.interrupted) == (12, False)
    log = read_records([tmp_path / "r.jsonl"])
    assert [r.trial for r in log.records] == list(range(14))
    assert sum(r.explorer == DECIDED for r in log.records) == 2
    best = best_of(log.records, Fingerprint.of(target), 1)
    for k, state in enumerate(outcome.states):
        times = [fake.seconds(k, config) for config, _ in state.trials]
        assert state.best == min(times)
        assert state.decided is not None
        assert best.hits[state.task.key].config == state.decided
        assert state.untuned == fake.seconds(k, state.task.space.default)


def test_a_second_run_goes_on_and_measures_nothing_twice(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second, third = Fake(tasks), Fake(tasks), Fake(tasks)
    run(path, tasks, target, first)
    outcome = run(path, tasks, target, second, replace(SMALL, trials=20))
    assert outcome.trials == len(second.calls) == 8
    known = [(k, tuple(sorted(c.items()))) for k, c in [*first.calls, *second.calls]]
    assert len(set(known)) == len(known)
    assert run(path, tasks, target, third, replace(SMALL, trials=20)).trials == 0
    trials = [r.trial for r in read_records([path]).records]
    assert len(set(trials)) == len(trials)


def test_trials_with_empty_caches_are_no_part_of_other_runs(
    tasks: list[Task], target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    run(path, tasks, target, Fake(tasks))
    cold = Fake(tasks)
    cold.flushed = True
    outcome = run(path, tasks, target, cold, replace(SMALL, time_budget=1000.0))
    assert "with 1 thread and empty caches; they stay" in caplog.text
    assert outcome.flushed
    assert outcome.trials == SMALL.trials
    assert (0, dict(tasks[0].space.default)) in cold.calls  # measured anew
    found = read_records([path]).records
    kinds = [r.flushed for r in found]
    assert kinds == sorted(kinds)
    for kind in (False, True):
        assert {r.workload for r in found if r.flushed is kind and r.explorer == DECIDED} == {t.key for t in tasks}
    assert run(path, tasks, target, cold).trials == 0
    assert run(path, tasks, target, Fake(tasks)).trials == 0


def test_an_interruption_keeps_everything(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    outcome = run(path, tasks, target, Fake(tasks, stop=6))
    assert (outcome.trials, outcome.interrupted) == (6, True)
    kinds = [r.explorer == DECIDED for r in read_records([path]).records]
    assert kinds == [False] * 6 + [True] * sum(bool(s.trials) for s in outcome.states)
    assert all(s.decided is not None and not s.open for s in outcome.states if s.trials)
    assert run(path, tasks, target, Fake(tasks)).trials == 6


def test_an_interruption_of_the_decision_keeps_what_is_decided(
    tasks: list[Task], target: Target, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    outcome = run(path, tasks, target, Fake(tasks, stop_comparing=True))
    assert outcome.interrupted
    assert all(s.decided is not None for s in outcome.states)
    assert sum(r.explorer == DECIDED for r in read_records([path]).records) == 1
    # what single trials say is no promise: nothing is told of a task that was not timed once more
    assert sum(s.open for s in outcome.states) == 1
    (timed,) = [s for s in outcome.states if not s.open]
    assert outcome.bound == (timed.progress.weight * timed.untuned, timed.progress.weight * timed.best)


def test_a_search_begins_with_the_best_of_like_workloads(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    fake = Fake(tasks)
    run(tmp_path / "r.jsonl", tasks, target, fake)
    other = Fake(tasks[:1])
    found = best_of(read_records([tmp_path / "r.jsonl"]).records, Fingerprint.of(target), 1)
    run(tmp_path / "s.jsonl", tasks[:1], target, other, near=found)
    assert [dict(found.hits[tasks[0].key].config)] == [c for _, c in other.calls[1:2]]


def test_a_small_budget_reaches_every_task(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    fake = Fake(tasks)
    run(tmp_path / "r.jsonl", tasks, target, fake, replace(SMALL, trials=24, batch=16))
    assert [k for k, _ in fake.calls[:12]] == [fake.calls[0][0]] * 6 + [fake.calls[6][0]] * 6
    assert fake.calls[0][0] != fake.calls[6][0]


def test_records_of_other_kernels_are_told(
    tasks: list[Task], target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    run(path, tasks[:1], target, Fake(tasks[:1]))
    run(path, tasks[:1], target, Fake(tasks[:1]))
    assert not caplog.messages
    run(path, tasks[1:], target, Fake(tasks[1:]))
    assert "none of its 13 records is of these kernels on this processor with 1 thread; they stay" in caplog.text


def test_fewer_trials_than_tasks(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    outcome = run(tmp_path / "r.jsonl", tasks, target, Fake(tasks), replace(SMALL, trials=1))
    assert outcome.trials == 1
    assert sorted(len(s.trials) for s in outcome.states) == [0, 1]
    assert sum(s.decided is not None for s in outcome.states) == 1


def test_limits_of_a_task(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    limited = run(tmp_path / "a.jsonl", tasks, target, Fake(tasks), replace(SMALL, trials=99, trials_per_task=6))
    assert [(len(s.trials), s.ended) for s in limited.states] == [(6, Ended.LIMIT)] * 2
    assert limited.limit is Limit.TASKS
    fake = Fake(tasks)
    fake.seconds = lambda task, config: 1e-3  # type: ignore[method-assign]
    early = run(tmp_path / "b.jsonl", tasks, target, fake, replace(SMALL, trials=999, early_stopping=8))
    assert [(len(s.trials), s.ended) for s in early.states] == [(12, Ended.EARLY)] * 2
    some = run(tmp_path / "c.jsonl", tasks, target, Fake(tasks))
    assert some.limit is Limit.TRIALS
    assert [s.ended for s in some.states] == [None, None]


def test_without_a_limit_of_trials_others_end_a_run(
    tasks: list[Task], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = replace(SMALL, trials=None)
    one = run(tmp_path / "a.jsonl", tasks, target, Fake(tasks), replace(endless, trials_per_task=7))
    assert (one.trials, one.limit) == (14, Limit.TASKS)
    now = iter(range(1 << 20))
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    other = run(tmp_path / "b.jsonl", tasks, target, Fake(tasks), replace(endless, time_budget=40.0))
    assert other.limit is Limit.TIME
    assert other.trials > 12


def test_a_space_that_is_used_up(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    space = Space((Discrete("n", (1, 2, 3)),), {"n": 1})
    few = replace(tasks[0], space=space)
    outcome = run(tmp_path / "r.jsonl", [few], target, Fake([few]))
    assert (outcome.trials, outcome.limit, outcome.states[0].ended) == (3, Limit.TASKS, Ended.EXHAUSTED)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (SMALL, 12),
        (replace(SMALL, trials_per_task=5), 10),
        (replace(SMALL, trials=None, trials_per_task=5), 10),
        (replace(SMALL, trials=None, time_budget=1e-9), None),
        (replace(SMALL, trials=2), 4),
    ],
)
def test_a_watcher_is_told_what_there_is_to_do(
    tasks: list[Task], target: Target, tmp_path: Path, options: TuneOptions, most: int | None
) -> None:
    """Four trials of an earlier run count, and a damaged line is told."""
    path = tmp_path / "r.jsonl"
    run(path, tasks, target, Fake(tasks), replace(SMALL, trials=4))
    with path.open("ab") as file:
        file.write(b"{}\n")
    told: list[tuple[Any, ...]] = []

    class Told(Watcher):
        def began(self, tasks: Sequence[TaskState], *rest: Any) -> None:
            told.append(rest)

    run(path, tasks, target, Fake(tasks), options, watcher=Told())
    ((done, trials, seconds, damaged),) = told
    assert (done, trials, damaged) == (4, most, 1)
    assert (seconds is None) == (options.time_budget is None)


def test_a_task_of_which_nothing_works(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    fake = Fake(tasks)
    fake.fails = {0}
    outcome = run(tmp_path / "r.jsonl", tasks, target, fake, replace(SMALL, trials=HOPELESS + 40))
    assert [len(s.trials) for s in outcome.states] == [HOPELESS, 40]
    broken, working = outcome.states
    assert broken.decided is None
    assert broken.failures == {Failure.RUN_CRASH: HOPELESS}
    assert (broken.ended, working.ended) == (Ended.HOPELESS, None)
    assert broken.share_of_peak is None
    assert working.share_of_peak == pytest.approx(tasks[1].flops / working.best / 1e11)
    assert working.decided is not None
    html = report_html(Tuning(Path("r.jsonl"), outcome, Comparison(2e-3, 1e-3, 0.0), ("a<b",)), "<model>")
    assert f"{HOPELESS} run_crash" in html
    assert "&lt;SIGSEGV&gt;" in html
    assert "nothing works" in html
    assert "2.00 times as fast" in html
    assert "a&lt;b" in html
    assert "<model>" not in html
    assert "inf" not in html


def test_a_template_with_a_bug_does_not_end_a_run(
    tasks: list[Task], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = type(target).schedule

    def schedule(self: Target, node: Node, knobs: Knobs) -> Schedule | None:
        if knobs.config["rows"] != 1:
            raise KeyError("no such axis")
        return whole(self, node, knobs)

    monkeypatch.setattr(type(target), "schedule", schedule)
    fake = Fake(tasks)
    fake.fails = {0}
    outcome = run(tmp_path / "r.jsonl", tasks, target, fake, replace(SMALL, trials=40, explorer="guided"))
    assert outcome.trials == 40
    assert sum("no such axis" in r.message for r in caplog.records) == 2  # once a task


def test_a_report_of_nothing(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    outcome = run(tmp_path / "r.jsonl", tasks, target, Fake(tasks, stop=0))
    assert outcome.trials == 0
    assert "Stopped before its end" in report_html(Tuning(Path("r.jsonl"), outcome, None, ()), "nothing")


def test_the_time_budget_holds_for_all_runs_over_the_same_tasks(
    tasks: list[Task], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    class Clock:
        monotonic = staticmethod(clock)

    monkeypatch.setattr(session_module, "time", Clock)
    timed = replace(SMALL, trials=999, time_budget=30.0)
    with Journal(path) as journal:
        journal.append(Checkpoint(0, 1e6))  # of another model
    first = run(path, tasks, target, Fake(tasks), timed)
    assert first.trials > 8
    again = run(path, tasks, target, Fake(tasks), timed)
    assert again.trials == 0
    assert again.seconds < first.seconds
    assert run(path, tasks[:1], target, Fake(tasks), timed).trials > 8


@pytest.mark.parametrize("change", ["knob", "value", "threads", "cpu"])
def test_records_that_do_not_fit_are_not_gone_on_from(
    tasks: list[Task], target: Target, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "r.jsonl"
    task = tasks[0]
    here = Fingerprint.of(target)
    good = Record.of(
        task, task.space.default, Measurement(1e-9), fingerprint=here, threads=1, explorer="random", seed=0, trial=0
    )
    name = task.space.knobs[0].name
    changes: dict[str, dict[str, Any]] = {
        "knob": {"config": {**good.config, "gone": 1}},
        "value": {"config": {**good.config, name: "none such"}},
        "threads": {"threads": 2},
        "cpu": {"fingerprint": replace(here, cpu="other")},
    }
    with Journal(path) as journal:
        journal.append(replace(good, **changes[change]))
    outcome = run(path, tasks, target, Fake(tasks))
    assert outcome.trials == 12
    assert outcome.states[0].best > 1e-9


def test_a_record_without_a_later_knob_stands_for_its_default(
    tasks: list[Task], target: Target, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    task = tasks[0]
    with Journal(path) as journal:
        journal.append(
            Record.of(
                task, {}, Measurement(5e-5), fingerprint=Fingerprint.of(target), threads=1, explorer="random", seed=0,
                trial=0,
            )
        )  # fmt: skip
    with Journal(path) as journal:
        state = Session(tasks, target, Fake(tasks), SMALL, journal).states[0]
    assert state.untuned == state.best == 5e-5
    assert [dict(c) for c, _ in state.trials] == [dict(task.space.default)]


def test_what_is_far_behind_is_no_finalist(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    with Journal(tmp_path / "r.jsonl") as journal:
        session = Session(tasks, target, Fake(tasks), SMALL, journal)
    state = session.states[0]
    space, default = state.task.space, dict(state.task.space.default)
    rows = np.unique(space.sample(np.random.default_rng(0), 40), axis=0)
    configs = [c for c in map(space.config, rows) if c != default][:4]
    times = (1.0, 1.25, 0.8, 1.03)
    state.trials[:] = [(default, Measurement(5.0)), *((c, Measurement(s)) for c, s in zip(configs, times, strict=True))]
    assert session.finalists(state) == [default, configs[2], configs[0], configs[3]]
    # where calls are short all are, since the fastest time may be wrong
    short = ((c, Measurement(s / 1000)) for c, s in zip(configs, times, strict=True))
    state.trials[:] = [(default, Measurement(5e-3)), *short]
    assert session.finalists(state) == [default, configs[2], configs[0], configs[3], configs[1]]


def test_tasks_keep_their_numbers(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    fake = Fake(tasks[1:])
    outcome = run(tmp_path / "r.jsonl", tasks[1:], target, fake, numbers=[1])
    assert [s.number for s in outcome.states] == [1]
    assert {k for k, _ in fake.calls} == set(fake.compared) == {0}


def test_no_tasks(target: Target, tmp_path: Path) -> None:
    outcome = run(tmp_path / "r.jsonl", [], target, Fake([]))
    assert (outcome.states, outcome.trials) == ((), 0)
    assert math.isfinite(outcome.seconds)


def test_nothing_that_is_set_aside_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for k in range(3):
        with Journal(path) as journal:
            journal.append(Checkpoint(k, 0.0))
        set_aside(path)
    assert not path.exists()
    kept = [read_records([tmp_path / f"r.jsonl.old{n}"]).checkpoint for n in ("", "2", "3")]
    assert [c.trials for c in kept if c is not None] == [0, 1, 2]


def test_what_lost_in_the_whole_model_is_not_decided_for_again(
    tasks: list[Task], target: Target, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    first = Fake(tasks)
    with Journal(path) as journal:
        session = Session(tasks, target, first, SMALL, journal)
        session.run()
        lost = session.states[0]
        best = lost.decided
        assert best is not None
        assert best != lost.task.space.default
        session.settle(lost, lost.task.space.default, Measurement(lost.untuned))
    again = Fake(tasks)
    outcome = run(path, tasks, target, again)
    assert again.compared == []
    assert outcome.states[0].decided == tasks[0].space.default
    assert outcome.states[0].rejected == [best]
    more = Fake(tasks)
    outcome = run(path, tasks, target, more, replace(SMALL, trials=20))
    assert more.compared  # only what was measured again is decided again
    assert outcome.states[0].decided != best


def test_the_share_of_choosing_and_the_bound_are_told(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    outcome = run(tmp_path / "r.jsonl", tasks, target, Fake(tasks))
    assert 0 < outcome.exploring < outcome.seconds
    untuned, best = outcome.bound
    assert untuned == pytest.approx(sum(s.untuned for s in outcome.states))
    assert best == pytest.approx(sum(s.best for s in outcome.states))
    assert best < untuned


def test_a_gain_is_told_of_one_measurement_only(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    """What an earlier run decided was compared with an untuned time that is not in the records."""
    path = tmp_path / "r.jsonl"
    first = run(path, tasks, target, Fake(tasks))
    assert all(s.gain is not None and s.gain >= 1 for s in first.states)
    assert first.bound[0] >= first.bound[1] > 0
    again = run(path, tasks, target, Fake(tasks))
    assert again.trials == 0
    assert [s.gain for s in again.states] == [None, None]
    assert again.bound == (0, 0)
    more = run(path, tasks, target, Fake(tasks), replace(SMALL, trials=SMALL.trials + 8 if SMALL.trials else 8))
    assert all(s.gain is not None and s.gain >= 1 for s in more.states if s.trials and not s.resumed)


def test_what_is_done_after_the_last_trial_is_told(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    told: list[tuple[int, int, int]] = []

    class Told(Watcher):
        def deciding(self, task: TaskState, done: int, total: int) -> None:
            told.append((task.number, done, total))

    run(tmp_path / "r.jsonl", tasks, target, Fake(tasks), watcher=Told())
    assert told == [(0, 0, 2), (1, 1, 2)]
