"""What options of ``mlc tune`` mean."""

from __future__ import annotations

import pytest

from mlc.cli.timing import timing_rule
from mlc.cli.tune import duration, numbers
from mlc.errors import UsageError
from mlc.tuning.measure import Rule


def test_numbers() -> None:
    assert numbers("3", "--tasks") == [3]
    assert numbers(" 0, 2-5,4 ,7-7", "--tasks") == [0, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "-1", "5-2", "1-2-3", "1.5", "1000000"])
def test_what_is_no_list_of_numbers(text: str) -> None:
    with pytest.raises(UsageError, match=r"--cores .* is no number and no range"):
        numbers(text, "--cores")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), (" 2 h ", 7200), ("1d", 86400), ("0.5s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0.0h", "-1s", "1e3", "inf", "nan", "30 min", "m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        duration(text)


def test_caches_are_emptied_before_every_call() -> None:
    rule = timing_rule(3, None, None, flush_cache=True)
    assert (rule.flush, rule.calls) == (True, 3)
    with pytest.raises(UsageError, match="--min-repeat-ms calls a kernel again") as refusal:
        timing_rule(None, None, 100.0, flush_cache=True)
    assert "--number" in refusal.value.hint


def test_the_rule_of_timing() -> None:
    assert timing_rule(None, None, None) == Rule()
    rule = timing_rule(5, 20, 100.0)
    assert (rule.calls, rule.samples, rule.sample_seconds) == (5, 20, 0.1)
    assert rule.budget > 20 * 0.1  # all samples have their time
    assert rule.limit > rule.budget
