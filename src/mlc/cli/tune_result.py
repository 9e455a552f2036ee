"""What ``mlc tune`` says when it is done: tables and sentences for people, a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlc.cli.console import Console

if TYPE_CHECKING:
    from mlc.records.measurement import Cause
    from mlc.tuning.ahead import BuiltAhead
    from mlc.tuning.drive import Tuning
    from mlc.tuning.state import TaskState
    from mlc.tuning.task import Task

_LONGEST = 100  # characters of a failure's message


def tasks_table(console: Console, tasks: Sequence[Task]) -> str:
    """The tasks of a model with their share of its work."""
    total = sum(t.flops * t.weight for t in tasks) or 1
    rows = [
        (
            k, t.name, t.weight, f"{t.flops / 1e6:.1f}", f"{100 * t.flops * t.weight / total:.1f}", t.space.size,
            t.sources[0] if t.sources else "",
        )
        for k, t in enumerate(tasks)
    ]  # fmt: skip
    columns = ("task", "name", "calls", "MFLOP", "% of work", "configurations", "first in the model")
    return console.table(columns, rows, numbers=("task", "calls", "MFLOP", "% of work", "configurations"))


def task_json(number: int, task: Task) -> dict[str, Any]:
    """A task of ``--list``."""
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


def summary(console: Console, tuning: Tuning) -> str:
    """What each task got and gained, what it cost, and what that makes of the model."""
    from mlc.tuning.session import Limit

    outcome = tuning.outcome
    numbers = ("task", "trials", "failed", "GFLOP/s", "% of peak", "x untuned")
    table = console.table(("task", "name", *numbers[1:], "ended"), [_row(s) for s in outcome.states], numbers=numbers)
    rate = f"{outcome.trials / outcome.seconds:.1f} a second, " if outcome.seconds else ""
    share = 100 * outcome.exploring / outcome.seconds if outcome.seconds else 0.0
    lines = [
        table,
        f"{tuning.records}: {outcome.trials} trials in {outcome.seconds:.0f} s: {rate}{share:.0f} % of it for choosing",
    ]
    if outcome.flushed:
        lines.append("kernels were timed with empty caches, and are compared with such times only")
    if outcome.interrupted:
        lines.append("stopped; everything measured is kept, and the same command goes on from there")
    elif outcome.limit is Limit.TIME:
        lines.append("the time is up; a greater --time-budget goes on from there")
    elif outcome.limit is Limit.TASKS:
        lines.append("every task has ended")
    if outcome.unreached and not outcome.interrupted:
        count = "one operator" if outcome.unreached == 1 else f"{outcome.unreached} operators"
        lines.append(f"layouts of {count} were not searched: their turn did not come; more trials or time reach them")
    if tuning.reverted:
        lines.append(f"faster untuned between other kernels: {', '.join(tuning.reverted)}")
    untuned, best = outcome.bound
    if best:
        lines.append(
            f"all kernels one by one: {untuned * 1e3:.4g} ms untuned, {best * 1e3:.4g} ms with the best of each, "
            f"{untuned / best:.2f} times as fast"
        )
    if tuning.whole is not None:
        w = tuning.whole
        what = "the accelerator's regions, whole" if tuning.regions else "the model, in turns"
        lines.append(
            f"{what}: {w.untuned * 1e3:.4g} ms untuned, {w.tuned * 1e3:.4g} ms tuned, {w.speedup:.2f} times as fast"
        )
    return "\n".join(lines)


def failures(console: Console, tuning: Tuning) -> str:
    """Why configurations failed, with what most of each kind said; nothing where none did."""
    found = _causes(tuning.outcome.states)
    if not found:
        return ""
    rows = [(c.failure, c.count, c.message[:_LONGEST]) for c in found]
    text = console.table(("failure", "trials", "most of them say"), rows, numbers=("trials",))
    idle = [s.task.name for s in tuning.outcome.states if s.trials and s.best == float("inf")]
    if idle:
        text += f"\nnothing works of {', '.join(idle)}: mlc compile takes what it takes untuned"
    return text


def built_summary(console: Console, ahead: BuiltAhead) -> str:
    """What --build-only has left in its file, and why some of it could not be built."""
    from mlc.records.measurement import causes

    count = sum(ahead.built.values())
    lines = [console.table(("name", "candidates"), list(ahead.built.items()), numbers=("candidates",))]
    if found := causes(ahead.failed):
        rows = [(c.failure, c.count, c.message[:_LONGEST]) for c in found]
        lines.append(console.table(("failure", "candidates", "most of them say"), rows, numbers=("candidates",)))
    lines.append(f"{ahead.path}: {count} candidates; where the device is: mlc measure {ahead.path} -o RECORDS")
    return "\n".join(lines)


def built_document(ahead: BuiltAhead) -> dict[str, Any]:
    """The same for programs."""
    from mlc.records.measurement import causes

    failed = [{"failure": c.failure, "trials": c.count, "message": c.message} for c in causes(ahead.failed)]
    return {"candidates": str(ahead.path), "tasks": dict(ahead.built), "failures": failed}


def document(tuning: Tuning) -> dict[str, Any]:
    """The same for programs."""
    outcome, whole = tuning.outcome, tuning.whole
    return {
        "records": str(tuning.records),
        "trials": outcome.trials,
        "seconds": outcome.seconds,
        "exploring_seconds": outcome.exploring,
        "kernels": {"untuned_ms": outcome.bound[0] * 1e3, "best_ms": outcome.bound[1] * 1e3},
        "flush_cache": outcome.flushed,
        "interrupted": outcome.interrupted,
        "limit": outcome.limit,
        "unreached": outcome.unreached,
        "failures": [{"failure": c.failure, "trials": c.count, "message": c.message} for c in _causes(outcome.states)],
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
                **task_json(s.number, s.task),
                "trials": len(s.trials),
                "failures": {str(k): n for k, n in s.failures.items()},
                "untuned_ms": s.untuned * 1e3 if s.untuned < float("inf") else None,
                "best_ms": s.best * 1e3 if s.best < float("inf") else None,
                "share_of_peak": s.share_of_peak,
                "ended": s.ended,
                "config": None if s.decided is None else dict(s.decided),
            }
            for s in outcome.states
        ],
    }


def _row(s: TaskState) -> tuple[object, ...]:
    known = s.best < float("inf")
    gain = "" if s.gain is None or s.open else f"{s.gain:.2f}"
    share = "" if s.share_of_peak is None else f"{100 * s.share_of_peak:.0f}"
    speed = f"{s.speed(s.best):.1f}" if known else ""
    ended = s.ended or ""
    return s.number, s.task.name, len(s.trials), sum(s.failures.values()), speed, share, gain, ended


def _causes(states: Sequence[TaskState]) -> list[Cause]:
    from mlc.records.measurement import causes

    return causes(m for s in states for _, m in s.trials)
