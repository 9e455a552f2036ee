"""Times the x86 target against onnxruntime: ``python -m benchmarks.bench_x86`` or ``make bench``.

Both engines take turns in blocks of a fraction of a second, so a machine that slows down slows both. Only one of them
is awake at a time. Given are medians over all runs with the median absolute deviation (MAD), and the ratio of the two
from pairs of neighbouring blocks: below 1, mlc is faster. The outputs of both are compared in the same go.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.engines import LOADERS, Arrays, Engine, EngineError, compile_apart, let_settle
from benchmarks.zoo import MODELS, build, sample_inputs

DEFAULT_MODELS = ("resnet18", "mobilenet_v1", "squeezenet", "bert_base")
# More CPU time than this share of the other's measurement means that an idle engine was not idle.
IDLE_SHARE = 0.02
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure: ``rounds`` blocks for each engine, each of about ``block_seconds``."""

    rounds: int
    block_seconds: float


NORMAL = Plan(rounds=12, block_seconds=0.4)
QUICK = Plan(rounds=4, block_seconds=0.1)


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its median absolute deviation."""

    median: float
    mad: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of some values, at least one."""
        middle = statistics.median(values)
        return cls(middle, statistics.median(abs(value - middle) for value in values), len(values))


@dataclass(slots=True)
class Result:
    """What was found for one model and one number of threads.

    Args:
        milliseconds: of one run, by engine; an engine that failed is absent.
        ratio: time of mlc over that of onnxruntime, if both ran.
        error: largest difference of their outputs over the largest magnitude, if both ran.
        compile_seconds: what mlc took to compile.
        idle_share: CPU time that engines used while the other was measured, over the whole time measured.
        failures: why an engine is absent.
    """

    model: str
    batch: int
    threads: int
    milliseconds: dict[str, Spread] = field(default_factory=dict)
    ratio: Spread | None = None
    error: float | None = None
    compile_seconds: float | None = None
    idle_share: float = 0.0
    failures: list[str] = field(default_factory=list)


def measure(engines: Sequence[Engine], plan: Plan) -> tuple[dict[str, list[list[float]]], float]:
    """Lets the engines take turns, in changing order.

    Returns:
        the seconds of every run, as one list for each round, by engine; and the share of that time for which engines
        used the processor although it was not their turn.
    """
    counts = {}
    for engine in engines:
        let_settle(engines)
        once = min(engine.time(2, warmup=2))
        counts[engine.name] = max(1, round(plan.block_seconds / once))
    blocks: dict[str, list[list[float]]] = {engine.name: [] for engine in engines}
    disturbance = 0.0
    for index in range(plan.rounds):
        for engine in engines if index % 2 == 0 else reversed(engines):
            let_settle(engines)
            others = [other for other in engines if other is not engine]
            before = sum(other.cpu_seconds() for other in others)
            blocks[engine.name].append(engine.time(counts[engine.name]))
            disturbance += sum(other.cpu_seconds() for other in others) - before
    total = sum(value for rounds in blocks.values() for block in rounds for value in block)
    return blocks, disturbance / total if total else 0.0


def paired_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Spread:
    """The ratio of the medians of blocks measured one after the other."""
    pairs = zip(ours, theirs, strict=True)
    return Spread.of([statistics.median(a) / statistics.median(b) for a, b in pairs])


def largest_error(ours: Arrays, theirs: Arrays) -> float:
    """The largest difference over the largest magnitude, for the worst output; infinite if shapes or names differ."""
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in ours):
        return math.inf
    worst = 0.0
    for name, expected in theirs.items():
        difference = float(np.abs(ours[name].astype(np.float64) - expected.astype(np.float64)).max(initial=0.0))
        scale = float(np.abs(expected).max(initial=0.0))
        error = difference / scale if scale > 0 else difference
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def bench(result: Result, files: dict[str, Path], inputs: Arrays, plan: Plan) -> Result:
    """Fills in a result: starts the engines, measures them in turn and compares their outputs."""
    engines: list[Engine] = []
    try:
        for name, file in files.items():
            try:
                engines.append(Engine(name, file, result.threads, inputs))
            except EngineError as error:
                result.failures.append(str(error))
        blocks, result.idle_share = measure(engines, plan)
        seconds = {name: [value for block in rounds for value in block] for name, rounds in blocks.items()}
        result.milliseconds = {name: Spread.of([1e3 * value for value in values]) for name, values in seconds.items()}
        if {"mlc", "onnxruntime"} <= blocks.keys():
            result.ratio = paired_ratio(blocks["mlc"], blocks["onnxruntime"])
            outputs = {engine.name: engine.outputs() for engine in engines}
            result.error = largest_error(outputs["mlc"], outputs["onnxruntime"])
    except EngineError as error:
        result.failures.append(str(error))
    finally:
        for engine in engines:
            engine.close()
    return result


def bench_model(name: str, options: argparse.Namespace, plan: Plan, console: Console) -> list[Result]:
    """All results of one model: built or read, compiled once, measured with each number of threads."""
    with tempfile.TemporaryDirectory(prefix="mlc-bench-") as folder:
        label, model_file = Path(name).stem, Path(name)
        if name in MODELS:
            model_file = Path(folder, f"{name}.onnx")
            onnx.save(build(name, options.batch, options.small), model_file)
        inputs = sample_inputs(onnx.load(model_file))
        files = {engine: model_file for engine in options.engines}
        compile_seconds, failures = None, []
        if "mlc" in files:
            files["mlc"] = Path(folder, f"{label}.tar")
            try:
                with console.status(f"compiling {label}"):
                    compile_seconds = compile_apart(model_file, files["mlc"])
            except EngineError as error:
                failures.append(str(error))
                del files["mlc"]
        results = []
        for threads in options.threads:
            result = Result(label, options.batch, threads, compile_seconds=compile_seconds, failures=list(failures))
            with console.status(f"measuring {label} with {threads} thread{'s'[: threads > 1]}"):
                results.append(bench(result, files, inputs, plan))
        return results


HEADINGS = ("model", "threads", "mlc ms", "ort ms", "mlc / ort", "error", "compile s")


def row(result: Result) -> tuple[str, ...]:
    """One result as text under `HEADINGS`."""

    def spread(value: Spread | None) -> str:
        return f"{value.median:.3f} ±{value.mad / value.median:.1%}" if value else "-"

    return (
        result.model,
        str(result.threads),
        spread(result.milliseconds.get("mlc")),
        spread(result.milliseconds.get("onnxruntime")),
        spread(result.ratio),
        f"{result.error:.1e}" if result.error is not None else "-",
        f"{result.compile_seconds:.2f}" if result.compile_seconds is not None else "-",
    )


def remarks(results: Sequence[Result]) -> list[str]:
    """What a reader should know before trusting the table: failures, and engines that did not rest."""
    # A failure to compile is one and the same for all numbers of threads.
    lines = list(dict.fromkeys(f"{r.model}: {failure}" for r in results for failure in r.failures))
    lines += [
        f"{r.model}, {r.threads} threads: idle engines used CPU time worth {r.idle_share:.0%} of the measurement"
        for r in results
        if r.idle_share > IDLE_SHARE
    ]
    return lines


def markdown(results: Sequence[Result], about: dict[str, str]) -> str:
    """The table and the machine as a Markdown fragment."""
    lines = [
        f"| {' | '.join(HEADINGS)} |",
        f"|---{'|---:' * (len(HEADINGS) - 1)}|",
        *(f"| {' | '.join(row(result))} |" for result in results),
        "",
        "Median ± median absolute deviation in percent; a ratio below 1 means that mlc is faster.",
        "",
        *(f"- {key}: {value}" for key, value in about.items()),
        *(f"- note: {line}" for line in remarks(results)),
    ]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Result], about: dict[str, str], plan: Plan) -> dict[str, Any]:
    """The same for programs."""
    return {
        "schema": SCHEMA,
        "machine": about,
        "plan": asdict(plan),
        "results": [asdict(result) for result in results],
    }


def table(results: Sequence[Result]) -> Table:
    """The same for a terminal."""
    grid = Table(*HEADINGS, box=box.SIMPLE, pad_edge=False)
    for column in grid.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for result in results:
        style = "" if result.ratio is None else "green" if result.ratio.median <= 1 else "yellow"
        grid.add_row(*row(result), style=style)
    return grid


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def _engines(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(LOADERS):
        raise ValueError
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_x86", description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", default=list(DEFAULT_MODELS), help="names of the zoo, or .onnx files")
    add("--threads", type=_numbers, default=[1, 2], metavar="N,N", help="numbers of threads (default 1,2)")
    add("--batch", type=int, default=1, metavar="N", help="batch size of models from the zoo (default 1)")
    add("--small", action="store_true", help="the reduced models of the zoo")
    add("--engines", type=_engines, default=list(LOADERS), metavar="A,B", help=f"default {','.join(LOADERS)}")
    add("--quick", action="store_true", help="shorter and fewer blocks")
    add("--json", type=Path, metavar="FILE", help="write the results for programs")
    add("--markdown", type=Path, metavar="FILE", help="write the results for people")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line; ``arguments`` default to those of the process. Returns 1 if any engine failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in MODELS and not Path(name).is_file()]
    if unknown:
        parser.error(f"neither in the zoo nor a file: {', '.join(unknown)}")
    plan = QUICK if options.quick else NORMAL
    console = Console()
    # The table is legible when it wraps as a whole, not when its cells do.
    console.width = max(console.width, 100)
    about = machine.describe()
    for key, value in about.items():
        console.print(f"[dim]{key:9}[/] {value}", highlight=False)
    results = [result for name in options.models for result in bench_model(name, options, plan, console)]
    console.print(table(results))
    for line in remarks(results):
        console.print(line, style="red", highlight=False, markup=False)
    if options.json:
        options.json.write_text(json.dumps(as_json(results, about, plan), indent=2) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(markdown(results, about), encoding="utf-8")
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
