"""Figure 4 of the TVM paper: what fusing operators gains, on four small workloads.

    python -m benchmarks.papers.tvm_fig4                                     # this processor
    python -m benchmarks.papers.tvm_fig4 --target cuda                       # this machine's NVIDIA GPU
    python -m benchmarks.papers.tvm_fig4 --target "opencl -device=pocl"      # a rehearsal of that on a processor

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018. The paper measured on a
graphics card (NVIDIA Titan X) and found speed-ups from 1.2 to 2. Both sides are this
compiler's own code: the same model compiled with and without the passes that fuse, ``gates`` and ``fuse``. "Operators
as they stand" leaves the batch norm an operator of its own on the side without fusion, as in the paper; in the other
pair the pass ``algebra`` folds it into the weights on both sides, and fusion alone differs.

Cells take a few microseconds, so the native calls alone are timed, in one process, in turns; on a device by its events.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto
from rich.console import Console

import mlc
from benchmarks import machine, plots
from benchmarks.papers.devices import REHEARSAL, name_for
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.peers import parse_engine
from benchmarks.peers.ours import keywords
from benchmarks.report import spread, table
from benchmarks.stats import Arrays, Spread, largest_error, paired_ratio
from benchmarks.zoo import sample_inputs
from benchmarks.zoo.builder import Net
from mlc.runtime import Module
from mlc.targets.base import get_target

ROUNDS, BLOCK_SECONDS = 20, 0.05
FUSED = "mlc"
# What is compared with the fused code, by what it is called.
UNFUSED = {
    "operators as they stand": "mlc[disabled_passes=algebra+gates+fuse]",
    "only fuse differs": "mlc[disabled_passes=gates+fuse]",
}


def conv_bn_relu() -> ModelProto:
    """1x1 convolution of 128 to 256 channels at 28x28."""
    net = Net("conv_bn_relu")
    x = net.input("x", (1, 128, 28, 28))
    y = net.relu(net.batch_norm(net.conv(x, (128, 256), 1, name="conv"), name="bn"), name="relu")
    net.output(y, (1, 256, 28, 28))
    return net.model()


def depthwise_bn_relu() -> ModelProto:
    """3x3 depthwise convolution of 512 channels at 14x14."""
    net = Net("depthwise_bn_relu")
    x = net.input("x", (1, 512, 14, 14))
    y = net.conv(x, (512, 512), 3, groups=512, name="conv")
    net.output(net.relu(net.batch_norm(y, name="bn"), name="relu"), (1, 512, 14, 14))
    return net.model()


def _gates(net: Net, hidden: int, gates: int) -> str:
    """``x W + h U + b`` for all gates at once, batch 1."""
    parts = []
    for operand in ("x", "h"):
        net.input(operand, (1, hidden))
        weight = net.constant(f"{operand}.weight", net.normal((hidden, gates * hidden), hidden**-0.5))
        parts.append(net.op("MatMul", operand, weight, name=f"{operand}.matmul"))
    bias = net.constant("bias", net.normal((gates * hidden,), 0.1))
    return net.op("Add", net.op("Add", *parts, name="sum"), bias, name="biased")


def rnn_cell(hidden: int = 128) -> ModelProto:
    """``tanh(x W + h U + b)``."""
    net = Net("rnn_cell")
    net.output(net.op("Tanh", _gates(net, hidden, 1), name="tanh"), (1, hidden))
    return net.model()


def lstm_cell(hidden: int = 128) -> ModelProto:
    """One step of an LSTM, spelled in single operators: new output and new cell state."""
    net = Net("lstm_cell")
    gates = _gates(net, hidden, 4)
    names = ["input", "forget", "output", "cell"]
    net.nodes(onnx.helper.make_node("Split", [gates], names, name="split", axis=1))
    i, f, o = (net.op("Sigmoid", name, name=f"{name}.gate") for name in names[:3])
    kept = net.op("Mul", f, net.input("c", (1, hidden)), name="kept")
    added = net.op("Mul", i, net.op("Tanh", "cell", name="candidate"), name="added")
    state = net.op("Add", kept, added, name="state")
    result = net.op("Mul", o, net.op("Tanh", state, name="squashed"), name="result")
    net.output(result, (1, hidden))
    net.output(state, (1, hidden))
    return net.model()


# Workloads as the paper names them.
WORKLOADS: dict[str, Callable[[], ModelProto]] = {
    "conv+bn+relu 128x28x28 1x1x128x256": conv_bn_relu,
    "depthwise-conv+bn+relu 512x14x14 3x3x512": depthwise_bn_relu,
    "rnn cell hidden:128": rnn_cell,
    "lstm cell hidden:128": lstm_cell,
}


@dataclass(slots=True)
class Comparison:
    """One workload: times in milliseconds by what was compiled, and speed-ups by fusion by pair.

    Args:
        kernels: calls of kernels in a run.
        error: largest difference between any two of the results over the largest magnitude.
    """

    workload: str
    threads: int
    milliseconds: dict[str, Spread] = field(default_factory=dict)
    speedup: dict[str, Spread] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    error: float = math.nan


def compare(name: str, model: ModelProto, target: str, threads: int, rounds: int, seconds: float) -> Comparison:
    """Compiles a workload in all ways and times them in turns."""
    found = Comparison(name, threads)
    inputs = sample_inputs(model)
    modules = {}
    with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
        file = Path(folder, "model.onnx")
        onnx.save(model, file)
        for label in (FUSED, *UNFUSED.values()):
            package = mlc.compile(mlc.load(file), target, **keywords(parse_engine(label).options))
            launches = sum(int(str(facts["launches"])) for facts in package.programs.values())
            found.kernels[label] = launches or len(package.manifest.steps)
            modules[label] = package.load(threads)
    outputs = {label: module.run(inputs) for label, module in modules.items()}
    found.error = max(largest_error(values, outputs[FUSED]) for values in outputs.values())
    blocks: dict[str, list[list[float]]] = {label: [] for label in modules}
    for index in range(rounds):
        for label in list(modules) if index % 2 == 0 else list(reversed(modules)):
            blocks[label].append(_milliseconds(modules[label], inputs, seconds))
    found.milliseconds = {label: Spread.of([t for block in rows for t in block]) for label, rows in blocks.items()}
    for pair, label in UNFUSED.items():
        ratio = paired_ratio(blocks[label], blocks[FUSED])
        assert ratio is not None
        found.speedup[pair] = ratio
    for module in modules.values():
        module.close()
    return found


def _milliseconds(module: Module, inputs: Arrays, seconds: float) -> list[float]:
    """Runs for so long: of what is a device's the time by its events, of native code that of the calls alone."""
    if not module.device_runs:
        return [ns / 1e6 for ns in module.benchmark(inputs, warmup=3, min_seconds=seconds, max_runs=1_000_000)]
    found, end = [], time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        module.run(inputs)
        found.append(sum(float(r.report["seconds"]) for r in module.device_runs) * 1e3)
    return found


def markdown(results: Sequence[Comparison], about: dict[str, str], picture: str = "") -> str:
    """The table with the machine and what differs from the paper."""
    lines = ["# Figure 4 of the TVM paper: fused against not fused", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += ["", *([f"![{picture}]({picture})", ""] if picture else [])]
    rows = [
        (
            result.workload,
            pair,
            str(result.threads),
            f"{result.kernels[label]} → {result.kernels[FUSED]}",
            spread(result.milliseconds[label]),
            spread(result.milliseconds[FUSED]),
            f"{result.speedup[pair].median:.2f}",
        )
        for result in results
        for pair, label in UNFUSED.items()
    ]
    headings = ("workload", "without fusion", "threads", "kernels", "not fused ms", "fused ms", "speed-up")
    lines += [
        *table(headings, rows, left=2),
        "",
        "The paper has speed-ups from 1.2 to 2 on an NVIDIA Titan X. Batch 1, float32.",
        *_kind(about["target"]),
        f"Largest difference between the sides over the largest magnitude: {max(r.error for r in results):.1e}.",
    ]
    return "\n".join(lines) + "\n"


def _kind(target: str) -> list[str]:
    """What a reader must know of the machine."""
    if "pocl" in target:
        return [REHEARSAL]
    if get_target(target).accelerator is not None:
        return []
    return [
        "This is a processor: what lies between two operators stays in a cache, and a kernel costs no launch.",
        "Converting layouts is part of both sides.",
    ]


def as_json(results: Sequence[Comparison], about: dict[str, str]) -> dict[str, Any]:
    """The same for programs."""
    plan = {"rounds": ROUNDS, "block_seconds": BLOCK_SECONDS}
    return {"machine": about, "plan": plan, "fused": FUSED, "unfused": UNFUSED, "results": [asdict(r) for r in results]}


def draw(results: Sequence[Comparison], file: Path) -> None:
    """Speed-ups as bars, not fused being 1, as in the figure."""
    groups = list(dict.fromkeys(result.workload for result in results))
    series = {}
    for pair in UNFUSED:
        for count in sorted({result.threads for result in results}):
            chosen = {r.workload: r.speedup[pair].median for r in results if r.threads == count}
            series[f"{pair}, {count} thread{'s'[: count > 1]}"] = [chosen.get(group, math.nan) for group in groups]
    names = [group.replace("+", "+\n").replace(" ", "\n") for group in groups]
    plots.bars(file, names, series, "Fused against not fused (higher is better)", "speed-up by fusion", cut=10.0)


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig4", description=__doc__)
    add = parser.add_argument
    add("--target", default="x86", help="what for (default x86: this processor)")
    add("--threads", type=int, default=1, metavar="N", help="number of threads (default 1)")
    add("--cores", default="", metavar="N,N", help="cores to run on (default: as many of the usable ones as threads)")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"blocks for each side (default {ROUNDS})")
    add("--seconds", type=float, default=BLOCK_SECONDS, metavar="S", help=f"of a block (default {BLOCK_SECONDS})")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("tvm_fig4", "matplotlib")
    usable = os.sched_getaffinity(0)
    cores = [int(part) for part in options.cores.split(",")] if options.cores else sorted(usable)[: options.threads]
    console = Console()
    results = []
    try:
        os.sched_setaffinity(0, cores)
        for name, builder in WORKLOADS.items():
            with console.status(name):
                result = compare(name, builder(), options.target, options.threads, options.rounds, options.seconds)
            gains = ", ".join(f"{pair} {ratio.median:.2f}x" for pair, ratio in result.speedup.items())
            console.print(f"{name}: {gains}", highlight=False)
            results.append(result)
    finally:
        os.sched_setaffinity(0, usable)
    about = machine.describe() | {"cores used": ", ".join(map(str, cores)), "target": options.target}
    files = keep(
        name_for("tvm_fig4", options.target),
        options.out,
        as_json(results, about),
        lambda picture: markdown(results, about, picture),
        lambda file: draw(results, file),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


if __name__ == "__main__":
    main()
