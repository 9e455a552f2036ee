"""A region's program against the interpreter, on random data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mlc.build import build_package
from mlc.errors import CheckFailedError, DeviceError
from mlc.ir.graph import Graph
from mlc.runtime.device import Report
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.hosted import HostedTarget
from tests.devices import ToyAccelerator, ToyDriver, ToyPoint
from tests.unit.rewrite.helpers import Net

OPTIONS = CompileOptions("net", "a test", "0" * 64, check_regions=True)


def network() -> Graph:
    n = Net()
    w = n.c(np.arange(8 * 8 * 9).reshape(8, 8, 3, 3) % 11 - 5, np.int8)
    sums = n.conv(n.x(1, 8, 5, 5, dtype="i8"), w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    return n(n.cast(n.clip(n.round_shift(sums, n.c([6], np.int32)), lo=-128, hi=127), to="i8"))


class Wrong(ToyDriver):
    """The last byte of a result is one too large."""

    def run(self, program: Graph, addresses: Sequence[int]) -> Report:
        report = super().run(program, addresses)
        last = self._at(addresses[-1], program.outputs[-1].type.nbytes)
        last[-1] ^= 1
        return report


class Broken(ToyDriver):
    def run(self, program: Graph, addresses: Sequence[int]) -> Report:
        raise DeviceError("the units wait for each other")


def build(driver: type, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passes that ran."""
    point = ToyPoint()
    monkeypatch.setattr(point, "load", lambda: driver, raising=False)
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [point])
    passes: list[str] = []

    class Watch(Observer):
        def passed(self, name: str, program: object, seconds: float) -> None:
            passes.append(name)

    build_package(network(), HostedTarget("toy", get_target("x86"), ToyAccelerator()), OPTIONS, Watch())
    return passes


def test_a_right_program_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "check-regions" in build(ToyDriver, monkeypatch)


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailedError, match=r"region0: .* differs from the interpreter on random data: 1 at \[0, 7"):
        build(Wrong, monkeypatch)


def test_a_device_that_fails_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailedError, match="region0: the device fails on random data: the units wait"):
        build(Broken, monkeypatch)
