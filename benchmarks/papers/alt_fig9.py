"""ALT, figure 9: operators searched over loops alone (ALT-OL) and over layouts and loops together, at equal budgets.

Operators stand as in a network: whatever reads their result takes any layout, and an input that a layout wants
otherwise is converted by the operator itself, in its time. The paper's numbers of channels and batches are drawn again
(its text does not tell all ranges). Both searches are by the explorer ``guided``; the best of each and the untuned one
take turns in the end. Trials are kept beside the result, and a run that was stopped goes on. ``--again`` repeats both
searches' last decision and that comparison, and measures the row's limit and other engines, unless these are known, so
that only these seconds need a machine at rest; ``--alone`` says that all of a row is measured on such a machine.
``--count`` has cachegrind count what the kernels of findings do, and the cost model say from their loops what bounds
them on this processor.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.papers.alt import SECONDS, names_of, row_kept
from benchmarks.papers.alt_fig9_page import complete, draw, findings, page
from benchmarks.papers.alt_limits import bytes_of, multiplied_lanes, multiply_adds, stream_seconds, whole_vectors
from benchmarks.papers.alt_peers import seconds as seconds_of_peers
from benchmarks.papers.cachegrind import counts_of_candidate, require_tools
from benchmarks.papers.keep import RESULTS, keep, keep_machine, machine_of, require_records
from mlc.errors import ScheduleError
from mlc.ir.graph import Builder as Graphs
from mlc.ir.graph import Graph
from mlc.ir.layout import Layout
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.records.files import read_records
from mlc.records.measurement import Measurement
from mlc.rewrite.workload import workload_document
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.targets.cpu.estimate import estimate
from mlc.targets.cpu.record import Cpu
from mlc.tuning.joint import JOINT, layout_space, layouts_in, loop_space, primitives_of
from mlc.tuning.journal import Journal
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.measure.builder import Builder
from mlc.tuning.options import TuneOptions
from mlc.tuning.session import Session
from mlc.tuning.task import Task, candidate, task_of, tasks_of

VARIANTS: Mapping[str, int] = {"ALT-OL": 0, "ALT": 1}  # levels of searched layouts
MOST_FLOPS = 4e8  # of a configuration, so that a search takes seconds
LEAST_FLOPS = 1e6
TURNS = 3  # comparisons in the end
COUNTED = "x86 -mcpu=haswell"  # what cachegrind knows


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
        task = task_of(workload_document(last.node, replace(last.site, row_major=False)), (), target)
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
    g = Graphs(kind)
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
    g = Graphs("transposed")
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
    g = Graphs("GMM")
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


def cases(count: int, operators: Sequence[str], target: Target) -> list[tuple[Case, Task]]:
    """Random configurations of each operator that have layouts to choose: the first of all, then the second of all."""
    found: list[tuple[int, Case, Task]] = []
    for name in operators:
        rng, number = np.random.default_rng([7, *name.encode()]), 0
        while number < count:
            text, graph, flops = OPERATORS[name](rng)
            if not LEAST_FLOPS < flops < MOST_FLOPS:
                continue
            case = Case(f"{name}-{number}", text, graph)
            if (task := case.task(target)) is not None:
                found.append((number, case, task))
                number += 1
    return [(case, task) for _, case, task in sorted(found, key=lambda f: f[0])]


class Searched:
    """Both searches of a case, with the records that are beside the result.

    Args:
        case, task: the operator.
        target: to compile for.
        trials: of each search.
        folder: of the records; what they hold is gone on from.
    """

    def __init__(self, case: Case, task: Task, target: Target, trials: int, folder: Path) -> None:
        self.case, self.task, self.target, self.trials, self.folder = case, task, target, trials, folder
        self.best: dict[str, Config] = {"untuned": task.space.default}
        self.seconds: dict[str, float] = {}

    def run(self, measurer: LocalMeasurer, *, again: bool) -> None:
        """Searches, or decides once more between what was found."""
        for variant, levels in VARIANTS.items():
            limits = TuneOptions(trials=self.trials, layouts=levels, joint=JOINT)
            with Journal(self.folder / f"{self.case.name}-{variant}.jsonl") as journal:
                session = Session([self.task], self.target, measurer, limits, journal)
                (state,) = session.run().states
                if again:
                    session.decide(state)
            self.seconds[variant] = round(read_records([self.folder / f"{self.case.name}-{variant}.jsonl"]).seconds, 2)
            if state.decided is not None:
                self.best[variant] = state.decided

    def in_turns(self, measurer: LocalMeasurer) -> dict[str, Measurement]:
        """The least times of both and of the untuned configuration; one configuration has one time.

        Each comparison has buffers of its own: by where these lie, times of one and the same kernel differ by as much
        as 10 %, where what it moves just fits a cache.
        """
        distinct = {tuple(sorted(c.items())): c for c in self.best.values()}
        turns = [measurer.compare(0, list(distinct.values())) for _ in range(TURNS)]
        least = [min(some, key=lambda m: m.seconds or float("inf")) for some in zip(*turns, strict=True)]
        found = dict(zip(distinct, least, strict=True))
        return {name: found[tuple(sorted(c.items()))] for name, c in self.best.items()}

    @property
    def layouts(self) -> dict[str, str]:
        """The primitives of what the joint search has found."""
        try:
            return primitives_of(self.task, self.target, self.best.get("ALT", {}))
        except ScheduleError as error:
            return {"refused": error.message}


def row_of(
    case: Case, task: Task, target: Target, trials: int, folder: Path, before: Mapping[str, Any] | None, alone: bool
) -> dict[str, Any]:
    """Both searches of a case, the best of both and the untuned one in turns, and the limit of the machine.

    Args:
        case, task, target, trials, folder: as for :class:`Searched`.
        before: what was kept of a run of as many trials, of which only the last decisions are done once more.
        alone: whether the machine is at rest, so that other engines are measured.
    """
    options = CompileOptions(case.name, "onnx", "")
    found = Searched(case, task, target, trials, folder)
    with LocalMeasurer(
        [task], target, threads=1, compile_options=options, rng=np.random.default_rng(0)
    ) as measurer:  # fmt: skip
        found.run(measurer, again=before is not None)
        timed = found.in_turns(measurer)
        peak = measurer.peak
    moved = stream_seconds(bytes_of(case.graph), str(target.describe()["string"]))
    return {
        "case": case.name, "shapes": case.shapes, "trials": trials,
        "seconds": {name: m.seconds for name, m in timed.items()},
        "search_seconds": found.seconds,
        "searched_alone": alone if before is None else before.get("searched_alone", False),
        "layouts": found.layouts, "multiply_adds": multiply_adds(case.graph), "bytes": bytes_of(case.graph),
        "whole": _whole(case, target),
        "peak": peak, "stream_seconds": moved, "alone": alone,
        "peers": (before or {}).get("peers") or (seconds_of_peers(case.graph, folder) if alone else {}),
        "padded": {name: padded(task, target, found.best.get(name, task.space.default)) for name in ("untuned", "ALT")},
        "config": dict(found.best.get("ALT", {})),
        "elsewhere": lies_elsewhere(task, target, found.best.get("ALT", {}), found.layouts),
    }  # fmt: skip


def _whole(case: Case, target: Target) -> dict[str, int]:
    """Multiply-adds of whole vectors that a case needs, on a processor, by what these hold."""
    record = getattr(target, "record", None)
    return whole_vectors(case.graph, multiplied_lanes(record)) if isinstance(record, Cpu) else {}


def padded(task: Task, target: Target, config: Config) -> float:
    """Times as many results as there are that a configuration computes, since its blocks are padded."""
    (found,) = candidate(task, target, config).outputs
    return prod(found.type.physical_shape) / prod(found.type.shape)


def lies_elsewhere(task: Task, target: Target, config: Config, layouts: Mapping[str, str]) -> bool:
    """Whether a searched layout has a result, or an input, elsewhere in memory than the untuned one has it.

    Blocks of one and blocks of vectors may be written otherwise, by primitives of the search, and lie the same.
    """
    if not layouts or "refused" in layouts or any(name.startswith("operand 0") for name in layouts):
        return bool(layouts) and "refused" not in layouts
    space = loop_space(task, target, layouts_in(config))
    if space is None:
        return False
    own, found = (candidate(task, target, c).outputs[0].type for c in (task.space.default, space.default))
    numbers = np.arange(1, prod(own.shape) + 1).reshape(own.shape)
    return not np.array_equal(*(_in_memory(numbers, t.layout) for t in (own, found)))


def _in_memory(numbers: np.ndarray, layout: Layout | None) -> np.ndarray:
    return (numbers if layout is None else layout.core.pack(numbers)).reshape(-1)


def counted(case: Case, config: Config) -> dict[str, dict[str, int]]:
    """What cachegrind counts of the untuned kernel, and of that of a layout under its default loops.

    Raises:
        SystemExit: there is no C compiler, or no Valgrind.
    """
    target = get_target(COUNTED)
    task = case.task(target)
    assert task is not None
    space = loop_space(task, target, layouts_in(config))
    assert space is not None
    found = {}
    builder = Builder(target, CompileOptions(case.name, "onnx", ""))
    for name, chosen in (("untuned", task.space.default), ("layout", space.default)):
        with tempfile.TemporaryDirectory() as work:
            node = candidate(task, target, chosen)
            found[name] = counts_of_candidate(builder.build(task, chosen), node, Path(work))
    return found


def expected(task: Task, config: Config, target: Target) -> dict[str, dict[str, Any]]:
    """What the loops of the untuned kernel, and of that of a layout with its default loops, are expected to take."""
    space, record = loop_space(task, target, layouts_in(config)), getattr(target, "record", None)
    if space is None or not isinstance(record, Cpu):
        return {}
    kernels = {"untuned": task.space.default, "layout": space.default}
    return {n: estimate(target.kernel(candidate(task, target, c), "k"), record).to_json() for n, c in kernels.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=10, help="of each operator")
    parser.add_argument("--trials", type=int, default=1000, help="of each search")
    parser.add_argument("--operators", type=names_of(OPERATORS), default=",".join(OPERATORS), help="comma-separated")
    parser.add_argument("--cases", help="only these of them, comma-separated")
    parser.add_argument("--target", default="x86")
    parser.add_argument("--seconds", type=float, default=float("inf"), help=SECONDS)
    parser.add_argument("--again", action="store_true", help="only the last decisions of what is kept, once more")
    parser.add_argument("--alone", action="store_true", help="nothing else runs: measure other engines, too")
    parser.add_argument("--count", action="store_true", help="only count what the kernels of findings do")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.count:
        require_tools()
    target, begun, here = get_target(given.target), time.monotonic(), machine.describe()
    folder = given.out / "alt_fig9"
    folder.mkdir(parents=True, exist_ok=True)
    every = cases(given.configurations, given.operators, target)
    wanted = None if given.cases is None else given.cases.split(",")
    for case, task in every if not given.count else []:
        if wanted is not None and case.name not in wanted:
            continue
        kept, before = folder / f"{case.name}.json", row_kept(folder, case.name)
        done = before.get("trials", -1) >= given.trials
        if (not before or before.get("alone")) if given.again else done:
            continue
        if time.monotonic() - begun >= given.seconds:
            break
        if given.again:
            require_records(kept, [folder / f"{case.name}-{variant}.jsonl" for variant in VARIANTS])
            row = row_of(case, task, target, before["trials"], folder, before, alone=True)
        else:
            row = row_of(case, task, target, given.trials, folder, None, given.alone)
        kept.write_text(json.dumps(row, indent=1) + "\n")
        keep_machine(folder, here)
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    for found in [r for r in findings(rows) if given.count and "expected" not in r]:
        ((case, task),) = [(c, t) for c, t in every if c.name == found["case"]]
        config = {name: tuple(v) if isinstance(v, list) else v for name, v in found["config"].items()}
        row = {**found, "counts": counted(case, config), "expected": expected(task, config, target)}
        (folder / f"{case.name}.json").write_text(json.dumps(row, indent=1) + "\n")
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    on = machine_of(folder)
    keep("alt_fig9", given.out, complete(rows), lambda picture: page(rows, picture, on), lambda path: draw(rows, path))
    print((given.out / "alt_fig9.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
