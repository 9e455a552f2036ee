"""Figure 16 of the TVM paper: whole networks on an ARM Cortex-A53, with and without graph optimisation.

    python -m benchmarks.papers.tvm_fig16
    python -m benchmarks.papers.tvm_fig16 --target arm                    # on a board: measured

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.2. On a board
(``--target arm`` there) times are taken; elsewhere they are cycles by the cost model, and say so. The paper's baseline,
TensorFlow Lite of 2018, is not at hand. What XNNPACK's authors publish of two networks on Raspberry Pis is put beside
what the cost model expects of those processors.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks import plots
from benchmarks.papers.embedded import CLOCK, TARGET, Cost, cost_of, what
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.report import table
from benchmarks.zoo import build

NETWORKS = ("resnet18", "mobilenet_v1", "dqn")
GRAPH = ("fuse", "algebra", "layout", "winograd", "transposes", "merge-matmuls")
SIDES: dict[str, tuple[str, ...]] = {"mlc": (), "without graph optimisation": GRAPH}

# milliseconds with four threads: https://github.com/google/XNNPACK, README, "Raspberry Pi", of February 12, 2020
XNNPACK = {
    "Raspberry Pi 3+": ("arm -mcpu=cortex-a53", 1.4, {"mobilenet_v1": 115, "mobilenet_v2": 79}),
    "Raspberry Pi 4": ("arm -mcpu=cortex-a72", 1.5, {"mobilenet_v1": 75, "mobilenet_v2": 44}),
}
CORES = 4

Found = Mapping[str, Mapping[str, Cost]]


def markdown(
    found: Found, peers: Sequence[tuple[str, str, float, float]], about: Mapping[str, str], picture: str
) -> str:
    """Both tables, and what they are."""
    lines = ["# Figure 16 of the TVM paper: networks on a Cortex-A53", "", *(f"- {k}: {v}" for k, v in about.items())]
    lines += ["", *([f"![{picture}]({picture})", ""] if picture else [])]
    cells = []
    for name, sides in found.items():
        ours, plain = (sides[side] for side in SIDES)
        row = (
            name,
            f"{ours.milliseconds:.1f}",
            f"{plain.milliseconds:.1f}",
            f"{plain.milliseconds / ours.milliseconds:.2f}",
        )
        cells.append((*row, ours.bound))
    lines += table(("network", *(f"{side} ms" for side in SIDES), "gain", "bound by"), cells, left=1)
    if peers:
        lines += ["", "## What XNNPACK publishes", ""]
        rows = [(board, name, f"{theirs:.0f}", f"{ours:.1f}") for board, name, theirs, ours in peers]
        heads = ("board", "network", "XNNPACK ms, four threads, measured", "mlc ms, by the cost model")
        lines += table(heads, rows, left=2)
        lines += [
            "",
            "XNNPACK's are those of its README (<https://github.com/google/XNNPACK>, Raspbian Buster of 32 bits,",
            "February 12, 2020). Ours are expected cycles of one core, divided by four cores and the clock: what",
            "four cores would take at best, in 64 bits, if none waited for another or for the memory that they",
            "share. So they cannot be compared to the percent. No times that Arm publishes of its Compute Library",
            "for these networks were found.",
        ]
    return "\n".join(lines) + "\n"


def published() -> list[tuple[str, str, float, float]]:
    """Board, network, what XNNPACK takes there, and what the cost model expects of ours; milliseconds on four cores."""
    return [
        (board, name, float(theirs), cost_of(build(name), target, clock).milliseconds / CORES)
        for board, (target, clock, times) in XNNPACK.items()
        for name, theirs in times.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig16", description=__doc__)
    add = parser.add_argument
    add("--target", default=TARGET, help=f"what for (default {TARGET})")
    add("--clock", type=float, default=CLOCK, metavar="GHZ", help=f"of a processor that is not here (default {CLOCK})")
    add("--networks", nargs="+", default=NETWORKS, metavar="NAME", help="of the zoo")
    add("--small", action="store_true", help="their small variants, and nothing of XNNPACK")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    console = Console()
    found: dict[str, dict[str, Cost]] = {}
    for name in options.networks:
        model = build(name, small=options.small)
        sides = {side: cost_of(model, options.target, options.clock, out) for side, out in SIDES.items()}
        found[name] = sides
        console.print(
            f"{name}: " + ", ".join(f"{s} {c.milliseconds:.1f} ms" for s, c in sides.items()), highlight=False
        )
    peers = [] if options.small else published()
    about = what(options.target, options.clock)
    bars = {side: [found[name][side].milliseconds for name in found] for side in SIDES}
    files = keep(
        "tvm_fig16",
        options.out,
        {
            "about": about,
            "results": {n: {s: asdict(c) for s, c in f.items()} for n, f in found.items()},
            "published": peers,
        },
        lambda picture: markdown(found, peers, about, picture),
        lambda file: plots.bars(
            file, list(found), bars, "Networks (lower is better)", "milliseconds", cut=float("inf")
        ),
        indent=None,
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


if __name__ == "__main__":
    main()
