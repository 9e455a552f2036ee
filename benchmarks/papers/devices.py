"""Models on a device in a few ways, beside PyTorch on the same one: what figures 14, 15 and 19 of the TVM paper share.

Each model is measured by a process of its own (:mod:`benchmarks.gpu.worker`), all sides of it in turns, by the device's
events where all of the model is there.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import machine, plots
from benchmarks.gpu.pool import Worker
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from mlc.errors import MlcError
from mlc.targets.base import get_target

PLAIN = "without graph optimisation"
LEFT_OUT = ["algebra", "gates", "fuse"]  # passes that such a side is compiled without
TORCH = ("torch", "torch.compile")
LONGEST = 240.0  # seconds of a model
REHEARSAL = "This is a processor under PoCL, with other work beside it: a rehearsal, whose times say nothing of a GPU."


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


def run(figure: Figure, models: Sequence[str], target: str, console: Console, *, small: bool) -> list[Row]:
    """All models; one that fails says why, and the others go on."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        worker = Worker(Path(folder) / "worker.log")
        try:
            for precision in figure.precisions:
                for model in models:
                    job = {
                        "stage": "measure", "model": model, "precision": precision, "quick": small, "target": target,
                        "package": str(Path(folder) / f"{model}-{precision}.tar"), "peers": list(figure.peers),
                        "variants": {name: list(passes) for name, passes in (figure.variants or {}).items()},
                    }  # fmt: skip
                    answer = worker.do(job, LONGEST) or {"error": f"took longer than {LONGEST:.0f} s"}
                    times = {n: s["median"] * 1e3 for n, s in answer.get("seconds", {}).items()}
                    notes = [str(answer.get("error", "")), *(f"{n}: {w}" for n, w in answer.get("failed", {}).items())]
                    row = Row(model, precision, times, answer.get("timed", "-"), "; ".join(n for n in notes if n))
                    rows.append(row)
                    said = ", ".join(f"{g:.2f} x {n}" for n, g in row.gains.items())
                    console.print(f"{model} {precision}: {row.note or said}", highlight=False)
        finally:
            worker.close()
    return rows


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
    rows = run(figure, options.models, options.target, console, small=options.small)
    about = machine.describe() | {"target": options.target, "sizes": "small variants" if options.small else "full"}
    names = [f"{r.model} {r.precision}" for r in rows]
    series = {s: [r.gains.get(s, float("nan")) for r in rows] for s in dict.fromkeys(s for r in rows for s in r.gains)}
    files = keep(
        name_for(figure.name, options.target),
        options.out,
        {"machine": about, "rows": [asdict(r) for r in rows]},
        lambda picture: page(figure, rows, about, picture),
        lambda file: plots.bars(file, names, series, figure.title, "times as fast as", cut=10.0),
    )
    console.print(f"{options.out}/: {', '.join(files)}", highlight=False)
