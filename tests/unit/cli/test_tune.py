"""What options of ``mlc tune`` mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlc.cli.console import Console
from mlc.cli.timing import timing_rule
from mlc.cli.tune import duration, numbers, searched_levels
from mlc.cli.tune_result import document, summary
from mlc.errors import ExitCode, UsageError
from mlc.settings import Settings
from mlc.tuning.drive import Tuning
from mlc.tuning.measure import Rule
from mlc.tuning.session import Limit, Outcome
from tests.unit.cli.conftest import Result


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


@pytest.mark.parametrize(
    ("explorer", "asked", "levels", "found"),
    [
        ("guided", None, None, 0),
        ("guided", True, None, 1),
        ("guided", True, 2, 2),
        ("alt", None, None, 1),  # layouts and loops together are what it is for
        ("alt", None, 2, 2),
        ("alt", False, None, 0),
    ],
)
def test_layouts_are_searched_where_asked_for_and_by_the_explorer_of_the_paper(
    explorer: str, asked: bool | None, levels: int | None, found: int
) -> None:
    assert searched_levels(explorer, asked, levels, possible=True) == found


@pytest.mark.parametrize(("explorer", "asked"), [("guided", None), ("alt", False)])
def test_levels_of_layouts_that_are_not_searched_are_refused(explorer: str, asked: bool | None) -> None:
    with pytest.raises(UsageError, match="--layout-levels is of layouts, which are not searched") as refusal:
        searched_levels(explorer, asked, 1, possible=True)
    assert "--layouts" in refusal.value.hint


def test_where_layouts_cannot_be_searched_the_explorer_of_the_paper_has_loops_alone() -> None:
    assert searched_levels("alt", None, None, possible=False) == 0


def test_what_only_a_run_that_measures_can_do_is_named(mlc: Callable[..., Result]) -> None:
    build = ["tune", "m.onnx", "--build-only", "c", "--trials", "8"]
    one, three = mlc(*build, "--layouts"), mlc(*build, "--layouts", "--report", "r.html", "--time-budget", "5m")
    assert one.code == ExitCode.USAGE
    assert "--layouts is for a run that measures" in one.err
    assert "leave it out, or leave --build-only out" in one.err
    assert "--report, --layouts and --time-budget are for a run that measures" in three.err
    assert "--trials" not in one.err + three.err


def test_operators_whose_turn_did_not_come_are_told() -> None:
    outcome = Outcome((), 64, 9.0, False, limit=Limit.TRIALS, unreached=11)
    tuning = Tuning(Path("r.jsonl"), outcome, None, ())
    said = "layouts of 11 operators were not searched: their turn did not come; more trials or time reach them"
    assert said in summary(Console(Settings()), tuning).splitlines()
    assert document(tuning)["unreached"] == 11
    one = Tuning(Path("r.jsonl"), Outcome((), 64, 9.0, False, unreached=1), None, ())
    assert "layouts of one operator were not searched" in summary(Console(Settings()), one)
