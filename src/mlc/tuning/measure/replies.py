"""Reading what workers answer. Who answers may have run somebody's code, and so may say anything."""

from __future__ import annotations

import math
from typing import Any

from mlc.records.measurement import Failure
from mlc.tuning.measure.frames import Message
from mlc.tuning.measure.lanes import LostError
from mlc.tuning.measure.timing import Timing

_MOST_SAMPLES, _MOST_CALLS = 4000, 10**12


def failure_in(reply: Message) -> tuple[Failure, str] | None:
    """The failure that a reply tells of, with its message; nothing where it tells of none."""
    kind = reply.header.get("failure")
    if kind is None:
        return None
    if kind not in set(Failure):
        raise LostError(Failure.BAD_REPLY, "a failure of no known kind")
    return Failure(kind), str(reply.header.get("message", ""))[:300]


def refusal_in(reply: Message) -> tuple[str, str] | None:
    """What the device itself has refused, as message and hint; nothing where it has not, or a candidate has failed."""
    hint = reply.header.get("hint")
    return None if hint is None else (str(reply.header.get("message", ""))[:300], str(hint)[:300])


def seconds_in(reply: Message) -> float:
    """The seconds that a reply took."""
    return as_positive(reply.header.get("took"))


def as_positive(value: object) -> float:
    """A number from 0 on, as one that may be divided by."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 <= value < 1e15):
        raise LostError(Failure.BAD_REPLY, "a number that makes no sense")
    return max(float(value), 1e-9)


def as_count(value: object) -> int:
    """A number of bytes."""
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise LostError(Failure.BAD_REPLY, "a number that makes no sense")
    return value


def as_items(value: object, n: int) -> list[Any]:
    """A list of so many."""
    if not isinstance(value, list) or len(value) != n:
        raise LostError(Failure.BAD_REPLY, "a list that makes no sense")
    return value


def as_timing(value: object) -> Timing:
    """Samples of a kernel."""
    if isinstance(value, dict):
        calls, ns = value.get("calls"), value.get("ns")
        if (
            type(calls) is int
            and 0 < calls < _MOST_CALLS
            and isinstance(ns, list)
            and 0 < len(ns) <= _MOST_SAMPLES
            and all(type(t) is int and 0 < t < 1e15 for t in ns)
            and math.isfinite(sum(ns))
        ):
            return Timing(calls, tuple(ns))
    raise LostError(Failure.BAD_REPLY, "samples that make no sense")
