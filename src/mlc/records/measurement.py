"""What became of a trial: a time, or the reason why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """Why a configuration has no time."""

    REFUSED = "refused"  # the template or the lowering said no
    BUILD_ERROR = "build_error"  # the code generator failed or died
    BUILD_TIMEOUT = "build_timeout"
    BUILD_MEMORY = "build_oom"
    RUN_CRASH = "run_crash"
    RUN_TIMEOUT = "run_timeout"
    WRONG_OUTPUT = "wrong_output"
    WRONG_MEMORY = "wrong_memory"  # it wrote where it must not
    BAD_REPLY = "bad_reply"  # what came back from the process that ran it makes no sense
    IMPLAUSIBLE = "implausible"  # faster than the machine can be


@dataclass(frozen=True)
class Measurement:
    """What became of one configuration.

    Args:
        seconds: median time of one call; ``None`` where there is none.
        spread: median absolute deviation of the samples, in seconds.
        failure: why there is no time.
        message: the first line of what went wrong.
        noisy: whether the samples differ by more than they should even after measuring again.
        build_seconds: what building took.
        run_seconds: what measuring took, warm-up and check included.
    """

    seconds: float | None
    spread: float = 0.0
    failure: Failure | None = None
    message: str = ""
    noisy: bool = False
    build_seconds: float = 0.0
    run_seconds: float = 0.0


@dataclass(frozen=True)
class Cause:
    """Why some configurations have no time.

    Args:
        failure: the kind.
        count: how many.
        message: what most of them said.
    """

    failure: Failure
    count: int
    message: str


def causes(results: Iterable[Measurement]) -> list[Cause]:
    """Failures by kind, the most frequent first."""
    said: dict[Failure, Counter[str]] = {}
    for m in results:
        if m.failure is not None:
            said.setdefault(m.failure, Counter())[m.message] += 1
    found = [Cause(failure, texts.total(), texts.most_common(1)[0][0]) for failure, texts in said.items()]
    return sorted(found, key=lambda c: -c.count)
