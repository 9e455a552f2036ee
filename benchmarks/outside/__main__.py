"""What tuning gains on operators outside the zoo, and how far from the machine's limits they are untuned.

    python -m benchmarks.outside --list
    python -m benchmarks.outside --measure after --minutes 4 --core 1    # as often as it takes; goes on where it was
    python -m benchmarks.outside                                        # writes the report again, from what is kept

Each operator gets the same number of trials, one thread, and the options that ``mlc tune`` has unless told otherwise.
Untuned and tuned are timed in turns at the end. States of the compiler have names: ``before`` and ``after`` its rules
have learnt from what tuning found.

Beside the roofline stands what a direct convolution or a product can reach at most: terms in the border of an image are
nothing to compute, and lanes of vectors that channels (or rows, of what is row-major) do not fill compute nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import limits, machine
from benchmarks.limits import Limit
from benchmarks.outside.workloads import WORKLOADS, Workload
from benchmarks.report import json_ready, table
from benchmarks.stats import geometric_mean

if TYPE_CHECKING:
    from mlc.ir.graph import Graph, Node
    from mlc.tuning.task import Task

RESULTS = Path("benchmarks/results/zen5-avx512/outside")
TRIALS = 200
ENOUGH = 0.9  # of what is attainable, above which there is nothing left to find

Row = dict[str, Any]  # of an operator in one state of the compiler
State = dict[str, Any]  # of the compiler: rows by operator, and the machine and its limits then


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
        "read": read, "written": written, "lanes": filled(node), "inside": inside(node),
        "trials": len(state.trials), "seconds": time.monotonic() - started,
        "untuned": state.untuned, "tuned": state.best,
        "default": dict(state.task.space.default), "decided": dict(state.decided or {}),
    }  # fmt: skip


def _bytes(shape: Sequence[int]) -> int:
    size = 4
    for extent in shape:
        size *= extent
    return size


def filled(node: Node) -> float:
    """The share of the lanes of vectors that results fill, along what lies innermost: channels of a block, or a row.

    Args:
        node: a fused group; the pixels of single-pixel convolutions are one row where they are not in blocks.
    """
    from mlc.ir.layout import blocked
    from mlc.targets.base import get_target

    result = node.outputs[0].type
    lanes = get_target("x86").record.lanes
    if result.layout is not None:
        *outer, row = blocked(result.shape, 1, lanes).physical_shape
    else:
        *outer, row = result.shape
        window = _window(node)
        if window is not None and math.prod(window[0]) == 1:
            outer, row = [*result.shape[:2]], math.prod(result.shape[2:])
    return math.prod(result.shape) / (math.prod(outer) * (row + -row % lanes))


def inside(node: Node) -> float:
    """The share of the terms of a convolution that are inside its image; 1 of all else."""
    from benchmarks.papers.alt_limits import taps_inside

    window = _window(node)
    if window is None:
        return 1.0
    taps, attrs = window
    data, result = node.inputs[0].type.shape, node.outputs[0].type.shape
    share = 1.0
    for d, count in enumerate(taps):
        step, before, apart = attrs["strides"][d], attrs["pads"][d], attrs["dilations"][d]
        share *= taps_inside(result[d + 2], data[d + 2], count, step, before, apart) / (result[d + 2] * count)
    return share


def _window(node: Node) -> tuple[Sequence[int], Mapping[str, Any]] | None:
    """Taps and attributes of the direct convolution that a fused group is, if it is one."""
    for part in node.attrs["body"].nodes:
        if part.op.name == "conv":
            return node.inputs[1].type.shape[2:], part.attrs
    return None


def measure(state: str, names: Sequence[str], minutes: float, core: int | None, out: Path) -> int:
    """Goes on with a state for some time; how many operators are left."""
    began, kept = time.monotonic(), load(out)
    allowed = os.sched_getaffinity(0)
    found = kept.setdefault("states", {}).setdefault(state, {"operators": {}})
    if "limits" not in found:
        found["limits"] = asdict(limits.measure([min(allowed) if core is None else core], [1])[0])
    found["machine"] = {k: v for k, v in machine.describe().items() if k != "load"}
    rows: dict[str, Row] = found["operators"]
    scratch = Path("build/outside") / state
    scratch.mkdir(parents=True, exist_ok=True)
    left = [n for n in names if n not in rows]
    for name in list(left):
        if time.monotonic() - began > 60 * minutes:
            break
        row = rows[name] = tuned(WORKLOADS[name], scratch / f"{name}.jsonl")
        left.remove(name)
        save(kept, out)
        text = f"{row['untuned'] * 1e6:.1f} -> {row['tuned'] * 1e6:.1f} us, {row['untuned'] / row['tuned']:.2f}"
        part = f"{100 * reached(row, found):.0f} % of what is attainable untuned"
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


def share(row: Row, state: State) -> float:
    """The untuned speed over what arithmetic, or the smallest cache that holds all operands, allows."""
    return float(row["flops"] / row["untuned"] / 1e9 / _roof(row, state, Limit(**state["limits"])))


def reached(row: Row, state: State) -> float:
    """The same over what is attainable: lanes that nothing fills compute nothing, and terms in the border are none."""
    limit = Limit(**state["limits"])
    possible = replace(limit, gflops=limit.gflops * row["lanes"] / row["inside"])
    return float(row["flops"] / row["untuned"] / 1e9 / _roof(row, state, possible))


def _roof(row: Row, state: State, limit: Limit) -> float:
    caches = {k: int(v.split()[0]) << 10 for k, v in _caches(state["machine"]["caches"])}
    level = limits.home(caches, row["read"] + row["written"])
    return limits.roof_of(limit, level, row["flops"], row["read"], row["written"])


def _caches(text: str) -> list[tuple[str, str]]:
    parts = [part.split(" ", 1) for part in text.split(", ")]
    return [(name, size) for name, size in parts]


def markdown(kept: Mapping[str, Any]) -> str:
    """The report."""
    states: Mapping[str, State] = kept["states"]
    *_, last = states.values()
    lines = ["# Tuning outside the zoo", "", *(f"- {k}: {v}" for k, v in last["machine"].items() if k != "date")]
    lines += [f"- {TRIALS} trials an operator, one thread", ""]
    for name, state in states.items():
        rows = state["operators"]
        gains = {n: r["untuned"] / r["tuned"] for n, r in rows.items()}
        below = [gain for n, gain in gains.items() if reached(rows[n], state) < ENOUGH]
        lines += [
            f"{name} ({state['machine']['date']}): {len(rows)} operators, tuned {geometric_mean([*gains.values()]):.3f}"
            f" times as fast as untuned (geometric mean, most {max(gains.values()):.2f}).",
            f"{len(rows) - len(below)} of them reach {ENOUGH:.0%} of what is attainable untuned; the others gain "
            f"{geometric_mean(below):.3f} times.",
            f"{sum(share(r, state) >= ENOUGH for r in rows.values())} reach {ENOUGH:.0%} of the roof.",
            f"L{limits.line(Limit(**state['limits']))[1:]}.",
            "",
        ]
    lines += [*_REMARKS.strip().splitlines(), ""]
    columns = ["operator", "what", "10^6 operations"]
    for name in states:
        columns += [f"{name}: untuned us", "tuned us", "gain", "% of the roof untuned", "% of what is attainable"]
    body = []
    for name, workload in WORKLOADS.items():
        found = [s["operators"].get(name) for s in states.values()]
        if not any(found):
            continue
        cells = [name, workload.text, f"{next(row['flops'] for row in found if row) / 1e6:.1f}"]
        for row, state in zip(found, states.values(), strict=True):
            cells += _cells(row, state) if row else [""] * 5
        body.append(cells)
    return "\n".join([*lines, *table(columns, body, left=2)]) + "\n"


_REMARKS = """
The roof is arithmetic, or the bytes that are read and written once through the smallest cache that holds them all. What
is attainable is less where vectors have lanes that the channels of a block, or the pixels of a row, do not fill, and
more where terms lie in the border of the image, which count as operations and are none. Operations of Winograd's
algorithm are its own.
"""


def _cells(row: Row, state: State) -> list[str]:
    times = [f"{row['untuned'] * 1e6:.1f}", f"{row['tuned'] * 1e6:.1f}", f"{row['untuned'] / row['tuned']:.2f}"]
    return [*times, f"{100 * share(row, state):.0f}", f"{100 * reached(row, state):.0f}"]


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
