"""Figure 7 of the TVM paper: matrix products on a GPU with and without cooperative fetching into shared memory.

    python -m benchmarks.papers.tvm_fig7                                     # this machine's NVIDIA GPU
    python -m benchmarks.papers.tvm_fig7 --target "opencl -device=pocl"      # a rehearsal on a processor

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 4.2. Both sides
are this compiler's product template at its best of some tiles, with its knob ``shared`` on and off; the tiles are those
that the cost model thinks best, for either. Times are those of the device's events, in turns. Beside them, where
PyTorch finds the GPU, is its product (cuBLAS; TF32 off).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from rich.console import Console

import mlc
from benchmarks import machine, plots
from benchmarks.papers.devices import REHEARSAL, name_for
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.report import spread, table
from benchmarks.stats import Spread
from benchmarks.zoo.builder import Net
from mlc.api import tuning_tasks
from mlc.errors import ScheduleError, UsageError
from mlc.harness.compare import compare, tolerance_for
from mlc.lower.knobs import Config
from mlc.settings import CompileOptions
from mlc.targets.base import Target, get_target
from mlc.targets.bench import Stand
from mlc.targets.gpu.accelerator import GpuAccelerator
from mlc.targets.gpu.cost import Product, seconds, tiles
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.candidate import Candidate, Packed
from mlc.tuning.measure.cases import Case
from mlc.tuning.task import Task, candidate

SIZES = (1024, 2048)
TILES, ROUNDS, CALLS = 12, 9, 5  # tried of each kind; samples; runs of a sample
SIDES = {"cooperative fetching": True, "without": False}


@dataclass(frozen=True)
class Row:
    """One size.

    Args:
        size: rows, columns and depth.
        milliseconds: by side.
        config: the best, by side.
    """

    size: int
    milliseconds: dict[str, Spread]
    config: dict[str, Config]

    @property
    def gain(self) -> float:
        """Of cooperative fetching."""
        with_, without = (self.milliseconds[side].median for side in SIDES)
        return without / with_


def product(size: int) -> onnx.ModelProto:
    """Two square inputs and their product."""
    net = Net(f"matmul{size}")
    a, b = net.input("a", (size, size)), net.input("b", (size, size))
    net.output(net.op("MatMul", a, b, name="matmul", result="c"), (size, size))
    return net.model()


def configs(accelerator: GpuAccelerator, size: int, *, shared: bool) -> list[Config]:
    """All tiles, the one that is expected to be fastest first."""
    p = Product(1, size, size, size, 4)
    likely = sorted(
        tiles(p, accelerator.record, shared=shared),
        key=lambda t: seconds(t, p, accelerator.record, shared=shared),
    )
    asked = [{k: v for k, v in asdict(t).items() if k != "versions" or accelerator.record.ahead} for t in likely]
    return [{"shared": shared, **config} for config in asked]


def run(size: int, target: str, count: int, rounds: int) -> Row:
    """Both sides at their best."""
    machine_ = get_target(target)
    accelerator = machine_.accelerator
    if not isinstance(accelerator, GpuAccelerator):
        raise UsageError(f"target {target!r} has no device that runs grids of threads")
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        onnx.save(product(size), Path(folder) / "m.onnx")
        (task,) = tuning_tasks(mlc.load(Path(folder) / "m.onnx"), target)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    case = Case((a, b), (a @ b,))
    bench = accelerator.bench().open(1)
    best: dict[str, tuple[float, Config, Candidate]] = {}
    builder = Builder(machine_, CompileOptions("matmul", "", ""))
    for side, shared in SIDES.items():
        tried = 0
        for config in configs(accelerator, size, shared=shared):
            if tried == count:
                break
            try:
                loaded = _loaded(bench, builder, machine_, task, config, case)
            except ScheduleError:
                continue
            tried += 1
            took = loaded.sample(1)
            if side in best and best[side][0] <= took:
                loaded.close()
                continue
            if side in best:
                best[side][2].close()
            best[side] = (took, config, loaded)
    samples: dict[str, list[float]] = {side: [] for side in best}
    for k in range(rounds):
        for side in list(best) if k % 2 == 0 else list(reversed(best)):
            samples[side].append(best[side][2].sample(CALLS) / CALLS / 1e6)
    for _, _, loaded in best.values():
        loaded.close()
    found = {side: Spread.of(times) for side, times in samples.items()}
    return Row(size, found | _cublas(a, b, rounds, target), {side: config for side, (_, config, _) in best.items()})


def _loaded(bench: Stand, builder: Builder, target: Target, task: Task, config: Config, case: Case) -> Candidate:
    """A candidate in the device, whose result is right."""
    program = builder.build(task, config)
    loaded = Candidate(bench, program, candidate(task, target, config), task.site.constant)
    loaded.run(Packed([case]), 0)
    (got,) = loaded.results()
    found = compare("c", got, case.results[0], tolerance_for(got.dtype))
    if not found.ok:
        raise AssertionError(f"{config}: {found.summary()}")
    return loaded


def _cublas(a: np.ndarray, b: np.ndarray, rounds: int, target: str) -> dict[str, Spread]:
    """PyTorch's product on the same GPU; nothing where there is none."""
    try:
        import torch
    except ImportError:
        return {}
    if target.split()[0] != "cuda" or not torch.cuda.is_available():
        return {}
    torch.backends.cuda.matmul.allow_tf32 = False
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds + 1):
        begin.record()
        for _ in range(CALLS):
            torch.matmul(x, y)
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / CALLS)
    return {"cuBLAS": Spread.of(times[1:])}


def markdown(rows: Sequence[Row], about: dict[str, str], picture: str = "") -> str:
    """The table with the machine."""
    lines = ["# Figure 7 of the TVM paper: cooperative fetching", "", *(f"- {k}: {v}" for k, v in about.items()), ""]
    lines += [f"![{picture}]({picture})", ""] if picture else []
    sides = list(dict.fromkeys(side for r in rows for side in r.milliseconds))
    cells = [
        (str(r.size), *(spread(r.milliseconds[s]) if s in r.milliseconds else "-" for s in sides), f"{r.gain:.2f}")
        for r in rows
    ]
    lines += table(("size", *(f"{s} ms" for s in sides), "gain"), cells, left=1)
    lines += ["", "The paper measured on an NVIDIA Titan X."]
    if "pocl" in about["target"]:
        lines += [REHEARSAL, "Shared memory is memory like any other there."]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig7", description=__doc__)
    add = parser.add_argument
    add("--target", default="cuda", help="what for (default cuda)")
    add("--sizes", type=lambda t: [int(n) for n in t.split(",")], default=SIZES, metavar="N,N", help="of the matrices")
    add("--tiles", type=int, default=TILES, metavar="N", help=f"tried of each kind (default {TILES})")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"samples of each (default {ROUNDS})")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    console = Console()
    rows = []
    for size in options.sizes:
        rows.append(run(size, options.target, options.tiles, options.rounds))
        console.print(f"{size}: {rows[-1].gain:.2f}x by cooperative fetching", highlight=False)
    about = machine.describe() | {"target": options.target}
    bars = {s: [r.milliseconds[s].median for r in rows if s in r.milliseconds] for s in rows[0].milliseconds}
    names = [str(r.size) for r in rows]
    files = keep(
        name_for("tvm_fig7", options.target),
        options.out,
        {"machine": about, "rows": [asdict(r) for r in rows]},
        lambda picture: markdown(rows, about, picture),
        lambda file: plots.bars(file, names, bars, "Matrix products (lower is better)", "milliseconds"),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


if __name__ == "__main__":
    main()
