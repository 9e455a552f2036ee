"""The master template beside those that are made for an operator: ``python -m benchmarks.master``, on a quiet machine.

Both are tuned on one thread with the options that ``mlc tune`` has unless told otherwise; convolutions are direct ones,
as the master template's are. What was measured stays in a folder, so a run that is stopped goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks.report import table

OPERATORS = ("C2", "C9", "D3", "MM1")
TRIALS = 500


def seconds_of(name: str, template: str | None, trials: int, folder: Path) -> tuple[float, float]:
    """Seconds of a call with what a template has untuned, and with the best that was found."""
    from benchmarks.zoo import build
    from mlc import api
    from mlc.settings import CompileOptions
    from mlc.targets.base import get_target
    from mlc.tuning.drive import tune_graph
    from mlc.tuning.options import TuneOptions

    file, records = folder / f"{name}.onnx", folder / f"{name}-{template or 'usual'}.jsonl"
    onnx.save(build(name), file)
    options = CompileOptions(name, "onnx", "", disabled_passes=("winograd",))
    outcome = tune_graph(
        api.load(file).graph, get_target("x86"), options, TuneOptions(trials=trials, template=template),
        records=records, threads=1, check_whole=False,
    ).outcome  # fmt: skip
    state = max(outcome.states, key=lambda s: s.task.flops)
    return state.seconds_of(state.task.space.default), state.best


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.master", description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*", default=OPERATORS, help=f"of the zoo (default: {' '.join(OPERATORS)})")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"of each template (default: {TRIALS})")
    parser.add_argument("--out", type=Path, default=Path("build/master"), help="where records are kept")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.operators:
        first, best = seconds_of(name, "master", options.trials, options.out)
        untuned, made = seconds_of(name, None, options.trials, options.out)
        cells = [f"{1e6 * s:.1f}" for s in (untuned, made, first, best)]
        rows.append((name, *cells, f"{made / best:.2f}"))
        columns = ("operator", "made for it: us untuned", "tuned", "master: us untuned", "tuned", "times as fast")
        Console(width=200).print("\n".join(table(columns, rows, left=1)), highlight=False)


if __name__ == "__main__":
    main()
