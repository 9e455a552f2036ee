"""Options that say how kernels are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlc.cli import values
from mlc.errors import UsageError

if TYPE_CHECKING:
    from mlc.tuning.measure import Rule

F = TypeVar("F", bound=Callable[..., Any])

MAX_TRIALS = 1 << 30
_LEAST_REPEAT = 3  # samples that tell noise from a time


def timing_options(function: F) -> F:
    """Decorator: ``--number``, ``--repeat`` and ``--min-repeat-ms``, of which :func:`timing_rule` makes a rule."""
    for option in (
        click.option(
            "--min-repeat-ms", type=values.Real(), metavar="MS", help="Least duration of a sample.  [default: 2]"
        ),
        click.option(
            "--repeat", type=values.Whole(_LEAST_REPEAT, 1000), metavar="N",
            help="Samples of a kernel; fewer of one that is clearly slow.  [default: 12]",
        ),
        click.option("--number", type=values.Whole(1, MAX_TRIALS), metavar="N", help="Calls in a sample, at least."),
    ):  # fmt: skip
        function = option(function)
    return function


def run_timeout_option(function: F) -> F:
    """Decorator: ``--run-timeout``."""
    return click.option(
        "--run-timeout", type=values.Real(), default=10.0, show_default=True, metavar="S",
        help="For checking or timing a candidate.",
    )(function)  # fmt: skip


def timing_rule(number: int | None, repeat: int | None, min_repeat_ms: float | None, flush_cache: bool = False) -> Rule:
    """The rule of timing with some of its numbers given; whoever wants more samples gets the time that they take.

    Raises:
        UsageError: samples of some duration are asked for, and caches emptied before every call.
    """
    from mlc.tuning.measure import Rule

    if flush_cache and min_repeat_ms is not None:
        raise UsageError(
            "--min-repeat-ms calls a kernel again and again, and --flush-cache empties the caches before every call",
            hint="ask for calls with --number, or for samples with --repeat",
        )
    usual = Rule()
    samples = usual.samples if repeat is None else repeat
    seconds = usual.sample_seconds if min_repeat_ms is None else min_repeat_ms / 1e3
    budget = max(usual.budget, 1.5 * samples * seconds)
    return Rule(seconds, samples, budget, max(usual.limit, 2 * budget), number or 1, flush_cache)
