"""Figures 9, 10 and 11 of the NeoFlow paper: training steps and inference of its networks against PyTorch.

    python -m benchmarks.training --out FILE.json
    python -m benchmarks.papers.neoflow_fig9 FILE.json

Zheng et al., section 7.2. What is drawn is what :mod:`benchmarks.training` has measured: figure 9 against PyTorch as it
stands, figure 10 against a compiler, ``torch.compile`` in place of TensorFlow's XLA, and figure 11 a and b inference
against the better of both. Figure 11 c, AutoTVM, is this project's own search; d wants Tensor Cores.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from benchmarks.training.report import BEST, COMPILED, EAGER, KNOWN, NOVEL, Case, cases, means

PANELS: Mapping[str, tuple[str, str, str]] = {
    "9": ("step", EAGER, "Training steps against PyTorch"),
    "10": ("step", COMPILED, "Training steps against torch.compile"),
    "11": ("inference", BEST, "Inference against the better of both"),
}
PAPER = {
    "9": "3.16 over PyTorch without and 1.92 with cuDNN (novel networks, a V100)",
    "10": "2.43 over TensorFlow with XLA",
    "11": "6.72 over PyTorch with cuDNN, 4.96 over TensorFlow with XLA",
}


def speedups(found: Sequence[Case], figure: str, threads: int) -> dict[str, dict[int, float]]:
    """By network and batch."""
    kind, peer, _ = PANELS[figure]
    result: dict[str, dict[int, float]] = {}
    for case in found:
        ratio = case.over(peer)
        if case.kind == kind and case.threads == threads and ratio is not None:
            result.setdefault(case.name, {})[case.batch] = ratio
    return {name: result[name] for name in (*NOVEL, *KNOWN) if name in result}


def draw(found: Sequence[Case], figure: str, file: Path) -> None:
    """Bars of a figure: networks, and in each the batches, for the least number of threads."""
    threads = min(c.threads for c in found)
    values = speedups(found, figure, threads)
    batches = sorted({b for by in values.values() for b in by})
    series = {f"batch {b}": [by.get(b, math.nan) for by in values.values()] for b in batches}
    title = f"{PANELS[figure][2]}, {threads} thread{'s'[: threads > 1]} (higher is better)"
    plots.bars(file, list(values), series, title, "speed-up of mlc", cut=8.0)


def markdown(results: Mapping[str, Any], figure: str, picture: str) -> str:
    """The page of a figure."""
    found = cases(results)
    _, peer, title = PANELS[figure]
    batches = sorted({c.batch for c in found})
    rows = []
    for threads in sorted({c.threads for c in found}):
        for name, by in speedups(found, figure, threads).items():
            rows.append((name, str(threads), *(f"{by[b]:.2f}" if b in by else "-" for b in batches)))
    kind = PANELS[figure][0]
    told = [f"- {what}: {mean:.2f} over {n} cases, least {least:.2f}" for what, of, n, mean, least in means(results)
            if of == peer and what.startswith(kind)]  # fmt: skip
    return "\n".join(
        [
            f"# Figure {figure} of the NeoFlow paper: {title[0].lower()}{title[1:]}",
            "",
            *(f"- {k}: {v}" for k, v in results["machine"].items()),
            "",
            *([f"![{picture}]({picture})", ""] if picture else []),
            *table(("network", "threads", *(f"batch {b}" for b in batches)), rows),
            "",
            "Times of the peer over ours; `-` was not measured. Geometric means:",
            "",
            *told,
            "",
            f"The paper's means: {PAPER[figure]}. A GPU waits for launches where a recurrence of PyTorch",
            "has many small operators; a processor calls them in microseconds.",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.neoflow_fig9", description=__doc__)
    parser.add_argument("results", type=Path, help="what `python -m benchmarks.training` has written")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("neoflow_fig9", "matplotlib")
    results = json.loads(options.results.read_text())
    found = cases(results)
    for figure, (kind, peer, _) in PANELS.items():
        if not any(c.kind == kind and c.over(peer) is not None for c in found):
            continue
        numbers = {str(t): speedups(found, figure, t) for t in sorted({c.threads for c in found})}
        files = keep(
            f"neoflow_fig{figure}",
            options.out,
            numbers,
            lambda picture, figure=figure: markdown(results, figure, picture),  # type: ignore[misc]
            lambda file, figure=figure: draw(found, figure, file),  # type: ignore[misc]
        )
        print(f"{options.out}/: {', '.join(files)}")


if __name__ == "__main__":
    main()
