"""Reports for people: a table of layers, what each waited for, and the roofline as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlc.errors import MissingDependencyError, UsageError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Mem, Unit
from mlc.vdla.sim.report import (
    Figures,
    Report,
    eta,
    gops,
    intensity,
    milliseconds,
    peak_gops,
    roof_gops,
    roof_share,
    useful,
    util,
)

PICTURES = (".svg", ".png", ".pdf")
_MARKERS = "osD^v<>pPX*"
_LABEL = 6  # characters of a name that stands in the picture


@dataclass(frozen=True)
class Table:
    """Cells for printing; ``numbers`` are the columns to align right."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """A layer in the roofline: operations per byte of its task, and 10**9 operations a second."""

    name: str
    intensity: float
    gops: float


def parts_of(report: Report) -> list[Figures]:
    """The layers, then the whole under the name ``total``; nothing where time was not simulated."""
    if report.total is None:
        return []
    return [*report.layers, report.total]


def layer_table(report: Report) -> Table:
    """A line a layer: time, how busy the array was and how much of that was asked for, and the task's roofline."""
    config = report.config
    rows = [
        (
            part.name or "total",
            f"{part.cycles:.0f}",
            f"{milliseconds(part.cycles, config):.3f}",
            _percent(util(part)),
            _percent(useful(part, config)),
            _percent(eta(part, config)),
            _one_digit(gops(part, config)),
            _one_digit(intensity(part)),
            _percent(roof_share(part, config)),
            bound_by(part, config),
        )
        for part in parts_of(report)
    ]
    columns = ("layer", "cycles", "ms", "busy %", "useful %", "eta %", "GOPS", "op/B", "roof %", "bound by")
    return Table(columns, rows, columns[1:-1])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _one_digit(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f}"


def bound_by(part: Figures, config: VdlaConfig) -> str:
    """The roof above a layer's task: the array's, or the memory's."""
    at = intensity(part)
    if at is None:
        return "-"
    return "memory" if roof_gops(at, config) < peak_gops(config) else "array"


def stall_table(report: Report) -> Table:
    """A line a layer and unit: busy cycles, and those spent waiting, by what for."""
    parts = parts_of(report)
    reasons = list(dict.fromkeys(reason for part in parts for waits in part.stalls.values() for reason in waits))
    rows = [
        (
            part.name or "total",
            unit.name,
            f"{part.busy[unit.name]:.0f}",
            f"{part.latency[unit.name]:.0f}",
            f"{part.port[unit.name]:.0f}",
            *(f"{part.stalls[unit.name].get(reason, 0):.0f}" for reason in reasons),
        )
        for part in parts
        for unit in Unit
    ]
    columns = ("layer", "unit", "busy", "of it latency", "of it port", *reasons)
    return Table(columns, rows, columns[2:])


def byte_table(report: Report) -> Table:
    """A line a layer: bytes moved, by memory, and how many of them had to be."""
    parts = parts_of(report)
    used = [mem.name for mem in Mem if any(mem.name in part.bytes for part in parts)]
    rows = [
        (
            part.name or "total",
            *(str(part.bytes.get(name, 0)) for name in used),
            str(sum(part.bytes.values())),
            str(part.compulsory_bytes),
            f"{100 * part.port_busy / part.cycles:.1f}" if part.cycles else "-",
        )
        for part in parts
    ]
    columns = ("layer", *used, "all", "compulsory", "port %")
    return Table(columns, rows, columns[1:])


def points(report: Report) -> list[Point]:
    """The layers in the roofline of their tasks; without those that have none, or of which nothing is known."""
    found = ((part.name, intensity(part), gops(part, report.config)) for part in report.layers)
    return [Point(name, at, reached) for name, at, reached in found if at and reached]


def roofline(series: Mapping[str, Iterable[Point]], config: VdlaConfig, suffix: str = ".svg", title: str = "") -> bytes:
    """The roofline of an accelerator, log-log, with what layers reached.

    Args:
        series: points by the name of their series; one series needs no legend.
        config: the accelerator: its peak and its memory are the roof.
        suffix: ``.svg``, ``.png`` or ``.pdf``.
        title: above the picture.
    Returns:
        the picture's file.
    Raises:
        UsageError: another suffix.
        MissingDependencyError: there is no matplotlib.
    """
    if suffix not in PICTURES:
        raise UsageError(
            f"a roofline cannot be drawn as {suffix or 'a file without suffix'!r}", hint=", ".join(PICTURES)
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("drawing needs matplotlib", hint="pip install matplotlib") from error
    drawn = {name: list(given) for name, given in series.items()}
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    _draw_roof(axes, config, [point.intensity for given in drawn.values() for point in given])
    names = list(dict.fromkeys(point.name for given in drawn.values() for point in given))
    # Long names would cover each other: numbers then, and a key beside the picture.
    numbers = {name: i for i, name in enumerate(names, 1)} if any(len(n) > _LABEL for n in names) else {}
    for number, (name, given) in enumerate(drawn.items()):
        axes.plot(
            [point.intensity for point in given],
            [point.gops for point in given],
            _MARKERS[number % len(_MARKERS)],
            label=name,
            markersize=5,
        )
        _label(axes, given, numbers)
    if numbers:
        key = "\n".join(f"{number:>2}  {name}" for name, number in numbers.items())
        axes.text(1.02, 1.0, key, transform=axes.transAxes, va="top", fontsize=6.5)
    if len(drawn) > 1:
        axes.legend(loc="lower right", fontsize=8)
    if title:
        axes.set_title(title, fontsize=10)
    out = io.BytesIO()
    # Without the date, the same figures make the same file.
    metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    figure.savefig(out, format=suffix[1:], dpi=130, metadata=metadata)
    return out.getvalue()


def _label(axes: Any, given: Sequence[Point], numbers: Mapping[str, int]) -> None:
    """Names or numbers beside the points of a series; those of points that lie together in one place."""
    together: dict[tuple[int, int], list[Point]] = {}
    for point in given:
        together.setdefault((round(20 * math.log2(point.intensity)), round(20 * math.log2(point.gops))), []).append(
            point
        )
    for group in together.values():
        axes.annotate(
            ", ".join(str(numbers.get(point.name, point.name)) for point in group),
            (group[0].intensity, group[0].gops),
            xytext=(3, -9),
            textcoords="offset points",
            fontsize=7,
        )


def _draw_roof(axes: Any, config: VdlaConfig, intensities: Sequence[float]) -> None:
    peak, slope = peak_gops(config), roof_gops(1.0, config)
    ridge = peak / slope if slope < peak else 1.0
    low = min([ridge / 8, *(0.7 * i for i in intensities if i)])
    high = max([ridge * 8, *(1.5 * i for i in intensities)])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.plot([low, ridge, high], [low * slope, peak, peak], color="black", linewidth=1)
    bandwidth = config.bytes_per_cycle * config.freq_mhz * 1e-3
    axes.annotate(f"{peak:.4g} GOPS", (high, peak), xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=8)
    axes.annotate(
        f"{bandwidth:.4g} GB/s, ridge {ridge:.3g} op/B (memory assumed)",
        (low, low * slope),
        xytext=(6, 2),
        textcoords="offset points",
        fontsize=8,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("operations per byte of the task")
    axes.set_ylabel("GOPS")
    axes.grid(True, which="both", linewidth=0.3)
