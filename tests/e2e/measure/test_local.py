"""Measuring in processes of its own: right candidates have times, whatever the shape, the threads and the signals."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config, Knobs, Space
from mlc.ops import get
from mlc.records.measurement import Measurement
from mlc.settings import CompileOptions, Observer
from mlc.targets.x86.target import X86Target
from mlc.tuning.measure import LocalMeasurer, MeasureOptions, roles
from mlc.tuning.task import Task, candidate, tasks_of
from tests.e2e.measure.faulty import QUICK
from tests.unit.tuning.measure.tasks import OPTIONS, product, task_of


def legal(task: Task, target: X86Target, n: int) -> list[Config]:
    """Some configurations that are not refused."""
    found: list[Config] = []
    rng = np.random.default_rng(0)
    while len(found) < n:
        config = task.space.config(task.space.sample(rng, 1)[0])
        try:
            target.schedule(candidate(task, target, config), Knobs(config))
        except ScheduleError:
            continue
        found.append(config)
    return found


def measurer_of(tasks: list[Task], target: X86Target, threads: int = 1, **options: object) -> LocalMeasurer:
    return LocalMeasurer(
        tasks,
        target,
        threads=threads,
        compile_options=OPTIONS,
        options=MeasureOptions(rule=QUICK, **options),  # type: ignore[arg-type]
        rng=np.random.default_rng(0),
    )


@pytest.mark.sweep(5)
@pytest.mark.parametrize("string", [{}, {"mcpu": "haswell"}, {"mcpu": "x86-64"}], ids=str)
@pytest.mark.parametrize("shape", [(24, 40, 32), (7, 13, 11), (1, 17, 23)])
def test_every_legal_configuration_is_right(string: dict[str, str], shape: tuple[int, int, int]) -> None:
    target = X86Target.from_options(string)
    task = task_of(product(*shape), target)
    told: dict[int, Measurement] = {}
    with measurer_of([task], target) as measurer:
        configs = legal(task, target, 6)
        results = measurer.measure(0, configs, told.__setitem__)
        assert measurer.reference(0) == "interpreter"
        assert [r.failure for r in results] == [None] * 6, results
        assert all(r.seconds and r.build_seconds > 0 and r.run_seconds > 0 for r in results)
        assert [told[k] for k in range(6)] == results
        assert [r.failure for r in measurer.compare(0, configs[:3])] == [None] * 3
        assert measurer.measure(0, []) == []


def test_candidates_are_compared_where_all_cores_are_timed() -> None:
    target = X86Target.from_options({})
    task = task_of(product(16, 16, 16), target)
    with measurer_of([task], target, cores=tuple(sorted(os.sched_getaffinity(0))), builders=1) as measurer:
        configs = legal(task, target, 3)
        assert [r.failure for r in measurer.compare(0, configs)] == [None] * 3


def test_tasks_take_turns_and_large_ones_are_compared_with_the_untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "INTERPRETED", -1.0)
    target = X86Target.from_options({})
    tasks = [task_of(product(16, 16, 48), target), task_of(product(33, 20, 17), target)]
    with measurer_of(tasks, target, threads=min(2, len(os.sched_getaffinity(0)))) as measurer:
        for number in (0, 1, 0):
            (found,) = measurer.measure(number, legal(tasks[number], target, 1))
            assert found.failure is None, found.message
            assert measurer.reference(number) == "untuned"


def test_an_interrupt_leaves_a_measurer_that_works() -> None:
    target = X86Target.from_options({})
    task = task_of(product(), target)
    with measurer_of([task], target) as measurer:
        (config,) = legal(task, target, 1)

        def interrupt(_index: int, _result: Measurement) -> None:
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            measurer.measure(0, [config] * 8, interrupt)
        assert [r.failure for r in measurer.measure(0, [config] * 2)] == [None] * 2


def test_a_terminal_signal_does_not_reach_the_workers() -> None:
    target = X86Target.from_options({})
    task = task_of(product(), target)
    with measurer_of([task], target) as measurer:
        (config,) = legal(task, target, 1)
        measurer.measure(0, [config])
        assert os.getsid(measurer._zygote.pid) != os.getsid(0)
        before = signal.signal(signal.SIGWINCH, lambda *_: None)
        storm = threading.Timer(0.05, lambda: [os.kill(os.getpid(), signal.SIGWINCH) for _ in range(50)])
        storm.start()
        try:
            assert [r.failure for r in measurer.measure(0, [config] * 3)] == [None] * 3
        finally:
            storm.join()
            signal.signal(signal.SIGWINCH, before)


def convolution(target: X86Target) -> Task:
    """A convolution of volumes between others, so that its tensors are blocked and have margins."""
    rng = np.random.default_rng(0)
    g = Builder("convs")
    v = g.input("x", TensorType((1, 16, 24, 22, 20), f32))
    attrs = {"strides": (1, 1, 1), "pads": (1,) * 6, "dilations": (1, 1, 1)}
    for k in range(3):
        w = g.constant(rng.standard_normal((16, 16, 3, 3, 3)).astype(np.float32), f"w{k}")
        (v,) = g.add(get("conv"), [v, w], attrs, names=[f"y{k}"])
    options = CompileOptions("t", "t", "", disabled_passes=("winograd",))
    (task,) = (t for t in tasks_of(g.finish([v]), target, options, Observer()) if t.node.outputs[0].name == "y1")
    return replace(task, space=Space((), {}))


def test_tensors_with_margins_are_measured() -> None:
    target = X86Target.from_options({})
    task = convolution(target)
    assert any(v.type.layout is not None and v.type.layout.has_margins for v in (*task.node.inputs, *task.node.outputs))
    with measurer_of([task], target) as measurer:
        (found,) = measurer.measure(0, [{}])
    assert found.failure is None, found.message
