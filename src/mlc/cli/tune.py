"""``mlc tune``: search for the fastest schedules of a model's kernels, by measuring them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlc.cli import values
from mlc.cli.console import Console, require_distinct, require_writable, status, write_json
from mlc.cli.group import Command
from mlc.cli.options import LoadOptions, json_option, load_options
from mlc.cli.pooling import pool_options
from mlc.cli.precision import (
    bf16_option,
    emulation_option,
    fp16_option,
    keep_option,
    tf32_option,
    weights_option,
    with_tf32,
)
from mlc.cli.progress import CompileProgress
from mlc.cli.timing import MAX_TRIALS, run_timeout_option, timing_options, timing_rule
from mlc.cli.tune_result import (
    built_document,
    built_summary,
    document,
    failures,
    summary,
    task_json,
    tasks_table,
)
from mlc.cli.tune_view import TuneProgress
from mlc.errors import ExitCode, UsageError
from mlc.settings import MAX_SEED

if TYPE_CHECKING:
    from mlc.pool.wish import Wish

TRIALS = 1000  # unless something else limits the run
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@click.command(
    cls=Command,
    examples="""
    mlc tune resnet18.onnx --trials 600 && mlc compile resnet18.onnx -o resnet18.tar
    mlc tune resnet18.onnx --list
    mlc tune resnet18.onnx --tasks 0,2-5 --time-budget 30m -o resnet18.jsonl
    mlc tune bert.onnx --dim batch=1 --threads 1 --explorer opevo -o bert.jsonl --report bert.html
    mlc tune resnet50.onnx --transfer resnet18.jsonl -o resnet50.jsonl
    mlc tune resnet18.onnx --target arm -mcpu=cortex-a72 --pool tls://hub:8786 --certificates pool/ann
    mlc compile resnet50.onnx --records resnet50.jsonl -o resnet50.tar
    mlc tune resnet50.onnx --target cuda -arch=sm_90 --trials 500 --build-only resnet50.candidates
    """,
)
@click.argument("model", required=False)
@click.option(
    "--target", default="x86", show_default=True, metavar="TARGET",
    help="What to tune for; this machine has to run it, or a board.",
)  # fmt: skip
@click.option(
    "-o", "--output", "--records", "output", metavar="FILE",
    help="Every trial is appended here at once; a run goes on from what is there.  "
    "[default: in the user's cache, where mlc compile finds the best of it]",
)  # fmt: skip
@load_options
@click.option("--list", "list_only", is_flag=True, help="List the tasks with their share of the work, and stop.")
@click.option("--tasks", metavar="0,2-5", help="Tune only these, by their numbers in --list.")
@click.option(
    "--trials", type=values.Whole(1, MAX_TRIALS), metavar="N",
    help="Configurations to measure for the whole model, earlier runs in the same file included.  "
    f"[default: {TRIALS}; no limit with --trials-per-task or --time-budget]",
)  # fmt: skip
@click.option("--trials-per-task", type=values.Whole(1, MAX_TRIALS), metavar="N", help="At most this many for a task.")
@click.option(
    "--time-budget", metavar="TIME",
    help="Search at most this long, e.g. 90s, 30m, 2h, earlier runs over the same tasks in the same file included.",
)  # fmt: skip
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
@click.option(
    "--cost-model", default="rank", show_default=True, metavar="NAME",
    help="What it learns with: rank, regression, ei, ucb, mean, treegru[-regression], treegru-vanilla[-regression]; "
    "'help' tells what they are.",
)  # fmt: skip
@click.option(
    "--template", metavar="NAME",
    help="Search the configurations of this template, and tune what it fits only; 'help' lists them.",
)  # fmt: skip
@click.option(
    "--transfer", multiple=True, metavar="FILE",
    help="Records (files or folders) of any model to learn from first; may be repeated.",
)  # fmt: skip
@click.option(
    "--batch", type=values.Whole(1, 4096), default=16, show_default=True, metavar="N", help="Proposals at once."
)
@click.option("--seed", type=values.Whole(0, MAX_SEED), metavar="N", help="Of everything random.  [default: 0]")
@click.option("--threads", type=values.Whole(1, 1024), metavar="N", help="Threads of a kernel.  [default: all cores]")
@click.option("--cores", metavar="0,2-3", help="Cores to take times on.  [default: the last ones]")
@timing_options
@click.option(
    "--flush-cache", is_flag=True,
    help="Empty the caches before every timed call; such trials are kept apart from others.",
)  # fmt: skip
@click.option("--parallel", type=values.Whole(1, 1024), metavar="N", help="Builds at a time.  [default: one a core]")
@click.option(
    "--build-timeout",
    type=values.Real(),
    default=10.0,
    show_default=True,
    metavar="S",
    help="For building a candidate.",
)
@run_timeout_option
@weights_option
@bf16_option
@fp16_option
@keep_option
@tf32_option
@emulation_option
@click.option("--no-winograd", is_flag=True, help="Tune direct convolutions (compile with --no-winograd as well).")
@click.option(
    "--layouts/--no-layouts", default=None,
    help="Search how tensors of convolutions and products lie in memory together with their loops.  "
    "[default: with --explorer alt only]",
)  # fmt: skip
@click.option(
    "--layout-levels", type=values.Whole(1, 2), metavar="N", help="Levels of tiles of such layouts.  [default: 1]"
)
@click.option(
    "--algorithms", is_flag=True, help="Measure first which algorithm (direct, Winograd, fused attention) is fastest."
)
@click.option("--fresh", is_flag=True, help="Begin anew; what the file held is kept as FILE.old.")
@click.option(
    "--build-only", metavar="FILE",
    help="Build candidates into FILE and measure nothing; mlc measure does that where the device is.",
)  # fmt: skip
@click.option("--no-check", is_flag=True, help="Do not compare the whole model before and after.")
@click.option("--report", metavar="FILE", help="Write a report as one HTML file.")
@pool_options
@click.option(
    "--pool-build", is_flag=True, help="Build candidates on workers of the pool (mlc devices serve --only build)."
)
@json_option
@click.pass_obj
def command(
    console: Console,
    model: str | None,
    target: str,
    output: str | None,
    load_options: LoadOptions,
    list_only: bool,
    tasks: str | None,
    trials: int | None,
    trials_per_task: int | None,
    time_budget: str | None,
    early_stopping: int | None,
    explorer: str,
    explorer_option: tuple[str, ...],
    cost_model: str,
    template: str | None,
    transfer: tuple[str, ...],
    batch: int,
    seed: int | None,
    threads: int | None,
    cores: str | None,
    number: int | None,
    repeat: int | None,
    min_repeat_ms: float | None,
    flush_cache: bool,
    parallel: int | None,
    build_timeout: float,
    run_timeout: float,
    weights: str | None,
    bf16: bool,
    fp16: bool,
    keep_f32: tuple[str, ...],
    tf32: bool,
    allow_emulation: bool,
    no_winograd: bool,
    layouts: bool | None,
    layout_levels: int | None,
    algorithms: bool,
    fresh: bool,
    build_only: str | None,
    no_check: bool,
    report: str | None,
    wish: Wish | None,
    pool_build: bool,
    json_file: str | None,
) -> None:
    """Measure schedules of MODEL's kernels on this machine, and keep what is found in a record file.

    With --pool, they are built here, or with --pool-build by others, and measured on the boards of a pool.
    """
    from mlc.targets.base import get_target
    from mlc.tuning.explorers import explorer_names, get_explorer
    from mlc.tuning.models.choice import COST_MODELS
    from mlc.tuning.models.choice import cost_model as get_cost_model

    if explorer == "help":
        console.data("\n".join(explorer_names()))
        return
    if template == "help":
        from mlc.api import template_names

        console.data("\n".join(template_names()))
        return
    if cost_model == "help":
        width = max(map(len, COST_MODELS))
        console.data("\n".join(f"{name:{width}}  {choice.text}" for name, choice in COST_MODELS.items()))
        return
    if model is None:
        raise UsageError("Missing argument 'MODEL'", hint="mlc tune --help shows what can be given")
    get_explorer(explorer)
    get_cost_model(cost_model)
    target = with_tf32(target, tf32=tf32)
    machine = get_target(target)
    explorer_options = dict(_explorer_option(text) for text in explorer_option)
    rule = timing_rule(number, repeat, min_repeat_ms, flush_cache)
    chosen = None if tasks is None else numbers(tasks, "--tasks")
    budget = None if time_budget is None else duration(time_budget)
    timed = () if cores is None else tuple(numbers(cores, "--cores"))
    files = [f for f in (json_file, report, *(() if list_only else (output,))) if f is not None and f != "-"]
    if build_only is not None:
        asked = {
            "--report": report is not None, "--algorithms": algorithms, "--layouts": bool(layouts), "--fresh": fresh,
            "--time-budget": budget is not None, "--pool": wish is not None,
        }  # fmt: skip
        _require_no_measuring([option for option, given in asked.items() if given])
    levels = searched_levels(explorer, layouts, layout_levels, possible=build_only is None and template is None)
    require_distinct([model], [*files, *([] if build_only is None else [build_only])])
    require_writable(*files, build_only)
    if wish is not None and (timed or algorithms):
        raise UsageError("--cores and --algorithms are of this machine", hint="leave them out, or leave --pool out")
    if pool_build:
        if wish is None or parallel is not None:
            raise UsageError(
                "--pool-build is for a pool, whose workers build as many at a time as they have cores",
                hint="name it with --pool" if wish is None else "leave --parallel out",
            )
        wish = replace(wish, builds=True)

    from mlc.api import tune as tune_model
    from mlc.api import tuning_tasks
    from mlc.api.options import require_products
    from mlc.tuning.measure import MeasureOptions
    from mlc.tuning.options import TuneOptions

    kept = values.comma_separated(keep_f32)
    require_products(machine, target, weights, bf16=bf16, fp16=fp16, keep_f32=kept, allow_emulation=allow_emulation)
    with status(console, f"importing {model}"):
        loaded = load_options.load(model)
    disabled = ("winograd",) if no_winograd else ()
    if list_only:
        found = tuning_tasks(
            loaded, target, disabled_passes=disabled, weights=weights, bf16=bf16, fp16=fp16, keep_f32=kept,
            threads=threads, template=template,
        )  # fmt: skip
        console.data(tasks_table(console, found))
        write_json(console, json_file, "tune", {"tasks": [task_json(k, t) for k, t in enumerate(found)]})
        return
    options = TuneOptions(
        trials=TRIALS if trials is None and trials_per_task is None and budget is None else trials,
        trials_per_task=trials_per_task,
        time_budget=budget,
        explorer=explorer,
        explorer_options=explorer_options,
        cost_model=cost_model,
        batch=batch,
        early_stopping=early_stopping,
        seed=console.settings.seed if seed is None else seed,
        algorithms=algorithms,
        template=template,
        layouts=levels,
    )
    measure = MeasureOptions(
        build_timeout=build_timeout,
        run_timeout=run_timeout,
        cores=timed,
        builders=parallel or 0,
        rule=rule,
    )
    if build_only is not None:
        from mlc.api import build_candidates

        with CompileProgress(console) as building:
            building.stage("build candidates")
            ahead = build_candidates(
                loaded, target, build_only, options=options, records=output, measure=measure,
                disabled_passes=disabled, weights=weights, bf16=bf16, fp16=fp16, keep_f32=kept, threads=threads,
                only=chosen, transfer=transfer, goes_on=building.kernel,
            )  # fmt: skip
        console.say(built_summary(console, ahead))
        write_json(console, json_file, "tune", built_document(ahead))
        return
    with TuneProgress(console) as progress:
        tuning = tune_model(
            loaded,
            target,
            records=output,
            options=options,
            measure=measure,
            disabled_passes=disabled,
            weights=weights,
            bf16=bf16,
            fp16=fp16,
            keep_f32=kept,
            threads=threads,
            only=chosen,
            fresh=fresh,
            check_whole=not no_check,
            transfer=transfer,
            pool=wish,
            watcher=progress,
        )
    console.say(summary(console, tuning))
    if causes := failures(console, tuning):
        console.say(causes)
    if report is not None:
        from mlc.tuning.report import write_report

        write_report(report, tuning, title=Path(model).name)
    write_json(console, json_file, "tune", document(tuning))
    if tuning.outcome.interrupted:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED)


def _require_no_measuring(options: list[str]) -> None:
    """Complains of what --build-only cannot do.

    Raises:
        UsageError: there is any.
    """
    if not options:
        return
    *others, last = options
    named, them = (f"{', '.join(others)} and {last} are", "them") if others else (f"{last} is", "it")
    raise UsageError(f"{named} for a run that measures", hint=f"leave {them} out, or leave --build-only out")


def searched_levels(explorer: str, asked: bool | None, levels: int | None, *, possible: bool) -> int:
    """Levels of tiles of the layouts that are searched; 0 where none are.

    Args:
        explorer: that is taken, ALT's being one of layouts and loops.
        asked: whether the user wants it; nothing where that is not said.
        levels: that the user asks for.
        possible: whether they can be, unless the user insists: not with --build-only, nor in the space of a template.
    Raises:
        UsageError: there are levels of what is not searched.
    """
    if explorer == "alt" and possible if asked is None else asked:
        return levels or 1
    if levels is not None:
        hint = "add --layouts, or leave it out" if possible else "leave it out"
        raise UsageError("--layout-levels is of layouts, which are not searched", hint=hint)
    return 0


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
