"""ALT, figure 9: operators searched over loops alone (ALT-OL) and over layouts and loops together, at equal budgets.

Operators stand as in a network: whatever reads their result takes any layout, and an input that a layout wants
otherwise is converted by the operator itself, in its time. The paper's numbers of channels and batches are drawn again
(its text does not tell all ranges). Both searches are by the explorer ``guided``; the best of each and the untuned one
take turns in the end. Trials are kept beside the result, and a run that was stopped goes on. ``--again`` repeats that
last comparison alone, and measures other engines, so that only these seconds need a machine at rest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.papers.alt_peers import NAMES
from benchmarks.papers.alt_peers import seconds as seconds_of_peers
from benchmarks.papers.keep import RESULTS
from benchmarks.stats import geometric_mean
from mlc.errors import ScheduleError
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.records.measurement import Measurement
from mlc.rewrite.workload import workload_document
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.joint import JOINT, layout_space, primitives_of
from mlc.tuning.journal import Journal
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.options import TuneOptions
from mlc.tuning.session import Session
from mlc.tuning.task import Task, candidate, task_of, tasks_of

VARIANTS: Mapping[str, int] = {"ALT-OL": 0, "ALT": 1}  # levels of searched layouts
MOST_FLOPS = 4e8  # of a configuration, so that a search takes seconds
LEAST_FLOPS = 1e6
LONG = 1e-4  # seconds of a call, beside which the microseconds of an engine's Python interface count for little
OWN = "the target's own"
REMARKS = """
Times are of one thread. *Of the limit* is the time in which the core could do the operator's multiply-adds, over that
of the joint search. *Results computed* are those of padded blocks, too, as multiples of the operator's. Searches ran
beside other work, on a machine that was not at rest, with budgets that the table says, of the paper's 1,000; the last
comparison of all three, and the other engines, ran alone. Engines are called through Python, which takes them some
microseconds; mlc's kernels are called by native code. The paper draws ten configurations of each operator.
"""


@dataclass(frozen=True)
class Case:
    """One operator with its shapes.

    Args:
        name: of the operator and the number of its configuration.
        shapes: in words.
        graph: with it alone.
    """

    name: str
    shapes: str
    graph: Graph

    def task(self, target: Target) -> Task | None:
        """The operator between others; nothing where it has no layouts to choose."""
        options = CompileOptions(self.name, "onnx", "", disabled_passes=("winograd",))
        alone = tasks_of(self.graph, target, options, Observer())
        if not alone:
            return None
        last = alone[-1]
        task = task_of(workload_document(last.node, last.types, last.constant, False), (), target)
        return task if layout_space(task, target) is not None else None


def _convolution(rng: np.random.Generator, rank: int, kind: str) -> tuple[str, Graph, float]:
    groups = int(rng.choice([2, 4, 8])) if kind == "GRP" else 1
    channels = int(rng.integers(1, 33)) * 8
    filters = int(rng.integers(1, 33)) * 8
    if kind == "DEP":
        groups = filters = channels
    size = int(rng.choice({1: [64, 128, 256], 2: [7, 14, 28, 56], 3: [8, 14]}[rank]))
    taps, stride = int(rng.choice([3] if kind in ("DIL", "DEP") else [1, 3, 5])), int(rng.choice([1, 2]))
    dilation, batch = 2 if kind == "DIL" else 1, int(rng.choice([1, 1, 4]))
    pad = dilation * (taps - 1) // 2
    g = Builder(kind)
    x = g.input("x", TensorType((batch, channels, *[size] * rank), f32))
    w = rng.standard_normal((filters, channels // groups, *[taps] * rank)).astype(np.float32)
    attrs = {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank, "groups": groups}
    (y,) = g.add(get("conv"), [x, g.constant(w, "w")], attrs)
    (r,) = g.add(get("relu"), [y], names=["r"])
    text = f"{batch}x{channels}x{'x'.join([str(size)] * rank)} {filters} filters {taps}/{stride} groups {groups}"
    return text, g.finish([r]), 2.0 * w[0].size * filters * batch * (size // stride) ** rank


def _transposed(rng: np.random.Generator, rank: int) -> tuple[str, Graph, float]:
    channels, filters = (int(rng.integers(1, 33)) * 8 for _ in range(2))
    size = int(rng.choice({2: [4, 7, 14, 28], 3: [4, 8]}[rank]))
    taps, stride, batch = int(rng.choice([2, 3, 4])), int(rng.choice([1, 2])), int(rng.choice([1, 1, 4]))
    pad = max(0, (taps - stride) // 2)
    g = Builder("transposed")
    x = g.input("x", TensorType((batch, channels, *[size] * rank), f32))
    w = rng.standard_normal((channels, filters, *[taps] * rank)).astype(np.float32)
    attrs = {
        "strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (1,) * rank, "groups": 1,
        "output_shape": ((size - 1) * stride + taps - 2 * pad,) * rank,
    }  # fmt: skip
    (y,) = g.add(get("conv_transpose"), [x, g.constant(w, "w")], attrs)
    (r,) = g.add(get("relu"), [y], names=["r"])
    text = f"{batch}x{channels}x{'x'.join([str(size)] * rank)} {filters} filters {taps}/{stride} transposed"
    return text, g.finish([r]), 2.0 * w.size * batch * size**rank


def _product(rng: np.random.Generator) -> tuple[str, Graph, float]:
    m, k, n = (int(rng.choice([32, 64, 128, 256, 384, 512, 768])) for _ in range(3))
    g = Builder("GMM")
    w = rng.standard_normal((k, n)).astype(np.float32)
    (y,) = g.add(get("matmul"), [g.input("x", TensorType((m, k), f32)), g.constant(w, "w")], names=["y"])
    return f"{m}x{k} by {k}x{n}", g.finish([y]), 2.0 * m * k * n


OPERATORS: Mapping[str, Callable[[np.random.Generator], tuple[str, Graph, float]]] = {
    "C2D": lambda rng: _convolution(rng, 2, "C2D"),
    "GRP": lambda rng: _convolution(rng, 2, "GRP"),
    "DEP": lambda rng: _convolution(rng, 2, "DEP"),
    "DIL": lambda rng: _convolution(rng, 2, "DIL"),
    "C3D": lambda rng: _convolution(rng, 3, "C3D"),
    "C1D": lambda rng: _convolution(rng, 1, "C1D"),
    "GMM": _product,
    "T2D": lambda rng: _transposed(rng, 2),
    "T3D": lambda rng: _transposed(rng, 3),
}


def cases(count: int, operators: list[str], target: Target) -> list[tuple[Case, Task]]:
    """Random configurations of each operator that have layouts to choose."""
    found = []
    for name in operators:
        rng, number = np.random.default_rng([7, *name.encode()]), 0
        while number < count:
            text, graph, flops = OPERATORS[name](rng)
            if not LEAST_FLOPS < flops < MOST_FLOPS:
                continue
            case = Case(f"{name}-{number}", text, graph)
            if (task := case.task(target)) is not None:
                found.append((case, task))
                number += 1
    return found


def search(
    case: Case, task: Task, target: Target, trials: int, folder: Path, before: Mapping[str, Any] | None
) -> dict[str, object]:
    """Both searches of a case, and the best of both and the untuned one in turns.

    Args:
        case, task: the operator.
        target: to compile for.
        trials: of each search.
        folder: of the records; what they hold is gone on from.
        before: what was kept of a run of as many trials, of which only the last comparison is done once more.
    """
    options = CompileOptions(case.name, "onnx", "")
    best: dict[str, Config] = {"untuned": task.space.default}
    seconds: dict[str, float] = {}
    with LocalMeasurer(
        [task], target, threads=1, compile_options=options, rng=np.random.default_rng(0)
    ) as measurer:  # fmt: skip
        for variant, levels in VARIANTS.items():
            begun = time.monotonic()
            limits = TuneOptions(trials=trials, layouts=levels, joint=JOINT)
            with Journal(folder / f"{case.name}-{variant}.jsonl") as journal:
                (state,) = Session([task], target, measurer, limits, journal).run().states
            seconds[variant] = time.monotonic() - begun
            if state.decided is not None:
                best[variant] = state.decided
        distinct = {tuple(sorted(c.items())): c for c in best.values()}  # one configuration has one time
        found = dict(zip(distinct, measurer.compare(0, list(distinct.values())), strict=True))
        timed: list[Measurement] = [found[tuple(sorted(c.items()))] for c in best.values()]
        least = measurer.least_seconds(0)
    others = seconds_of_peers(case.graph, folder) if before else {}
    layouts: dict[str, str] = {}
    try:
        layouts = primitives_of(task, target, best.get("ALT", {}))
    except ScheduleError as error:
        layouts = {"refused": error.message}
    return {
        "case": case.name, "shapes": case.shapes, "trials": trials, "flops": task.flops,
        "seconds": {name: m.seconds for name, m in zip(best, timed, strict=True)},
        "search_seconds": before["search_seconds"] if before else {v: round(s, 2) for v, s in seconds.items()},
        "layouts": layouts, "least_seconds": least, "alone": before is not None, "peers": others,
        "padded": {name: padded(task, target, best.get(name, task.space.default)) for name in ("untuned", "ALT")},
    }  # fmt: skip


def padded(task: Task, target: Target, config: Config) -> float:
    """Times as many results as there are that a configuration computes, since its blocks are padded."""
    (found,) = candidate(task, target, config).outputs
    return prod(found.type.physical_shape) / prod(found.type.shape)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The result as Markdown."""
    here = ", ".join(map(str, machine.describe().values()))
    heads = [
        "case", "shapes", "trials", "untuned ms", "loops ms", "joint ms", "joint over loops", "of the limit",
        "results computed, untuned and joint",
        *(f"{name} ms" for name in NAMES), "its result lies",
    ]  # fmt: skip
    lines = [
        "# ALT, figure 9: layouts and loops together against loops alone", "", here, "", REMARKS.strip(), "",
        f"| {' | '.join(heads)} |", "|---" * len(heads) + "|",
    ]  # fmt: skip
    ratios, rates, peers, long_peers = [], [], [], []
    for row in rows:
        s, others = row["seconds"], row.get("peers", {})
        if not all(s.get(name) for name in ("untuned", *VARIANTS)):
            lines.append(f"| {row['case']} | {row['shapes']} | {row['trials']} |" + " |" * (len(heads) - 3))
            continue
        ratios.append(s["ALT-OL"] / s["ALT"])
        rates.append(row["search_seconds"]["ALT-OL"] / row["search_seconds"]["ALT"])
        cells = [row["case"], row["shapes"], str(row["trials"])]
        cells += [f"{1e3 * s[name]:.4f}" for name in ("untuned", *VARIANTS)]
        cells += [f"{ratios[-1]:.2f}", f"{row['least_seconds'] / s['ALT']:.0%}"]
        cells.append(" ".join(f"{row['padded'][name]:.2f}" for name in ("untuned", "ALT")))
        cells += [f"{1e3 * others[name]:.4f}" if name in others else "" for name in NAMES]
        lines.append(f"| {' | '.join([*cells, row['layouts'].get('result', OWN)])} |")
        if others:
            peers.append(min(others.values()) / s["ALT"])
            long_peers += [peers[-1]] if min(others.values()) > LONG else []
    if ratios:
        least, most = min(ratios), max(ratios)
        lines += ["", f"Geometric mean of {len(ratios)}: {_mean(ratios):.3f}; least {least:.2f}, most {most:.2f}."]
        lines += ["", f"Trials a second of the joint search, times those of loops only: {_mean(rates):.2f}."]
    if peers:
        text = f"Joint over the better of both engines: {_mean(peers):.2f} of {len(peers)}"
        text += f", and {_mean(long_peers):.2f} of the {len(long_peers)} where that takes {1e3 * LONG:g} ms or more"
        lines += ["", f"{text} (geometric means)."]
    return "\n".join([*lines, ""])


def _mean(ratios: Sequence[float]) -> float:
    return geometric_mean(ratios) if ratios else float("nan")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=10, help="of each operator")
    parser.add_argument("--trials", type=int, default=1000, help="of each search")
    parser.add_argument("--operators", default=",".join(OPERATORS), help="comma-separated")
    parser.add_argument("--target", default="x86")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no case begins")
    parser.add_argument("--again", action="store_true", help="only the last comparison of what is kept, once more")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    target, begun = get_target(given.target), time.monotonic()
    folder = given.out / "alt_fig9"
    folder.mkdir(parents=True, exist_ok=True)
    for case, task in cases(given.configurations, given.operators.split(","), target):
        kept = folder / f"{case.name}.json"
        before = json.loads(kept.read_text()) if kept.exists() else None
        done = before is not None and before["trials"] >= given.trials
        if done != given.again or (before is not None and before.get("alone")):
            continue
        if time.monotonic() - begun > given.seconds:
            break
        row = search(case, task, target, given.trials, folder, before if given.again else None)
        kept.write_text(json.dumps(row, indent=1) + "\n")
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    (given.out / "alt_fig9.md").write_text(page(rows), encoding="utf-8")
    print(page(rows))


if __name__ == "__main__":
    main()
