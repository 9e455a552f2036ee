"""ALT, figure 11: two convolutions in a row, tuned independently, or with the layout of one forced on the other.

    python -m benchmarks.papers.alt_fig11 --trials 64 --seconds 240

A border, a convolution of 3 by 3 and one of 1 by 1, 512 channels each; subgraph 1 is 7 by 7, subgraph 2 is 14 by 14
with 2048 channels in the end. ``--variants`` names some of

* ``ALT-OL``: loops only, under the layouts that the target itself wants;
* ``ALT``: each convolution has its own layouts, and the second converts what it reads where it wants it otherwise;
* ``ALT-FP``: the first is tuned, and the second reads what it gives as it lies;
* ``ALT-BP``: the second is tuned, and the first gives what that reads.

Trials are kept, and ``--again`` times what was decided once more, so that only these seconds need a machine at rest.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.alt import (
    OPTIONS,
    arguments,
    best_tiled,
    convolution,
    go_on,
    in_network,
    names_of,
    row_kept,
    searched,
    under,
    write,
)
from benchmarks.papers.keep import require_records
from mlc.errors import LowerError, ScheduleError
from mlc.ir.graph import Graph
from mlc.ir.types import TensorType
from mlc.lower.knobs import Config
from mlc.targets.base import Target, get_target
from mlc.tuning.joint import layout_space, layouts_in
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.task import Task, candidate

SUBGRAPHS = {"subgraph 1": (7, 512), "subgraph 2": (14, 2048)}
CHANNELS = 512
FORCED = 4  # layouts of the second convolution that are tried with an input that lies as the first has left it
REMARKS = """
Both convolutions are measured as operators, and their times added up; what one converts is in its own time. The paper
compares with Ansor, here ALT-OL stands for that. Under ALT-FP the layouts of the second convolution other than its
input's are some random ones with a part of the trials each, since its joint search has no input that is given. {timed}
"""


def first(size: int) -> Graph:
    return convolution(CHANNELS, CHANNELS, size, 3, pad=1)


def second(size: int, filters: int) -> Graph:
    return convolution(CHANNELS, filters, size, 1)


def task_of(graph: Graph, target: Target, reads: TensorType | None = None) -> Task:
    """The convolution of a graph, whose input has a type with a layout if that is given."""
    task = in_network(graph, target)
    assert task is not None
    if reads is not None:
        task = in_network(graph, target, types=(reads, *task.site.inputs[1:]))
    assert task is not None
    return task


def result_of(task: Task, target: Target, config: Config) -> TensorType:
    """What an operator gives under a configuration, without what others have asked for around it."""
    (value,) = candidate(task, target, config).outputs
    layout = value.type.layout
    return value.type.with_layout(None if layout is None else layout.core)


class Runs:
    """Searches and times of operators, with the records of a case."""

    def __init__(self, target: Target, trials: int, folder: Path, name: str) -> None:
        self._target, self._trials, self._folder, self._name = target, trials, folder, name

    def searched(self, task: Task, what: str, *, levels: int = 0, share: int = 1) -> tuple[Config, Config | None]:
        """The decision, and the fastest searched layout with its loops."""
        with self._measurer(task) as measurer:
            path = self._folder / f"{self._name}-{what}.jsonl"
            state = searched(task, self._target, measurer, path, max(1, self._trials // share), levels=levels)
        assert state.decided is not None
        return state.decided, best_tiled(state)

    def seconds(self, task: Task, configs: Sequence[Config]) -> list[float | None]:
        """Of each, timed in turns."""
        with self._measurer(task) as measurer:
            return [m.seconds for m in measurer.compare(0, configs)]

    def _measurer(self, task: Task) -> LocalMeasurer:
        return LocalMeasurer(
            [task], self._target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)
        )  # fmt: skip


def loops_only(size: int, filters: int, target: Target, runs: Runs) -> list[tuple[Task, Config]]:
    a = task_of(first(size), target)
    found, _ = runs.searched(a, "OL-1")
    b = task_of(second(size, filters), target, result_of(a, target, found))
    return [(a, found), (b, runs.searched(b, "OL-2")[0])]


def independent(size: int, filters: int, target: Target, runs: Runs) -> list[tuple[Task, Config]]:
    a = task_of(first(size), target)
    found, _ = runs.searched(a, "ALT-1", levels=1)
    b = task_of(second(size, filters), target, result_of(a, target, found))
    return [(a, found), (b, runs.searched(b, "ALT-2", levels=1)[0])]


def forwards(size: int, filters: int, target: Target, runs: Runs) -> list[tuple[Task, Config]]:
    a = task_of(first(size), target)
    _, found = runs.searched(a, "ALT-1", levels=1)  # the records of ALT's
    if found is None:
        return []
    b = task_of(second(size, filters), target, result_of(a, target, found))
    space, rng = layout_space(b, target), np.random.default_rng(0)
    assert space is not None
    best: list[Config] = []
    for k, row in enumerate(space.sample(rng, FORCED)):
        layouts = {**space.config(row), "layout.input": "as it is"}
        try:
            best.append(runs.searched(under(b, target, layouts), f"FP-2-{k}", share=FORCED)[0])
        except (ScheduleError, LowerError):
            continue
    timed = [(s, k) for k, s in enumerate(runs.seconds(b, best)) if s is not None]
    return [(a, found), (b, best[min(timed)[1]])] if timed else []


def backwards(size: int, filters: int, target: Target, runs: Runs) -> list[tuple[Task, Config]]:
    b = task_of(second(size, filters), target)
    _, found = runs.searched(b, "BP-2", levels=1)
    if found is None:
        return []
    a = task_of(first(size), target)
    space = layout_space(a, target)
    assert space is not None
    wanted = layouts_in(found)
    # a convolution of 1 by 1 reads tiles of the result's own size, in blocks of its input channels
    forced = {
        **space.default,
        "layout.h": wanted["layout.h"],
        "layout.w": wanted["layout.w"],
        "layout.o": wanted["layout.i"],
    }
    made = under(a, target, forced)
    config, _ = runs.searched(made, "BP-1")
    b = task_of(second(size, filters), target, result_of(a, target, config))
    return [(a, config), (b, as_it_lies(b, target, found))]


def as_it_lies(task: Task, target: Target, config: Config) -> Config:
    """A configuration without the knobs of a conversion, of a task that has none to make."""
    known = {k.name for k in under(task, target, layouts_in(config)).space.knobs}
    return {name: value for name, value in config.items() if name in known}


VARIANTS: dict[str, Callable[[int, int, Target, Runs], list[tuple[Task, Config]]]] = {
    "ALT-OL": loops_only, "ALT": independent, "ALT-FP": forwards, "ALT-BP": backwards,
}  # fmt: skip
SEARCHES = {
    "ALT-OL": ("OL-1", "OL-2"), "ALT": ("ALT-1", "ALT-2"), "ALT-FP": ("ALT-1", "FP-2-*"), "ALT-BP": ("BP-2", "BP-1"),
}  # fmt: skip


def measured(
    name: str, variants: Sequence[str], target: Target, trials: int, again: bool, folder: Path
) -> dict[str, Any]:
    """A subgraph: seconds of both convolutions by variant; ``again``, of those alone that the row has.

    Raises:
        SystemExit: the case is run again, and records of what is asked for are gone.
    """
    size, filters = SUBGRAPHS[name]
    short, seconds = name.replace(" ", "-"), {}
    if again:
        before = row_kept(folder, name)
        trials, seconds = before["trials"], dict(before["seconds"])
        variants = [v for v in variants if seconds.get(v)]
        files = dict.fromkeys(folder / f"{short}-{what}.jsonl" for v in variants for what in SEARCHES[v])
        require_records(folder / f"{name}.json", list(files))
    runs = Runs(target, trials, folder, short)
    for variant in variants:
        parts = [runs.seconds(task, [config])[0] for task, config in VARIANTS[variant](size, filters, target, runs)]
        seconds[variant] = parts if len(parts) == 2 and None not in parts else None
    return {"seconds": seconds}


def timed(rows: Sequence[Mapping[str, Any]]) -> str:
    """Beside what each row was timed.

    >>> timed([{"case": "a", "alone": True}, {"case": "b"}])
    'A was timed with nothing else running, b at the end of its searches, beside other work.'
    """
    beside = [
        "with nothing else running" if r.get("alone") else "at the end of its searches, beside other work" for r in rows
    ]
    said = [f"{r['case']}{'' if k else ' was timed'} {beside[k]}" for k, r in enumerate(rows)]
    return f"{', '.join(said)}.".capitalize() if said else ""


def main() -> None:
    """The command line."""
    parser = arguments(__doc__, 1000)
    parser.add_argument("--variants", type=names_of(VARIANTS), default=",".join(VARIANTS), help="comma-separated")
    parser.add_argument("--again", action="store_true", help="only time what is kept once more")
    given = parser.parse_args()
    target = get_target(given.target)
    cases = {n: partial(measured, n, given.variants, target, given.trials, given.again) for n in SUBGRAPHS}
    rows = go_on("alt_fig11", given, cases, again=given.again)
    table, bars = [], {}
    for row in rows:
        bars[row["case"]] = {name: 1e3 * sum(s) for name, s in row["seconds"].items() if s}
        for name, parts in row["seconds"].items():
            times = [f"{1e3 * s:.4f}" for s in (*parts, sum(parts))] if parts else ["", "", "not measured"]
            table.append((row["case"], str(row["trials"]), name, *times))
    heads = ("subgraph", "trials of each search", "variant", "first ms", "second ms", "both ms")
    title = "ALT, figure 11: layouts of two convolutions in a row"
    remarks = textwrap.fill(REMARKS.strip().format(timed=timed(rows)), 120, break_on_hyphens=False)
    write("alt_fig11", given.out, title, remarks, heads, table, rows, bars, "ms")


if __name__ == "__main__":
    main()
