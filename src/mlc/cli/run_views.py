"""What ``mlc run`` shows: one function a section, each giving what goes into the JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc.cli.console import Console
from mlc.harness.top import top_entries
from mlc.runtime.dtypes import describe

if TYPE_CHECKING:
    from mlc.harness.compare import Comparison
    from mlc.harness.layers import LayerReport
    from mlc.harness.profile import Row
    from mlc.runtime.module import DeviceRun

# Steps shown around the first wrong one; the JSON document has all.
_LAYERS_SHOWN = 5


def show_outputs(console: Console, results: Mapping[str, np.ndarray], saved: str | None) -> list[dict[str, Any]]:
    """Type and range of every output."""
    documents = []
    for name, array in results.items():
        facts: dict[str, Any] = {"name": name, "type": describe(array.dtype, array.shape)}
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        facts |= {
            "min": float(finite.min()) if finite.size else None,
            "max": float(finite.max()) if finite.size else None,
            "mean": float(finite.mean()) if finite.size else None,
            "nan": int(np.isnan(wide).sum()),
            "inf": int(np.isinf(wide).sum()),
        }
        documents.append(facts)
    numbers = ("min", "max", "mean", "nan", "inf")
    rows = [(d["name"], d["type"], *(_number(d[key]) for key in numbers)) for d in documents]
    console.say(console.table(("output", "type", *numbers), rows, numbers))
    if saved is not None:
        console.say(f"outputs saved as {saved}")
    return documents


def show_top(
    console: Console, results: Mapping[str, np.ndarray], count: int, labels: list[str] | None
) -> dict[str, list[dict[str, Any]]]:
    """The highest entries of every output that has classes."""
    documents: dict[str, list[dict[str, Any]]] = {}
    for name, array in results.items():
        entries = top_entries(array, count, labels)
        if entries is None:
            console.note(f"output {name}: --top needs [classes] or [batch, classes], not {list(array.shape)}")
            continue
        documents[name] = [
            {"row": e.row, "rank": e.rank, "index": e.index, "value": e.value, "label": e.label} for e in entries
        ]
        heads = ("row", "rank", "index", "value")
        rows = [(e.row, e.rank, e.index, _number(e.value), e.label) for e in entries]
        console.say()
        console.say(console.table((*heads, name), rows, heads))
    return documents


def show_comparison(console: Console, reference: str, found: Sequence[Comparison]) -> dict[str, Any]:
    """One line an output, and the verdict."""
    heads = ("max error", "relative", "allowed", "largest")
    rows = [
        (
            c.name, c.type, *(f"{x:.3g}" for x in (c.max_error, c.relative_error, c.limit, c.scale)), c.basis,
            c.reason or "ok",
        )
        for c in found
    ]  # fmt: skip
    console.say()
    console.say(console.table((f"against {reference}", "type", *heads, "tolerance", ""), rows, heads))
    return {"reference": reference, "ok": all(c.ok for c in found), "outputs": [c.to_json() for c in found]}


def show_layers(console: Console, report: LayerReport) -> dict[str, Any]:
    """The first wrong step with those before and after it, or the worst ones when all agree."""
    layers, first = list(report.layers), report.first_wrong
    console.say()
    if not layers:
        console.say("no step leaves behind a tensor of the original model: there is nothing to compare")
        return {"ok": True, "skipped": report.skipped, "first_wrong": None, "layers": []}
    if first is None:
        shown = sorted(layers, key=lambda layer: -layer.result.relative_error)[:_LAYERS_SHOWN]
    else:
        at = layers.index(first)
        shown = layers[max(0, at - _LAYERS_SHOWN // 2) : at + 1 + _LAYERS_SHOWN // 2]
    heads = ("step", "relative")
    rows = [
        (x.step, f"{x.result.relative_error:.3g}", x.result.reason or "ok", x.result.name, ", ".join(x.sources))
        for x in shown
    ]
    console.say(console.table((*heads, "", "tensor", "nodes of the model"), rows, heads))
    wrong = sum(not layer.result.ok for layer in layers)
    console.say(f"{len(layers)} tensors compared, {wrong} differ; {report.skipped} are not in the original model")
    return {
        "ok": wrong == 0,
        "skipped": report.skipped,
        "first_wrong": None if first is None else first.to_json(),
        "layers": [layer.to_json() for layer in layers],
    }


def show_bench(
    console: Console, nanoseconds: Sequence[int], phases: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Statistics of the runs, and of what they did on a device and on the way to it and back."""
    from mlc.harness.timing import Statistics

    found = Statistics.of(nanoseconds)
    parts = {phase: Statistics.of(ns) for phase, ns in (phases or {}).items() if any(ns)}
    names = ("min", "p50", "p90", "p99", "max", "mean", "std")
    console.say()
    rows = [[*(f"{getattr(s, name):.3f}" for name in names), s.n] for s in (found, *parts.values())]
    heads = [*(f"{name} ms" for name in names), "runs"]
    if parts:
        rows = [[*row, phase] for row, phase in zip(rows, ("all", *parts), strict=True)]
    console.say(console.table([*heads, *([""] if parts else [])], rows, heads))
    if found.noisy:
        console.note(
            f"warning: noisy: half of the runs are more than {100 * found.mad / found.p50:.0f} % off the median; "
            "is the machine busy?"
        )
    return {**found.to_json(), **({"phases": {k: s.to_json() for k, s in parts.items()}} if parts else {})}


def show_device(console: Console, runs: Sequence[DeviceRun]) -> list[dict[str, Any]]:
    """What the device says of its runs: one line each, and the layers of those that tell them."""
    counts = any("cycles" in run.report for run in runs)
    heads = (*(["cycles"] * counts), "ms", "operations", "GOPS")
    rows = []
    for run in runs:
        seconds, operations = run.report.get("seconds"), run.report.get("operations", run.step.flops)
        rate = "" if not seconds else f"{operations / seconds / 1e9:.1f}"
        ms = "" if seconds is None else f"{seconds * 1e3:.3f}"
        rows.append((run.step.kernel, *([run.report.get("cycles", "")] * counts), ms, operations, rate))
    console.say()
    console.say(console.table(("on the device", *heads), rows, heads))
    for run in runs:
        layers = run.report.get("layers", ())
        if layers:
            # what is nested is for the JSON document
            names = [key for key, value in layers[0].items() if isinstance(value, (str, int, float))]
            cells = [[_cell(layer.get(name)) for name in names] for layer in layers]
            numbers = [name for name in names if not isinstance(layers[0][name], str)]
            console.say()
            console.say(console.table(names, cells, numbers))
    for line in dict.fromkeys(line for run in runs for line in run.report.get("assumptions", ())):
        console.note(line)
    return [{"step": run.step.kernel, "sources": list(run.step.sources), **run.report} for run in runs]


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_profile(console: Console, table: Sequence[Row]) -> None:
    """Every step, the slowest first."""
    on_device = any(r.bound for r in table)
    heads = ("step", "ms", "%", "GFLOP/s", "GB/s", *(("% of peak", "occupancy %") if on_device else ()))
    texts = (*(("bound by",) if on_device else ()), "kernel", "nodes of the model")

    def cells(r: Row) -> tuple[object, ...]:
        figures = (r.step, f"{r.ms:.3f}", f"{100 * r.share:.1f}", f"{r.gflops:.1f}", f"{r.gbytes:.1f}")
        kernel = f"{r.kernel} ({r.note})" if r.note else r.kernel
        if not on_device:
            return (*figures, kernel, _nodes(r))
        return (*figures, _percent(r.peak), _percent(r.occupancy), r.bound, kernel, _nodes(r))

    rows = [cells(r) for r in sorted(table, key=lambda row: -row.ms)]
    console.say()
    console.say(console.table((*heads, *texts), rows, heads))
    console.say(f"all steps: {sum(row.ms for row in table):.3f} ms")


def _nodes(row: Row) -> str:
    return ", ".join(row.sources)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
