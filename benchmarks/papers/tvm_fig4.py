"""Figure 4 of the TVM paper: what fusing operators gains, on four small workloads.

    python -m benchmarks.papers.tvm_fig4

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018. The paper measured on a
graphics card (NVIDIA Titan X) and found speed-ups from 1.2 to 2; here it is a processor. Both sides are this
compiler's own code: the same model compiled with and without the pass ``fuse``, measured in turns. In the paper the
batch norm is an operator at run time, so it is one here (without the pass ``algebra``); folded into the weights, as is
the default, it is measured as a second pair.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto
from rich.console import Console

from benchmarks import machine, plots
from benchmarks.measure import Plan, Result, Workload, bench_workload
from benchmarks.peers import PEERS, EngineSpec, parse_engines, version
from benchmarks.report import json_ready, spread, table
from benchmarks.work import count_work
from benchmarks.zoo.builder import Net

PLAN = Plan(rounds=12, block_seconds=0.1)
REFERENCE = "onnxruntime"
# Each pair: what it is called, compiled with fusion, compiled without.
PAIRS = (
    ("batch norm kept, as in the paper", "mlc[disabled_passes=algebra]", "mlc[disabled_passes=algebra+fuse]"),
    ("all other passes", "mlc", "mlc[disabled_passes=fuse]"),
)


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


@dataclass(frozen=True, slots=True)
class Row:
    """One workload under one pair: times in milliseconds, and how much faster the fused one is."""

    workload: str
    threads: int
    pair: str
    fused: float
    unfused: float
    fused_mad: float
    unfused_mad: float

    @property
    def speedup(self) -> float:
        return self.unfused / self.fused


def rows(results: Sequence[Result]) -> list[Row]:
    """The pairs of all results that have both sides."""
    found = []
    for result in results:
        for pair, fused, unfused in PAIRS:
            a, b = result.milliseconds.get(fused), result.milliseconds.get(unfused)
            if a and b:
                found.append(Row(result.model, result.threads, pair, a.median, b.median, a.mad, b.mad))
    return found


def markdown(results: Sequence[Result], about: dict[str, str], picture: str) -> str:
    """The table with the machine and what differs from the paper."""
    lines = ["# Figure 4 of the TVM paper: fused against not fused", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += ["", *([f"![{picture}]({picture})", ""] if picture else [])]
    cells = []
    for result in results:
        for pair, fused, unfused in PAIRS:
            a, b = result.milliseconds.get(fused), result.milliseconds.get(unfused)
            ratio = f"{b.median / a.median:.2f}" if a and b else "-"
            cells.append((result.model, pair, str(result.threads), spread(b), spread(a), ratio))
    lines += table(("workload", "passes", "threads", "not fused ms", "fused ms", "speed-up"), cells, left=2)
    errors = [error for result in results for error in result.error.values()]
    lines += [
        "",
        "The paper has speed-ups from 1.2 to 2 on an NVIDIA Titan X; this is a processor, where the tensors in",
    ]
    lines += ["between stay in caches and a kernel costs no launch, so less is to be gained. Batch 1, float32."]
    if errors:
        lines += [f"Largest difference from {REFERENCE} over its largest magnitude: {max(errors):.1e}."]
    lines += [f"- {reason}" for result in results for reason in result.failures.values()]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Result], about: dict[str, str]) -> dict[str, Any]:
    """The same for programs."""
    found = [asdict(row) | {"speedup": row.speedup} for row in rows(results)]
    return {"machine": about, "plan": asdict(PLAN), "rows": found, "results": [asdict(result) for result in results]}


def draw(results: Sequence[Result], file: Path) -> None:
    """Speed-ups as bars, not fused being 1, as in the figure."""
    found = rows(results)
    threads = sorted({row.threads for row in found})
    groups = list(dict.fromkeys(row.workload for row in found))
    series = {}
    for pair, _, _ in PAIRS:
        for count in threads:
            chosen = {row.workload: row.speedup for row in found if (row.pair, row.threads) == (pair, count)}
            series[f"{pair}, {count} thread{'s'[: count > 1]}"] = [chosen.get(group, float("nan")) for group in groups]
    names = [group.replace(" ", "\n", 1).replace(" ", "\n") for group in groups]
    plots.bars(file, names, series, "Fused against not fused (higher is better)", "speed-up by fusion", cut=10.0)


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig4", description=__doc__)
    add = parser.add_argument
    add("--threads", default="1", metavar="N,N", help="numbers of threads (default 1)")
    add("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0)))), metavar="N,N")
    add("--out", type=Path, default=Path("benchmarks/papers/results"), metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    threads, cores = ([int(part) for part in text.split(",")] for text in (options.threads, options.cores))
    console = Console()
    specs = parse_engines(",".join(label for _, fused, unfused in PAIRS for label in (fused, unfused)))
    if not PEERS[REFERENCE].missing():
        specs.append(EngineSpec(PEERS[REFERENCE], label=REFERENCE))
    results = []
    for name, builder in WORKLOADS.items():
        with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder, console.status(name) as status:
            model = builder()
            file = Path(folder, "model.onnx")
            onnx.save(model, file)
            work = count_work(model)
            task = Workload(name, "operator", file, model, work.flops, work.bytes)
            results += bench_workload(task, specs, threads, PLAN, cores, status.update)
    for row in rows(results):
        console.print(f"{row.workload}, {row.threads}T, {row.pair}: {row.speedup:.2f}x", highlight=False)
    about = machine.describe()
    options.out.mkdir(parents=True, exist_ok=True)
    picture = "tvm_fig4.png" if version("matplotlib") else ""
    if picture:
        draw(results, options.out / picture)
    document = json.dumps(json_ready(as_json(results, about)), indent=1, ensure_ascii=False)
    (options.out / "tvm_fig4.json").write_text(document + "\n", encoding="utf-8")
    (options.out / "tvm_fig4.md").write_text(markdown(results, about, picture), encoding="utf-8")
    console.print(f"{options.out}/: tvm_fig4.md, tvm_fig4.json", highlight=False)


if __name__ == "__main__":
    main()
