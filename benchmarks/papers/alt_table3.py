"""ALT, table 3: the first layer of ResNet-18 under four layouts, with instructions, misses and times.

    python -m benchmarks.papers.alt_table3 --trials 64 --seconds 240

The loops of each layout are searched for, then instructions and misses of the kernel are counted by cachegrind.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.alt import (
    OPTIONS,
    Given,
    arguments,
    best_tiled,
    convolution,
    go_on,
    in_network,
    rows_and_columns,
    searched,
    under,
    write,
)  # fmt: skip
from benchmarks.papers.cachegrind import EVENTS, counts, require_tools
from mlc.build import build_package
from mlc.lower.knobs import Config
from mlc.runtime import write_package
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.joint import layout_space, primitives_of
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.task import Task

GRAPH = partial(convolution, 3, 64, 224, 7, stride=2, pad=3, bias=True)
BLOCK = 16
TILED: Config = {"layout.h": (28, 4), "layout.w": (7, 16), "layout.o": (4, 16)}  # the case with tiles in space
NAMES = ("NOHW", "NHWO", f"N O/{BLOCK} H W {BLOCK}", "N H/4 W/16 O/16 4 16 16", "searched")
REMARKS = """
Code is for AVX2, since cachegrind knows no later instructions; times are of the same code on the processor above.
Counts are of one run of the kernel, the border around its input included. Cachegrind's cache has no prefetching, which
is what the paper's misses of its searched layout gain by, so misses differ from the paper's in kind. The paper's
numbers of the searched layout are not in its text: tiles of 4 by 16 take their place, and what the joint search finds
at the same number of trials stands beside them.
"""


def measured(name: str, target: Target, trials: int, folder: Path) -> dict[str, Any]:
    """A layout: the best loops, their time, and their counts.

    Raises:
        SystemExit: there is nothing to count with, which is found out before the search.
    """
    require_tools()
    task = in_network(GRAPH(), target)
    assert task is not None
    with LocalMeasurer([task], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)) as measurer:
        file = folder / f"{NAMES.index(name)}.jsonl"
        found: Config | None
        if name == "searched":
            state = searched(task, target, measurer, file, trials, levels=1)
            found = best_tiled(state)
        else:
            state = searched(under(task, target, layouts_named(task, target)[name]), target, measurer, file, trials)
            found = next(iter(state.fastest(1)), None)
        if found is None:
            return {"seconds": None}
        (timed,) = measurer.compare(0, [found])
    with tempfile.TemporaryDirectory() as work:
        events = counts(packaged(found, target, Path(work) / "module.tar"), Path(work))
    kernel = next(k for k in events if "conv" in k)
    return {"seconds": timed.seconds, "events": events[kernel], "layouts": primitives_of(task, target, found)}


def layouts_named(task: Task, target: Target) -> dict[str, Config]:
    """The four layouts, as points of the layout space."""
    space = layout_space(task, target)
    assert space is not None
    return {**rows_and_columns(task, target, BLOCK), NAMES[3]: {**space.default, **TILED}}


def packaged(config: Config, target: Target, path: Path) -> Path:
    """The layer with a configuration, as a package."""
    options = CompileOptions("layer", "onnx", "0" * 64, disabled_passes=frozenset({"winograd"}))
    built = build_package(GRAPH(), target, options, Observer(), Given({"conv": config}))
    write_package(path, built.manifest, built.params, built.members)
    return path


def main() -> None:
    """The command line."""
    parser = arguments(__doc__, 1000)
    parser.set_defaults(target="x86 -mcpu=haswell")
    given = parser.parse_args()
    target = get_target(given.target)
    cases = {str(k): partial(measured, n, target, given.trials) for k, n in enumerate(NAMES)}
    rows = [{**row, "case": NAMES[int(row["case"])]} for row in go_on("alt_table3", given, cases)]
    table, bars = [], {}
    for row in rows:
        if row["seconds"] is None:
            table.append((row["case"], str(row["trials"]), "nothing ran", *[""] * (len(EVENTS) + 1)))
            continue
        events = [f"{row['events'].get(e, 0) / 1e6:.3f}" for e in EVENTS]
        lies = row["layouts"].get("result", "the target's own")
        table.append((row["case"], str(row["trials"]), f"{1e3 * row['seconds']:.3f}", *events, lies))
        bars[row["case"]] = {e: n / 1e6 for e, n in row["events"].items()}
    heads = ("layout", "trials", "ms", *(f"10^6 {e}" for e in EVENTS), "its result")
    title = "ALT, table 3: ResNet-18's first layer under four layouts"
    write("alt_table3", given.out, title, REMARKS, heads, table, rows, bars, "10^6")


if __name__ == "__main__":
    main()
