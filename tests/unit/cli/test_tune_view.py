"""What people see of a tuning run while it goes on."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from mlc.cli.console import Console
from mlc.cli.tune_view import TuneProgress
from mlc.settings import Settings


@pytest.fixture
def state() -> Any:
    return SimpleNamespace(number=3, task=SimpleNamespace(name="conv_8x8x8"))


def test_every_step_after_the_last_trial_is_told_once(state: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with TuneProgress(Console(Settings())) as progress:
        progress.deciding(state, 0, 2)
        progress.deciding(state, 1, 2)
        for share in (0.0, 0.3, 0.9):
            progress.checking("timing both in turns", share)
    said = [re.sub(r"^\[ *[\d.]+ s\] ", "", line) for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "the search is over; the fastest of 2 tasks are timed once more, in turns",
        "1 of 2: task 3 conv_8x8x8",
        "2 of 2: task 3 conv_8x8x8",
        "the whole model: timing both in turns",
    ]
