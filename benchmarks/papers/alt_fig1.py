"""ALT, figure 1: the loops of 2-D convolutions, searched under each of three layouts.

    python -m benchmarks.papers.alt_fig1 --trials 64 --seconds 240

Operators stand as in a network (see :mod:`benchmarks.papers.alt_fig9`). Cases that are kept are not run again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.alt import (
    OPTIONS,
    arguments,
    convolution,
    go_on,
    in_network,
    rows_and_columns,
    searched,
    under,
    write,
)
from benchmarks.stats import geometric_mean
from mlc.targets.base import Target, get_target
from mlc.tuning.measure import LocalMeasurer

# channels, filters, size, taps, stride: from the first layer of a network to its last ones
CASES = (
    (3, 64, 112, 3, 2),
    (16, 32, 56, 3, 1),
    (64, 64, 28, 3, 1),
    (64, 128, 28, 1, 1),
    (128, 256, 14, 3, 2),
    (512, 512, 7, 1, 1),
)
BLOCK = 16
REMARKS = """
The paper's three are NOHW, NHWO and HWON; with one image HWON is NHWO, so the third here is the layout in blocks of 16
channels that its other experiments have. Shapes are this script's own, since the paper's text does not tell them, and
so is the number of trials (1000 in the paper). All three are points of the layout space, whose loops are rebuilt for
each; inputs are converted by the operator, in its time.
"""


def measured(shape: tuple[int, int, int, int, int], target: Target, trials: int, folder: Path) -> dict[str, Any]:
    """A case: the best loops under each layout, timed in turns."""
    channels, filters, size, taps, stride = shape
    task = in_network(convolution(channels, filters, size, taps, stride=stride, pad=taps // 2), target)
    assert task is not None
    best = {}
    with LocalMeasurer([task], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)) as measurer:
        for name, layouts in rows_and_columns(task, target, BLOCK).items():
            file = folder / f"{'x'.join(map(str, shape))}-{name.replace('/', '_').replace(' ', '')}.jsonl"
            best[name] = searched(under(task, target, layouts), target, measurer, file, trials).fastest(1)
        found = {name: configs[0] for name, configs in best.items() if configs}
        timed = measurer.compare(0, [task.space.default, *found.values()])
    return {"seconds": {name: m.seconds for name, m in zip(("untuned", *found), timed, strict=True)}}


def main() -> None:
    """The command line."""
    given = arguments(__doc__, 1000).parse_args()
    target = get_target(given.target)
    cases = {"x".join(map(str, s)): partial(measured, s, target, given.trials) for s in CASES}
    rows = go_on("alt_fig1", given, cases)
    table, gains, bars = [], [], {}
    for row in rows:
        of = {name: s for name, s in row["seconds"].items() if s is not None and name != "untuned"}
        bars[row["case"]] = {name: 1e3 * s for name, s in of.items()}
        best = min(of, key=lambda name: of[name])
        gains.append(geometric_mean([s / of[best] for name, s in of.items() if name != best]))
        listed = ", ".join(f"{name} {1e3 * s:.4f}" for name, s in of.items())
        untuned = row["seconds"]["untuned"]
        table.append((row["case"], str(row["trials"]), listed, best, f"{gains[-1]:.2f}", f"{1e3 * untuned:.4f}"))
    heads = (
        "channels x filters x size x taps x stride",
        "trials",
        "ms under each",
        "best",
        "over the others",
        "untuned ms",
    )
    last = (
        f"The best layout is {geometric_mean(gains):.2f} times as fast as the others (geometric mean of {len(gains)})."
    )
    write(
        "alt_fig1", given.out, "ALT, figure 1: loops under three layouts", REMARKS, heads, table, rows, bars, "ms", last
    )


if __name__ == "__main__":
    main()
