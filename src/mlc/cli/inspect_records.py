"""``mlc inspect`` of tuning records: what was found for each task, how the search went, what failed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mlc.cli.console import Console, one_line, write_json
from mlc.errors import UsageError

if TYPE_CHECKING:
    from mlc.records.files import Log
    from mlc.records.record import Record

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24  # characters of a curve
_WIDEST = 36  # characters of the shapes of operands
_LONGEST = 100  # characters of a failure's message
_START = b'{"crc":"'


def is_records(path: str) -> bool:
    """Whether a file is named or begins as record files do."""
    if path.endswith(".jsonl"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(len(_START)) == _START
    except OSError:
        return False


def show_records(console: Console, path: str, json_file: str | None) -> None:
    """Prints a record file.

    Raises:
        UsageError: it cannot be read, or holds no trial.
    """
    from mlc.records.files import read_records
    from mlc.records.measurement import causes

    log = read_records([path])
    if not log.records:
        raise UsageError(f"{path}: holds no trial", hint="mlc tune writes them")
    tasks = [_task(group) for group in _groups(log)]
    document = {
        "kind": "records",
        "trials": sum(t["trials"] for t in tasks),
        "damaged_lines": log.bad,
        "lines_of_other_versions": log.others,
        "tasks": tasks,
    }
    write_json(console, json_file, "inspect", document)
    if json_file is not None:
        return
    decided = sum(t["decided"] for t in tasks)
    console.data(one_line(f"{path}: {document['trials']} trials of {len(tasks)} tasks, {decided} of them decided"))
    for count, what in ((log.bad, "damaged lines"), (log.others, "lines of another version of mlc")):
        if count:
            console.data(f"  {count} {what} left out")
    for setting in dict.fromkeys(_setting(t) for t in tasks):
        console.data(f"\non {one_line(setting)}\n" + _table(console, [t for t in tasks if _setting(t) == setting]))
    if any(t["layouts"] for t in tasks):
        console.data("\n" + _layouts_table(console, [t for t in tasks if t["layouts"]]))
    found = causes(r.result for r in log.records)
    if found:
        failed = [(c.failure, c.count, c.message[:_LONGEST]) for c in found]
        console.data("\n" + console.table(("failure", "trials", "most of them say"), failed, ("trials",)))


def _setting(task: dict[str, Any]) -> str:
    """What times of tasks are compared in."""
    threads = "1 thread" if task["threads"] == 1 else f"{task['threads']} threads"
    return f"{task['cpu']}, {threads}" + (", with empty caches" if task["flushed"] else "")


def _table(console: Console, tasks: list[dict[str, Any]]) -> str:
    rows = [
        (
            t["name"], _shapes(t["operands"]), t["trials"], sum(t["failures"].values()), _ms(t["first_ms"]),
            _ms(t["best_ms"]), "" if t["gflops"] is None else f"{t['gflops']:.1f}", "yes" if t["decided"] else "",
            _curve(t["curve"]),
        )
        for t in tasks
    ]  # fmt: skip
    numbers = ("trials", "failed", "first ms", "best ms", "GFLOP/s")
    return console.table(("task", "operands", *numbers, "decided", "best so far"), rows, numbers)


def _layouts_table(console: Console, tasks: list[dict[str, Any]]) -> str:
    """The searched layouts of the best configurations, beside their times."""
    rows = []
    for t in tasks:
        first = (t["name"], _shapes(t["operands"]), _ms(t["best_ms"]))
        for name, primitives in t["layouts"].items():
            rows.append((*first, name, one_line(primitives)))
            first = ("", "", "")
    return console.table(("task", "operands", "best ms", "tensor", "searched layout"), rows, ("best ms",))


def _groups(log: Log) -> list[list[Record]]:
    """The trials by task, processor, number of threads and way of timing, in order of their first."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for r in log.records:
        found.setdefault((r.workload, r.fingerprint, r.threads, r.flushed), []).append(r)
    return list(found.values())


def _task(records: list[Record]) -> dict[str, Any]:
    from mlc.records.best import best_of
    from mlc.records.record import DECIDED
    from mlc.rewrite.workload import operand_texts, workload_text

    first = records[0]
    trials = [r for r in records if r.explorer != DECIDED]
    decisions = [r for r in records if r.explorer == DECIDED]
    best = best_of(records, first.fingerprint, first.threads).hits.get(first.workload)
    seconds = None if best is None else best.result.seconds
    return {
        "workload": first.workload,
        "name": first.task,
        "text": workload_text(first.document),
        "operands": operand_texts(first.document),
        "cpu": first.fingerprint.cpu,
        "threads": first.threads,
        "flushed": first.flushed,
        "flops": first.flops,
        "trials": len(trials),
        "failures": dict(Counter(str(r.result.failure) for r in trials if r.result.failure is not None)),
        "noisy": sum(r.result.noisy for r in trials),
        "first_ms": None if not trials or trials[0].result.seconds is None else trials[0].result.seconds * 1e3,
        "best_ms": None if seconds is None else seconds * 1e3,
        "gflops": None if seconds is None else max(first.flops, 1) / seconds / 1e9,
        "decided": bool(decisions),
        "config": None if best is None else dict(best.config),
        "layouts": {} if best is None else dict(best.layouts),
        "explorers": sorted({r.explorer for r in trials}),
        "curve": _best_so_far(trials),
    }


def _shapes(operands: list[str]) -> str:
    """Shapes of the operands, without vectors: tasks of one name differ in them."""
    shapes = [text[text.index("[") + 1 : -1].split(",") for text in operands]
    wide = [shape for shape in shapes if sum(n != "1" for n in shape) > 1] or shapes
    text = " ".join("x".join(shape) for shape in wide)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _best_so_far(trials: list[Record]) -> list[float]:
    """10^9 operations a second after each trial."""
    best, found = 0.0, []
    for r in trials:
        if r.result.seconds is not None:
            best = max(best, max(r.flops, 1) / r.result.seconds / 1e9)
        found.append(best)
    return found


def _curve(values: list[float]) -> str:
    """A line of bars, each the last value of its part."""
    if not values:
        return ""
    width = min(_WIDTH, len(values))
    picked = [values[(k + 1) * len(values) // width - 1] for k in range(width)]
    top = max(picked) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int(v / top * (len(_BARS) - 1) + 0.5))] for v in picked)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
