"""The report of a tuning run as one HTML file that needs nothing else: curves, gains, failures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike

from mlc.records.measurement import causes
from mlc.runtime.atomic import atomic_write
from mlc.tuning.drive import Tuning
from mlc.tuning.state import TaskState

WIDTH, HEIGHT = 360, 120
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left } figure { display: inline-block; margin: 1em }
svg { background: #f7f7f7 }
figcaption { font-size: 12px; max-width: 360px }
"""


def write_report(path: str | PathLike[str], tuning: Tuning, title: str) -> None:
    """Writes the report, whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path) as file:
        file.write(report_html(tuning, title).encode())


def report_html(tuning: Tuning, title: str) -> str:
    """The report as text."""
    states = [s for s in tuning.outcome.states if s.trials]
    parts = [_whole(tuning), _table(states), _failures(states), *(_curve(s) for s in states)]
    return page(f"Tuning of {title}", parts)


def page(title: str, parts: Sequence[str]) -> str:
    """A page with a heading, and parts that are HTML already."""
    head = [
        "<!doctype html><html><head><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
    ]
    return "\n".join([*head, "</head><body>", f"<h1>{escape(title)}</h1>", *parts, "</body></html>"])


def _whole(tuning: Tuning) -> str:
    outcome, whole = tuning.outcome, tuning.whole
    text = f"<p>{outcome.trials} trials in {outcome.seconds:.0f} s."
    if outcome.flushed:
        text += " Kernels were timed with empty caches."
    untuned, best = outcome.bound
    if best:
        text += (
            f" All calls of all kernels, measured one by one: {untuned * 1e3:.4g} ms untuned, {best * 1e3:.4g} ms with"
            f" the best of each."
        )
    if whole is not None:
        what = "The accelerator's regions, whole" if tuning.regions else "The whole model, run in turns"
        text += (
            f" {what}: {whole.untuned * 1e3:.4g} ms untuned, {whole.tuned * 1e3:.4g} ms tuned,"
            f" <b>{whole.speedup:.2f} times as fast</b>; results differ by"
            f" {whole.error:.1e} of the largest."
        )
    if tuning.reverted:
        text += f" Faster untuned between other kernels: {escape(', '.join(tuning.reverted))}."
    return text + ("</p><p>Stopped before its end.</p>" if outcome.interrupted else "</p>")


def _table(states: Sequence[TaskState]) -> str:
    names = ("task", "calls", "trials", "failed", "untuned ms", "best ms", "GFLOP/s", "% of peak", "gain", "ended")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    rows = []
    for s in states:
        failed = ", ".join(f"{n} {escape(kind)}" for kind, n in sorted(s.failures.items())) or "0"
        share = "" if s.share_of_peak is None else f"{100 * s.share_of_peak:.0f}"
        known = s.best < float("inf")
        gain = "" if s.gain is None or s.open else f"{s.gain:.2f}"
        cells = (
            escape(s.task.name), s.task.weight, len(s.trials), failed,
            f"{s.untuned * 1e3:.4f}" if s.untuned < float("inf") else "", f"{s.best * 1e3:.4f}" if known else "",
            f"{s.speed(s.best):.1f}" if known else "", share, gain, escape(s.ended or ""),
        )  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return "<table>" + head + "".join(rows) + "</table>"


def _failures(states: Sequence[TaskState]) -> str:
    found = causes(m for s in states for _, m in s.trials)
    if not found:
        return ""
    rows = "".join(f"<tr><td>{c.failure}</td><td>{c.count}</td><td>{escape(c.message)}</td></tr>" for c in found)
    return f"<table><tr><th>failure</th><th>trials</th><th>most of them say</th></tr>{rows}</table>"


def _curve(s: TaskState) -> str:
    """Every trial as a dot, the best so far as a line."""
    speeds = [s.speed(m.seconds) for _, m in s.trials]
    top = max(speeds, default=0.0) or 1.0
    n = max(1, len(speeds) - 1)
    points = [(8 + (WIDTH - 16) * k / n, HEIGHT - 8 - (HEIGHT - 16) * v / top) for k, v in enumerate(speeds)]
    dots = "".join(
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='1.5' fill='{'#c33' if v == 0 else '#68a'}'/>"
        for (x, y), v in zip(points, speeds, strict=True)
    )
    best, line = HEIGHT - 8.0, []
    for x, y in points:
        best = min(best, y)
        line.append(f"{x:.1f},{best:.1f}")
    return (
        f"<figure><svg width='{WIDTH}' height='{HEIGHT}'>{dots}"
        f"<polyline points='{' '.join(line)}' fill='none' stroke='#222'/></svg>"
        f"<figcaption>{escape(s.task.name)}: best {top:.1f} GFLOP/s of {len(speeds)} trials<br>"
        f"{escape(str(dict(s.decided))) if s.decided is not None else ''}</figcaption></figure>"
    )
