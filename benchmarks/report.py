"""Results as Markdown for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.limits import Limit, home, roof_of
from benchmarks.measure import Plan, Result
from benchmarks.stats import Spread, geometric_mean

# More CPU time than this share of the other's measurement means that an idle engine was not idle.
IDLE_SHARE = 0.02
SCHEMA = 3
TITLES = {
    "network": "Networks",
    "int8": "Networks in 8 bits",
    "operator": "Single operators",
    "batched": "Batched matrix products",
    "single": "Networks on one word or token",
    "file": "Files",
}


# Kinds of workload that are single operators.
OPERATORS = ("operator", "batched")


@dataclass(frozen=True)
class Report:
    """All that one run of the benchmark found.

    Args:
        about: the machine, by heading.
        engines: how each was set up, by label.
        limits: of the machine, as measured, for each number of threads.
        caches: their sizes in bytes, by name.
    """

    plan: Plan
    about: dict[str, str]
    engines: dict[str, str]
    results: list[Result]
    limits: list[Limit] = field(default_factory=list)
    caches: dict[str, int] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Engines that measured anything, ours first."""
        seen = {label for result in self.results for label in (*result.milliseconds, *result.failures)}
        ours = {label for result in self.results for label in result.ours}
        return sorted((label for label in self.engines if label in seen), key=lambda label: label not in ours)

    @property
    def ours(self) -> list[str]:
        return [label for label in self.labels if any(label in result.ours for result in self.results)]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "machine": self.about,
            "engines": self.engines,
            "plan": asdict(self.plan),
            "limits": [asdict(limit) for limit in self.limits],
            "results": [
                asdict(result) | {"roofline": asdict(line) if (line := roofline(self, result)) else None}
                for result in self.results
            ],
            "geometric_means": [asdict(mean) for mean in means(self)],
        }


@dataclass(frozen=True, slots=True)
class Mean:
    """Geometric mean and least of the speed-ups of one of our engines over the best peer of each model."""

    engine: str
    kind: str
    threads: int
    count: int
    speedup: float
    least: float
    least_model: str


def means(report: Report) -> list[Mean]:
    """One for each of our engines, kind of model and number of threads."""
    found = []
    for label in report.ours:
        for kind in TITLES:
            for threads in sorted({result.threads for result in report.results}):
                ratios = {
                    result.model: result.versus[label].speedup.median
                    for result in report.results
                    if (result.kind, result.threads) == (kind, threads) and label in result.versus
                }
                if ratios:
                    worst = min(ratios, key=ratios.__getitem__)
                    mean = geometric_mean(ratios.values())
                    found.append(Mean(label, kind, threads, len(ratios), mean, ratios[worst], worst))
    return found


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a Markdown table whose first ``left`` columns are text and the others numbers."""
    bars = ["---" if column < left else "---:" for column in range(len(headings))]
    return [f"| {' | '.join(cells)} |" for cells in (headings, bars, *rows)]


def markdown(report: Report, plots: Sequence[str] = ()) -> str:
    """The whole document.

    Args:
        plots: image files beside it.
    """
    lines = ["# Benchmark", "", *_machine(report), ""]
    lines += [f"![{name}]({name})" for name in plots]
    lines += ["", "## Speed-up over the best peer", "", *_means_table(report)]
    for kind, title in TITLES.items():
        results = [result for result in report.results if result.kind == kind]
        if results:
            lines += ["", f"## {title}", "", *_times_table(report, results)]
            if kind in OPERATORS:
                lines += ["", "The same in GFLOP/s:", "", *_grid(report, results, _rate)]
                lines += _roof_table(report, results)
            if scaling := _scaling_table(report, results):
                lines += ["", "From fewest to most threads, times as fast:", "", *scaling]
    for heading, cell in (
        ("Seconds from the ONNX file to the end of the first run", _prepare),
        ("Resident memory while running, at most, MiB", _memory),
        ("Largest difference from the reference over its largest magnitude", _error),
    ):
        lines += ["", f"## {heading}", "", *_grid(report, report.results, cell)]
    lines += ["", "## Notes", "", *(f"- {line}" for line in notes(report))]
    return "\n".join(lines) + "\n"


def _machine(report: Report) -> list[str]:
    plan = report.plan
    lines = [f"- {key}: {value}" for key, value in report.about.items()]
    lines += [f"- {label}: {what}" for label, what in report.engines.items()]
    lines.append(f"- at most {plan.rounds} rounds, blocks of {plan.block_seconds} s")
    if report.limits:
        levels = list(report.limits[0].gbytes)
        rows = [
            (
                str(limit.threads),
                f"{limit.gflops:.1f}",
                *(f"{limit.gbytes[level]:.1f}, {limit.copied[level]:.1f}" for level in levels),
            )
            for limit in report.limits
        ]
        headings = ("threads", "FMA GFLOP/s", *(f"{level} GB/s" for level in levels))
        title = "Limits of the machine, measured (reading, and reading and writing in a copy; each core its own data):"
        lines += ["", title, "", *table(headings, rows)]
    return lines


def _means_table(report: Report) -> list[str]:
    headings = ("engine", "models", "threads", "count", "geometric mean", "least")
    return table(
        headings,
        [
            (m.engine, TITLES[m.kind].lower(), str(m.threads), str(m.count), f"{m.speedup:.2f}",
             f"{m.least:.2f} ({m.least_model})")
            for m in means(report)
        ],
        left=2,
    )  # fmt: skip


def _times_table(report: Report, results: Sequence[Result]) -> list[str]:
    """Medians with spreads, the best peer, and how much faster ours are."""
    headings = ["model", "threads", *(f"{label} ms" for label in report.labels), "best peer"]
    headings += [f"speed-up of {label}" for label in report.ours]
    rows = []
    for result in results:
        speedups = [result.versus.get(label) for label in report.ours]
        rows.append(
            [
                result.model,
                str(result.threads),
                *(spread(result.milliseconds.get(label)) for label in report.labels),
                result.best_peer or "-",
                *(f"{v.speedup.median:.2f}" if v else "-" for v in speedups),
            ]
        )
    return table(headings, rows)


def _grid(report: Report, results: Sequence[Result], cell: Callable[[Result, str], str]) -> list[str]:
    """One row a result, one column an engine."""
    headings = ("model", "threads", *report.labels)
    rows = [(r.model, str(r.threads), *(cell(r, label) for label in report.labels)) for r in results]
    return table(headings, rows)


def _rate(result: Result, label: str) -> str:
    time = result.milliseconds.get(label)
    return f"{result.flops / time.median / 1e6:.1f}" if time and result.flops > 0 else "-"


@dataclass(frozen=True, slots=True)
class Roofline:
    """The most that the machine allows for an operator, and how much of that each engine reaches.

    Args:
        bound: ``FMA``, or the level of memory that holds inputs, weights and outputs together.
        gflops: what multiply-adds allow, or what moving each byte once from and to that level allows.
        shares: by label.
    """

    bound: str
    gflops: float
    shares: dict[str, float]


def roofline(report: Report, result: Result) -> Roofline | None:
    """The roofline of a single operator; ``None`` for anything else, and where the limits are not known."""
    limit = next((limit for limit in report.limits if limit.threads == result.threads), None)
    if limit is None or result.kind not in OPERATORS or not result.flops > 0:
        return None
    level = home(report.caches, result.bytes)
    most = roof_of(limit, level, result.flops, result.bytes - result.written, result.written)
    shares = {label: result.flops / time.median / 1e6 / most for label, time in result.milliseconds.items()}
    return Roofline("FMA" if most == limit.gflops else level, most, shares)


def _roof_table(report: Report, results: Sequence[Result]) -> list[str]:
    """How close single operators come to what arithmetic and the level that holds their tensors allow."""
    rows = []
    for result in results:
        if line := roofline(report, result):
            shares = (f"{line.shares[label]:.0%}" if label in line.shares else "-" for label in report.labels)
            rows.append((result.model, str(result.threads), line.bound, f"{line.gflops:.1f}", *shares))
    if not rows:
        return []
    headings = ("model", "threads", "bound by", "roof GFLOP/s", *report.labels)
    return [
        "",
        "Share of the roofline, for tensors in the smallest cache that holds them all:",
        "",
        *table(headings, rows),
    ]


def _prepare(result: Result, label: str) -> str:
    return f"{result.prepare_seconds[label]:.2f}" if label in result.prepare_seconds else "-"


def _memory(result: Result, label: str) -> str:
    return f"{result.memory[label].running:.0f}" if label in result.memory else "-"


def _error(result: Result, label: str) -> str:
    if label == result.reference:
        return "reference"
    return f"{result.error[label]:.1e}" if label in result.error else "-"


def _scaling_table(report: Report, results: Sequence[Result]) -> list[str]:
    few, many = (end({result.threads for result in results}) for end in (min, max))
    if few == many:
        return []
    by_key = {(result.model, result.threads): result.milliseconds for result in results}
    rows = []
    for model in dict.fromkeys(result.model for result in results):
        slow, fast = by_key.get((model, few), {}), by_key.get((model, many), {})
        both = {label: slow[label].median / fast[label].median for label in slow.keys() & fast.keys()}
        rows.append((model, *(f"{both[label]:.2f}" if label in both else "-" for label in report.labels)))
    return table((f"model, {few} to {many} threads", *report.labels), rows)


def spread(value: Spread | None) -> str:
    """A median with its relative deviation."""
    return f"{value.median:.3f} ±{value.mad / value.median:.1%}" if value else "-"


def notes(report: Report) -> list[str]:
    """What a reader should know before trusting the tables: how to read them, failures, and restless engines."""
    lines = [
        "Times are medians ± median absolute deviation. A speed-up above 1 means that ours is faster; it is the median "
        "of the ratios of blocks that were measured in the same round.",
    ]
    # A failure to compile is one and the same for all numbers of threads.
    lines += dict.fromkeys(f"{r.model}: {reason}" for r in report.results for reason in r.failures.values())
    lines += [
        f"{r.model}, {r.threads} threads: idle engines used CPU time worth {r.idle_share:.0%} of the measurement"
        for r in report.results
        if r.idle_share > IDLE_SHARE
    ]
    lines += [
        f"{r.model}, {r.threads} threads: {label} differs from {r.reference} by {error:.1e}"
        for r in report.results
        for label, error in r.error.items()
        if not error < 1e-3
    ]
    return lines


def line(result: Result) -> str:
    """A result as one line for a terminal, as soon as it is there."""
    times = "  ".join(f"{label} {s.median:.3f} ±{s.mad / s.median:.1%}" for label, s in result.milliseconds.items())
    gains = "  ".join(f"{v.speedup.median:.2f}x with {label}" for label, v in result.versus.items())
    errors = [error for label, error in result.error.items() if label in result.ours]
    worst = f"  error {max(errors):.1e}" if errors else ""
    best = f"  best peer {result.best_peer}: {gains}" if gains else ""
    return f"{result.model:14} {result.threads}T  {times}{best}{worst}"


def json_ready(value: Any) -> Any:
    """The same with numbers that JSON does not know as text."""
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
