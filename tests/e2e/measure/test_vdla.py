"""Candidates of a real accelerator: built by workers, run by its driver, their results compared, their times exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.ir.graph import Graph
from mlc.records.measurement import Failure
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, Tunable, get_target
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.task import Task, tasks_of
from mlc.vdla import driver
from tests.unit.rewrite.test_offload import Bytes

OPTIONS = CompileOptions("bytes", "onnx", "")


def network() -> Graph:
    n = Bytes()
    x = n.x(1, 32, 14, 14, dtype="i8")
    return n(n.layer(n.layer(n.layer(x), 1), 2, residual=x))


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("vdla")


@pytest.fixture(scope="module")
def tasks(target: Target) -> list[Task]:
    found = [t for t in tasks_of(network(), target, OPTIONS, Observer()) if t.constants is not None]
    assert found
    return found


def measurer_of(target: Target, tasks: list[Task]) -> LocalMeasurer:
    assert isinstance(target.accelerator, Tunable)
    bench = target.accelerator.bench()
    return LocalMeasurer(tasks, target, bench, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0))


def test_candidates_are_right_and_take_the_same_time_whenever_they_are_asked(target: Target, tasks: list[Task]) -> None:
    with measurer_of(target, tasks) as measurer:
        for number, task in enumerate(tasks):
            (first,) = measurer.measure(number, [task.space.default])
            assert first.failure is None, first.message
            assert first.seconds is not None
            assert not first.noisy
            assert [m.seconds for m in measurer.compare(number, [task.space.default] * 2)] == [first.seconds] * 2
            assert measurer.reference(number) == "interpreter"


def test_a_driver_that_computes_something_else_is_found(
    target: Target, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = driver.PackageDevice.read

    def wrong(self: driver.PackageDevice, address: int, data: Any) -> None:
        read(self, address, data)
        data[7] ^= 4

    monkeypatch.setattr(driver.PackageDevice, "read", wrong)
    with measurer_of(target, tasks) as measurer:
        (found,) = measurer.measure(0, [tasks[0].space.default])
    assert found.failure is Failure.WRONG_OUTPUT


def test_a_driver_that_fails_is_a_result(target: Target, tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: driver.PackageDevice, program: Any, addresses: Any) -> Any:
        raise DeviceError("all units wait")

    monkeypatch.setattr(driver.PackageDevice, "run", fail)
    with measurer_of(target, tasks) as measurer:
        (found,) = measurer.measure(0, [tasks[0].space.default])
    assert found.failure is Failure.RUN_CRASH
    assert "all units wait" in found.message
