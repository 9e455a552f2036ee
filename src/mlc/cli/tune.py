"""``mlc tune``: search for the fastest schedules of a model's kernels, by measuring them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlc.cli import values
from mlc.cli.console import Console, require_writable, status, write_json
from mlc.cli.group import Command
from mlc.cli.import_model import require_distinct
from mlc.cli.options import LoadOptions, json_option, load_options
from mlc.cli.tune_view import TuneProgress
from mlc.errors import ExitCode, UsageError
from mlc.settings import MAX_SEED

if TYPE_CHECKING:
    from mlc.tune.drive import Tuning
    from mlc.tune.task import Task

MAX_TRIALS = 1 << 30
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@click.command(
    cls=Command,
    examples="""
    mlc tune resnet18.onnx --trials 600 && mlc compile resnet18.onnx -o resnet18.tar
    mlc tune resnet18.onnx --list
    mlc tune resnet18.onnx --tasks 0,2-5 --time-budget 30m -o resnet18.jsonl
    mlc tune bert.onnx --dim batch=1 --threads 1 --explorer opevo -o bert.jsonl --report bert.html
    mlc tune resnet50.onnx --transfer resnet18.jsonl --transfer-model resnet18.onnx -o resnet50.jsonl
    mlc compile resnet50.onnx --records resnet50.jsonl -o resnet50.tar
    """,
)
@click.argument("model")
@click.option("--target", default="x86", show_default=True, help="What to tune for; this machine has to run it.")
@click.option(
    "-o", "--output", "--records", "output", metavar="FILE",
    help="Every trial is appended here at once; a run goes on from what is there.  "
    "[default: in the user's cache, where mlc compile finds the best of it]",
)  # fmt: skip
@load_options
@click.option("--list", "list_only", is_flag=True, help="List the tasks with their share of the work, and stop.")
@click.option("--tasks", metavar="0,2-5", help="Tune only these, by their numbers in --list.")
@click.option(
    "--trials", type=values.Whole(1, MAX_TRIALS), default=1000, show_default=True, metavar="N",
    help="Configurations to measure for the whole model, earlier runs in the same file included.",
)  # fmt: skip
@click.option("--trials-per-task", type=values.Whole(1, MAX_TRIALS), metavar="N", help="At most this many for a task.")
@click.option("--time-budget", metavar="TIME", help="Search at most this long, e.g. 90s, 30m, 2h.")
@click.option(
    "--early-stopping",
    type=values.Whole(1, MAX_TRIALS),
    metavar="N",
    help="Leave a task after N trials without a gain.",
)
@click.option("--explorer", default="guided", show_default=True, help="Who proposes configurations; 'help' lists them.")
@click.option(
    "--explorer-option", multiple=True, metavar="NAME=VALUE", help="An option of the explorer; may be repeated."
)
@click.option("--cost-model", default="rank", show_default=True, help="What it learns with; 'help' lists them.")
@click.option(
    "--transfer", multiple=True, metavar="FILE",
    help="Records (files or folders) of other runs to learn from first; may be repeated.",
)  # fmt: skip
@click.option(
    "--transfer-model", multiple=True, metavar="MODEL",
    help="A model whose kernels these records are of, besides those of MODEL; may be repeated.",
)  # fmt: skip
@click.option(
    "--batch", type=values.Whole(1, 4096), default=16, show_default=True, metavar="N", help="Proposals at once."
)
@click.option("--seed", type=values.Whole(0, MAX_SEED), metavar="N", help="Of everything random.  [default: 0]")
@click.option("--threads", type=values.Whole(1, 1024), metavar="N", help="Threads of a kernel.  [default: all cores]")
@click.option("--cores", metavar="0,2-3", help="Cores to take times on.  [default: the last ones]")
@click.option("--build-timeout", type=values.Real(), default=10.0, show_default=True, metavar="S")
@click.option("--run-timeout", type=values.Real(), default=10.0, show_default=True, metavar="S")
@click.option("--no-winograd", is_flag=True, help="Tune direct convolutions (compile with --no-winograd as well).")
@click.option("--fresh", is_flag=True, help="Begin anew; what the file held is kept as FILE.old.")
@click.option("--no-check", is_flag=True, help="Do not compare the whole model before and after.")
@click.option("--report", metavar="FILE", help="Write a report as one HTML file.")
@json_option
@click.pass_obj
def command(
    console: Console,
    model: str,
    target: str,
    output: str | None,
    load_options: LoadOptions,
    list_only: bool,
    tasks: str | None,
    trials: int,
    trials_per_task: int | None,
    time_budget: str | None,
    early_stopping: int | None,
    explorer: str,
    explorer_option: tuple[str, ...],
    cost_model: str,
    transfer: tuple[str, ...],
    transfer_model: tuple[str, ...],
    batch: int,
    seed: int | None,
    threads: int | None,
    cores: str | None,
    build_timeout: float,
    run_timeout: float,
    no_winograd: bool,
    fresh: bool,
    no_check: bool,
    report: str | None,
    json_file: str | None,
) -> None:
    """Measure schedules of MODEL's kernels on this machine, and keep what is found in a record file."""
    from mlc.targets.base import get_target
    from mlc.tune.explorers import explorer_names, get_explorer
    from mlc.tune.models.choice import COST_MODELS
    from mlc.tune.models.choice import cost_model as get_cost_model

    if explorer == "help":
        console.data("\n".join(explorer_names()))
        return
    if cost_model == "help":
        console.data("\n".join(COST_MODELS))
        return
    get_explorer(explorer)
    get_cost_model(cost_model)
    get_target(target)
    explorer_options = dict(_explorer_option(text) for text in explorer_option)
    if transfer_model and not transfer:
        raise UsageError("--transfer-model says what records are of", hint="name the records with --transfer")
    chosen = None if tasks is None else numbers(tasks, "--tasks")
    budget = None if time_budget is None else duration(time_budget)
    timed = () if cores is None else tuple(numbers(cores, "--cores"))
    files = [f for f in (json_file, report, *(() if list_only else (output,))) if f is not None and f != "-"]
    for file in files:
        require_distinct(model, file)
    if len({Path(f).resolve() for f in files}) < len(files):
        raise UsageError("the records, the report and the JSON document need a file each")
    require_writable(*files)

    from mlc.api import tune as tune_model
    from mlc.api import tuning_tasks
    from mlc.tune.measure import MeasureOptions
    from mlc.tune.session import TuneOptions

    with status(console, f"importing {model}"):
        loaded = load_options.load(model)
        relatives = [] if list_only else [LoadOptions().load(path) for path in transfer_model]
    disabled = ("winograd",) if no_winograd else ()
    if list_only:
        found = tuning_tasks(loaded, target, disabled_passes=disabled)
        console.data(_list(console, found))
        write_json(console, json_file, "tune", {"tasks": [_task_json(k, t) for k, t in enumerate(found)]})
        return
    options = TuneOptions(
        trials=trials,
        trials_per_task=trials_per_task,
        time_budget=budget,
        explorer=explorer,
        explorer_options=explorer_options,
        cost_model=cost_model,
        batch=batch,
        early_stopping=early_stopping,
        seed=console.settings.seed if seed is None else seed,
    )
    measure = MeasureOptions(build_timeout=build_timeout, run_timeout=run_timeout, cores=timed)
    with TuneProgress(console) as progress:
        tuning = tune_model(
            loaded,
            target,
            records=output,
            options=options,
            measure=measure,
            disabled_passes=disabled,
            threads=threads,
            only=chosen,
            fresh=fresh,
            check_whole=not no_check,
            transfer=transfer,
            relatives=relatives,
            watcher=progress,
        )
    console.say(_summary(console, tuning))
    if report is not None:
        from mlc.tune.report import write_report

        write_report(report, tuning, title=Path(model).name)
    write_json(console, json_file, "tune", _document(tuning))
    if tuning.outcome.interrupted:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED)


def numbers(text: str, option: str) -> list[int]:
    """``0,2-5`` as a list.

    Raises:
        UsageError: it is nothing of the kind.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UsageError(f"{option} {text!r}: {part!r} is no number and no range", hint="for example: 0,2-5")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(found))


def _explorer_option(text: str) -> tuple[str, int | float | bool]:
    """``NAME=VALUE`` with a number, ``true`` or ``false``.

    Raises:
        UsageError: it is nothing of the kind.
    """
    name, equals, value = text.partition("=")
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not equals or not name.isidentifier() or not isinstance(found, (int, float)):
        raise UsageError(f"--explorer-option {text!r} is no NAME=NUMBER", hint="for example: --explorer-option q=0.5")
    return name, found


def duration(text: str) -> float:
    """``90s``, ``30m``, ``2h``, ``1d`` or plain seconds, in seconds.

    Raises:
        UsageError: it is nothing of the kind.
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)\s*", text)
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--time-budget {text!r} is no duration", hint="for example: 90s, 30m, 2h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _list(console: Console, tasks: list[Task]) -> str:
    total = sum(t.flops * t.weight for t in tasks) or 1
    rows = [
        (
            k,
            t.name,
            t.weight,
            f"{t.flops / 1e6:.1f}",
            f"{100 * t.flops * t.weight / total:.1f}",
            t.space.size,
            t.sources[0],
        )
        for k, t in enumerate(tasks)
    ]
    columns = ("task", "name", "calls", "MFLOP", "% of work", "configurations", "first in the model")
    return console.table(columns, rows, numbers=("task", "calls", "MFLOP", "% of work", "configurations"))


def _task_json(number: int, task: Task) -> dict[str, Any]:
    return {
        "task": number,
        "name": task.name,
        "workload": task.key,
        "calls": task.weight,
        "flops": task.flops,
        "configurations": task.space.size,
        "knobs": {k.name: len(k.values) for k in task.space.knobs},
        "sources": list(task.sources),
    }


def _summary(console: Console, tuning: Tuning) -> str:
    outcome = tuning.outcome
    rows = []
    for s in outcome.states:
        if not s.trials:
            continue
        gain = s.untuned / s.best if s.untuned < float("inf") and s.best > 0 else 1.0
        failed = sum(s.failures.values())
        speed = s.speed(s.best) if s.best < float("inf") else 0.0
        rows.append((s.number, s.task.name, len(s.trials), failed, f"{speed:.1f}", f"{gain:.2f}"))
    table = console.table(
        ("task", "name", "trials", "failed", "GFLOP/s", "x untuned"), rows,
        numbers=("task", "trials", "failed", "GFLOP/s", "x untuned"),
    )  # fmt: skip
    rate = f"{outcome.trials / outcome.seconds:.1f} a second, " if outcome.seconds else ""
    share = 100 * outcome.exploring / outcome.seconds if outcome.seconds else 0.0
    lines = [
        table,
        f"{tuning.records}: {outcome.trials} trials in {outcome.seconds:.0f} s: {rate}{share:.0f} % of it for choosing",
    ]
    causes: Counter[str] = sum((Counter(s.failures) for s in outcome.states), Counter())
    if causes:
        lines.append("failed: " + ", ".join(f"{n} {kind}" for kind, n in causes.most_common()))
    if outcome.interrupted:
        lines.append("stopped; everything measured is kept, and the same command goes on from there")
    if tuning.reverted:
        lines.append(f"faster untuned between other kernels: {', '.join(tuning.reverted)}")
    untuned, best = outcome.bound
    if best:
        lines.append(
            f"all kernels one by one: {untuned * 1e3:.3f} ms untuned, {best * 1e3:.3f} ms with the best of each, "
            f"{untuned / best:.2f} times as fast"
        )
    if tuning.whole is not None:
        w = tuning.whole
        lines.append(
            f"the model: {w.untuned * 1e3:.3f} ms untuned, {w.tuned * 1e3:.3f} ms tuned, {w.speedup:.2f} times as fast"
        )
    return "\n".join(lines)


def _document(tuning: Tuning) -> dict[str, Any]:
    outcome, whole = tuning.outcome, tuning.whole
    return {
        "records": str(tuning.records),
        "trials": outcome.trials,
        "seconds": outcome.seconds,
        "exploring_seconds": outcome.exploring,
        "kernels": {"untuned_ms": outcome.bound[0] * 1e3, "best_ms": outcome.bound[1] * 1e3},
        "interrupted": outcome.interrupted,
        "reverted": list(tuning.reverted),
        "whole": None
        if whole is None
        else {
            "untuned_ms": whole.untuned * 1e3,
            "tuned_ms": whole.tuned * 1e3,
            "speedup": whole.speedup,
            "error": whole.error,
        },
        "tasks": [
            {
                **_task_json(s.number, s.task),
                "trials": len(s.trials),
                "failures": {str(k): n for k, n in s.failures.items()},
                "untuned_ms": s.untuned * 1e3 if s.untuned < float("inf") else None,
                "best_ms": s.best * 1e3 if s.best < float("inf") else None,
                "config": None if s.decided is None else dict(s.decided),
            }
            for s in outcome.states
        ],
    }
