"""Figure 21 of the TVM paper: ResNet on a processor alone, and with its convolutions on the accelerator.

    python -m benchmarks.papers.tvm_fig21

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.4. ResNet-18 is
quantised to 8 bits, divided, compiled and run on the simulator, in three profiles of the hardware: as published
(``osdi18``: sums leave the device in 32 bits, and the host adds biases and residuals, activates and narrows), with
narrowing stores (``osdi18_i8``), and with everything (``full``). Results must equal those of the quantised model on the
host bit by bit.

A last bar quantises the first convolution and the dense layer too, so that the device takes them as well.

Cycles are the timing simulator's. The processor of the paper's board is not here: its times are a model of two numbers
(``mlc.vdla.host``), one of them fitted backwards from the paper's own 40x, so the speed-up of the convolutions says
little by itself. What can be compared is where the time goes, and how much of the rest each extension takes away.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console

import mlc
from benchmarks import plots
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from benchmarks.zoo import build, sample_inputs
from mlc.api import Model, Quantization, quantize
from mlc.ir.graph import Graph, Node
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.rewrite.group import body_of, is_alias, is_group
from mlc.rewrite.region import is_copy, is_region
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.vdla.config import PROFILES
from mlc.vdla.host import HostModel
from mlc.vdla.sim.report import assumptions

SAMPLES = 4
FIRST, OFFLOADED, POINTWISE, POOLS, DENSE, BORDER, COPIES = PARTS = (
    "first convolution",
    "other convolutions",
    "bias, residual, activation",
    "pools",
    "dense layer",
    "quantising, layout",
    "copies",
)
DEVICE = "products on the device"
ENDS = "CPU + full, all products"
PAPER_SPEEDUP = 40


@dataclass(slots=True)
class Split:
    """Where the time of one inference goes.

    Args:
        name: of the bar.
        parts: milliseconds by part.
        cycles: of the device.
        regions: programs of the device.
        layers: layers in them.
        equal: whether the results are those of the quantised model on the host, bit by bit.
        utilisation: part of the device's cycles in which its array multiplied.
    """

    name: str
    parts: dict[str, float] = field(default_factory=dict)
    cycles: int = 0
    regions: int = 0
    layers: int = 0
    equal: bool = True
    utilisation: float = math.nan

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds * 1e3


def part_of(node: Node) -> str:
    """Which part of the figure a host's node belongs to."""
    names = {n.op.name for n in body_of(node).nodes} if is_group(node) else {node.op.name}
    if "conv" in names:
        return OFFLOADED if any(v.type.dtype.name == "i8" for v in node.inputs) else FIRST
    if "matmul" in names:
        return DENSE
    if names & {"max_pool", "reduce_mean", "average_pool"}:
        return POOLS
    return BORDER if names <= {"pack", "unpack", "cast", "mul", "round", "clip"} else POINTWISE


def host_parts(split: Split, graph: Graph, host: HostModel) -> None:
    """Adds what the host does, by its model."""
    for node in graph.nodes:
        if is_copy(node):
            split.add(COPIES, host.copy_seconds(node.outputs[0].type.nbytes))
        elif is_region(node):
            split.regions += 1
            split.layers += len(node.attrs["body"].nodes)
        elif not is_alias(node):
            split.add(part_of(node), host.seconds(node))


def measure(model: Model, target: str, name: str, feeds: dict[str, np.ndarray], expected: dict | None) -> tuple:
    """The split for a target, and the results."""
    split, host = Split(name), HostModel()
    options = CompileOptions("resnet18", "", "0" * 64)
    machine = get_target(target)
    on_host, *_ = parts_of(optimise(model.graph, machine, options, Observer()), machine)
    host_parts(split, lay_out(on_host, options, Observer()), host)
    with mlc.compile(model, target).load(1) as module:
        results = module.run(feeds)
        runs = module.device_runs
    if runs:
        split.add(DEVICE, sum(run.report["seconds"] for run in runs))
        split.cycles = sum(run.report["cycles"] for run in runs)
        split.utilisation = sum(run.report["util"] * run.report["cycles"] for run in runs) / split.cycles
    if expected is not None:
        split.equal = all(np.array_equal(results[key], value) for key, value in expected.items())
    return split, results


def _snr(found: Quantization) -> str:
    return ", ".join(f"{a.snr_db:.1f} dB" for a in found.accuracy)


def facts(alone: Split, split: Split) -> dict[str, float]:
    """What follows from two bars: speed-ups, the limit that Amdahl's law sets, and what is left to the host."""
    moved = sum(alone.parts[part] - split.parts.get(part, 0.0) for part in (FIRST, OFFLOADED, DENSE))
    rest = split.total - split.parts[DEVICE]
    return {
        "offloaded_speedup": moved / split.parts[DEVICE],
        "speedup": alone.total / split.total,
        "limit": alone.total / rest,
        "host_ms": rest,
        "host_share": rest / split.total,
    }


def markdown(splits: Sequence[Split], about: Sequence[str], picture: str = "") -> str:
    """The table, the assumptions beside it, and what follows."""
    alone = splits[0]
    lines = ["# Figure 21 of the TVM paper: ResNet-18, with its convolutions on the accelerator", ""]
    lines += [f"- {line}" for line in about]
    lines += ["", *([f"![{picture}]({picture})", ""] if picture else [])]
    parts = [DEVICE, *PARTS]
    rows = [
        (part, *(f"{split.parts.get(part, 0.0):.2f}" if part in split.parts else "" for split in splits))
        for part in parts
    ]
    rows.append(("**one inference**", *(f"**{split.total:.2f}**" for split in splits)))
    lines += [*table(("milliseconds", *(split.name for split in splits)), rows, left=1), ""]
    followed = [(split, facts(alone, split)) for split in splits[1:]]
    rows = [
        ("speed-up of what is offloaded", *(f"{f['offloaded_speedup']:.1f}" for _, f in followed)),
        ("speed-up of the inference", *(f"{f['speedup']:.1f}" for _, f in followed)),
        ("the same if the device took no time (Amdahl)", *(f"{f['limit']:.1f}" for _, f in followed)),
        ("what the host is left with, ms", *(f"{f['host_ms']:.1f}" for _, f in followed)),
        ("its share of the time", *(f"{100 * f['host_share']:.0f} %" for _, f in followed)),
        ("cycles of the device, thousands", *(f"{split.cycles / 1e3:.0f}" for split, _ in followed)),
        ("cycles in which the array multiplies", *(f"{100 * split.utilisation:.0f} %" for split, _ in followed)),
        ("programs, layers in them", *(f"{split.regions}, {split.layers}" for split, _ in followed)),
        ("equal to the quantised model bit by bit", *("yes" if split.equal else "NO" for split, _ in followed)),
    ]
    lines += [*table(("", *(split.name for split, _ in followed)), rows, left=1), ""]
    by_name = {split.name: f for split, f in followed}
    published, whole = by_name.get("CPU + osdi18"), by_name.get("CPU + full")
    lines += [
        f"The paper offloads the same convolutions and finds them {PAPER_SPEEDUP} times as fast as on the board's",
        "processor; the host's speed here is fitted to that, so the first line follows from the assumption. It is",
        "fitted from a faster accelerator than the paper's, too: units are ordered by the tokens that conflicts",
        "demand, over a whole region, in the order in which instructions begin, where the paper has a token for each",
        "edge of a layer's loops and two virtual threads (figure 10 has both). Forty times a longer time would be a",
        "slower host.",
    ]
    if published and whole:
        lines += [
            f"As there, the rest then dominates: it takes {100 * published['host_share']:.0f} % of the time in the"
            " published profile.",
            f"Profile `full` takes {published['host_ms'] - whole['host_ms']:.1f} of those {published['host_ms']:.1f} ms"
            " away: biases, residuals, activations and",
            "narrowing go with the convolutions, and nothing but the first input and the last result crosses. What is",
            "left is nearly all the first convolution.",
        ]
    if ENDS in by_name:
        lines.append(
            f"With that one on the device too, two pixels of 3 channels in 16 lanes, the host is left with "
            f"{by_name[ENDS]['host_ms']:.1f} ms."
        )
    return "\n".join(lines) + "\n"


def as_json(splits: Sequence[Split], about: Sequence[str]) -> dict[str, Any]:
    """The same for programs."""
    alone = splits[0]
    return {
        "assumptions": list(about),
        "results": [
            {**asdict(split), "total_ms": split.total, **(facts(alone, split) if split is not alone else {})}
            for split in splits
        ],
    }


def draw(splits: Sequence[Split], file: Path) -> None:
    """Stacked bars: what the processor does, in greys, and the device's part."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [DEVICE, *(part for part in PARTS if any(part in split.parts for split in splits))]
    greys = iter(pyplot.get_cmap("Greys")(np.linspace(0.25, 0.85, len(parts))))
    figure, (whole, close) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    colours = {part: plots.COLOURS[1] if part == DEVICE else next(greys) for part in parts}
    for axes, shown in ((whole, splits), (close, splits[1:])):
        bottom = np.zeros(len(shown))
        for part in parts:
            heights = np.array([split.parts.get(part, 0.0) for split in shown])
            axes.bar(
                [split.name for split in shown], heights, bottom=bottom, color=colours[part], label=part, width=0.6
            )
            bottom += heights
        for x, split in enumerate(shown):
            axes.text(x, split.total, f"{split.total:.0f}", ha="center", va="bottom")
        axes.set_ylabel("ms for one inference")
        axes.set_xticks(range(len(shown)), [split.name.replace(", ", ",\n") for split in shown], fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    whole.legend(frameon=False, fontsize=8)
    close.set_title("with the accelerator, closer", fontsize=10)
    whole.set_title("ResNet-18, 8 bits, batch 1", fontsize=10)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig21", description=__doc__)
    add = parser.add_argument
    add("--profiles", default=",".join(PROFILES), metavar="A,B", help="of the hardware (default: all)")
    add("--no-ends", action="store_true", help="leave out the bar with the first convolution on the device too")
    add("--samples", type=int, default=SAMPLES, metavar="N", help=f"to calibrate with (default {SAMPLES})")
    add("--small", action="store_true", help="a small network of the same structure")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("tvm_fig21", "matplotlib")
    console = Console()
    original = build("resnet18", small=options.small)
    with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
        file = Path(folder, "resnet18.onnx")
        onnx.save(original, file)
        model = mlc.load(file)
    images = [sample_inputs(original, seed=k) for k in range(options.samples)]
    samples = {name: np.concatenate([image[name] for image in images]) for name in images[0]}
    with console.status("quantising"):
        found = quantize(model, samples, "vdla")
        whole = None if options.no_ends else quantize(model, samples, "vdla", ends=True)
    bars = [(f"CPU + {p}", f"vdla -profile={p}", found) for p in options.profiles.split(",")]
    if whole is not None:
        bars.append((ENDS, "vdla -profile=full", whole))
    alone, first_expected = measure(found.model, "x86", "CPU", images[0], None)
    splits = [alone]
    for name, target, quantised in bars:
        with console.status(name):
            expected = first_expected
            if quantised is not found:
                expected = measure(quantised.model, "x86", "CPU", images[0], None)[1]
            split, _ = measure(quantised.model, target, name, images[0], expected)
        console.print(f"{name}: {split.total:.1f} ms{'' if split.equal else ', WRONG RESULT'}", highlight=False)
        splits.append(split)
    about = [
        f"ResNet-18 with random weights, quantised on {options.samples} samples; signal to noise against floats: "
        f"{_snr(found)}{'' if whole is None else f', with all products {_snr(whole)}'}",
        *HostModel().lines(),
        *assumptions(PROFILES["osdi18"]),
    ]
    for line in about:
        console.print(f"  {line}", highlight=False)
    files = keep(
        "tvm_fig21",
        options.out,
        as_json(splits, about),
        lambda picture: markdown(splits, about, picture),
        lambda file: draw(splits, file),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


if __name__ == "__main__":
    main()
