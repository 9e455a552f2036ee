"""Work in a process of its own: its result, its errors and its crashes come back."""

from __future__ import annotations

import os

import pytest

from mlc.errors import DeviceError, UsageError
from mlc.tuning.apart import apart


def test_results_come_back_from_another_process() -> None:
    assert apart(lambda: [os.getpid()], "asking") != [os.getpid()]


def test_errors_come_back_with_their_hints() -> None:
    def fail() -> None:
        raise UsageError("no such device", hint="plug it in")

    with pytest.raises(DeviceError, match="no such device") as error:
        apart(fail, "asking")
    assert error.value.hint == "plug it in"


def test_a_crash_is_told() -> None:
    with pytest.raises(DeviceError, match="comparing: the process that did it crashed"):
        apart(lambda: os._exit(3), "comparing")
