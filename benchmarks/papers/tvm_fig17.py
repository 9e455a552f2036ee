"""Figure 17 of the TVM paper: the convolutions of ResNet-18 and the depthwise ones of MobileNet on an ARM Cortex-A53.

    python -m benchmarks.papers.tvm_fig17
    python -m benchmarks.papers.tvm_fig17 --target arm                    # on a board: measured

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.2 and table 2.
On a board times are taken; elsewhere they are cycles by the cost model, and say so, with what ``llvm-mca`` knows of the
innermost loops where it is installed. The paper's baseline, TensorFlow Lite of 2018, is not at hand: beside the peak of
the processor stands the schedule that every expression gets from its axes alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks import plots
from benchmarks.papers.embedded import CLOCK, TARGET, Cost, cost_of, what
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.report import table
from benchmarks.zoo import MODELS, build

OPERATORS = tuple(name for name in MODELS if name[0] in "CD" and name[1:].isdigit())
PLAIN = ("winograd", "layout")
SIDES: dict[str, tuple[str, ...]] = {"mlc": (), "row-major, no Winograd": PLAIN}


def loops(cost: Cost) -> str:
    """Products, instructions and least cycles of the heaviest innermost loop, as far as they are known."""
    found = max(cost.kernels, key=lambda k: k.cycles * k.steps, default=None)
    if found is None or not found.multiply_adds:
        return ""
    least = "" if found.loop_least is None else f", {found.loop_least:.0f} cycles at least"
    return f"{found.multiply_adds} of {found.instructions}{least}"


def markdown(found: Mapping[str, Mapping[str, Cost]], about: Mapping[str, str], picture: str) -> str:
    """The table, and what it is."""
    lines = [
        "# Figure 17 of the TVM paper: convolutions on a Cortex-A53",
        "",
        *(f"- {k}: {v}" for k, v in about.items()),
    ]
    lines += ["", *([f"![{picture}]({picture})", ""] if picture else [])]
    cells = []
    for name, sides in found.items():
        ours, plain = (sides[side] for side in SIDES)
        row = (
            name,
            f"{ours.milliseconds:.2f}",
            f"{plain.milliseconds:.2f}",
            f"{plain.milliseconds / ours.milliseconds:.2f}",
        )
        cells.append((*row, ours.bound, loops(ours)))
    lines += table(
        ("operator", *(f"{s} ms" for s in SIDES), "gain", "bound by", "products of instructions"), cells, left=1
    )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig17", description=__doc__)
    add = parser.add_argument
    add("--target", default=TARGET, help=f"what for (default {TARGET})")
    add("--clock", type=float, default=CLOCK, metavar="GHZ", help=f"of a processor that is not here (default {CLOCK})")
    add("--operators", nargs="+", default=OPERATORS, metavar="NAME", help="of the zoo")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    console = Console()
    found: dict[str, dict[str, Cost]] = {}
    for name in options.operators:
        model = build(name)
        found[name] = {side: cost_of(model, options.target, options.clock, out) for side, out in SIDES.items()}
        console.print(f"{name}: {found[name]['mlc'].milliseconds:.2f} ms", highlight=False)
    about = what(options.target, options.clock)
    bars = {s: [found[name][s].milliseconds for name in found] for s in SIDES}
    files = keep(
        "tvm_fig17",
        options.out,
        {"about": about, "results": {n: {s: asdict(c) for s, c in f.items()} for n, f in found.items()}},
        lambda picture: markdown(found, about, picture),
        lambda file: plots.bars(
            file, list(found), bars, "Operators (lower is better)", "milliseconds", cut=float("inf")
        ),
        indent=None,
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


if __name__ == "__main__":
    main()
