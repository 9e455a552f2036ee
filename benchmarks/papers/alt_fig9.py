"""ALT, figure 9: operators searched over loops alone (ALT-OL) and over layouts and loops together, at equal budgets.

Operators stand as in a network: whatever reads their result takes any layout, and an input that a layout wants
otherwise is converted by the operator itself, in its time. The paper's numbers of channels and batches are drawn again
(its text does not tell all ranges). Both searches are by the explorer ``guided``; the best of each and the untuned one
take turns in the end. Trials are kept beside the result, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.papers.keep import RESULTS
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
from mlc.tuning.task import Task, task_of, tasks_of

VARIANTS: Mapping[str, int] = {"ALT-OL": 0, "ALT": 1}  # levels of searched layouts
MOST_FLOPS = 4e8  # of a configuration, so that a search takes seconds
LEAST_FLOPS = 1e6


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


def search(case: Case, task: Task, target: Target, trials: int, folder: Path) -> dict[str, object]:
    """Both searches of a case, and the best of both and the untuned one in turns."""
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
    layouts: dict[str, str] = {}
    try:
        layouts = primitives_of(task, target, best.get("ALT", {}))
    except ScheduleError as error:
        layouts = {"refused": error.message}
    return {
        "case": case.name, "shapes": case.shapes, "trials": trials, "flops": task.flops,
        "seconds": {name: m.seconds for name, m in zip(best, timed, strict=True)},
        "search_seconds": {name: round(s, 2) for name, s in seconds.items()}, "layouts": layouts,
    }  # fmt: skip


def page(rows: list[dict[str, object]]) -> str:
    """The result as Markdown."""
    here = ", ".join(map(str, machine.describe().values()))
    lines = [
        "# ALT, figure 9: layouts and loops together against loops alone", "", here, "",
        "| case | shapes | trials | untuned ms | loops ms | joint ms | joint over loops | its result lies |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    ratios, rates = [], []
    for row in rows:
        s = row["seconds"]
        assert isinstance(s, dict)
        assert isinstance(row["layouts"], dict)
        if not all(s.get(name) for name in ("untuned", *VARIANTS)):
            lines.append(f"| {row['case']} | {row['shapes']} | {row['trials']} | | | | not measured | |")
            continue
        ratios.append(s["ALT-OL"] / s["ALT"])
        if took := row.get("search_seconds"):
            assert isinstance(took, dict)
            rates.append(took["ALT-OL"] / took["ALT"])
        times = " | ".join(f"{1e3 * s[name]:.4f}" for name in ("untuned", *VARIANTS))
        layout = row["layouts"].get("result", "the target's own")
        lines.append(f"| {row['case']} | {row['shapes']} | {row['trials']} | {times} | {ratios[-1]:.2f} | {layout} |")
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        lines += ["", f"Geometric mean of {len(ratios)}: {mean:.3f}; least {min(ratios):.2f}, most {max(ratios):.2f}."]
    if rates:
        mean = float(np.exp(np.mean(np.log(rates))))
        lines += ["", f"Trials a second of the joint search, times those of loops only: {mean:.2f} (geometric mean)."]
    return "\n".join([*lines, ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=10, help="of each operator")
    parser.add_argument("--trials", type=int, default=1000, help="of each search")
    parser.add_argument("--operators", default=",".join(OPERATORS), help="comma-separated")
    parser.add_argument("--target", default="x86")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no case begins")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    target, begun = get_target(given.target), time.monotonic()
    folder = given.out / "alt_fig9"
    folder.mkdir(parents=True, exist_ok=True)
    for case, task in cases(given.configurations, given.operators.split(","), target):
        kept = folder / f"{case.name}.json"
        if kept.exists() and json.loads(kept.read_text())["trials"] >= given.trials:
            continue
        if time.monotonic() - begun > given.seconds:
            break
        kept.write_text(json.dumps(search(case, task, target, given.trials, folder), indent=1) + "\n")
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    (given.out / "alt_fig9.md").write_text(page(rows), encoding="utf-8")
    print(page(rows))


if __name__ == "__main__":
    main()
