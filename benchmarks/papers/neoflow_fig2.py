"""Figure 2 of the NeoFlow paper: one capsule convolution, and how much of its time is spent in kernels.

    python -m benchmarks.papers.neoflow_fig2

Ours is one expression (section 2.3); PyTorch has eight convolutions, whose operands are cut out and whose results are
put together (:mod:`benchmarks.papers.neoflow`). The paper's launches on a GPU are calls here: what a call takes beyond
its kernels, told by a profile of PyTorch, and by the native call of ours. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, plots
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.papers.neoflow import (  # fmt: skip
    KINDS_IN,
    KINDS_OUT,
    ROWS,
    SIZE,
    STRIDE,
    as_images,
    capsules,
    compiled,
    one_expression,
    ours,
    theirs,
    timed,
    torch_separate,
)
from benchmarks.report import table

OURS, EAGER, COMPILED = "mlc, one expression", "PyTorch, eight convolutions", "torch.compile of these"
CALLS = 200


def measure() -> list[dict[str, Any]]:
    """A row for each side: milliseconds of a call, and of its kernels."""
    torch.set_num_threads(1)
    x, w = capsules()
    module = compiled(one_expression(x, w))
    given, images = torch.from_numpy(x), torch.from_numpy(as_images(w))
    optimised = torch.compile(torch_separate)
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: module.run({"x": x}),
        EAGER: lambda: torch_separate(given, images),
        COMPILED: lambda: optimised(given, images),
    }
    sides = {OURS: ours(module, {"x": x})}
    sides |= {name: theirs(calls[name]) for name in (EAGER, COMPILED)}  # type: ignore[arg-type]
    native = timed(sides)
    rows = []
    for name, call in calls.items():
        if name == OURS:
            latency, kernels, count = _median(call), native[OURS], len(module.manifest.steps)
        else:
            latency, (share, count) = native[name], _in_kernels(call)
            kernels = latency * share
        rows.append({"side": name, "latency": latency, "kernels": kernels, "calls": count})
    return rows


def _median(call: Callable[[], object]) -> float:
    found = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found)


def _in_kernels(call: Callable[[], object]) -> tuple[float, int]:
    """The share of a call's time that is spent in convolutions themselves, and how many operators it calls."""
    with torch.no_grad(), torch.profiler.profile() as profile:
        for _ in range(20):
            call()
    events = [e for e in profile.key_averages() if e.self_cpu_time_total > 0]
    whole = sum(e.self_cpu_time_total for e in events)
    inside = sum(e.self_cpu_time_total for e in events if "convolution" in e.key and "mkldnn" in e.key)
    return inside / whole, round(sum(e.count for e in events) / 20)


def markdown(rows: Sequence[Mapping[str, Any]], about: Mapping[str, str], picture: str) -> str:
    """The page."""
    cells = [
        (
            row["side"],
            f"{row['latency']:.3f}",
            f"{row['kernels']:.3f}",
            f"{row['latency'] - row['kernels']:.3f}",
            f"{100 * row['kernels'] / row['latency']:.1f} %",
            str(row["calls"]),
        )
        for row in rows
    ]
    heads = ("side", "latency, ms", "kernels, ms", "rest, ms", "in kernels", "calls")
    return "\n".join(
        [
            "# Figure 2 of the NeoFlow paper: a capsule convolution",
            "",
            *(f"- {k}: {v}" for k, v in about.items()),
            "",
            *([f"![{picture}]({picture})", ""] if picture else []),
            *table(heads, cells),
            "",
            f"Batch 1, {KINDS_IN} kinds of {ROWS} by {ROWS} matrices in, {KINDS_OUT} out, {SIZE} by {SIZE} pixels,",
            f"windows of 3 by 3 that move by {STRIDE}; float32, one thread. Kernels are convolutions on PyTorch's side",
            "and the whole native call on ours, the rest is what moves operands and what calling costs.",
            "",
            "The paper has 1.529 ms for PyTorch and 0.451 ms for NeoFlow on a V100, 65.5 % and 98.2 % of it in",
            "kernels. What a launch is there is a call here, and PyTorch copies besides: rows are cut out of matrices,",
            "and results are put together.",
            "",
        ]
    )


def draw(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Latencies of the sides, in kernels and besides."""
    names = [row["side"].replace(", ", ",\n") for row in rows]
    series = {"latency": [row["latency"] for row in rows], "kernels": [row["kernels"] for row in rows]}
    plots.bars(file, names, series, "A capsule convolution (lower is better)", "milliseconds", cut=1e9)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.neoflow_fig2", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("neoflow_fig2", "matplotlib", "torch")
    about = machine.describe()
    rows = measure()
    for row in rows:
        print(f"{row['side']}: {row['latency']:.3f} ms, {row['kernels']:.3f} of them in kernels")
    numbers = {"machine": about, "rows": rows}
    files = keep("neoflow_fig2", options.out, numbers, lambda p: markdown(rows, about, p), lambda f: draw(rows, f))
    print(f"{options.out}/: {', '.join(files)}")


if __name__ == "__main__":
    main()
