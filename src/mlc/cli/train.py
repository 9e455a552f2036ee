"""``mlc train``: learn the parameters of a model from examples, by steps that are compiled as one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from mlc.cli import values
from mlc.cli.console import Console, require_distinct, require_writable, write_json
from mlc.cli.group import Command
from mlc.cli.options import LoadOptions, json_option, load_options
from mlc.cli.progress import Bar, CompileProgress
from mlc.errors import UsageError
from mlc.settings import MAX_SEED
from mlc.training.watch import Exchange, Watcher

if TYPE_CHECKING:
    import numpy as np

MOST = 1 << 30
SUFFIXES = (".onnx", ".mlc", ".tar")


@click.command(
    cls=Command,
    examples="""
    mlc train model.onnx --data train.npz --epochs 5 --batch 64 -o trained.onnx
    mlc train model.onnx --data train.npz --validation test.npz --optimizer adamw --lr 3e-4 --schedule cosine -o t.onnx
    mlc train model.onnx --data train.npz --loss mse --optimizer sgd --lr 0.01 --momentum 0.9 -o trained.mlc
    mlc train model.onnx --data train.npz --epochs 20 -o trained.onnx --resume     # go on after an interrupt
    mlc train model.onnx --data train.npz --epochs 20 -o trained.onnx --tune dynamic --report curve.html
    mlc train model.onnx --data train.npz --batch 256 --memory 2GiB -o trained.onnx
    mlc train net.py --data x=images.npy --data label=labels.npy --epochs 5 -o trained.tar
    """,
)
@click.argument("model")
@click.option(
    "--data", required=True, multiple=True, metavar="FILE.npz|NAME=FILE.npy",
    help="An array of examples for each input, by its name, and one more: what is to be predicted. May be repeated; "
    ".npy files are read as they are needed.",
)  # fmt: skip
@click.option(
    "-o", "--output", required=True, metavar="FILE",
    help="The trained model: .onnx or .mlc; or .tar, compiled for what ran the steps.",
)  # fmt: skip
@load_options
@click.option(
    "--loss", type=click.Choice(["cross_entropy", "margin", "mse"]), default="cross_entropy", show_default=True,
    help="Of scores of classes (a softmax at the end counts as part of it), of lengths of capsules, or of numbers.",
)  # fmt: skip
@click.option(
    "--optimizer", type=click.Choice(["sgd", "adam", "adamw"]), default="adam", show_default=True,
    help="How parameters follow their derivatives.",
)  # fmt: skip
@click.option("--lr", type=values.Real(), default=1e-3, show_default=True, metavar="X", help="The learning rate.")
@click.option("--momentum", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="X", help="Of sgd.")
@click.option(
    "--weight-decay", type=click.FloatRange(0), default=0.0, show_default=True, metavar="X",
    help="How much parameters shrink; added to derivatives, but for adamw.",
)  # fmt: skip
@click.option("--clip-norm", type=values.Real(), metavar="X", help="The largest norm of all derivatives together.")
@click.option(
    "--schedule", type=click.Choice(["constant", "cosine"]), default="constant", show_default=True,
    help="How the learning rate goes on.",
)  # fmt: skip
@click.option(
    "--warmup", type=values.Whole(0, MOST), default=0, show_default=True, metavar="N",
    help="Steps in which it grows from nothing.",
)  # fmt: skip
@click.option(
    "--epochs", type=values.Whole(1, MOST), default=1, show_default=True, metavar="N", help="Times through the data."
)
@click.option(
    "--batch", type=values.Whole(1, MOST), metavar="N",
    help="Examples in a step, where the model leaves that open.  [default: the model's, or 64]",
)  # fmt: skip
@click.option(
    "--validation", multiple=True, metavar="FILE.npz|NAME=FILE.npy|SHARE",
    help="Examples to measure after each epoch: files as for --data, or a share of it (0.1) that is not learned from.",
)  # fmt: skip
@click.option("--predict", metavar="NAME", help="The output that is compared, where there are several.")
@click.option("--freeze", multiple=True, metavar="NAME", help="A parameter that stays as it is; may be repeated.")
@click.option(
    "--batch-norm", type=click.Choice(["measured", "kept"]), default="measured", show_default=True,
    help="Whether batch norms take means and variances of each batch, or keep those that they have.",
)  # fmt: skip
@click.option("--seed", type=values.Whole(0, MAX_SEED), default=0, show_default=True, metavar="N", help="Of the order.")
@click.option(
    "--tune", type=click.Choice(["static", "dynamic"]),
    help="Search for faster kernels of a step: before training, or beside it, which takes better ones between steps; "
    "then the last digits of results differ from run to run.",
)  # fmt: skip
@click.option(
    "--trials", type=values.Whole(1, MOST), metavar="N",
    help="With --tune: configurations to measure, earlier runs included.  [default: 1000]",
)  # fmt: skip
@click.option(
    "--records", metavar="FILE",
    help="With --tune: every trial is appended here, and gone on from.  [default: in the user's cache]",
)  # fmt: skip
@click.option(
    "--memory", metavar="SIZE",
    help="Bytes that a step may take, such as 2GiB, with examples, parameters and what the optimizer remembers: "
    "results of the forward pass are made again in the backward pass where keeping them would take more.",
)  # fmt: skip
@click.option("--report", metavar="FILE", help="Write the run's curves as one HTML file.")
@click.option(
    "--target", default="x86", show_default=True, metavar="TARGET",
    help="What runs the steps; this machine has to.",
)  # fmt: skip
@click.option(
    "--threads", type=values.Whole(1, 1024), metavar="N",
    help="Threads of a step.  [default: all cores; one is left to --tune dynamic]",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="FILE",
    help="Where the state of the run is kept after each epoch, and every ten minutes.  [default: OUTPUT.checkpoint]",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, if there is one.")
@json_option
@click.pass_obj
def command(
    console: Console,
    model: str,
    data: tuple[str, ...],
    output: str,
    load_options: LoadOptions,
    loss: str,
    optimizer: str,
    lr: float,
    momentum: float,
    weight_decay: float,
    clip_norm: float | None,
    schedule: str,
    warmup: int,
    epochs: int,
    batch: int | None,
    validation: tuple[str, ...],
    predict: str | None,
    freeze: tuple[str, ...],
    batch_norm: str,
    seed: int,
    tune: str | None,
    trials: int | None,
    records: str | None,
    memory: str | None,
    report: str | None,
    target: str,
    threads: int | None,
    checkpoint: str | None,
    resume: bool,
    json_file: str | None,
) -> None:
    """Learn the parameters of MODEL from examples.

    Gradients are derived from what every operator says of its elements; the model, its loss, all derivatives and the
    optimizer are compiled as one program, which is a step. Batch norms take the means and
    variances of each batch, and follow them for the trained model. A run with the
    same seed on the same machine gives the same bits, interrupted or not.
    """
    if Path(output).suffix not in SUFFIXES:
        raise UsageError(f"{output}: a trained model is written as {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    sources = [values.named_file(text, "--data") for text in data]
    kept = checkpoint or f"{output}.checkpoint"
    files = [f for f in (output, kept, report, records, json_file) if f is not None and f != "-"]
    require_distinct([model, *(file for _, file in sources)], files)
    require_writable(*files)
    if momentum and optimizer != "sgd":
        raise UsageError(f"--momentum is an option of sgd, not of {optimizer}")
    if tune is None and (trials is not None or records is not None):
        raise UsageError(f"{'--trials' if trials is not None else '--records'} is an option of --tune")

    from mlc.api import batched, train
    from mlc.api.step_tuning import StepTuning
    from mlc.cli.tune_view import TuneProgress
    from mlc.training.loop import Plan
    from mlc.training.report import write_report

    loaded = batched(model, batch, **load_options.arguments)
    arrays = _arrays("--data", sources)
    searching = TuneProgress(console) if tune == "static" else None
    tuning = StepTuning(tune, trials or 1000, records, searching) if tune is not None else None
    with searching or nullcontext(), CompileProgress(console) as compiling, _Progress(console, epochs) as progress:
        found = train(
            loaded,
            arrays,
            Plan(epochs, lr, schedule, warmup, seed),
            loss=loss,
            optimizer=optimizer,
            momentum=momentum,
            decay=weight_decay,
            clip=clip_norm,
            output=predict,
            frozen=freeze,
            measures=batch_norm == "measured",
            validation=_validation(validation),
            target=target,
            threads=threads,
            memory=None if memory is None else values.size(memory, "--memory"),
            tuning=tuning,
            checkpoint=kept,
            resume=resume,
            where=", ".join(dict.fromkeys(file for _, file in sources)),
            observer=compiling,
            watcher=progress,
        )
    for note in found.notes:
        console.note(note)
    found.save(output)
    if report is not None:
        write_report(report, found.history, found.exchanges, Path(model).name)
    last = found.history[-1]
    console.say(f"{output}: {len(found.history)} epochs; {_line(last)}")
    document = {"output": output, "epochs": list(found.history), "exchanges": [asdict(e) for e in found.exchanges]}
    write_json(console, json_file, "train", document)


def _arrays(option: str, sources: Sequence[tuple[str | None, str]]) -> dict[str, np.ndarray]:
    from mlc.harness.arrays import read_npy, read_npz

    found = []
    for name, file in sources:
        found += list(read_npz(file).items()) if name is None else [(name, read_npy(file, mapped=True))]
    return values.merged(option, found)


def _validation(texts: tuple[str, ...]) -> Mapping[str, Any] | float | None:
    if not texts:
        return None
    try:
        (share,) = map(float, texts)
    except ValueError:
        return _arrays("--validation", [values.named_file(text, "--validation") for text in texts])
    if not 0 < share < 1:
        raise UsageError(f"--validation {texts[0]}: a share lies between 0 and 1", hint="0.1, or a file")
    return share


def _line(told: Mapping[str, Any]) -> str:
    """An epoch in a line."""
    parts = [] if told["loss"] is None else [f"loss {told['loss']:.4f}"]
    if "validation_loss" in told:
        parts.append(f"validation {told['validation_loss']:.4f}")
    if "validation_accuracy" in told:
        parts.append(f"accuracy {told['validation_accuracy']:.1%}")
    return ", ".join([*parts, f"{told['examples_per_second']:.0f} examples/s"])


def _tried(exchange: Exchange) -> str:
    """What came of other kernels, in a line."""
    made = f"{exchange.made} kernels compiled, {exchange.found} from the function cache"
    if exchange.before is None or exchange.after is None:
        return f"kernels that were found give other results (by {exchange.difference:.1e}); they are not used; {made}"
    times = f"{exchange.before * 1e3:.4g} ms a step, {exchange.after * 1e3:.4g} ms with those that were found"
    return f"{times}{', which are used now' if exchange.taken else ''}; {made}"


class _Progress(Bar, Watcher):
    """A bar of the epoch's steps for a person, a line an epoch for everybody."""

    def __init__(self, console: Console, epochs: int) -> None:
        self._console = console
        self._epochs = epochs

    def stepped(self, epoch: int, batch: int, batches: int, loss: float, rate: float) -> None:
        if self._bar is None:
            return
        if not self._bar.tasks:
            self._bar.add_task("", total=batches, text="")
        (task,) = self._bar.tasks
        text = f"{batch}/{batches}  loss {loss:.4f}  {rate:.0f} examples/s"
        self._bar.update(task.id, description=f"epoch {epoch + 1}/{self._epochs}", completed=batch, text=text)

    def finished(self, epoch: int, told: Mapping[str, Any]) -> None:
        self._console.note(f"epoch {epoch}/{self._epochs}: {_line(told)}")

    def exchanged(self, exchange: Exchange) -> None:
        self._console.note(f"step {exchange.step}: {_tried(exchange)}")

    def __enter__(self) -> Self:
        if self._console.interactive:
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")]
            self._bar = Progress(*columns, TimeElapsedColumn(), console=RichConsole(stderr=True), transient=True)
            self._bar.start()
        return self
