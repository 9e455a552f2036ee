"""Figure 18 of the TVM paper: convolutions of ResNet-18, data of 2 bits and weights of 1, on one thread and several.

    python -m benchmarks.papers.tvm_fig18 --packages build/fig18 --rounds 0     # builds, which takes longest
    python -m benchmarks.papers.tvm_fig18 --packages build/fig18 --cores 0,1
    python -m benchmarks.papers.tvm_fig18 --target "x86 -mcpu=haswell" --packages build/fig18-haswell   # AVX2: vpshufb

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.2. The paper
measured on a Cortex-A53 against Caffe2's library of such operators; here they stand beside this compiler's own
convolutions of bytes and of float32. Each layer reads what another one has left, as in a network, and ends in what the
next would read: products of bits in their packing and in sums that are rounded to 2 bits again. Times are those of the
layer's kernels, in turns; results of bits must equal those of bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

import mlc
from benchmarks import machine, plots
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.report import spread, table
from benchmarks.stats import Spread, geometric_mean
from benchmarks.zoo.operators import CONVOLUTIONS
from mlc.frontend.base import ModelSource
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.types import TensorType, f32, u8
from mlc.ops import get
from mlc.pipeline import passes
from mlc.runtime import Module, load_module
from mlc.targets.base import get_target
from mlc.targets.cpu.target import CpuTarget

LAYERS = {name: rest for name, *rest in CONVOLUTIONS if name != "C1"}
KINDS = ("float32", "int8", "w1a2")
SOURCE = "layer"  # what nodes of the measured layer stand for
ROUNDS, RUNS, CHAINS = 11, 12, 12  # samples; least runs of a sample; chains of instructions at the peak
PEAKS = 300  # samples of the peak, of about a millisecond
WARM = 5e6  # nanoseconds of a sample, and before it


@dataclass(frozen=True)
class Row:
    """A layer.

    Args:
        name: in the paper's table 2.
        macs: multiply-adds of numbers.
        milliseconds: by kind and threads.
    """

    name: str
    macs: int
    milliseconds: dict[str, dict[int, Spread]]

    def gain(self, kind: str, threads: int) -> float:
        """Of bits over another kind, each on so many threads."""
        return self.milliseconds[kind][threads].median / self.milliseconds["w1a2"][threads].median

    def rate(self, threads: int) -> float:
        """10^9 multiply-adds of bits' numbers a second."""
        return self.macs / self.milliseconds["w1a2"][threads].median / 1e6


def macs_of(edge: int, inner: int, outer: int, kernel: int, stride: int) -> int:
    return (edge // stride) ** 2 * inner * outer * kernel**2


def network(kind: str, edge: int, inner: int, outer: int, kernel: int, stride: int) -> Graph:
    """A convolution of one pixel that leaves the layer's data, and the layer."""
    rng = np.random.default_rng(inner * outer * kernel)
    b = Builder("layer")
    x = b.input("x", TensorType((1, 16, edge, edge), f32 if kind == "float32" else u8))

    def conv(x: Value, channels: int, size: int, step: int, name: str, levels: Sequence[int]) -> Value:
        shape = (channels, x.type.shape[1], size, size)
        weights = rng.choice(levels, shape)
        if kind == "float32":
            weights = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        w = b.constant(weights.astype(np.float32 if kind == "float32" else np.int8), f"{name}.w")
        attrs = {"strides": (step,) * 2, "pads": (size // 2,) * 4, "dilations": (1, 1)}
        (y,) = b.add(get("conv"), [x, w], attrs, sources=[name])
        if kind == "float32":
            (y,) = b.add(get("relu"), [y], sources=[name])
            return y
        most, scale = (3.0, 0.5) if kind == "w1a2" else (255.0, 0.01)
        (y,) = b.add(get("cast"), [y], {"to": "f32"}, sources=[name])
        (y,) = b.add(get("mul"), [y, b.constant(np.float32(scale / np.sqrt(np.prod(shape[1:]))), f"{name}.s")])
        (y,) = b.add(get("round"), [y], sources=[name])
        (y,) = b.add(get("clip"), [y], {"lo": 0.0, "hi": most}, sources=[name])
        (y,) = b.add(get("cast"), [y], {"to": "u8"}, sources=[name])
        return y

    wide = range(-127, 128)
    first = conv(x, inner, 1, 1, "first", (-1, 1) if kind == "w1a2" else wide)
    return b.finish([conv(first, outer, kernel, stride, SOURCE, (-1, 1) if kind == "w1a2" else wide)])


def built(folder: Path, kind: str, name: str, target: str) -> Path:
    """The package of a layer, built unless it is there."""
    path = folder / f"{name}-{kind}.tar"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        graph = network(kind, *LAYERS[name])
        package = _compiled(graph, target, ())
        if kind == "w1a2":
            _check(package, _compiled(graph, target, ("bits",)))
        package.save(path)
    return path


def _compiled(graph: Graph, target: str, disabled: Sequence[str]) -> mlc.Package:
    model = mlc.Model(graph, ModelSource("benchmark", "", "layer", "", "0" * 64, (), ()), "benchmark")
    return mlc.compile(model, target, disabled_passes=disabled)


def _check(bits: mlc.Package, octets: mlc.Package) -> None:
    """Both give the same numbers, and one of them has products of bits."""
    if "conv_bits" not in bits.members["graph.txt"].decode():
        raise AssertionError("the target does not multiply bits")
    with bits.load(2) as a, octets.load(1) as b:
        feeds = _feeds(a)
        (got,), (wanted,) = (list(m.run(feeds).values()) for m in (a, b))
    if len(np.unique(got)) < 2 or not np.array_equal(got, wanted):
        raise AssertionError("products of bits differ from those of bytes")


def _feeds(module: Module) -> dict[str, np.ndarray]:
    (spec,) = module.inputs
    rng = np.random.default_rng(0)
    if spec.dtype == "f32":
        return {spec.name: rng.standard_normal(spec.shape).astype(np.float32)}
    return {spec.name: rng.integers(0, 256, spec.shape).astype(np.uint8)}


def measured(
    names: Sequence[str], folder: Path, target: str, threads: Sequence[int], cores: Sequence[int], rounds: int
) -> list[Row]:
    """All layers in every kind and number of threads, in turns, so that what disturbs one for seconds disturbs all.

    One module is loaded at a time: threads of another one, which wait for work, would keep a core busy.
    """
    samples: dict[tuple[str, str, int], list[float]] = {
        (name, kind, n): [] for name in names for kind in KINDS for n in threads
    }
    for number in range(rounds):
        for name, kind, n in list(samples) if number % 2 else reversed(samples):
            with _loaded(built(folder, kind, name, target), n, cores) as module:
                feeds = _feeds(module)
                once = max(sum(s.median_ns for s in module.profile(feeds, 1)), 1)
                runs = max(RUNS, round(WARM / once))
                module.profile(feeds, runs)  # until all threads have got their cores
                steps = [s for s in module.profile(feeds, runs) if SOURCE in s.step.sources]
            samples[name, kind, n].append(float(np.median(np.sum([s.ns for s in steps], axis=0))) / 1e6)
    return [
        Row(name, macs_of(*LAYERS[name]), {k: {n: Spread.of(samples[name, k, n]) for n in threads} for k in KINDS})
        for name in names
    ]


def _loaded(path: Path, threads: int, cores: Sequence[int]) -> Module:
    """A module each of whose threads has a core of its own; this one has the first."""
    before = set(os.listdir("/proc/self/task"))
    module = load_module(path, threads)
    new = sorted(int(tid) for tid in set(os.listdir("/proc/self/task")) - before)
    for tid, core in zip(new, cores[1:], strict=False):
        os.sched_setaffinity(tid, {core})
    return module


def peak(target: str) -> float:
    """10^9 products of 2 bits by 1 a second that logic, counts and additions of a core allow, operands in registers."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    found = get_target(target)
    assert isinstance(found, CpuTarget)
    facts, counter = found.describe(), found.record.bit_counter
    assert counter is not None
    lanes, bits = counter.lanes, 32
    if counter.widen is not None:  # counts are added as bytes; to widen them is work beside these
        lanes, bits = 4 * lanes, 8
    machine_ = llvm.Target.from_default_triple().create_target_machine(
        cpu=str(facts["cpu"]), features=f"{facts['mattr']},-prefer-256-bit", opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_peak_ir(lanes, bits)), machine_)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)(engine.get_function_address("counts"))
    turns, times = 200_000, []
    for _ in range(PEAKS):
        start = time.perf_counter()
        call(12345, turns)
        times.append(time.perf_counter() - start)
    return turns * CHAINS * lanes * bits / 2 / min(times) / 1e9


def _peak_ir(lanes: int, bits: int) -> str:
    v, chains = f"<{lanes} x i{bits}>", range(CHAINS)
    return "\n".join(
        [
            f"declare {v} @llvm.ctpop.v{lanes}i{bits}({v})",
            "define i32 @counts(i32 %seed, i64 %turns) {",
            "entry:",
            f"  %few = {f'trunc i32 %seed to i{bits}' if bits < 32 else 'add i32 %seed, 0'}",
            f"  %one = insertelement {v} poison, i{bits} %few, i64 0",
            f"  %x = shufflevector {v} %one, {v} poison, <{lanes} x i32> zeroinitializer",
            *(f"  %w{k} = add {v} %x, splat (i{bits} {k + 1})" for k in chains),
            "  br label %loop",
            "loop:",
            "  %t = phi i64 [0, %entry], [%next, %loop]",
            *(f"  %a{k} = phi {v} [zeroinitializer, %entry], [%b{k}, %loop]" for k in chains),
            f"  %y = phi {v} [%x, %entry], [%z, %loop]",
            f"  %z = add {v} %y, %one",
            *(f"  %m{k} = xor {v} %y, %w{k}" for k in chains),
            *(f"  %c{k} = call {v} @llvm.ctpop.v{lanes}i{bits}({v} %m{k})" for k in chains),
            *(f"  %b{k} = add {v} %a{k}, %c{k}" for k in chains),
            "  %next = add i64 %t, 1",
            "  %more = icmp slt i64 %next, %turns",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *(f"  %s{k} = xor {v} {f'%s{k - 1}' if k else 'zeroinitializer'}, %b{k}" for k in chains),
            f"  %r = extractelement {v} %s{CHAINS - 1}, i64 0",
            f"  %all = {f'zext i{bits} %r to i32' if bits < 32 else 'add i32 %r, 0'}",
            "  ret i32 %all",
            "}",
        ]
    )


def markdown(rows: Sequence[Row], threads: Sequence[int], most: float, about: dict[str, str], picture: str) -> str:
    """The tables with the machine."""
    lines = [
        "# Figure 18 of the TVM paper: 2-bit data by 1-bit weights",
        "",
        *(f"- {k}: {v}" for k, v in about.items()),
    ]
    lines += [f"- peak of one core: {most:.0f} GMAC/s (2 × 1 bits, in registers)", ""]
    lines += [f"![{picture}]({picture})", ""] if picture else []
    for n in threads:
        heads = ("layer", *(f"{kind} ms" for kind in KINDS), "× float32", "× int8", "GMAC/s", "of the peak")
        cells = [
            (
                r.name,
                *(spread(r.milliseconds[kind][n]) for kind in KINDS),
                f"{r.gain('float32', n):.2f}",
                f"{r.gain('int8', n):.2f}",
                f"{r.rate(n):.0f}",
                f"{r.rate(n) / (n * most):.0%}",
            )
            for r in rows
        ]
        means = [geometric_mean([r.gain(kind, n) for r in rows]) for kind in ("float32", "int8")]
        cells.append(("mean", "", "", "", *(f"{m:.2f}" for m in means), "", ""))
        lines += [f"## {n} thread{'s' if n > 1 else ''}", "", *table(heads, cells), ""]
    return "\n".join(lines)


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig18", description=__doc__)
    add = parser.add_argument
    add("--target", default="x86", help="what for (default x86)")
    add(
        "--layers",
        nargs="+",
        choices=list(LAYERS),
        default=list(LAYERS),
        metavar="C2",
        help="which (default C2 to C12)",
    )
    add("--threads", type=_numbers, default=(1, 2), metavar="N,N", help="numbers of threads (default 1,2)")
    add("--cores", type=_numbers, default=(0, 1), metavar="N,N", help="that they run on (default 0,1)")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"samples of each, 0 to build only (default {ROUNDS})")
    add("--packages", type=Path, default=Path("build/fig18"), metavar="DIR", help="where modules are built and kept")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    console = Console()
    passes.WORTH_BITS = 0.0  # the figure is about bits, also where the cost model would take bytes
    for name in options.layers:
        for kind in KINDS:
            built(options.packages, kind, name, options.target)
    if not options.rounds:
        return
    with _pinned(options.cores[0]):
        before = peak(options.target)
        rows = measured(
            options.layers, options.packages, options.target, options.threads, options.cores, options.rounds
        )
        most = max(before, peak(options.target))
    about = machine.describe() | {"target": options.target}
    bars = {f"{kind}, {n} threads": [r.gain(kind, n) for r in rows] for kind in KINDS[:2] for n in options.threads}
    _, *named = options.target.split("-mcpu=")
    files = keep(
        "_".join(["tvm_fig18", *named]),
        options.out,
        {"machine": about, "peak_gmacs": most, "rows": [asdict(r) for r in rows]},
        lambda picture: markdown(rows, options.threads, most, about, picture),
        lambda file: plots.bars(file, [r.name for r in rows], bars, "w1a2 (times as fast as)", "speed-up"),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
