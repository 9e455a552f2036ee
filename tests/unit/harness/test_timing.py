"""Statistics, profiles and traces."""

from __future__ import annotations

import pytest

from mlc.harness.profile import chrome_trace, rows
from mlc.harness.timing import Statistics
from mlc.runtime.manifest import StepSpec
from mlc.runtime.module import StepTime


def test_statistics_in_milliseconds() -> None:
    found = Statistics.of([1_000_000, 2_000_000, 3_000_000, 4_000_000, 90_000_000])
    assert (found.min, found.p50, found.max, found.mean, found.n) == (1.0, 3.0, 90.0, 20.0, 5)
    assert found.mad == 1.0
    assert found.noisy
    assert found.to_json()["unit"] == "ms"


def test_a_single_run_says_nothing_about_noise() -> None:
    found = Statistics.of([5_000_000])
    assert (found.std, found.noisy) == (0.0, False)


def test_one_outlier_is_not_noise() -> None:
    assert not Statistics.of([1_000_000] * 20 + [100_000_000]).noisy


def test_profile_rows_and_trace() -> None:
    steps = [StepSpec("a", ("n1", "n2"), 4000, 2000, ()), StepSpec("b", (), 0, 0, ())]
    table = rows([StepTime(steps[0], (1000, 3000, 2000)), StepTime(steps[1], (0, 0, 0))])
    assert (table[0].ms, table[0].gflops, table[0].gbytes) == (0.002, 2.0, 1.0)
    assert table[0].share + table[1].share == pytest.approx(1)
    assert table[0].to_json()["sources"] == ["n1", "n2"]
    first, second = chrome_trace(table, "net")["traceEvents"][1:]
    assert (first["ts"], first["dur"], second["ts"]) == (0.0, 2.0, 2.0)
