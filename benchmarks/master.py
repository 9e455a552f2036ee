"""The master template beside those that are made for an operator: ``python -m benchmarks.master``, on a quiet machine.

Both are tuned on one thread with the options that ``mlc tune`` has unless told otherwise, those that are made for an
operator with fewer trials, since they are near their best untuned; then the best of both are timed in turns.
Convolutions are direct ones, as the master template's are. What was measured stays in a folder, so a run that is
stopped goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import onnx
from rich.console import Console

from benchmarks.report import table

if TYPE_CHECKING:
    from mlc.lower.knobs import Config
    from mlc.settings import CompileOptions
    from mlc.tuning.task import Task

OPERATORS = ("C2", "C9", "D3", "MM1")
TRIALS, MADE = 500, 100
ROUNDS = 9


def tuned(name: str, template: str | None, trials: int, folder: Path, options: CompileOptions) -> tuple[Task, Config]:
    """The task of an operator, and the best configuration that was found."""
    from benchmarks.zoo import build
    from mlc import api
    from mlc.targets.base import get_target
    from mlc.tuning.drive import tune_graph
    from mlc.tuning.options import TuneOptions

    file, records = folder / f"{name}.onnx", folder / f"{name}-{template or 'usual'}.jsonl"
    onnx.save(build(name), file)
    outcome = tune_graph(
        api.load(file).graph, get_target("x86"), options, TuneOptions(trials=trials, template=template),
        records=records, threads=1, check_whole=False,
    ).outcome  # fmt: skip
    state = max(outcome.states, key=lambda s: s.task.flops)
    assert state.decided is not None
    return state.task, state.decided


def in_turns(found: Sequence[tuple[Task, Config]], options: CompileOptions) -> list[float]:
    """Seconds of a call of some kernels, medians over rounds in which each has its turn."""
    from mlc.targets.base import get_target
    from mlc.tuning.measure import LocalMeasurer

    tasks, rng = [task for task, _ in found], np.random.default_rng(0)
    with LocalMeasurer(tasks, get_target("x86"), threads=1, compile_options=options, rng=rng) as measurer:
        rounds = [[measurer.measure(k, [c])[0].seconds for k, (_, c) in enumerate(found)] for _ in range(ROUNDS)]
    return [median(s for s in times if s is not None) for times in zip(*rounds, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    from mlc.settings import CompileOptions

    parser = argparse.ArgumentParser(prog="python -m benchmarks.master", description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*", default=OPERATORS, help=f"of the zoo (default: {' '.join(OPERATORS)})")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"of the master template (default: {TRIALS})")
    parser.add_argument("--out", type=Path, default=Path("build/master"), help="where records are kept")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.operators:
        compiled = CompileOptions(name, "onnx", "", disabled_passes=("winograd",))
        made = tuned(name, None, MADE, options.out, compiled)
        master = tuned(name, "master", options.trials, options.out, compiled)
        task = made[0]
        seconds = in_turns([(task, task.space.default), made, master], compiled)
        rows.append((name, *(f"{1e6 * s:.1f}" for s in seconds), f"{min(seconds[:2]) / seconds[2]:.2f}"))
        columns = ("operator", "made for it: us untuned", "tuned", "master: us tuned", "times as fast")
        Console(width=200).print("\n".join(table(columns, rows, left=1)), highlight=False)


if __name__ == "__main__":
    main()
