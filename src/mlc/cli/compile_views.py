"""What ``mlc compile`` shows of a model: what runs on an accelerator, and how tensors lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc.cli.console import Console, file_bytes

if TYPE_CHECKING:
    from mlc.api import Package

NAME = 40  # letters of a name in a table


def show_offloads(console: Console, package: Package) -> str:
    """Where every operation runs; beside what stays on the host, why."""
    rows = [
        (
            d.region or "host",
            ", ".join(d.operators),
            ", ".join(d.sources),
            _ms(d.device_seconds),
            _ms(d.host_seconds),
            d.reason,
        )
        for d in package.offloads
    ]
    heads = ("runs on", "operators", "nodes of the model", "device ms", "host ms", "why not on the device")
    return console.table(heads, rows, ("device ms", "host ms"))


def show_layouts(console: Console, package: Package) -> str:
    """How every tensor lies, and what is converted while the model runs."""
    placements = package.placements
    if placements is None:
        return ""
    rows = [
        (_short(t.tensor), t.type, t.layout, _extents(t.shape), t.reason, _short(t.asked_by))
        for t in placements.tensors
    ]
    text = console.table(("tensor", "type", "layout", "in memory", "why", "asked for by"), rows)
    if not placements.conversions:
        return f"{text}\n\nnothing is converted while the model runs"
    moves = [
        (_short(c.tensor), _short(c.where), c.how, c.layout, _extents(c.shape), file_bytes(c.nbytes))
        for c in placements.conversions
    ]
    heads = ("converted", "by", "how", "from layout", "to memory of", "moved")
    read = sum(c.nbytes for c in placements.conversions if c.how == "read")
    moved = sum(c.nbytes for c in placements.conversions) - read
    sums = [f"{file_bytes(moved)} are moved in conversions and copies a run"] if moved else []
    sums += [f"{file_bytes(read)} are read from where they lie, which is not as the result does"] if read else []
    return f"{text}\n\n{console.table(heads, moves, ('moved',))}\n\n{', '.join(sums)}"


def _short(name: str) -> str:
    """A name that fits a table; some models have names of hundreds of letters."""
    return name if len(name) <= NAME else f"{name[: NAME // 2 - 1]}…{name[-NAME // 2 :]}"


def _extents(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"
