"""``mlc measure``: what ``mlc tune --build-only`` has built on another machine, measured on this one."""

from __future__ import annotations

import click

from mlc.cli.console import Console, require_distinct, require_writable, write_json
from mlc.cli.group import Command
from mlc.cli.options import json_option
from mlc.cli.timing import run_timeout_option, timing_options, timing_rule
from mlc.cli.tune_result import document, failures, summary
from mlc.cli.tune_view import TuneProgress
from mlc.errors import ExitCode


@click.command(
    cls=Command,
    examples="""
    mlc tune resnet18.onnx --target cuda -arch=sm_90 --trials 500 --build-only resnet18.candidates
    mlc measure resnet18.candidates -o resnet18.jsonl      # on the machine with the GPU
    mlc compile resnet18.onnx --target cuda -arch=sm_90 --records resnet18.jsonl -o resnet18.tar
    """,
)
@click.argument("candidates", metavar="CANDIDATES")
@click.option(
    "-o", "--output", "--records", "output", required=True, metavar="FILE",
    help="Every trial is appended here at once; a run goes on from what is there.",
)  # fmt: skip
@timing_options
@run_timeout_option
@json_option
@click.pass_obj
def command(
    console: Console,
    candidates: str,
    output: str,
    number: int | None,
    repeat: int | None,
    min_repeat_ms: float | None,
    run_timeout: float,
    json_file: str | None,
) -> None:
    """Measure CANDIDATES on this machine, which needs neither the model nor a compiler, and record what they take.

    They are native code: measure only those that you trust.
    """
    files = [f for f in (json_file, output) if f is not None and f != "-"]
    require_distinct([candidates], files)
    require_writable(*files)

    from mlc.api import measure_candidates
    from mlc.tuning.measure import MeasureOptions

    measure = MeasureOptions(run_timeout=run_timeout, rule=timing_rule(number, repeat, min_repeat_ms))
    with TuneProgress(console) as progress:
        tuning = measure_candidates(candidates, output, measure=measure, watcher=progress)
    console.say(summary(console, tuning))
    if causes := failures(console, tuning):
        console.say(causes)
    write_json(console, json_file, "measure", document(tuning))
    if tuning.outcome.interrupted:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED)
