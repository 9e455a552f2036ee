"""What is refused before anything is measured, and what it is that is measured."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.pipeline.machine import Processor
from mlc.records.measurement import Failure, Measurement
from mlc.targets.base import CallSpec
from mlc.targets.x86.target import X86Target
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.measure.building import Built
from mlc.tuning.task import candidate
from tests.unit.tuning.measure.tasks import OPTIONS, product, task_of


def test_kernels_are_those_of_a_package() -> None:
    target = X86Target.from_options({})
    task = task_of(product(), target)
    node = candidate(task, target, task.space.default)
    machine = Processor(target)
    fn = machine.kernel(node, "kernel", {})
    call = CallSpec("kernel", (("input", 0), ("param", 0), ("output", 0)))
    texts = []
    for whole in (True, False):
        artifact = target.codegen(machine.emit({"kernel": fn}), [call], opt_level=3, whole=whole)
        listing = target.assembly(artifact.sources)
        (found,) = re.findall(r"\nkernel:\n(.*?)\.Lfunc_end", listing, re.S)
        texts.append(re.sub(r"\.L\w+", ".L", found))
        assert (b"mlc_pool_create" in artifact.obj) == whole
    assert texts[0] == texts[1]


def test_a_target_of_another_machine_is_refused() -> None:
    import llvmlite.binding as llvm

    if llvm.get_host_cpu_features().get("avx512f"):
        pytest.skip("this machine has it all")
    with pytest.raises(DeviceError, match=r"lacks .*avx512f"):
        LocalMeasurer(
            [],
            X86Target.from_options({"mcpu": "skylake-avx512"}),
            threads=1,
            compile_options=OPTIONS,
            rng=np.random.default_rng(0),
        )


def test_finalists_are_loaded_in_three_orders_and_the_fastest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is loaded first has slow memory here, and one fails when it is loaded again."""
    target = X86Target.from_options({})
    task = task_of(product(), target)
    seconds: list[list[float | None]] = [[2.0, 1.0, 1.0, None], [1.0, None, 2.0], [1.5, 0.5]]
    loaded: list[list[int]] = []
    known: list[bool] = []

    def go(measurer: LocalMeasurer, work: Any) -> list[Measurement]:
        if not loaded:
            work.waiting.clear()
            work.ready.extend(Built(k, {}, 0, b"", 0.0) for k in range(4))
        order = [b.index for b in work.ready]
        for b, s in zip(work.ready, seconds[len(loaded)], strict=True):
            work.loaded[b.index] = b
            work.results[b.index] = Measurement(s, failure=Failure.RUN_CRASH if s is None else None)
        loaded.append(order)
        known.append(work.known)
        return [work.results[k] for k in range(4)]

    monkeypatch.setattr(LocalMeasurer, "_go", go)
    with LocalMeasurer([task], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)) as measurer:
        found = measurer.compare(0, [{}] * 4)
    assert loaded == [[0, 1, 2, 3], [2, 1, 0], [2, 0]]
    assert known == [False, True, True]  # results are compared before they are timed the first time, and after each
    assert [m.seconds for m in found] == [0.5, None, 1.0, None]


def test_what_was_built_is_not_built_again_for_a_decision() -> None:
    target = X86Target.from_options({})
    task = task_of(product(), target)
    default = dict(task.space.default)
    configs = [default, *({**default, "rows": rows, "vectors": 1} for rows in (1, 2, 3))]
    with LocalMeasurer([task], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)) as measurer:
        first = measurer.measure(0, configs)
        again = measurer.compare(0, configs[::-1])[::-1]
    assert all(m.seconds is not None for m in (*first, *again))
    assert [m.build_seconds for m in first[1:]] == [m.build_seconds for m in again[1:]]
