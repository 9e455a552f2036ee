"""Pictures of a report: latency relative to the best peer, and rooflines with the measured limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.limits import Limit, roof
from benchmarks.measure import Result
from benchmarks.report import TITLES, Report

# Slower than this many times the best peer is cut off, with its number beside it.
CUT = 4.0
# One colour an engine, in the order of the report; ours come first.
COLOURS = ("#c0392b", "#2c7fb8", "#7fb069", "#e6a23c", "#8e6bbf", "#6d6d6d", "#d98cb3", "#3fb8af")
LEVEL_STYLES = {"L1": ":", "L2": "-.", "L3": "--", "memory": "-"}


def draw(report: Report, folder: Path) -> list[str]:
    """Writes every picture that there is data for.

    Returns:
        their file names.
    """
    written = []
    for kind, title in TITLES.items():
        results = [result for result in report.results if result.kind == kind]
        for threads in sorted({result.threads for result in results if result.best_peer}):
            name = f"relative-{title.lower().replace(' ', '-')}-{threads}.png"
            _relative(report, [r for r in results if r.threads == threads], threads, folder / name)
            written.append(name)
    for limit in report.limits:
        points = [r for r in report.results if r.threads == limit.threads and r.kind == "operator" and r.milliseconds]
        if points:
            name = f"roofline-operators-{limit.threads}.png"
            _operators(report, points, limit, folder / name)
            written.append(name)
        for result in report.results:
            # products of bytes have another peak than multiply-adds of floats
            if result.threads == limit.threads and result.kernels and result.kind == "network":
                name = f"roofline-{result.model}-{limit.threads}.png"
                _kernels(result, limit, folder / name)
                written.append(name)
    return written


def _figure(width: float, height: float, *, axes: bool = True) -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    return pyplot, figure, figure.add_subplot() if axes else None


def _save(pyplot: Any, figure: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def bars(
    file: Path, groups: Sequence[str], series: dict[str, Sequence[float]], title: str, label: str, cut: float = CUT
) -> None:
    """Groups of bars, one a series; NaN leaves a gap, and what exceeds ``cut`` is cut off and labelled."""
    width = 0.8 / max(len(series), 1)
    pyplot, figure, axes = _figure(max(6.0, 1.5 + 0.16 * len(groups) * (len(series) + 1)), 3.6)
    for index, (name, values) in enumerate(series.items()):
        places = [group + (index - (len(series) - 1) / 2) * width for group in range(len(groups))]
        heights = [min(value, cut) if math.isfinite(value) else 0.0 for value in values]
        axes.bar(places, heights, width, label=name, color=COLOURS[index % len(COLOURS)])
        for place, value in zip(places, values, strict=True):
            if math.isfinite(value) and value > cut:
                axes.text(place, cut, f"{value:.0f}×", ha="center", va="top", color="white", fontsize=7, rotation=90)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.margins(y=0.15)  # room for the legend
    axes.set_xticks(
        range(len(groups)), groups, rotation=40 if len(groups) > 6 else 0, ha="right" if len(groups) > 6 else "center"
    )
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.legend(fontsize=7, ncols=min(len(series), 6))
    _save(pyplot, figure, file)


def curves(
    file: Path,
    panels: Mapping[str, Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]],
    title: str,
    across: str,
    up: str,
    best: Mapping[str, float],
) -> None:
    """Panels of curves with what they deviate as a shade, and the best value as a line.

    Args:
        file: where the picture goes.
        panels: by title, curves by label: mean and deviation, ``[n]`` each.
        title: of the whole.
        across: label of the horizontal axis, which counts from 1.
        up: label of the vertical one.
        best: a value of each panel.
    """
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    pyplot, figure, _ = _figure(3.6 * columns, 2.9 * rows + 0.5, axes=False)
    labels = list(dict.fromkeys(label for found in panels.values() for label in found))
    lines: dict[str, Any] = {}
    for place, (name, found) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, place)
        for label, (mean, deviation) in found.items():
            trials, colour = range(1, len(mean) + 1), COLOURS[labels.index(label) % len(COLOURS)]
            (lines[label],) = axes.plot(trials, mean, color=colour, linewidth=1.3)
            axes.fill_between(trials, mean - deviation, mean + deviation, color=colour, alpha=0.12, linewidth=0)
        axes.axhline(best[name], color="black", linewidth=0.7, linestyle=":")
        axes.set_ylim(0.5 * best[name], 1.03 * best[name])
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        if place > len(panels) - columns:
            axes.set_xlabel(across, fontsize=8)
        if place % columns == 1 or columns == 1:
            axes.set_ylabel(up, fontsize=8)
        axes.legend([lines[label] for label in found], list(found), fontsize=6, loc="lower right")
    figure.suptitle(title, fontsize=10)
    _save(pyplot, figure, file)


def lines(
    file: Path,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    title: str,
    across: str,
    most: Mapping[str, float],
) -> None:
    """Panels below one another that share their horizontal axis.

    Args:
        file: where the picture goes.
        panels: by label of the vertical axis, lines by name: places and values.
        title: of the whole.
        across: label of the horizontal axis.
        most: where the vertical axis of a panel ends, if not by itself.
    """
    pyplot, figure, _ = _figure(7.0, 2.6 * len(panels) + 0.5, axes=False)
    names = list(dict.fromkeys(name for found in panels.values() for name in found))
    for place, (label, found) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(len(panels), 1, place)
        for name, (at, values) in found.items():
            axes.plot(at, values, color=COLOURS[names.index(name) % len(COLOURS)], linewidth=1.3, label=name)
        axes.set_ylim(0, most.get(label))
        axes.set_ylabel(label, fontsize=8)
        axes.legend(fontsize=7)
        if place == len(panels):
            axes.set_xlabel(across, fontsize=8)
    figure.suptitle(title, fontsize=10)
    _save(pyplot, figure, file)


def _relative(report: Report, results: Sequence[Result], threads: int, file: Path) -> None:
    """Latency over that of the best peer of each model; ours below 1 are ahead."""
    shown = [result for result in results if result.best_peer]

    def relative(result: Result, label: str) -> float:
        time = result.milliseconds.get(label)
        return time.median / result.milliseconds[result.best_peer].median if time else math.nan

    series = {label: [relative(result, label) for result in shown] for label in report.labels}
    title = f"Latency relative to the best peer, {threads} thread{'s'[: threads > 1]} (lower is better)"
    bars(file, [result.model for result in shown], series, title, "time / best peer's time")


def _roofs(axes: Any, limit: Limit, low: float, high: float) -> None:
    """The measured limits as lines from ``low`` to ``high`` operations per byte."""
    for level, rate in limit.gbytes.items():
        ridge = limit.gflops / rate
        ends = [low, *([ridge] if low < ridge < high else []), high]
        style = LEVEL_STYLES.get(level, "-")
        label = f"{level} {rate:.0f} GB/s"
        axes.plot(ends, [roof(limit, level, x) for x in ends], style, color="black", linewidth=0.9, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of inputs, weights and outputs")
    axes.set_ylabel("GFLOP/s")


def _operators(report: Report, results: Sequence[Result], limit: Limit, file: Path) -> None:
    """Single operators: ours and the best peer under the roofs."""
    pyplot, figure, axes = _figure(9, 5.5)
    intensities = [result.flops / result.bytes for result in results]
    _roofs(axes, limit, min(intensities) / 2, max(intensities) * 2)
    for index, label in enumerate(report.ours):
        shown = [(x, r) for x, r in zip(intensities, results, strict=True) if label in r.milliseconds]
        rates = [r.flops / r.milliseconds[label].median / 1e6 for _, r in shown]
        axes.scatter([x for x, _ in shown], rates, s=22, color=COLOURS[index % len(COLOURS)], label=label, zorder=3)
        if index == 0:
            for (x, result), rate in zip(shown, rates, strict=True):
                axes.annotate(result.model, (x, rate), fontsize=6, xytext=(3, 3), textcoords="offset points")
    peers = [(x, r) for x, r in zip(intensities, results, strict=True) if r.best_peer]
    rates = [r.flops / r.milliseconds[r.best_peer].median / 1e6 for _, r in peers]
    axes.scatter([x for x, _ in peers], rates, s=22, marker="x", color="#2c7fb8", label="best peer", zorder=2)
    axes.set_title(f"Single operators, {limit.threads} thread{'s'[: limit.threads > 1]}")
    axes.legend(fontsize=7)
    _save(pyplot, figure, file)


def _kernels(result: Result, limit: Limit, file: Path) -> None:
    """Every kernel of a network, as large as its share of the time."""
    pyplot, figure, axes = _figure(9, 5.5)
    everything = [kernel for kernels in result.kernels.values() for kernel in kernels if kernel.flops and kernel.bytes]
    intensities = [kernel.flops / kernel.bytes for kernel in everything] or [1.0]
    _roofs(axes, limit, min(intensities) / 2, max(intensities) * 2)
    for index, (label, kernels) in enumerate(result.kernels.items()):
        counted = [kernel for kernel in kernels if kernel.flops and kernel.bytes]
        total = sum(kernel.milliseconds for kernel in kernels)
        axes.scatter(
            [kernel.flops / kernel.bytes for kernel in counted],
            [kernel.flops / kernel.milliseconds / 1e6 for kernel in counted],
            s=[8 + 1200 * kernel.milliseconds / total for kernel in counted],
            color=COLOURS[index % len(COLOURS)],
            alpha=0.5,
            label=label,
            zorder=3,
        )
        for kernel in sorted(counted, key=lambda k: -k.milliseconds)[:8] if index == 0 else ():
            at = (kernel.flops / kernel.bytes, kernel.flops / kernel.milliseconds / 1e6)
            axes.annotate(kernel.name, at, fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set_title(f"{result.model}: kernels by share of the time, {limit.threads} thread{'s'[: limit.threads > 1]}")
    axes.legend(fontsize=7)
    _save(pyplot, figure, file)
