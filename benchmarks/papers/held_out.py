"""Which explorer is the default: searches of whole spaces on workloads that none was designed with.

    python -m benchmarks.papers.explorers --held-out znver5             # writes the results again, from what is kept
    python -m benchmarks.papers.explorers --held-out znver5 --measure --minutes 4.5 --core 1     # as often as it takes
    python -m benchmarks.papers.explorers --held-out znver5 --replay    # all searches once more, on the kept times

A search begins with the template's own choice and proposes batches, as a tuning run does, and ends when it has found
most of the best speed that is known. What is near the best is measured again in turns, what is nearest twice, and
judged by that. Eight workloads were chosen by hand; those of :mod:`benchmarks.papers.drawn` join them, others on each
processor. What is kept is by processor: defaults and features of another one differ, and so do its times.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import plots
from benchmarks.papers.drawn import DRAWN, joined, over, screen, screened
from benchmarks.papers.keep import keep
from benchmarks.papers.live import FOUND, POOL, Arena, Known, Search, compare, folder_of, known_of
from benchmarks.papers.unseen import HELD_OUT
from benchmarks.report import table
from benchmarks.stats import geometric_mean
from mlc.errors import UsageError
from mlc.records.record import Fingerprint
from mlc.runtime import atomic_write
from mlc.targets.base import get_target
from mlc.tuning.options import TuneOptions

NAME = "explorers_held_out"
PROCESSORS = ("sapphirerapids", "znver5")  # on which that was measured
EXPLORERS = ("random", "opevo", "annealing", "gbfs", "na2c", "genetic", "guided", "descent")
SEEDS, TRIALS = 5, 64
GOOD = 0.95  # the easier aim
_NEAR = (0.95, 0.98)  # of landscapes

Reached = dict[str, dict[str, list[float]]]  # trials, one a seed, by workload and explorer


def knowns_of(names: Sequence[str], processor: str) -> list[Known]:
    """What was measured of workloads on a processor."""
    every = {**HELD_OUT, **{w.name: w for w in chain(*DRAWN.values())}}
    return known_of([every[name] for name in names], processor)


def limit(explorer: str) -> int:
    """Trials of a search, at most: all random draws that searches share, or a fourth of that."""
    return POOL if explorer == "random" else TRIALS


def searches_of(knowns: Sequence[Known], explorers: Sequence[str] = EXPLORERS) -> list[Search]:
    """All searches."""
    return [
        Search(k, e, {}, seed, limit(e)) for k in knowns for e in explorers for seed in range(SEEDS)
    ]  # fmt: skip


def save(searches: Sequence[Search], folder: Path) -> None:
    """Keeps what searches have proposed, with those of other workloads."""
    file = folder / "searches.npz"
    known = dict(np.load(file)) if file.is_file() else {}
    with atomic_write(file) as out:
        np.savez_compressed(out, **known | {s.name: np.array(s.numbers, np.int64) for s in searches})


def restore(searches: Sequence[Search], folder: Path) -> None:
    """Gives searches what they have proposed.

    Raises:
        UsageError: it was not kept.
    """
    file = folder / "searches.npz"
    kept = dict(np.load(file)) if file.is_file() else {}
    for search in searches:
        if search.name not in kept:
            raise UsageError(f"{file}: has no search {search.name}", hint="measure it: --measure")
        search.numbers = kept[search.name][: search.trials].tolist()


def names_of_all(processor: str) -> list[str]:
    """Those chosen by hand, and those that joined them on a processor."""
    return [*HELD_OUT, *joined(folder_of(processor))]


def measure(names: Sequence[str], processor: str, minutes: float, core: int, console: Console) -> None:
    """Goes on with searches of workloads for some time; looks at what was drawn first.

    Raises:
        UsageError: this is another processor.
    """
    here = Fingerprint.of(get_target("x86")).cpu
    if here != processor:
        raise UsageError(f"the tables are of a {processor}, and this is a {here}")
    began, folder = time.monotonic(), folder_of(processor)

    def told(text: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s: {text}", highlight=False)

    looked = {kind: screened(folder).get(kind, ()) for kind in DRAWN}
    if to_look := [w.name for kind, found in looked.items() if not over(found) for w in DRAWN[kind][len(found) :]]:
        knowns = knowns_of(to_look, processor)
        with closing(Arena(knowns, core, began + 60 * minutes, told)) as arena:
            screen(knowns, arena, folder)
        raise SystemExit("workloads were looked at only: give the same command again")
    searches = searches_of(knowns_of(names or names_of_all(processor), processor))
    knowns = list({id(s.known): s.known for s in searches}.values())
    with closing(Arena(knowns, core, began + 60 * minutes, told)) as arena:
        arena.measure({k.name: [k.default, *k.numbers(k.pool)] for k in knowns})
        while not arena.over and any(k.near() for k in knowns):  # searches end by what is known of the best
            arena.again()
        stuck = compare(searches, arena, told)
    save(searches, folder)  # those that are not over as far as they are
    if stuck or any(k.near() for k in knowns):
        raise SystemExit(f"{len(stuck)} searches are not over: give the same command again")


def replay(searches: Sequence[Search], console: Console) -> None:
    """Runs all searches once more, on the times that are kept."""
    kept = [s.numbers for s in searches]
    for s in searches:
        s.numbers = []
    stuck = compare(searches, None, lambda _text: None)
    # One may end sooner than it did: as long as the best was not known well, it may have seemed not to be there.
    same = sum(s not in stuck and s.numbers == k[: len(s.numbers)] for s, k in zip(searches, kept, strict=True))
    console.print(f"{same} of {len(searches)} searches propose the same; {len(stuck)} ask for what was never measured")


def reached(searches: Sequence[Search], part: float) -> Reached:
    """After how many trials searches found a part of the best speed."""
    found: Reached = {}
    for s in searches:
        found.setdefault(s.known.name, {}).setdefault(s.explorer, []).append(s.trials_until(part))
    return found


def medians(found: Reached) -> dict[str, dict[str, float]]:
    """Over the seeds, by workload and explorer."""
    return {w: {e: float(median(trials)) for e, trials in by.items()} for w, by in found.items()}


def means(middle: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Geometric means over the workloads, fewest trials first.

    A median beyond the limit counts as the limit, so that a mean with such is a lower bound.
    """

    names = next(iter(middle.values()))
    found = {e: geometric_mean([min(by[e], limit(e)) for w, by in middle.items()]) for e in names}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def oracle(middle: Mapping[str, Mapping[str, float]]) -> float:
    """The least trials that any search needs, over those of random draws: one where untuned will do, two elsewhere."""
    least = {w: {"random": by["random"], "oracle": min(by["random"], 2.0)} for w, by in middle.items()}
    found = means(least)
    return found["oracle"] / found["random"]


def landscape(searches: Sequence[Search], name: str) -> dict[str, Any]:
    """How hard the space of a workload is, by what searches drew at random there."""
    random = [s for s in searches if s.explorer == "random" and s.known.name == name]
    known = random[0].known
    drawn = known.final(sorted({n for s in random for n in s.numbers[1:]}))
    near = {f"{p:.0%}": float((drawn >= p * known.best).mean()) for p in _NEAR}
    return {
        "space": known.setting.part.space.size,
        "measured": len(known.table.number),
        "best": known.best,
        # Every search begins there. Asked again, the default would be the one of the processor that reads the table.
        "default": float(known.final(random[0].numbers[:1])[0]) / known.best,
        "random": float(np.median(drawn)) / known.best,
        "share": near,
    }


def markdown(searches: Sequence[Search], about: Mapping[str, str], pictures: Sequence[str], processor: str) -> str:
    """The report."""
    knowns = {s.known.name: s.known for s in searches}
    lines = ["# Explorers on held-out workloads", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    lines += [f"![{p}]({p})" for p in pictures] + [""]
    rows = []
    for name, known in knowns.items():
        land = landscape(searches, name)
        shares = [f"{100 * s:.1f}" for s in land["share"].values()]
        size, speed = f"{land['space']:.2g}", f"{land['best']:.1f}"
        parts = [f"{100 * land[part]:.1f}" for part in ("default", "random")]
        rows.append((name, known.setting.workload.text, size, str(land["measured"]), speed, *parts, *shares))
    headings = ("name", "workload", "configurations", "measured", "best GFLOP/s", "default, % of the best")
    headings += ("median random one, %", "% within 5 % of the best", "% within 2 %")
    lines += ["## Landscapes", "", *table(headings, rows, left=2), "", *_looked_at(processor)]
    for part in (FOUND, GOOD):
        lines += _trials(searches, part)
    default, middle = TuneOptions().explorer, medians(reached(searches, FOUND))
    mean = means(middle)
    others = {e: m for e, m in mean.items() if e != default}
    best = min(others, key=lambda e: others[e])
    cut = sum(s.reached == inf and len(s.numbers) < s.trials for s in searches)
    flat = [w for w, by in middle.items() if by["random"] == 1]
    alike = [w for w, by in middle.items() if 1 < by["random"] < inf and by["random"] <= by[default]]
    missed = [w for w, by in middle.items() if by["random"] == by[default] == inf]
    steep = {w: by for w, by in middle.items() if w not in flat}
    lines += [
        f"The default, `{default}`, needs {mean[default] / mean['random']:.2f} times the trials of random draws to",
        f"{FOUND:.0%} of the best, and {mean[default] / others[best]:.2f} times those of the best other explorer,",
        f"`{best}`.",
        f"Untuned is there already on: {', '.join(flat) or 'none'}; random draws, and all others, need one trial.",
        f"Random draws do as well on: {', '.join(alike) or 'none'}.",
        f"Neither gets there on: {', '.join(missed) or 'none'}.",
        f"A search that knew the best and tried it second would need {oracle(middle):.2f} times the trials of random",
        f"draws on all of them. On the {len(steep)} where there is something to find, the default needs",
        f"{means(steep)[default] / means(steep)['random']:.2f} times.",
        f"Of {len(searches)} searches {cut} were cut off before their last trial, for want of time to measure; they",
        "count as those that are not there.",
        f"Measured once only, though it may be near the best: {_unsettled(searches)}.",
    ]
    return "\n".join(lines) + "\n"


def _looked_at(processor: str) -> list[str]:
    """What was drawn, and what joined of it."""
    text = {w.name: w.text for drawn in DRAWN.values() for w in drawn}
    rows = [
        (name, text[name], f"{100 * share:.1f}", "yes" if share < FOUND else "no")
        for looks in screened(folder_of(processor)).values()
        for name, share in looks
    ]
    headings = ("name", "workload", f"untuned, % of the best of {POOL} random ones", "compared")
    return [
        "## Workloads that were drawn",
        "",
        f"The first of each kind on which the best of {POOL} random configurations is more than {1 - FOUND:.0%} faster",
        f"than untuned; at most {len(next(iter(DRAWN.values())))} of a kind were looked at.",
        "",
        *table(headings, rows, left=2),
        "",
    ]


def _unsettled(searches: Sequence[Search]) -> str:
    """How many configurations of which workloads have a first measurement alone that is near the best."""
    # all begin at the default of the day on which they were measured
    begun = {s.known.name: (s.known, s.numbers[0]) for s in searches if s.numbers}
    counts = {name: len(known.near(begin)) for name, (known, begin) in begun.items()}
    return ", ".join(f"{n} of {name}" for name, n in counts.items() if n) or "nothing"


def _trials(searches: Sequence[Search], part: float) -> list[str]:
    middle = medians(reached(searches, part))
    mean = means(middle)
    rows = [(w, *(_shown(by[e], limit(e)) for e in mean)) for w, by in middle.items()]
    rows.append(("geometric mean", *(f"{m:.1f}" for m in mean.values())))
    rows.append(("over random", *(f"{m / mean['random']:.2f}" for m in mean.values())))
    text = [
        f"Medians over {SEEDS} seeds, from the default on, in batches of {TuneOptions().batch}, or of fewer where an",
        f"explorer would rather learn from those first. A median beyond {TRIALS} trials ({POOL} of random draws)",
        "counts as that in the mean, which is a lower bound then.",
    ]
    return [f"## Trials to {part:.0%} of the best", "", *table(("workload", *mean), rows, left=1), "", *text, ""]


def _shown(trials: float, most: int) -> str:
    return f"{trials:.0f}" if trials < inf else f"> {most}"


def as_json(searches: Sequence[Search], about: Mapping[str, str]) -> dict[str, Any]:
    """The same for programs."""
    knowns = {s.known.name: s.known for s in searches}
    return {
        "machine": dict(about),
        "plan": {
            "seeds": SEEDS,
            "batch": TuneOptions().batch,
            "trials": TRIALS,
            "random": POOL,
        },
        "landscapes": {name: landscape(searches, name) for name in knowns},
        "trials": {
            f"{part:.0%}": {"each": reached(searches, part), "means": means(medians(reached(searches, part)))}
            for part in (FOUND, GOOD)
        },
    }


def draw(searches: Sequence[Search], file: Path) -> None:
    """``FILE.png``: bars of trials, and curves of the best so far beside them."""
    middle = medians(reached(searches, FOUND))
    order = [e for e in means(middle) if e != "random"]

    def ratio(workload: str, e: str) -> float:
        ours, theirs = (min(middle[workload][k], limit(k)) for k in (e, "random"))
        return ours / theirs

    series = {e: [ratio(w, e) for w in middle] for e in order}
    plots.bars(
        file, list(middle), series, f"Trials to {FOUND:.0%} of the best, random draws being 1", "trials", cut=2.0
    )
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for name in middle:
        for e in ("random", *order):
            mine = [s for s in searches if s.known.name == name and s.explorer == e]
            runs = np.array([_curve(s) for s in mine])
            panels.setdefault(name, {})[e] = runs.mean(axis=0), runs.std(axis=0)
    best = {s.known.name: s.known.best for s in searches}
    plots.curves(
        file.with_name(f"{file.stem}_curves.png"),
        panels,
        "Best so far of searches from the default",
        "trials",
        "GFLOP/s",
        best,
    )


def _curve(search: Search) -> np.ndarray:
    """The best speed after each trial; one that has ended stays where it is."""
    best = np.maximum.accumulate(search.known.final(search.numbers[:TRIALS]))
    return np.concatenate([best, np.full(TRIALS - len(best), best[-1])])


def write(searches: Sequence[Search], processor: str, out: Path) -> list[str]:
    """Writes report, numbers and pictures of a processor; their names."""
    name = f"{NAME}_{processor}"
    tables = [k.table for k in {s.known.name: s.known for s in searches}.values()]
    about = {k: v for k, v in tables[0].about.items() if k not in ("date", "load")}
    about["target"] = f"x86 -mcpu={processor}"
    about["measured"] = f"{min(t.about['date'] for t in tables)} to {max(t.about['date'] for t in tables)}, one thread"

    def page(picture: str) -> str:
        return markdown(searches, about, [picture, f"{name}_curves.png"] if picture else [], processor)

    names = keep(name, out, as_json(searches, about), page, lambda file: draw(searches, file))
    return [*names, *([f"{name}_curves.png"] if len(names) > 2 else [])]


def run(
    out: Path,
    *,
    processor: str,
    measuring: bool,
    again: bool,
    minutes: float,
    core: int,
    names: Sequence[str],
    console: Console,
) -> list[str]:
    """The comparison; see the module.

    Args:
        out: where results go.
        processor: whose tables these are, one of :data:`PROCESSORS`.
        measuring: whether to go on with searches first.
        again: whether to run them once more first.
        minutes: that measuring may take.
        core: on which times are taken.
        names: workloads to measure; all of them if empty.
        console: is told how it goes on.
    Returns:
        names of the files.
    Raises:
        UsageError: a search was not measured, its table is of other knobs, or of another processor.
    """
    if measuring:
        measure(names, processor, minutes, core, console)
        if names:
            return []  # the others may be missing
    searches = searches_of(knowns_of(names_of_all(processor), processor))
    restore(searches, folder_of(processor))
    if again:
        replay(searches, console)
        return []
    return write(searches, processor, out)
