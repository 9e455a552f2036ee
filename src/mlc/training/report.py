"""The report of a training run as one HTML file that needs nothing else: losses, accuracies, speed, new kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from os import PathLike
from typing import Any

from mlc.runtime.atomic import atomic_write
from mlc.training.watch import Exchange
from mlc.tuning.report import page

WIDTH, HEIGHT, MARGIN = 640, 220, 10
_COLOURS = ("#222", "#c33", "#68a")


def write_report(
    path: str | PathLike[str], history: Sequence[Mapping[str, Any]], exchanges: Sequence[Exchange], title: str
) -> None:
    """Writes the report, whole or not at all.

    Args:
        history: what was told of each epoch.
        exchanges: other kernels that were tried.
        title: what was trained.
    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path) as file:
        file.write(report_html(history, exchanges, title).encode())


def report_html(history: Sequence[Mapping[str, Any]], exchanges: Sequence[Exchange], title: str) -> str:
    """The report as text."""
    spans = [(e["epoch"] - 1 + (k + 1) / len(e["losses"]), loss) for e in history for k, loss in enumerate(e["losses"])]
    figures = [
        _figure("loss", {"while learning": spans, "validation": _points(history, "validation_loss")}),
        _figure("accuracy of validation", {"accuracy": _points(history, "validation_accuracy")}),
        _figure("examples a second", {"examples a second": _points(history, "examples_per_second")}),
    ]
    return page(f"Training of {title}", [_table(history), *figures, _exchanges(exchanges)])


def _points(history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(e["epoch"]), float(e[name])) for e in history if e.get(name) is not None]


def _figure(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Curves over epochs with common axes; nothing where there are none."""
    shown = {name: points for name, points in lines.items() if points}
    if not shown:
        return ""
    xs, ys = zip(*(p for points in shown.values() for p in points), strict=True)
    low, high, end = min(*ys, 0.0), max(ys), max(xs)
    drawn, words = [], []
    for colour, (name, points) in zip(_COLOURS, shown.items(), strict=False):
        at = " ".join(
            f"{MARGIN + (WIDTH - 2 * MARGIN) * x / end:.1f},"
            f"{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (y - low) / ((high - low) or 1.0):.1f}"
            for x, y in points
        )
        drawn.append(f"<polyline points='{at}' fill='none' stroke='{colour}'/>")
        words.append(f"<span style='color:{colour}'>{escape(name)} {points[0][1]:.4g} to {points[-1][1]:.4g}</span>")
    return (
        f"<figure><svg width='{WIDTH}' height='{HEIGHT}'>{''.join(drawn)}</svg><figcaption>{escape(title)}, from"
        f" {low:.4g} to {high:.4g}, over {end:.4g} epochs: {', '.join(words)}</figcaption></figure>"
    )


def _table(history: Sequence[Mapping[str, Any]]) -> str:
    names = ("epoch", "loss", "validation_loss", "validation_accuracy", "examples_per_second", "seconds")
    shown = [n for n in names if any(e.get(n) is not None for e in history)]
    head = "".join(f"<th>{n.replace('_', ' ')}</th>" for n in shown)
    rows = "".join(
        "<tr>" + "".join(f"<td>{'' if e.get(n) is None else format(e[n], '.5g')}</td>" for n in shown) + "</tr>"
        for e in history
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _exchanges(exchanges: Sequence[Exchange]) -> str:
    if not exchanges:
        return ""
    rows = []
    for e in exchanges:
        times = ("", "") if e.before is None or e.after is None else (f"{e.before * 1e3:.4g}", f"{e.after * 1e3:.4g}")
        verdict = "taken" if e.taken else "other results" if e.difference is not None else "left"
        cells = (str(e.step), *times, verdict, str(e.made), str(e.found))
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "<th>step</th><th>ms before</th><th>ms with what was found</th><th></th>"
    head = f"<tr>{head}<th>kernels compiled</th><th>from the function cache</th></tr>"
    return f"<h2>Kernels found on the way</h2><table>{head}{''.join(rows)}</table>"
