"""A run as a trace for chrome://tracing or ui.perfetto.dev: what every unit did when, and which token let it.

Each unit has a track of its work; a transfer is on it while its bytes move, and on a track of requests before that.
Arrows are tokens. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlc.errors import UsageError
from mlc.vdla.isa import Instruction, Load, Store, Unit, is_nop
from mlc.vdla.sim.report import Report, profile_name
from mlc.vdla.sim.work import QUEUES, named

_PROCESS = 1
_LAYERS = 1
# Track numbers, from top to bottom.
_WORK = {Unit.LD: 3, Unit.CMP: 5, Unit.ST: 7}
_REQUESTS = {Unit.LD: 2, Unit.CMP: 4, Unit.ST: 6}

_FIELDS = {
    "LOAD": ("sram_base", "dram_base", "y_size", "x_size", "x_stride"),
    "STORE": ("sram_base", "dram_base", "y_size", "x_size", "x_stride", "shift", "relu"),
    "GEMM": ("uop_bgn", "uop_end", "iter_out", "iter_in"),
    "ALU": ("uop_bgn", "uop_end", "iter_out", "iter_in", "use_imm", "imm"),
}

Event = dict[str, Any]


def trace(report: Report) -> dict[str, Any]:
    """The trace as a JSON document in the Trace Event Format.

    Args:
        report: of a run whose time was simulated.
    Raises:
        UsageError: it was not.
    """
    if report.timeline is None:
        raise UsageError("a trace needs the timing simulator", hint="run with timing")
    events = [*_names(report), *_layers(report), *_work(report), *_tokens(report)]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"config": report.config.to_dict()}}


def _names(report: Report) -> Iterator[Event]:
    yield _meta("process_name", 0, name=f"VDLA ({profile_name(report.config)}, {report.config.freq_mhz} MHz)")
    tracks = {_LAYERS: "layers"}
    tracks |= {number: f"{unit.name} requests" for unit, number in _REQUESTS.items()}
    tracks |= {number: unit.name for unit, number in _WORK.items()}
    for number, name in tracks.items():
        yield _meta("thread_name", number, name=name)
        yield _meta("thread_sort_index", number, sort_index=number)


def _meta(what: str, track: int, **args: Any) -> Event:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": what, "args": args}


def _layers(report: Report) -> Iterator[Event]:
    for layer in report.layers:
        begin = layer.end - layer.cycles
        yield _span(report, _LAYERS, layer.name, begin, layer.end, {"macs": layer.macs, "bytes": layer.bytes})


def _work(report: Report) -> Iterator[Event]:
    time = report.timeline
    assert time is not None
    columns = zip(report.instructions, time.begin.tolist(), time.data.tolist(), time.end.tolist(), strict=True)
    for number, (x, begin, data, end) in enumerate(columns):
        name, args = named(x), {"instruction": number, **_arguments(x)}
        if isinstance(x, Load | Store) and not is_nop(x):
            yield _span(report, _REQUESTS[x.unit], name, begin, data, {"instruction": number})
            # The memory's acknowledgement of a store occupies nobody.
            end -= report.config.dram_latency if isinstance(x, Store) and x.y_size else 0
        yield _span(report, _WORK[x.unit], name, data, end, args)


def _span(report: Report, track: int, name: str, begin: float, end: float, args: dict[str, Any]) -> Event:
    clock = report.config.freq_mhz
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "name": name,
        "ts": begin / clock,
        "dur": (end - begin) / clock,
        "args": args,
    }


def _arguments(x: Instruction) -> dict[str, Any]:
    names = _FIELDS.get(type(x).__name__.upper(), ())
    return {name: getattr(x, name) for name in names}


def _tokens(report: Report) -> Iterator[Event]:
    """An arrow from the end of what gave a token to the beginning of what took it."""
    time, clock = report.timeline, report.config.freq_mhz
    assert time is not None
    number = 0
    for name, producer, consumer in QUEUES:
        push, pop = ("push_next", "pop_prev") if producer < consumer else ("push_prev", "pop_next")
        stream = list(enumerate(report.instructions))
        pushes = [i for i, x in stream if x.unit is producer and getattr(x, push)]
        pops = [i for i, x in stream if x.unit is consumer and getattr(x, pop)]
        for giver, taker in zip(pushes, pops, strict=False):  # tokens may be left over
            number += 1
            common = {"pid": _PROCESS, "name": name, "cat": "token", "id": number}
            # Within the span of the giver, where viewers look for what an arrow belongs to.
            start = max(time.data[giver], time.end[giver] - 1)
            yield {**common, "ph": "s", "tid": _WORK[producer], "ts": start / clock}
            yield {**common, "ph": "f", "bp": "e", "tid": _WORK[consumer], "ts": time.data[taker] / clock}
