"""What tuning gains on operators outside the zoo, and how far from the machine's limits they are untuned.

    python -m benchmarks.outside --list
    python -m benchmarks.outside --measure after --minutes 4 --core 1    # as often as it takes; goes on where it was
    python -m benchmarks.outside                                        # writes the report again, from what is kept

Each operator gets the same number of trials, one thread, and the options that ``mlc tune`` has unless told otherwise.
Untuned and tuned are timed in turns at the end. States of the compiler have names: ``before`` and ``after`` its rules
have learnt from what tuning found. What a new state computes untuned as the one before did is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import limits, machine
from benchmarks.limits import Limit
from benchmarks.outside.workloads import WORKLOADS, Workload
from benchmarks.report import json_ready, table
from benchmarks.stats import geometric_mean

if TYPE_CHECKING:
    from mlc.ir.graph import Graph
    from mlc.tuning.task import Task

RESULTS = Path("benchmarks/results/zen5-avx512/outside")
TRIALS = 200
ENOUGH = 0.9  # of the roof, above which there is nothing left to find

Row = dict[str, Any]  # of an operator in one state of the compiler


def task_of(workload: Workload) -> tuple[Graph, Sequence[Task]]:
    """A graph, and its tasks, of which the operator is the last."""
    from mlc.settings import CompileOptions, Observer
    from mlc.targets.base import get_target
    from mlc.tuning.task import tasks_of

    graph = workload.graph()
    return graph, tasks_of(graph, get_target("x86"), CompileOptions(workload.name, "onnx", ""), Observer())


def tuned(workload: Workload, records: Path) -> Row:
    """Tunes an operator, or goes on where its records end."""
    from mlc.settings import CompileOptions
    from mlc.targets.base import get_target
    from mlc.tuning.drive import tune_graph
    from mlc.tuning.options import TuneOptions

    graph, tasks = task_of(workload)
    started = time.monotonic()
    outcome = tune_graph(
        graph, get_target("x86"), CompileOptions(workload.name, "onnx", ""), TuneOptions(trials=TRIALS),
        records=records, threads=1, only=[len(tasks) - 1], check_whole=False,
    ).outcome  # fmt: skip
    (state,) = outcome.states
    node = state.task.node
    read, written = (sum(_bytes(v.type.shape) for v in values) for values in (node.inputs, node.outputs))
    return {
        "task": state.task.name, "space": state.task.space.size, "flops": state.task.flops,
        "read": read, "written": written, "trials": len(state.trials), "seconds": time.monotonic() - started,
        "untuned": state.untuned, "tuned": state.best,
        "default": dict(state.task.space.default), "decided": dict(state.decided or {}),
    }  # fmt: skip


def same_as_before(workload: Workload, states: Mapping[str, Mapping[str, Row]]) -> Row | None:
    """What is known of an operator from the last state that takes the same untuned; knobs may have come since."""
    default = json.loads(json.dumps(dict(task_of(workload)[1][-1].space.default)))
    for rows in reversed(states.values()):
        if workload.name in rows:
            row = rows[workload.name]
            return row if row["default"].items() <= default.items() else None
    return None


def _bytes(shape: Sequence[int]) -> int:
    size = 4
    for extent in shape:
        size *= extent
    return size


def measure(state: str, names: Sequence[str], minutes: float, core: int | None, out: Path) -> int:
    """Goes on with a state for some time; how many operators are left."""
    began, kept = time.monotonic(), load(out)
    allowed = os.sched_getaffinity(0)
    if "limits" not in kept:
        kept["limits"] = asdict(limits.measure([min(allowed) if core is None else core], [1])[0])
    kept["machine"] = {k: v for k, v in machine.describe().items() if k != "load"}
    rows: dict[str, Row] = kept.setdefault("states", {}).setdefault(state, {})
    scratch = Path("build/outside") / state
    scratch.mkdir(parents=True, exist_ok=True)
    left = [n for n in names if n not in rows]
    for name in list(left):
        if time.monotonic() - began > 60 * minutes:
            break
        others = {k: v for k, v in kept["states"].items() if k != state}
        known = same_as_before(WORKLOADS[name], others)
        rows[name] = tuned(WORKLOADS[name], scratch / f"{name}.jsonl") if known is None else known
        left.remove(name)
        save(kept, out)
        if known is not None:
            continue
        row = rows[name]
        text = f"{row['untuned'] * 1e6:.1f} -> {row['tuned'] * 1e6:.1f} us, {row['untuned'] / row['tuned']:.2f}"
        part = f"{100 * share(row, kept):.0f} % of the roof untuned"
        print(f"{time.monotonic() - began:4.0f} s: {name}: {text}, {part}", flush=True)
    return len(left)


def load(out: Path) -> dict[str, Any]:
    """What is kept; nothing where there is none."""
    with suppress(FileNotFoundError):
        kept: dict[str, Any] = json.loads((out / "outside.json").read_text())
        return kept
    return {}


def save(kept: Mapping[str, Any], out: Path) -> None:
    """Keeps it, and writes the report."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "outside.json").write_text(json.dumps(json_ready(kept), indent=1) + "\n")
    (out / "outside.md").write_text(markdown(kept))


def share(row: Row, kept: Mapping[str, Any]) -> float:
    """The untuned speed over what arithmetic, or the smallest cache that holds all operands, allows."""
    caches = {k: int(v.split()[0]) << 10 for k, v in _caches(kept["machine"]["caches"])}
    level = limits.home(caches, row["read"] + row["written"])
    roof = limits.roof_of(Limit(**kept["limits"]), level, row["flops"], row["read"], row["written"])
    return float(row["flops"] / row["untuned"] / 1e9 / roof)


def _caches(text: str) -> list[tuple[str, str]]:
    parts = [part.split(" ", 1) for part in text.split(", ")]
    return [(name, size) for name, size in parts]


def markdown(kept: Mapping[str, Any]) -> str:
    """The report."""
    states: Mapping[str, Mapping[str, Row]] = kept["states"]
    lines = ["# Tuning outside the zoo", "", *(f"- {k}: {v}" for k, v in kept["machine"].items())]
    lines += [f"- {limits.line(Limit(**kept['limits']))}", f"- {TRIALS} trials an operator, one thread", ""]
    for state, rows in states.items():
        gains = {n: r["untuned"] / r["tuned"] for n, r in rows.items()}
        below = [gain for n, gain in gains.items() if share(rows[n], kept) < ENOUGH]
        lines.append(
            f"{state}: {len(rows)} operators, tuned {geometric_mean([*gains.values()]):.3f} times as fast as untuned "
            f"(geometric mean, most {max(gains.values()):.2f}). {len(rows) - len(below)} of them reach {ENOUGH:.0%} of "
            f"the roof untuned; the others gain {geometric_mean(below):.3f} times."
        )
        lines.append("")
    columns = ["operator", "what", "10^6 operations"]
    for state in states:
        columns += [f"{state}: untuned us", "tuned us", "gain", "% of the roof untuned"]
    body = []
    for name, workload in WORKLOADS.items():
        if not any(name in rows for rows in states.values()):
            continue
        cells = [name, workload.text, f"{next(r[name]['flops'] for r in states.values() if name in r) / 1e6:.1f}"]
        for rows in states.values():
            cells += _cells(rows[name], kept) if name in rows else [""] * 4
        body.append(cells)
    return "\n".join([*lines, "", *table(columns, body, left=2)]) + "\n"


def _cells(row: Row, kept: Mapping[str, Any]) -> list[str]:
    gain = row["untuned"] / row["tuned"]
    return [f"{row['untuned'] * 1e6:.1f}", f"{row['tuned'] * 1e6:.1f}", f"{gain:.2f}", f"{100 * share(row, kept):.0f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 while operators are left to measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outside", description=__doc__.splitlines()[0])
    parser.add_argument("--measure", metavar="STATE", help="go on with the operators of this state of the compiler")
    parser.add_argument("--operators", metavar="A,B", help="names; all by default")
    parser.add_argument("--minutes", type=float, default=4.0, help="after which none is begun")
    parser.add_argument("--core", type=int, help="whose limits are measured; the first one by default")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--list", action="store_true", help="print operators and leave")
    options = parser.parse_args(arguments)
    names = options.operators.split(",") if options.operators else list(WORKLOADS)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"not among the operators: {', '.join(unknown)}; --list prints what is")
    if options.list:
        print("\n".join(f"{w.name}: {w.text}" for w in WORKLOADS.values()))
        return 0
    if options.measure:
        left = measure(options.measure, names, options.minutes, options.core, options.out)
        if left:
            print(f"{left} operators are left: give the same command again")
        return 1 if left else 0
    kept = load(options.out)
    if not kept:
        parser.error(f"nothing is kept in {options.out}: --measure STATE first")
    save(kept, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
