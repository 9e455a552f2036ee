"""Figure 10 of the TVM paper: what hiding memory latency gains on the accelerator, layer by layer.

    python -m benchmarks.papers.tvm_fig10

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018. The paper measured the
convolutions of ResNet-18 on an FPGA; here they run on the timing simulator, which is deterministic, with every
instruction, token, micro-op and fetch of the stream that the compiler makes. For every way of running, the plans that
are expected to be the fastest are simulated, and the fastest is kept; its results are checked against numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from benchmarks.zoo.operators import CONVOLUTIONS
from mlc.errors import ScheduleError
from mlc.ir.graph import Node, Value
from mlc.ir.layout import blocked
from mlc.ir.types import TensorType, i8, i32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.vdla.check import check
from mlc.vdla.codegen.region import compile_layer
from mlc.vdla.config import PROFILES
from mlc.vdla.layer import Convolution
from mlc.vdla.program import Program
from mlc.vdla.reports import Point, roofline
from mlc.vdla.schedules import plan_layer
from mlc.vdla.schedules.conv import Threads
from mlc.vdla.schedules.select import Plan, likely_plans
from mlc.vdla.schedules.shape import Shape
from mlc.vdla.sim import Device
from mlc.vdla.sim.report import Report
from mlc.vdla.sim.report import assumptions as assumptions_of

PLANS = 16  # simulated for each layer and way
SHIFT = 10  # binary places that results lose where they are stored as i8


@dataclass(frozen=True)
class Way:
    """A way of running.

    Args:
        profile: of the accelerator.
        ahead: whether loads run ahead as far as there is room.
        threads: what virtual threads share, each with places of its own.
        structural: whether tokens follow from the structure of loops and threads, as published.
    """

    profile: str
    ahead: bool
    threads: tuple[Threads, ...] = (Threads.NONE,)
    structural: bool = False


WAYS = {
    "no hiding": Way("osdi18", False),
    "virtual threads": Way("osdi18", False, (Threads.ROWS, Threads.BLOCKS)),
    "threads, tokens by structure": Way("osdi18", False, (Threads.ROWS, Threads.BLOCKS), True),
    "loads ahead": Way("osdi18", True),
    "full": Way("full", True),
}
PAPER = {"no hiding": 0.70, "threads, tokens by structure": 0.88}  # peak utilisation


@dataclass(frozen=True)
class Result:
    """A layer in one way.

    Args:
        cycles: all, until the last result is stored.
        util: matrix unit's busy cycles over all.
        eta: cycles of the roofline over all.
        gops, intensity: 10^9 operations a second, and operations a byte of the layer's tensors.
        untuned: cycles of the plan that the compiler takes by itself; 0 where it would take another way.
        plan: the configuration.
    """

    layer: str
    way: str
    cycles: int
    util: float
    eta: float
    gops: float
    intensity: float
    instructions: int
    micro_ops: int
    bytes: dict[str, int]
    stalls: dict[str, dict[str, float]]
    untuned: int
    plan: dict[str, Any]


def layer_of(name: str, edge: int, inner: int, outer: int, kernel: int, stride: int, narrow: bool) -> Convolution:
    """A convolution of the paper's table 2 with random weights; ``narrow`` results are i8, others i32."""
    rng = np.random.default_rng(sum(map(ord, name)))
    size, pad = -(-edge // stride), kernel // 2
    shape, result = (1, inner, edge, edge), (1, outer, size, size)
    x = Value("x", TensorType(shape, i8).with_layout(blocked(shape, 1, 16)))
    out = Value("out", TensorType(result, i8 if narrow else i32).with_layout(blocked(result, 1, 16)))
    weights = rng.integers(-127, 128, (outer, inner, kernel, kernel)).astype(np.int8)
    shift = np.array([SHIFT], np.int32) if narrow else None
    pads = (pad, pad, pad, pad)
    attrs = {"strides": (stride, stride), "dilations": (1, 1), "pads": pads, "groups": 1}
    w, sums = Value("w", TensorType(weights.shape, i8)), Value("sums", TensorType(result, i32))
    product = Node(get("conv"), (x, w), attrs, (sums,), ())
    return Convolution(x, out, shape, result, product, weights, shift=shift)


def best_of(name: str, layer: Convolution, label: str, plans: int) -> Result:
    """The fastest of the plans that are expected to be fast, checked against numpy."""
    way = WAYS[label]
    config = PROFILES[way.profile]
    shape = Shape.of(layer, config)
    found: list[tuple[int, Plan, Program, Report]] = []
    for threads in way.threads:
        for plan in islice(likely_plans(shape, config, ahead=way.ahead, threads=threads), plans):
            plan = replace(plan, structural=way.structural)
            try:
                made = plan_layer(layer, config, Knobs(plan.config))
                program = compile_layer(layer, config, made)
            except ScheduleError:  # more threads than tiles, or more micro-ops than fit
                continue
            report = Device(config).run(program, exec=False)
            found.append((report.cycles, plan, program, report))
    cycles, plan, program, report = min(found, key=lambda f: f[0])
    verify(layer, program)
    facts = report.to_dict()
    return Result(
        name, label, cycles, facts["util"], facts["eta"], facts["gops"], facts["intensity"], facts["instructions"],
        len(program.uops), facts["bytes"], facts["stalls"], found[0][0] if way.ahead else 0, plan.config,
    )  # fmt: skip


def verify(layer: Convolution, program: Program) -> None:
    """Refuse a stream that the checker faults, or whose results are not numpy's."""
    faults = check(program)
    assert not faults, faults[0]
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, layer.shape).astype(np.int8)
    device = Device(program.config)
    out = np.zeros(layer.out.type.physical_shape, layer.out.type.dtype.numpy)
    device.bind("x", blocked(layer.shape, 1, 16).pack(x))
    device.bind("out", out)
    device.run(program, timing=False)
    got = blocked(layer.out_shape, 1, 16).unpack(out)
    assert np.array_equal(got, expected(layer, x)), "the simulator's results are not numpy's"


def expected(layer: Convolution, x: np.ndarray) -> np.ndarray:
    """What a layer gives, by float64 products, which are exact here."""
    (_, _, rows, columns), attrs = layer.out_shape, layer.product.attrs
    (top, left, _, _), (stride, _) = attrs["pads"], attrs["strides"]
    high, wide = layer.weights.shape[2:]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, top), (left, left)))
    sums = np.zeros(layer.out_shape[1:], np.float64)
    for r in range(high):
        for s in range(wide):
            window = padded[0, :, r::stride, s::stride][:, :rows, :columns]
            sums += np.tensordot(layer.weights[:, :, r, s].astype(np.float64), window, 1)
    whole = sums.astype(np.int64)[None]
    if layer.shift is None:
        return whole.astype(np.int32)
    return np.clip((whole + (1 << (SHIFT - 1))) >> SHIFT, -128, 127).astype(np.int8)


def markdown(results: Sequence[Result], assumptions: Sequence[str], picture: str = "") -> str:
    """The table, what was assumed, and what differs from the paper."""
    lines = ["# Figure 10 of the TVM paper: latency hiding on the accelerator", ""]
    lines += [*([f"![{picture}]({picture})", ""] if picture else []), "Assumptions (the paper states no memory):", ""]
    lines += [f"- {line}" for line in assumptions]
    by_layer: dict[str, dict[str, Result]] = {}
    for r in results:
        by_layer.setdefault(r.layer, {})[r.way] = r
    ways = [way for way in WAYS if any(r.way == way for r in results)]
    rows = []
    for name, found in by_layer.items():
        cells = [f"{100 * found[w].util:.1f}" if w in found else "" for w in ways if w != "full"]
        if "full" in found:
            f = found["full"]
            cells += [
                f"{f.cycles}",
                f"{100 * f.util:.1f}",
                f"{100 * f.eta:.1f}",
                f"{100 * f.eta * f.cycles / f.untuned:.1f}",
            ]
        rows.append((name, *cells))
    heads = [f"util % {w}" for w in ways if w != "full"]
    heads += ["cycles full", "util % full", "η % full", "η % full unsearched"] if "full" in ways else []
    lines += ["", *table(("layer", *heads), rows), ""]
    peaks = {w: max(r.util for r in results if r.way == w) for w in ways}
    lines += [f"- peak utilisation, {w}: {100 * peak:.1f} %" + _paper(w) for w, peak in peaks.items()]
    least = min((r.eta for r in results if r.way == "full"), default=0.0)
    lines += [f"- least η in profile `full`: {100 * least:.1f} % of the roofline"] if least else []
    lines += [
        "",
        "Utilisation is the time in which the matrix unit multiplies; η is the least time that products or compulsory",
        "bytes (every tensor once, of the input only rows that are needed) would take, over the time taken. All times",
        "are simulated, from the first fetch to the last byte stored.",
        "",
        "Where this differs from the paper:",
        "",
        "- It is a simulator whose memory, latencies and pipeline depths are assumptions; the paper measured an FPGA.",
        "- *No hiding*: one place for each operand, so that only what shares no place overlaps. *Virtual threads*:",
        "  two, each with places of its own; what both need is loaded once where it is loaded outside of them, else by",
        "  both. *Tokens by structure*: the same threads, and a token for each edge of the program, as published; in",
        "  the other columns tokens are those that conflicts demand, in streams in the order in which instructions",
        "  begin. *Loads ahead* (not in the paper): buffers go round the memories, and what these hold already is not",
        "  loaded again.",
        "- `osdi18` stores int32 results, so 1x1 layers (C3, C5, C8, C11) wait for memory whatever hides latency.",
        "- `full` is not in the paper: results are shifted, clamped and stored as int8, sums start without a pass that",
        "  clears, and a layer may begin with a part of another order.",
    ]
    return "\n".join(lines) + "\n"


def _paper(way: str) -> str:
    return f" (paper: {100 * PAPER[way]:.0f} %)" if way in PAPER else ""


def draw(results: Sequence[Result], file: Path) -> None:
    """The log-log roofline with every way's layers, as in the figure."""
    series: dict[str, list[Point]] = {}
    for r in results:
        series.setdefault(r.way, []).append(Point(r.layer, r.intensity, r.gops))
    file.write_bytes(roofline(series, PROFILES["osdi18"], file.suffix, "ResNet-18's convolutions on the accelerator"))


def as_json(results: Sequence[Result], assumptions: Sequence[str], plans: int) -> dict[str, Any]:
    """The same for programs."""
    ways = {name: asdict(way) for name, way in WAYS.items()}
    return {"assumptions": list(assumptions), "ways": ways, "plans": plans, "results": [asdict(r) for r in results]}


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tvm_fig10", description=__doc__)
    add = parser.add_argument
    names = [row[0] for row in CONVOLUTIONS[1:]]
    add("--layers", nargs="+", choices=names, default=names, metavar="C2", help="which of table 2 (default: C2 to C12)")
    add("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    add("--plans", type=int, default=PLANS, metavar="N", help=f"simulated for each layer and way (default {PLANS})")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("tvm_fig10", "matplotlib")
    console = Console()
    rows: Mapping[str, tuple[str, int, int, int, int, int]] = {row[0]: row for row in CONVOLUTIONS}
    results = []
    for name in options.layers:
        for way in options.ways:
            with console.status(f"{name}, {way}"):
                layer = layer_of(*rows[name], narrow=WAYS[way].profile != "osdi18")
                results.append(best_of(name, layer, way, options.plans))
            r = results[-1]
            console.print(f"{name} {way}: {r.cycles} cycles, util {r.util:.3f}, η {r.eta:.3f}", highlight=False)
    assumptions = assumptions_of(PROFILES["osdi18"])
    files = keep(
        "tvm_fig10",
        options.out,
        as_json(results, assumptions, options.plans),
        lambda picture: markdown(results, assumptions, picture),
        lambda file: draw(results, file),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)


if __name__ == "__main__":
    main()
