from __future__ import annotations

import os
import re
import signal
import threading

import numpy as np
import pytest

from mlc.build import make_kernel
from mlc.errors import DeviceError, ScheduleError, UsageError
from mlc.lower.knobs import Config, Knobs
from mlc.rewrite.inplace import InPlaceOperands
from mlc.targets.base import CallSpec
from mlc.targets.x86.target import X86Target
from mlc.tune.base import Measurement
from mlc.tune.measure import LocalMeasurer, MeasureOptions, roles
from mlc.tune.task import Task, candidate
from tests.unit.tune.measure.faulty import OPTIONS, QUICK, product, task_of


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


def test_kernels_are_those_of_a_package() -> None:
    target = X86Target.from_options({})
    task = task_of(product(), target)
    node = candidate(task, target, task.space.default)
    fn = make_kernel(node, "kernel", target, InPlaceOperands())
    call = CallSpec("kernel", (("input", 0), ("param", 0), ("output", 0)))
    texts = []
    for whole in (True, False):
        artifact = target.codegen({"kernel": fn}, lambda _: [call], opt_level=3, whole=whole)
        listing = target.assembly(artifact.sources)
        (found,) = re.findall(r"\nkernel:\n(.*?)\.Lfunc_end", listing, re.S)
        texts.append(re.sub(r"\.L\w+", ".L", found))
        assert (b"mlc_pool_create" in artifact.obj) == whole
    assert texts[0] == texts[1]


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


def test_more_threads_than_cores_are_refused() -> None:
    target = X86Target.from_options({})
    with pytest.raises(UsageError, match="cannot be timed on"):
        measurer_of([], target, threads=1000)
    with pytest.raises(UsageError, match=r"cores \[4095\] are not all available"):
        measurer_of([], target, cores=(4095,))
    with pytest.raises(UsageError, match="2 threads cannot be timed on 1 cores"):
        measurer_of([], target, threads=2, cores=tuple(sorted(os.sched_getaffinity(0))[:1]))


def test_a_target_of_another_machine_is_refused() -> None:
    import llvmlite.binding as llvm

    if llvm.get_host_cpu_features().get("avx512f"):
        pytest.skip("this machine has it all")
    with pytest.raises(DeviceError, match=r"lacks .*avx512f"):
        measurer_of([], X86Target.from_options({"mcpu": "skylake-avx512"}))
