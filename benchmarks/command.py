"""Measures this compiler against other engines: ``python -m benchmarks`` or ``make bench``; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks import limits, machine, plots
from benchmarks.measure import NORMAL, QUICK, Plan, Result, Workload, bench_workload
from benchmarks.peers import PEERS, EngineError, EngineSpec, parse_engines, require_installed, version
from benchmarks.report import Report, json_ready, line, markdown
from benchmarks.work import count_work
from benchmarks.zoo import MODELS, build, is_model, original_of
from benchmarks.zoo.operators import BATCH_MATMULS, CONVOLUTIONS, DEPTHWISE, MATMULS

_QUANTISED = ("resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "squeezenet", "shufflenet_v1", "bert_base")
# Models by group, and the kind under which a group is reported.
GROUPS = {
    "networks": [name for name, spec in MODELS.items() if spec.kind == "network"],
    "operators": [row[0] for row in (*CONVOLUTIONS, *DEPTHWISE, *MATMULS)],
    "batched": [row[0] for row in BATCH_MATMULS],
    "single": [name for name, spec in MODELS.items() if spec.kind == "single"],
    "int8": [f"{name}.int8" for name in _QUANTISED],
    "int7": [f"{name}.int7" for name in _QUANTISED],
}
KINDS = {"networks": "network", "operators": "operator", "batched": "batched", "single": "single"}
FLOAT = "mlc f32"  # label of what runs beside networks in 8 bits
QUICK_MODELS = ["resnet18", "mobilenet_v2", "dqn", "bert_tiny", "mobilenet_v2.int8", "C2", "C3", "D3", "MM1"]
QUICK_ENGINES = ("mlc", "onnxruntime", "openvino")


def workload(name: str, options: argparse.Namespace, folder: Path) -> Workload:
    """A model of the zoo, written to ``folder``, or an ONNX file."""
    if not is_model(name):
        model = onnx.load(name)
        work = count_work(model)
        return Workload(Path(name).stem, "file", Path(name), model, work.flops, work.bytes, work.written)
    model = build(name, options.batch, options.small)
    file = folder / f"{name}.onnx"
    onnx.save(model, file)
    work = count_work(model)
    original = original_of(name)
    if original is None:
        kind = next(KINDS[group] for group, names in GROUPS.items() if name in names)
        return Workload(name, kind, file, model, work.flops, work.bytes, work.written)
    before = folder / f"{original}.onnx"
    onnx.save(build(original, options.batch, options.small), before)
    return Workload(name, "int8", file, model, work.flops, work.bytes, work.written, before)


def run(
    options: argparse.Namespace, specs: Sequence[EngineSpec], plan: Plan, console: Console, results: list[Result]
) -> None:
    """Measures one model after the other, says what came out, and adds it to ``results``."""
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder, console.status(name) as status:
            work = workload(name, options, Path(folder))
            ours = [replace(spec, label=FLOAT, original=True) for spec in specs if spec.ours][:1]
            engines = specs if work.original is None else [*specs, *ours]
            found = bench_workload(work, engines, options.threads, plan, options.cores, status.update)
        for result in found:
            console.print(line(result), highlight=False, markup=False, soft_wrap=True)
        for reason in dict.fromkeys(reason for result in found for reason in result.failures.values()):
            console.print(f"{name}: {reason}", style="red", highlight=False, markup=False, soft_wrap=True)
        results += found


def write(report: Report, folder: Path, console: Console) -> None:
    """The tables for people and for programs, and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    document = json.dumps(json_ready(report.to_json()), indent=1, ensure_ascii=False)
    (folder / "bench.json").write_text(document + "\n", encoding="utf-8")
    pictures = []
    if version("matplotlib"):
        pictures = plots.draw(report, folder)
    else:
        console.print("no pictures: matplotlib is not installed", style="yellow")
    (folder / "bench.md").write_text(markdown(report, pictures), encoding="utf-8")
    console.print(f"{folder}/: bench.md, bench.json{''.join(', ' + name for name in pictures)}", highlight=False)


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ValueError
    return numbers


def _threads(text: str) -> list[int]:
    numbers = _numbers(text)
    if min(numbers) < 1:
        raise ValueError
    return numbers


def _models(text: str) -> list[str]:
    names = [name for part in text.split(",") for name in GROUPS.get(part, [part])]
    unknown = [name for name in names if not is_model(name) and not Path(name).is_file()]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"neither in the zoo nor a file: {', '.join(unknown)}; groups are {', '.join(GROUPS)}"
        )
    return list(dict.fromkeys(names))


def _engines(text: str) -> list[EngineSpec]:
    try:
        specs = parse_engines(text)
        require_installed(specs)
    except EngineError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return specs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--models",
        type=_models,
        metavar="A,B",
        help=f"names of the zoo, {', '.join(GROUPS)}, or .onnx files (default: all of these groups but int7)",
    )
    add("--int8", action="store_true", help="the networks of the zoo in 8 bits: --models int8")
    add("--engines", type=_engines, metavar="A,B", help=f"of {', '.join(PEERS)}, with options as NAME[KEY=VALUE,...]")
    add("--threads", type=_threads, default=[1, 2], metavar="N,N", help="numbers of threads (default 1,2)")
    add(
        "--cores",
        type=_numbers,
        metavar="N,N",
        default=sorted(os.sched_getaffinity(0)),
        help="cores to pin engines to, the first for one thread (default: all that are usable)",
    )
    add("--out", type=Path, default=Path("build/bench"), metavar="DIR", help="where reports go (default build/bench)")
    add("--quick", action="store_true", help="less of everything: under 5 minutes")
    add("--rounds", type=int, metavar="N", help=f"blocks for each engine (default {NORMAL.rounds})")
    add("--seconds", type=float, metavar="S", help=f"length of a block (default {NORMAL.block_seconds})")
    add("--batch", type=int, default=1, metavar="N", help="batch size of models from the zoo (default 1)")
    add("--small", action="store_true", help="the reduced models of the zoo")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line; ``arguments`` default to those of the process. Returns 1 if an engine of ours failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.int8:
        if options.models is not None:
            parser.error("--int8 names the models already; NAME.int8 is one of them in 8 bits")
        options.models = GROUPS["int8"]
    if options.models is None:
        every = [name for group, names in GROUPS.items() if group != "int7" for name in names]
        options.models = QUICK_MODELS if options.quick else every
    if max(options.threads) > len(options.cores):
        parser.error(f"{max(options.threads)} threads need as many cores; there are {len(options.cores)}: --cores")
    console = Console()
    default = QUICK_ENGINES if options.quick else tuple(PEERS)
    specs = options.engines or [EngineSpec(PEERS[name], label=name) for name in default]
    absent = {spec.label: spec.peer.missing() for spec in specs if spec.peer.missing()}
    for label, packages in absent.items():
        console.print(f"{label} is left out: {', '.join(packages)} is not installed", style="yellow")
    specs = [spec for spec in specs if spec.label not in absent]
    base = QUICK if options.quick else NORMAL
    plan = Plan(options.rounds or base.rounds, options.seconds or base.block_seconds, base.patience)
    about = machine.describe() | {"cores used": ", ".join(map(str, options.cores[: max(options.threads)]))}
    for key, value in about.items():
        console.print(f"[dim]{key:10}[/] {value}", highlight=False)
    engines = {spec.label: f"{version(spec.peer.packages[0])}, {spec.peer.what}" for spec in specs}
    if any(original_of(name) for name in options.models):
        engines[FLOAT] = "the first, on the network before it was quantised"
    with console.status("measuring the machine's limits"):
        roofs = limits.measure(options.cores, options.threads)
    for limit in roofs:
        console.print(limits.line(limit), highlight=False)
    results: list[Result] = []
    try:
        run(options, specs, plan, console, results)
    finally:
        # An hour's work is not lost to Ctrl-C.
        write(Report(plan, about, engines, results, roofs, machine.cache_sizes()), options.out, console)
    ours = {spec.label for spec in specs if spec.ours}
    return int(any(ours & result.failures.keys() for result in results))
