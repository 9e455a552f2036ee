"""What layouts are worth on the accelerator VDLA: searches of loops alone, and of layouts and loops together.

    python -m benchmarks.vdla_layouts                          # some layers
    python -m benchmarks.vdla_layouts --vdla dram_latency=200
    python -m benchmarks.vdla_layouts --network resnet8        # the layers of a network of the zoo, and its regions

Every layer is searched with as many trials either way, by the same explorer. Cycles are those of the timing simulator,
and no clock ends anything, so every machine finds the same. "No latency" is the untuned program where transfers begin
at once: what fewer of them could save at most.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from rich.console import Console

import mlc
from benchmarks.report import table
from benchmarks.zoo import build, sample_inputs
from mlc.api import quantize
from mlc.errors import MlcError
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.types import TensorType, i8
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.records.measurement import Failure, Measurement
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Tunable
from mlc.tuning.joint import Neighbours
from mlc.tuning.journal import Journal
from mlc.tuning.measure.builder import region_of
from mlc.tuning.options import TuneOptions
from mlc.tuning.regions import FASTEST, LIKELY, best_together
from mlc.tuning.session import Session
from mlc.tuning.state import TaskState
from mlc.tuning.task import Task, candidate, tasks_of
from mlc.vdla.offload import VdlaAccelerator
from mlc.vdla.target import VdlaTarget

OPTIONS = CompileOptions("layers", "", "0" * 64)
SAMPLES = 4  # inputs that a network is calibrated with

# channels in and out, edge, window, stride, groups
LAYERS: dict[str, tuple[int, int, int, int, int, int]] = {
    "3x3, 64, 56": (64, 64, 56, 3, 1, 1), "3x3, 128, 28": (128, 128, 28, 3, 1, 1),
    "3x3, 256, 14": (256, 256, 14, 3, 1, 1), "3x3, 512, 7": (512, 512, 7, 3, 1, 1),
    "1x1 / 2, 64 to 128, 56": (64, 128, 56, 1, 2, 1), "1x1 / 2, 256 to 512, 14": (256, 512, 14, 1, 2, 1),
    "1x1, 128, 6": (128, 128, 6, 1, 1, 1), "1x1, 256, 3": (256, 256, 3, 1, 1, 1),
    "depthwise, 128, 6": (128, 128, 6, 3, 1, 128), "3x3, 64, 8": (64, 64, 8, 3, 1, 1),
    "3x3, 128, 4": (128, 128, 4, 3, 1, 1), "3x3, 256, 3": (256, 256, 3, 3, 1, 1),
}  # fmt: skip


def graph_of(inner: int, outer: int, edge: int, kernel: int, stride: int, groups: int) -> Graph:
    """A layer of bytes behind another one, which makes what it reads."""
    g, rng = Builder("layers"), np.random.default_rng(0)

    def conv(x: Value, o: int, k: int, step: int, parts: int) -> Value:
        c, pad = x.type.shape[1], k // 2
        w = g.constant(rng.integers(-127, 128, (o, c // parts, k, k)).astype(np.int8))
        attrs = {"strides": (step, step), "pads": (pad,) * 4, "dilations": (1, 1), "groups": parts}
        (sums,) = g.add(get("conv"), [x, w], attrs)
        bias = g.constant(rng.integers(-3000, 3000, (1, o, 1, 1)).astype(np.int32))
        (sums,) = g.add(get("add"), [sums, bias])
        (sums,) = g.add(get("relu"), [sums])
        (down,) = g.add(get("round_shift"), [sums, g.constant(np.array([9], np.int32))])
        (narrow,) = g.add(get("clip"), [down], {"lo": -128, "hi": 127})
        return g.add(get("cast"), [narrow], {"to": "i8"})[0]

    x = g.input("x", TensorType((1, inner, edge, edge), i8))
    return g.finish([conv(conv(x, inner, 1, 1, 1), outer, kernel, stride, groups)])


class Counted:
    """A measurer that asks the timing simulator, and runs nothing.

    Args:
        tasks: of the accelerator.
        target: it.
    """

    threads, flushed, peak = 1, False, 0.0

    def __init__(self, tasks: Sequence[Task], target: VdlaTarget) -> None:
        self._tasks, self._target = tasks, target

    def seconds(self, task: int, config: Config, *, latency: bool = True) -> float:
        """Of a layer alone, or of its program where transfers begin at once."""
        own = VdlaAccelerator(self._target.config)
        region = region_of(self._tasks[task], candidate(self._tasks[task], self._target, config), own)
        timed = own if latency else VdlaAccelerator(replace(own.config, dram_latency=0, dma_issue=0))
        return timed.region_seconds(region)

    def measure(
        self, task: int, configs: Sequence[Config], done: Callable[[int, Measurement], None] | None = None
    ) -> list[Measurement]:
        found = []
        for k, config in enumerate(configs):
            try:
                measured = Measurement(self.seconds(task, config))
            except MlcError as error:
                measured = Measurement(None, failure=Failure.BUILD_ERROR, message=str(error))
            found.append(measured)
            if done is not None:
                done(k, measured)
        return found

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        return self.measure(task, configs)


def searched(tasks: Sequence[Task], target: VdlaTarget, trials: int, explorer: str, levels: int) -> Sequence[TaskState]:
    """What a search of each task has found.

    Args:
        tasks: of the accelerator.
        target: it.
        trials: of each task.
        explorer: its name.
        levels: of tiles of layouts; 0 searches loops alone.
    """
    options = TuneOptions(trials=None, trials_per_task=trials, explorer=explorer, layouts=levels)
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder, Journal(Path(folder) / "records.jsonl") as journal:
        session = Session(tasks, target, Counted(tasks, target), options, journal)
        return session.run().states


def rows_of(
    names: Sequence[str], tasks: Sequence[Task], target: VdlaTarget, trials: int, explorer: str, levels: int
) -> list[list[str]]:
    """A row of the table a task: cycles untuned, without latency, after either search, and the layout that it found."""
    counted, hertz = Counted(tasks, target), target.config.freq_mhz * 1e6
    found = []
    apart, together = (searched(tasks, target, trials, explorer, n) for n in (0, levels))
    for k, (name, task) in enumerate(zip(names, tasks, strict=True)):
        untuned, free = (counted.seconds(k, task.space.default, latency=latency) for latency in (True, False))
        best = [state.fastest(1)[0] for state in (apart[k], together[k])]
        seconds = [untuned, free, *(counted.seconds(k, config) for config in best)]
        order = best[1].get("layout.order", ())
        layout = ", ".join(map(str, order)) if isinstance(order, tuple) and order else "its own"
        gain = f"{seconds[2] / seconds[3] - 1:.2%}"
        found.append([name, *(f"{round(s * hertz):,}" for s in seconds), gain, layout])
    return found


def regions(
    graph: Graph, tasks: Sequence[Task], target: VdlaTarget, trials: int, explorer: str, levels: int
) -> tuple[float, float]:
    """Cycles of a network's regions, untuned and with what is fastest in them.

    As ``mlc tune`` does it: the fastest of each layer alone, what is expected to be, and the neighbours of both.
    """
    states, accelerator = searched(tasks, target, trials, explorer, levels), target.accelerator
    assert isinstance(accelerator, Tunable)
    near = {t.key: Neighbours(t, target, levels) for t in tasks}
    wanted = {
        s.task.key: [*s.fastest(FASTEST), *accelerator.likely(s.task.node, s.task.constants or {})[:LIKELY]]
        for s in states
    }
    stand = accelerator.bench().open(1)
    found = best_together(graph, target, OPTIONS, stand, near, wanted, longest=math.inf)
    hertz = target.config.freq_mhz * 1e6
    return found.untuned * hertz, found.tuned * hertz


def network(name: str) -> Graph:
    """A network of the zoo in 8 bits, as the accelerator wants it."""
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        path, model = Path(folder) / "model.onnx", build(name)
        onnx.save(model, path)
        samples = [sample_inputs(model, k) for k in range(SAMPLES)]
        feeds = {key: np.concatenate([s[key] for s in samples]) for key in samples[0]}
        return quantize(mlc.load(path), feeds, "vdla").model.graph


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vdla_layouts", description=__doc__.splitlines()[0])
    parser.add_argument("--network", metavar="NAME", help="the layers of a network of the zoo, instead of those here")
    parser.add_argument("--layers", metavar="A;B", help="some of those here, by name")
    parser.add_argument("--trials", type=int, default=64, metavar="N", help="of each layer and search (default 64)")
    parser.add_argument("--explorer", default="guided", help="which one searches (default guided)")
    parser.add_argument("--levels", type=int, default=1, choices=(1, 2), help="of layouts (default 1)")
    parser.add_argument("--vdla", action="append", default=[], metavar="FIELD=VALUE", help="of the hardware record")
    options = parser.parse_args(arguments)
    target = VdlaTarget.from_options(dict(field.split("=", 1) for field in options.vdla))
    search = target, options.trials, options.explorer
    if options.network is not None:
        graph = network(options.network)
        tasks = [t for t in tasks_of(graph, target, OPTIONS, Observer()) if t.constants is not None]
        names = [f"{t.name} ({t.weight})" for t in tasks]
        for what, levels in (("loops", 0), ("layouts and loops", options.levels)):
            untuned, tuned = regions(graph, tasks, *search, levels)
            print(
                f"regions of {options.network}, {what}: {untuned:,.0f} cycles untuned, {tuned:,.0f} tuned", flush=True
            )
    else:
        names = options.layers.split(";") if options.layers else list(LAYERS)
        graphs = [graph_of(*LAYERS[name]) for name in names]
        tasks = [t for g in graphs for t in tasks_of(g, target, OPTIONS, Observer()) if not t.fixed]
    headings = ["layer", "untuned", "no latency", "loops", "layouts and loops", "gain", "layout"]
    found = rows_of(names, tasks, *search, options.levels)
    for line in table(headings, found):
        Console(width=200).print(line, markup=False, highlight=False)


if __name__ == "__main__":
    main()
