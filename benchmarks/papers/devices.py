"""Models on a device in a few ways, beside PyTorch on the same one: what figures 14, 15 and 19 of the TVM paper share.

Each model is measured by a process of its own (:mod:`benchmarks.gpu.worker`), all sides of it in turns, by the device's
events where all of the model is there. Every row is kept as soon as it is there, since a lent GPU takes commands of ten
minutes: a call ends in time (--budget), and the next one goes on where it ended.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, plots
from benchmarks.gpu.pool import Worker
from benchmarks.gpu.state import State
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from mlc.errors import MlcError
from mlc.targets.base import get_target

PLAIN = "without graph optimisation"
LEFT_OUT = ["algebra", "gates", "fuse"]  # passes that such a side is compiled without
TORCH = ("torch", "torch.compile")
LONGEST, LEAST, BUDGET = 240.0, 20.0, 530.0  # seconds of a model, that must be left for another one, and of a call
WORK = Path("build/papers")  # where lies what was found so far
REHEARSAL = "This is a processor under PoCL: a rehearsal, whose times say nothing of a GPU."


@dataclass(frozen=True)
class Figure:
    """What is measured for one.

    Args:
        name: of the script and its results.
        title: of the page.
        models: of the zoo.
        paper: a sentence on what the paper measured.
        precisions: ``fp32``, ``fp16``.
        variants: other ways to compile, as passes to be left out, by what they are called.
        peers: of PyTorch's.
        target: what for, unless another one is given.
    """

    name: str
    title: str
    models: tuple[str, ...]
    paper: str
    precisions: tuple[str, ...] = ("fp32",)
    variants: Mapping[str, Sequence[str]] | None = None
    peers: tuple[str, ...] = TORCH
    target: str = "cuda"


@dataclass(frozen=True)
class Row:
    """One model in one precision.

    Args:
        model: its name in the zoo.
        precision: of its operators.
        milliseconds: medians, by side.
        timed: by what.
        note: why a side is missing, or what is wrong.
    """

    model: str
    precision: str
    milliseconds: dict[str, float]
    timed: str
    note: str

    @property
    def gains(self) -> dict[str, float]:
        """How many times as fast as each of the others ours is."""
        mine = self.milliseconds.get("mlc")
        return {n: t / mine for n, t in self.milliseconds.items() if n != "mlc"} if mine else {}


def run(
    figure: Figure, models: Sequence[str], target: str, console: Console, *, small: bool, work: Path, budget: float
) -> list[Row]:
    """All models, but for those that there is no time for; one that fails says why, and the others go on.

    Args:
        figure: whose they are.
        models: of the zoo.
        target: what for.
        console: is told of each.
        small: take small variants.
        work: folder of what earlier calls have found.
        budget: seconds that it may take.
    Returns:
        what is known of them, failures included.
    """
    end = time.monotonic() + budget
    state, worker = State(work / "state.jsonl"), Worker(work / "worker.log")
    variants = {name: list(passes) for name, passes in (figure.variants or {}).items()}
    rows = []
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        try:
            for precision, model in product(figure.precisions, models):
                job = {"stage": "measure", "model": model, "precision": precision, "tuned": False, "quick": small}
                if not state.has(job):
                    left = end - time.monotonic()
                    if left < min(LEAST, budget / 4):
                        continue
                    package = str(Path(folder) / f"{model}-{precision}.tar")
                    how = {"target": target, "package": package, "peers": list(figure.peers), "variants": variants}
                    answer = worker.do({**job, **how}, min(LONGEST, left))
                    if answer is None and left < LONGEST:
                        continue  # the next call begins it again
                    state.keep({**job, **(answer or {"error": f"took longer than {LONGEST:.0f} s"})})
                rows.append(_row(state.row(job) or job))
                said = ", ".join(f"{g:.2f} x {n}" for n, g in rows[-1].gains.items())
                console.print(f"{model} {precision}: {rows[-1].note or said}", highlight=False)
        finally:
            worker.close()
    return rows


def _row(found: Mapping[str, Any]) -> Row:
    """What a figure shows of what is known of a model."""
    times = {n: s["median"] * 1e3 for n, s in found.get("seconds", {}).items()}
    notes = [str(found.get("error", "")), *(f"{n}: {w}" for n, w in found.get("failed", {}).items())]
    note = "; ".join(n for n in notes if n)
    return Row(found["model"], found["precision"], times, found.get("timed", "-"), note)


def page(figure: Figure, rows: Sequence[Row], about: Mapping[str, str], picture: str) -> str:
    """The table with the machine."""
    lines = [f"# {figure.title}", "", *(f"- {k}: {v}" for k, v in about.items()), ""]
    lines += [f"![{picture}]({picture})", ""] if picture else []
    sides = list(dict.fromkeys(side for r in rows for side in r.milliseconds))
    cells = [
        (
            r.model,
            r.precision,
            *(f"{r.milliseconds[s]:.4f}" if s in r.milliseconds else "-" for s in sides),
            *(f"{r.gains[s]:.2f}" if s in r.gains else "-" for s in sides[1:]),
            r.note or r.timed,
        )
        for r in rows
    ]
    heads = ("model", "precision", *(f"{s} ms" for s in sides), *(f"x {s}" for s in sides[1:]), "timed by")
    lines += [*table(heads, cells, left=2), "", figure.paper]
    if "pocl" in about["target"]:
        lines += [REHEARSAL]
    return "\n".join(lines) + "\n"


def name_for(figure: str, target: str) -> str:
    """Of a figure's results: those of a device have its name."""
    accelerator = get_target(target).accelerator
    return figure if accelerator is None else f"{figure}_{str(accelerator.processor).split('-', 1)[1]}"


def main(figure: Figure, arguments: Sequence[str] | None, doc: str | None) -> None:
    """The command line of a figure's script."""
    parser = argparse.ArgumentParser(
        f"python -m benchmarks.papers.{figure.name}", description=doc, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--target", default=figure.target, help=f"what for (default {figure.target})")
    add("--models", type=lambda t: t.split(","), default=figure.models, metavar="A,B", help="some of the figure's")
    add("--small", action="store_true", help="small variants of the models, for a rehearsal")
    add("--budget", type=float, default=BUDGET, help="seconds of this call; the next one goes on (%(default)s)")
    add("--fresh", action="store_true", help="forget what earlier calls have found")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    for model in options.models:
        if model not in figure.models:
            parser.error(f"the figure has no {model!r}; it has {', '.join(figure.models)}")
    try:
        accelerator = get_target(options.target).accelerator
    except MlcError as error:
        parser.error(error.message)
    if accelerator is None:
        parser.error(f"target {options.target!r} has no device")
    if figure.peers:
        require(figure.name, "torch")
    console = Console(width=150)
    name = name_for(figure.name, options.target)
    work = WORK / name
    if options.fresh:
        (work / "state.jsonl").unlink(missing_ok=True)
    how = {"small": options.small, "work": work, "budget": options.budget}
    rows = run(figure, options.models, options.target, console, **how)
    about = machine.describe() | {"target": options.target, "sizes": "small variants" if options.small else "full"}
    names = [f"{r.model} {r.precision}" for r in rows]
    series = {s: [r.gains.get(s, float("nan")) for r in rows] for s in dict.fromkeys(s for r in rows for s in r.gains)}
    files = keep(
        name,
        options.out,
        {"machine": about, "rows": [asdict(r) for r in rows]},
        lambda picture: page(figure, rows, about, picture),
        lambda file: plots.bars(file, names, series, figure.title, "times as fast as", cut=10.0),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)
    if left := len(figure.precisions) * len(options.models) - len(rows):
        console.print(f"{left} left for the next call", highlight=False)
