"""Where the time of a model goes: one row a step, and the same as a Chrome trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlc.runtime.module import StepTime


@dataclass(frozen=True)
class Row:
    """One step of the model.

    Args:
        step: position in the model, from 0.
        kernel: name of the kernel.
        ms: median time.
        share: of the sum over all steps, 0 to 1.
        gflops: 10^9 operations a second.
        gbytes: 10^9 bytes a second, counting what must be moved at least.
        sources: the original model's nodes that it computes.
        bound: what bounds it on its device, where that says so, and
        peak: the share of what that allows which it reaches.
        occupancy: the share of a unit's threads that it fills.
        note: what else the device says of it.
    """

    step: int
    kernel: str
    ms: float
    share: float
    gflops: float
    gbytes: float
    sources: tuple[str, ...]
    bound: str = ""
    peak: float | None = None
    occupancy: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        device = {"bound": self.bound, "peak": self.peak, "occupancy": self.occupancy, "note": self.note}
        return {
            "step": self.step,
            "kernel": self.kernel,
            "ms": self.ms,
            "share": self.share,
            "gflops": self.gflops,
            "gbytes": self.gbytes,
            "sources": list(self.sources),
            **{k: v for k, v in device.items() if v not in (None, "")},
        }


def rows(times: Sequence[StepTime]) -> list[Row]:
    """The steps, in the model's order."""
    # A step that the clock could not see counts as one nanosecond.
    ns = [max(time.median_ns, 1.0) for time in times]
    total = sum(ns)
    return [
        Row(
            i,
            t.step.kernel,
            took / 1e6,
            took / total,
            t.step.flops / took,
            t.step.bytes / took,
            t.step.sources,
            t.report.get("bound", ""),
            t.report["least_seconds"] / (took * 1e-9) if "least_seconds" in t.report else None,
            t.report.get("occupancy"),
            t.report.get("note", ""),
        )
        for i, (t, took) in enumerate(zip(times, ns, strict=True))
    ]


def chrome_trace(table: Sequence[Row], name: str) -> dict[str, Any]:
    """The steps one after the other, for ``chrome://tracing`` or Perfetto.

    Args:
        table: in the model's order.
        name: of the process in the trace.
    """
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": name}}]
    start = 0.0
    for row in table:
        took = row.ms * 1e3  # the format counts microseconds
        facts = {"sources": list(row.sources), "gflops": row.gflops, "gbytes": row.gbytes}
        events.append({"ph": "X", "pid": 1, "tid": 1, "name": row.kernel, "ts": start, "dur": took, "args": facts})
        start += took
    return {"traceEvents": events, "displayTimeUnit": "ms"}
