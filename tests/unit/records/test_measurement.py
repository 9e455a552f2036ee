"""What became of trials."""

from __future__ import annotations

from mlc.records.measurement import Cause, Failure, Measurement, causes


def test_causes_are_counted_by_kind_with_what_most_of_them_said() -> None:
    refused = [Measurement(None, failure=Failure.REFUSED, message=m) for m in ("too wide", "too deep", "too wide")]
    crash = Measurement(None, failure=Failure.RUN_CRASH, message="SIGSEGV")
    assert causes([crash, *refused, Measurement(1.0)]) == [
        Cause(Failure.REFUSED, 3, "too wide"),
        Cause(Failure.RUN_CRASH, 1, "SIGSEGV"),
    ]
    assert causes([]) == []
