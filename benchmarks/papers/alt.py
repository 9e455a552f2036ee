"""What the scripts of ALT's figures share: operators between others, loops searched under given layouts, pages."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.papers.keep import RESULTS, keep, keep_machine, machine_of
from mlc.errors import ScheduleError
from mlc.ir.graph import Builder, Graph, Node
from mlc.ir.site import Site
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.group import configured, is_group
from mlc.rewrite.workload import workload_document
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LEVELS, Target
from mlc.tuning.joint import JOINT, layout_space, loop_space
from mlc.tuning.journal import Journal
from mlc.tuning.measure import LocalMeasurer
from mlc.tuning.options import TuneOptions
from mlc.tuning.session import Session
from mlc.tuning.state import TaskState
from mlc.tuning.task import Task, task_of, tasks_of

OPTIONS = CompileOptions("alt", "onnx", "0" * 64, disabled_passes=frozenset({"winograd"}))


def convolution(
    channels: int,
    filters: int,
    size: int,
    taps: int,
    *,
    stride: int = 1,
    pad: int = 0,
    batch: int = 1,
    bias: bool = False,
) -> Graph:
    """A 2-D convolution with an activation behind it, and a bias between them if asked for."""
    g, rng = Builder("conv"), np.random.default_rng(channels + filters)
    x = g.input("x", TensorType((batch, channels, size, size), f32))
    w = rng.standard_normal((filters, channels, taps, taps)).astype(np.float32)
    attrs = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "groups": 1}
    (y,) = g.add(get("conv"), [x, g.constant(w, "w")], attrs, names=["y"], sources=["conv"])
    if bias:
        (y,) = g.add(get("add"), [y, g.constant(rng.standard_normal((filters, 1, 1)).astype(np.float32), "b")])
    (r,) = g.add(get("relu"), [y], names=["r"])
    return g.finish([r])


def in_network(graph: Graph, target: Target, *, types: Sequence[TensorType] | None = None) -> Task | None:
    """The last operator of a graph as one between others, whose readers take any layout.

    Args:
        graph: with it.
        target: whose schedules.
        types: of its inputs, with layouts; row-major unless given.
    Returns:
        nothing where it has no layouts to choose.
    """
    alone = tasks_of(graph, target, OPTIONS, Observer())
    if not alone:
        return None
    last = alone[-1]
    site = replace(last.site, inputs=last.site.inputs if types is None else tuple(types), row_major=False)
    task = task_of(workload_document(last.node, site), (), target)
    return task if layout_space(task, target) is not None else None


def under(task: Task, target: Target, layouts: Config) -> Task:
    """The task with the loops alone to choose, under layouts of its space.

    Raises:
        ScheduleError: no loops follow these.
    """
    space = loop_space(task, target, layouts)
    if space is None:
        raise ScheduleError(f"no loops for {dict(layouts)}")
    return replace(task, space=space)


def rows_and_columns(task: Task, target: Target, block: int | None = None) -> dict[str, Config]:
    """The layouts of a 2-D convolution that libraries have, as points of its layout space.

    Returns:
        ``NOHW``, ``NHWO``, and with blocks of channels of some size ``N O/o H W o``.
    """
    space = layout_space(task, target)
    assert space is not None
    (_, o, h, w), (_, i, _, _) = task.node.outputs[0].type.shape, task.node.inputs[1].type.shape

    def of(inner_o: int, inner_i: int) -> Config:
        return {
            **space.default, "layout.h": (1, h), "layout.w": (1, w), "layout.o": (o // inner_o, inner_o),
            "layout.i": (i // inner_i, inner_i), "layout.weights.o": (o // inner_o, inner_o),
            "layout.weights.i": (i // inner_i, inner_i),
        }  # fmt: skip

    found = {"NOHW": of(1, 1), "NHWO": of(o, i)}
    if block is not None and o % block == 0:
        found[f"N O/{block} H W {block}"] = of(block, block if i % block == 0 else i)
    return found


def searched(
    task: Task, target: Target, measurer: LocalMeasurer, path: Path, trials: int, *, levels: int = 0, index: int = 0
) -> TaskState:
    """What a search of a task finds; a record file that is there is gone on from.

    Args:
        task: with the space that is searched.
        target: whose schedules.
        measurer: knows the task, or the one that this is a part of, at ``index``.
        path: of the records.
        trials: of the search.
        levels: of tiles of the layouts that are searched, too.
        index: position among the measurer's tasks.
    """
    limits = TuneOptions(trials=trials, layouts=levels, joint=JOINT)
    with Journal(path) as journal:
        session = Session([task], target, _At(measurer, index), limits, journal)
        (state,) = session.run().states
    return state


class _At:
    """A measurer of one task of several."""

    def __init__(self, measurer: LocalMeasurer, index: int) -> None:
        self._measurer, self._index = measurer, index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._measurer, name)

    def measure(self, task: int, *rest: Any, **more: Any) -> Any:
        return self._measurer.measure(self._index, *rest, **more)

    def compare(self, task: int, configs: Sequence[Config]) -> Any:
        return self._measurer.compare(self._index, configs)


def best_tiled(state: TaskState) -> Config | None:
    """The fastest trial under a searched layout; nothing where none ran."""
    return next((c for c in state.fastest(1 << 30) if LEVELS in c), None)


class Given:
    """Configurations of groups by the name of one of their operators."""

    def __init__(self, configs: Mapping[str, Config]) -> None:
        self._configs = configs

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return None

    def configure(self, node: Node, site: Site) -> Node:
        config = next((self._configs[s] for s in node.sources if s in self._configs), None)
        return node if config is None or not is_group(node) else configured(node, config)

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        raise ScheduleError(reason)


# -- running and keeping ----------------------------------------------------------------------------------------------
SECONDS = "after which no case begins; 0 writes the page again from what is kept"


def arguments(doc: str | None, trials: int) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=trials, help="of each search")
    parser.add_argument("--seconds", type=float, default=float("inf"), help=SECONDS)
    parser.add_argument("--target", default="x86")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that names some of what there is, comma-separated; others end the program."""

    def names(given: str) -> list[str]:
        found = given.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(known)}")
        return found

    return names


def go_on(
    name: str, given: argparse.Namespace, cases: Mapping[str, Callable[[Path], dict[str, Any]]], *, again: bool = False
) -> list[dict[str, Any]]:
    """Runs the cases that are not kept yet, while there is time; all rows that are kept.

    Args:
        name: of the result; a folder of it has a file a case.
        given: the command line.
        cases: what makes each row, given a folder for its records; parts of a row that it does not give stay.
        again: run those that are kept and were not run again yet, in place of the others; their trials stay.
    """
    folder, begun, here = given.out / name, time.monotonic(), machine.describe()
    folder.mkdir(parents=True, exist_ok=True)
    for case, run in cases.items():
        before = row_kept(folder, case)
        done = before.get("trials", -1) >= given.trials
        if (not before or before.get("alone")) if again else done:
            continue
        if time.monotonic() - begun >= given.seconds:
            break
        about = {"case": case, "trials": given.trials, "processor": f"{here['cpu']}, {here['caches']}"}
        about = {**before, "alone": True} if again else about
        row = {**about, **run(folder)}
        (folder / f"{case}.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
        keep_machine(folder, here)
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def row_kept(folder: Path, case: str) -> dict[str, Any]:
    """What a folder has of a case; nothing where it was not run yet."""
    file = folder / f"{case}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(
    name: str, out: Path, title: str, remarks: str, heads: Sequence[str], table: Sequence[Sequence[str]],
    rows: Sequence[Mapping[str, Any]], bars: Mapping[str, Mapping[str, float]], unit: str, last: str = "",
    here: str | None = None,
) -> None:  # fmt: skip
    """Keeps a figure: numbers, a page, and bars.

    Args:
        name, out: of the files, and their folder.
        title, remarks: of the page; what differs from the paper and why.
        heads, table: what the page lists.
        rows: the numbers.
        bars: by case, the height of each bar by its label.
        unit: of the bars.
        last: line under the table.
        here: the machine, in a line, which the numbers keep, too; that of the rows' folder unless given.
    """
    numbers = list(rows) if here is None else {"machine": here, "rows": list(rows)}
    on = machine_of(out / name) if here is None else here

    def page(picture: str) -> str:
        lines = [f"# {title}", "", on, "", remarks.strip(), "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in table]
        lines += ["", last] if last else []
        lines += ["", f"![{title}]({picture})"] if picture else []
        return "\n".join([*lines, ""])

    def draw(path: Path) -> None:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(max(6.0, 0.9 * len(bars)), 3.6), layout="constrained")
        labels = list(dict.fromkeys(label for found in bars.values() for label in found))
        for k, label in enumerate(labels):
            at = [(place, found[label]) for place, found in enumerate(bars.values()) if label in found]
            wide = 0.8 / len(labels)
            axes.bar([x + (k - (len(labels) - 1) / 2) * wide for x, _ in at], [y for _, y in at], wide, label=label)
        axes.set_xticks(range(len(bars)), list(bars), rotation=30, ha="right", fontsize=7)
        axes.set_ylabel(unit)
        axes.legend(fontsize=7)
        figure.savefig(path, dpi=120)
        pyplot.close(figure)

    keep(name, out, numbers, page, draw)
    print((out / f"{name}.md").read_text(encoding="utf-8"))
