"""How fast the tuner measures: ``python -m benchmarks.trials``, on a machine that does nothing else.

Trials a second of operators with the options that ``mlc tune`` has unless told otherwise, and what they consist of:
seconds of one core that building a candidate takes, seconds of running it, and the share of the time for choosing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import onnx
from rich.console import Console

from benchmarks.report import table

OPERATORS = ("C6", "C9", "MM1")
TRIALS = 256  # what is done once for a task takes some 2 s


def measured(name: str, trials: int, threads: int | None, folder: Path) -> tuple[str, ...]:
    """A line of the table."""
    from benchmarks.zoo import build
    from mlc import api
    from mlc.records.files import read_records
    from mlc.records.record import DECIDED
    from mlc.settings import CompileOptions
    from mlc.targets.base import get_target
    from mlc.tuning.drive import tune_graph
    from mlc.tuning.options import TuneOptions

    file, records = folder / f"{name}.onnx", folder / f"{name}.jsonl"
    onnx.save(build(name), file)
    outcome = tune_graph(
        api.load(file).graph, get_target("x86"), CompileOptions(name, "onnx", ""), TuneOptions(trials=trials),
        records=records, threads=threads, check_whole=False,
    ).outcome  # fmt: skip
    results = [r.result for r in read_records([records]).records if r.explorer != DECIDED]
    building, running = fmean(r.build_seconds for r in results), fmean(r.run_seconds for r in results)
    noisy = sum(r.noisy for r in results) / len(results)
    rate, choosing = outcome.trials / outcome.seconds, outcome.exploring / outcome.seconds
    return (
        name, f"{outcome.trials}", f"{rate:.1f}", f"{building:.3f}", f"{running:.3f}", f"{100 * choosing:.0f}",
        f"{100 * noisy:.0f}",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials", description=__doc__)
    parser.add_argument("operators", nargs="*", default=OPERATORS, help=f"of the zoo (default: {' '.join(OPERATORS)})")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"of each operator (default: {TRIALS})")
    parser.add_argument("--threads", type=int, help="of a kernel (default: all cores)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        rows = [measured(name, options.trials, options.threads, Path(folder)) for name in options.operators]
    columns = ("operator", "trials", "a second", "s building", "s running", "% choosing", "% noisy")
    Console(width=200).print("\n".join(table(columns, rows, left=1)), highlight=False)


if __name__ == "__main__":
    main()
