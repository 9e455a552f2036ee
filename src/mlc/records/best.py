"""Which of many records are the best: those that a compilation uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mlc.records.record import DECIDED, Fingerprint, Record
from mlc.rewrite.workload import Document, canonical

CLEARLY = 0.95  # of the seconds of what is known, from which single trials can be believed to be faster


class Found(StrEnum):
    """What records say about a workload."""

    HIT = "hit"  # measured on such a processor
    STALE = "stale"  # the same, but this version's schedules refuse it
    NEAR = "near"  # the same operators on other shapes were
    MISS = "miss"


@dataclass(frozen=True)
class Best:
    """The best configuration of each workload.

    Args:
        hits: records by workload.
        near: the same by the workload's operators, shapes left out.
    """

    hits: Mapping[str, Record]
    near: Mapping[str, Sequence[Record]]

    def find(self, workload: str, document: Document) -> tuple[Found, Record | None]:
        """What there is for a workload: its own record, or else that of the most similar shape."""
        if workload in self.hits:
            return Found.HIT, self.hits[workload]
        alike = self.nearest(document, 1)
        return (Found.NEAR, alike[0]) if alike else (Found.MISS, None)

    def nearest(self, document: Document, most: int) -> list[Record]:
        """Records of workloads with the operators of a document, those of the most similar shapes first."""
        sizes = _sizes(document)
        alike = self.near.get(operators(document), ())
        return sorted(alike, key=lambda r: (_distance(sizes, _sizes(r.document)), r.workload))[:most]


def best_of(records: Iterable[Record], fingerprint: Fingerprint, threads: int | None = None) -> Best:
    """The fastest trials of each workload on a processor.

    Trials on this very processor are preferred to those on others of its family, and those with about as many threads
    to others; times are compared only where that is equal. The last record that settles a task (from the fastest
    trials, measured in turns, and the whole model) wins over all trials, except where a later run, stopped before it
    settled anything, has found something clearly faster than all that was known then. A noisy time counts with its
    spread added. Times with caches emptied are compared among themselves only: where there are such and others, those
    count that a task was settled from last, and the others where none ever was.

    Args:
        records: trials, failed ones included.
        fingerprint: of the processor.
        threads: that will run the kernels; any unless given.
    """
    found: dict[str, tuple[tuple[object, ...], Record]] = {}
    usable = [r for r in records if r.result.seconds is not None and r.fingerprint.is_family_of(fingerprint)]
    surpassed = _to_surpass(usable)

    def place(r: Record) -> tuple[bool, float]:
        return r.fingerprint.cpu != fingerprint.cpu, 0.0 if threads is None else abs(math.log2(r.threads / threads))

    last: dict[tuple[object, ...], float] = {}
    for r in usable:
        if r.explorer == DECIDED:
            key = r.workload, place(r), r.flushed
            last[key] = max(r.time, last.get(key, r.time))
    for record in usable:
        seconds = _seconds(record)
        since, least = surpassed.get(record.setting, (math.inf, 0.0))
        settles: tuple[int, float] = (1, -record.time) if record.explorer == DECIDED else (2, 0.0)
        if record.time > since and seconds < CLEARLY * least:
            settles = (0, 0.0)
        key = record.workload, place(record), record.flushed
        rank = (place(record), -last.get(key, 0.0), record.flushed, settles, seconds)
        if record.workload not in found or rank < found[record.workload][0]:
            found[record.workload] = rank, record
    near: dict[str, list[Record]] = {}
    for _, record in found.values():
        near.setdefault(operators(record.document), []).append(record)
    return Best({key: record for key, (_, record) in found.items()}, near)


def _seconds(record: Record) -> float:
    assert record.result.seconds is not None
    return record.result.seconds + (record.result.spread if record.result.noisy else 0.0)


def _to_surpass(usable: Sequence[Record]) -> dict[tuple[object, ...], tuple[float, float]]:
    """When each task was last settled, and the least seconds known by then."""
    settled: dict[tuple[object, ...], float] = {}
    for r in usable:
        if r.explorer == DECIDED:
            settled[r.setting] = max(r.time, settled.get(r.setting, r.time))
    least: dict[tuple[object, ...], float] = {}
    for r in usable:
        if r.time <= settled.get(r.setting, -math.inf):
            least[r.setting] = min(_seconds(r), least.get(r.setting, math.inf))
    return {key: (time, least[key]) for key, time in settled.items()}


def compacted(records: Sequence[Record]) -> list[Record]:
    """The best trial of each workload by processor and number of threads, sorted by name."""
    found: list[Record] = []
    for fingerprint, threads in dict.fromkeys((r.fingerprint, r.threads) for r in records):
        mine = [r for r in records if (r.fingerprint, r.threads) == (fingerprint, threads)]
        found += best_of(mine, fingerprint, threads).hits.values()
    return sorted(found, key=lambda r: (r.task, r.workload, r.threads, r.fingerprint.cpu))


def operators(document: Document) -> str:
    """A workload without its shapes and layouts: what workloads share that are computed alike."""
    return canonical(_without_shapes(document))


def _without_shapes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_shapes(v) for k, v in value.items() if k not in ("shape", "layout")}
    return [_without_shapes(v) for v in value] if isinstance(value, list) else value


def _sizes(value: Any) -> list[int]:
    """The extents of all shapes, in order."""
    if isinstance(value, Mapping):
        own = [n for n in value.get("shape", ()) if type(n) is int] if isinstance(value.get("shape"), list) else []
        return own + [n for v in value.values() for n in _sizes(v)]
    return [n for v in value for n in _sizes(v)] if isinstance(value, list) else []


def _distance(a: Sequence[int], b: Sequence[int]) -> float:
    """How far shapes are from each other: doublings, summed up."""
    if len(a) != len(b):
        return math.inf
    return sum(abs(math.log2(max(m, 1) / max(n, 1))) for m, n in zip(a, b, strict=True))
