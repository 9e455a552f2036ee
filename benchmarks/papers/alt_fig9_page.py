"""The page and the picture of ALT's figure 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.papers.alt_limits import limits, shares, whole_limit
from benchmarks.papers.alt_peers import NAMES, OF_OPERATORS
from benchmarks.stats import geometric_mean

Row = Mapping[str, Any]
LONG = 1e-4  # seconds of a call, beside which the microseconds of an engine's Python interface count for little
NEAR = 0.85  # share of its limit from which a row is called at the limit
GAIN = 1.05  # times as fast as loops alone, from which a searched layout is a finding
OWN = "the target's own"
REMARKS = """
Times are of one thread. A row's *limit* is the longer of two times: in one the core does the operator's multiply-adds
(without those of borders) as fast as it was ever seen to, in the other it streams as many bytes as input, weights and
result have through a rectifier; `c` and `m` say which it is. *Of the limit* is its share of the time of loops alone,
and of the joint search. Vectors are whole, so no kernel reaches the first where neither channels nor pixels fill them,
or where a vector reaches over the border: the limit *in whole vectors* counts the multiply-adds of the best of three
ways to fill them, with channels (of a group's results; what is in the border is passed over; depthwise, what is read is
turned from rows, in four shuffles a vector, each of which takes the place of a multiply-add), with pixels of a row, or
with pixels of all images, copied next to each other for each tap. *Results computed* are those of padded blocks, too,
as multiples of the operator's. Searches have the budgets that the table says, of the paper's 1,000: more where a row
was far from its limit, or where the joint one had fallen behind with fewer. Both are by the explorer `guided`, so that
they differ in layouts alone, not by the paper's PPO (`--explorer alt`). What they and the untuned rules chose was
compared in turns; times are the least of three such comparisons for most rows.
Engines are called through Python, which takes them some microseconds; mlc's kernels are called by native code. {tvm}
The paper draws ten configurations of each operator; these are drawn anew, of 1 to 400 million operations, so that a
search takes seconds, at batch 1 or 4. That leaves out two draws of five of C3D, a third of T3D and a fifth of C2D and
DIL that have more, and most of DEP and a fifth of GRP that have fewer.
"""
WITH_TVM = "TVM is\nuntuned (Relax's default pipeline for processors); MetaSchedule was not run."
WITHOUT_TVM = """TVM is
not among them: untuned, it is slower than both on every network that it was measured on, and MetaSchedule was not \
run."""
HEADS = [
    "case", "shapes", "trials", "untuned ms", "loops ms", "joint ms", "joint over loops", "limit ms",
    "of the limit, loops and joint", "limit in whole vectors ms", "of that, loops and joint",
    "results computed, untuned and joint",
]  # fmt: skip


def complete(rows: Sequence[Row]) -> list[Row]:
    """The rows in which all three were measured, in order."""
    found = [r for r in rows if all(r["seconds"].get(name) for name in ("untuned", "ALT-OL", "ALT"))]
    return sorted(found, key=lambda r: (r["case"].split("-")[0], int(r["case"].split("-")[1])))


def gain(row: Row) -> float:
    """Joint over loops alone."""
    return float(row["seconds"]["ALT-OL"] / row["seconds"]["ALT"])


def page(rows: Sequence[Row], picture: str = "", here: str = "") -> str:
    """The result as Markdown.

    Args:
        rows: what is kept.
        picture: its name.
        here: the machine that they were measured on, in a line.
    """
    title = "ALT, figure 9: layouts and loops together against loops alone"
    engines = OF_OPERATORS if any(OF_OPERATORS[-1] in r.get("peers", {}) for r in rows) else NAMES
    remarks = REMARKS.strip().format(tvm=WITHOUT_TVM if engines is NAMES else WITH_TVM)
    heads = [*HEADS, *(f"{name} ms" for name in engines), "its result lies"]
    lines = [f"# {title}", "", here, "", remarks, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    known = complete(rows)
    lines += [f"| {' | '.join(_cells(row, engines))} |" for row in known]
    lines += [
        f"| {r['case']} | {r['shapes']} | {r['trials']} |" + " |" * (len(heads) - 3) for r in rows if r not in known
    ]
    if known:
        lines += ["", *_summary(known), "", *_findings(known)]
    lines += ["", f"![{title}]({picture})"] if picture else []
    return "\n".join([*lines, ""])


def _cells(row: Row, engines: Sequence[str]) -> list[str]:
    s, others = row["seconds"], row.get("peers", {})
    compute, memory = limits(row)
    reached, of_whole = (shares(row, [s["ALT-OL"], s["ALT"]], whole=whole) for whole in (False, True))
    whole, filled = whole_limit(row)
    return [
        row["case"], row["shapes"], str(row["trials"]),
        *(f"{1e3 * s[name]:.4f}" for name in ("untuned", "ALT-OL", "ALT")), f"{gain(row):.2f}",
        f"{1e3 * max(compute, memory):.4f} {'c' if compute > memory else 'm'}",
        " ".join(f"{share:.0%}" for share in reached),
        f"{1e3 * whole:.4f} {filled}",
        " ".join(f"{share:.0%}" for share in of_whole),
        " ".join(f"{row['padded'][name]:.2f}" for name in ("untuned", "ALT")),
        *(f"{1e3 * others[name]:.4f}" if name in others else "" for name in engines),
        row["layouts"].get("result", OWN) if row["elsewhere"] else OWN,
    ]  # fmt: skip


def _summary(rows: Sequence[Row]) -> list[str]:
    ratios = [gain(r) for r in rows]
    by_operator = [
        f"{name} {geometric_mean([gain(r) for r in some]):.2f}"
        for name, some in ((n, list(g)) for n, g in groupby(rows, lambda r: r["case"].split("-")[0]))
    ]
    text = f"Geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}"
    lines = [f"{text}; least {min(ratios):.2f}, most {max(ratios):.2f}.", "", f"By operator: {', '.join(by_operator)}."]
    lines += [line for whole in (False, True) for line in ("", _near(rows, whole=whole))]
    core, vectors = (_most(rows, whole=whole) for whole in (False, True))
    lines += ["", f"At their limits all rows would be {core:.3f} times as fast as by loops alone, at those in whole "
              f"vectors {vectors:.3f}: no search can find more."]  # fmt: skip
    beside = [r["case"] for r in rows if not r.get("alone")]
    if beside:
        lines += ["", f"Compared on a core of its own, beside other work: {', '.join(beside)}."]
    quiet = [r for r in rows if r.get("searched_alone")]
    if quiet:
        lines += ["", f"Searched with nothing else on the machine: {', '.join(r['case'] for r in quiet)}."]
    if len(quiet) < len(rows):
        lines += ["", "Searches of other rows had a core of their own, beside other work."]
    if twice := [r for r in rows if r.get("first_comparison")]:
        first = [{**r, "seconds": r.get("first_comparison", r["seconds"])} for r in rows]
        names = ", ".join(f"{r['case']} (first {gain(f):.2f})" for r, f in zip(rows, first, strict=True) if r in twice)
        ratios = [gain(r) for r in first]
        lines += ["", f"Compared twice, of which the second counts: {names}. By the first comparison alone the mean is "
                  f"{geometric_mean(ratios):.3f}, the least {min(ratios):.2f}."]  # fmt: skip
    quiet = quiet or rows
    rates = geometric_mean([r["search_seconds"]["ALT-OL"] / r["search_seconds"]["ALT"] for r in quiet])
    lines += ["", f"Trials a second of the joint search, times those of loops only: {rates:.2f} of {len(quiet)}."]
    peers = [(min(r["peers"].values()), r["seconds"]["ALT"]) for r in rows if r.get("peers")]
    if peers:
        text = f"Joint over the best of the engines: {geometric_mean([p / s for p, s in peers]):.2f} of {len(peers)}"
        long = [p / s for p, s in peers if p > LONG]
        text += f", and {geometric_mean(long):.2f} of the {len(long)} where that takes" if long else ", none takes"
        lines += ["", f"{text} {1e3 * LONG:g} ms or more (geometric means)."]
    return lines


def _near(rows: Sequence[Row], *, whole: bool) -> str:
    """Which rows both searches bring near their limit, and what the joint one gains in the others."""
    reached = [min(shares(r, [r["seconds"]["ALT-OL"], r["seconds"]["ALT"]], whole=whole)) for r in rows]
    near = [r for r, share in zip(rows, reached, strict=True) if share >= NEAR]
    below = [gain(r) for r, share in zip(rows, reached, strict=True) if share < NEAR]
    limit = "the limit in whole vectors" if whole else "the limit"
    text = f"Both searches reach {NEAR:.0%} of {limit} or more in {len(near)} rows"
    if near:
        text += f" ({', '.join(r['case'] for r in near)})"
    if below:
        text += f"; geometric mean of the other {len(below)}: {geometric_mean(below):.3f}"
    return f"{text}."


def _most(rows: Sequence[Row], *, whole: bool) -> float:
    """What rows at their limit would gain over loops alone, in the mean."""
    return geometric_mean([max(1.0, 1 / shares(r, [r["seconds"]["ALT-OL"]], whole=whole)[0]) for r in rows])


def findings(rows: Sequence[Row]) -> list[Row]:
    """The rows in which a layout that no rule gives wins, the greatest gain first."""
    return sorted((r for r in complete(rows) if r["elsewhere"] and gain(r) >= GAIN), key=gain, reverse=True)


def _findings(rows: Sequence[Row]) -> list[str]:
    found = findings(rows)
    loops = [f"{r['case']} ({gain(r):.2f})" for r in rows if not r["elsewhere"] and gain(r) >= GAIN]
    last = ["", f"By loops under the target's own layouts, which the loop search missed: {', '.join(loops)}."]
    last = last if loops else []
    if not found:
        return [f"No searched layout is {GAIN} times as fast as loops alone.", *last]
    events = list(next((r["counts"]["untuned"] for r in found if r.get("counts")), {}))
    heads = [
        "case",
        "joint over loops",
        "results computed",
        *(f"{e}, times" for e in events),
        "thousand cycles by its loops, and what bounds them",
        "its result lies",
        "its input lies",
    ]
    lines = [
        f"Layouts that no rule gives, and that are {GAIN} times as fast as loops alone. What cachegrind counts is "
        "of code for AVX2, with the default loops of each layout, as a multiple of what the untuned kernel counts. "
        "Cycles are what the cost model expects of the loops of both on this processor, untuned and laid out.",
        "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|",
    ]  # fmt: skip
    for r in found:
        counts = r.get("counts", {})
        ratios = [
            f"{counts['layout'][e] / counts['untuned'][e]:.2f}" if counts and counts["untuned"].get(e) else ""
            for e in events
        ]
        cycles = [f"{e['cycles'] / 1e3:,.1f} {e['bound']}" for e in r.get("expected", {}).values()]
        padded = f"{r['padded']['untuned']:.2f} to {r['padded']['ALT']:.2f}"
        inside = r["layouts"].get("operand 0", "as it is")
        result = r["layouts"].get("result", OWN)
        cells = [r["case"], f"{gain(r):.2f}", padded, *ratios, " to ".join(cycles), result, inside]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *last]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Bars: joint over loops alone, and over the best engine."""
    from matplotlib import pyplot

    known = complete(rows)
    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.22 * len(known)), 3.6), layout="constrained")
    at = range(len(known))
    axes.bar([x - 0.2 for x in at], [gain(r) for r in known], 0.4, label="over loops alone")
    over = [min(r["peers"].values()) / r["seconds"]["ALT"] if r.get("peers") else 0.0 for r in known]
    axes.bar([x + 0.2 for x in at], over, 0.4, label="over the best engine")
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_xticks(list(at), [r["case"] for r in known], rotation=90, fontsize=6)
    axes.set_ylabel("joint, times as fast")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
