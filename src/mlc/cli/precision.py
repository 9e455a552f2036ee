"""The options that make products less precise and faster, for every command that compiles; and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from mlc.cli.console import Console
from mlc.errors import DeviceError, MissingDependencyError, UsageError
from mlc.settings import WEIGHT_TYPES

if TYPE_CHECKING:
    from mlc.api import LayerError, Model, Package
    from mlc.harness.accuracy import Accuracy

weights_option = click.option(
    "--weights", type=click.Choice(WEIGHT_TYPES),
    help="Store weights of matrix products small, and widen them as they are read.",
)  # fmt: skip
bf16_option = click.option(
    "--bf16", is_flag=True, help="Compute matrix products in bfloat16, summed up in float32 (vdpbf16ps; AMX)."
)
emulation_option = click.option(
    "--allow-emulation", is_flag=True, help="Widen the operands of --bf16 where the processor has no such products."
)
fp16_option = click.option(
    "--fp16", is_flag=True, help="Compute in half precision, with sums in float32; softmax, norms and means stay there."
)
tf32_option = click.option(
    "--tf32", is_flag=True,
    help="Multiply float32 by Tensor Cores, which take 10 bits of fractions (-tf32=on of the target cuda).",
)  # fmt: skip
keep_option = click.option(
    "--keep-f32", multiple=True, metavar="A,B",
    help="Operators or nodes of the model that stay in float32 with --fp16 too; may be repeated.",
)  # fmt: skip
report_option = click.option(
    "--accuracy-on", metavar="FILE.npz",
    help="Inputs to report the error of --weights, --bf16, --fp16 and --tf32 on, several along the first axis.  "
    "[default: random]",
)  # fmt: skip
layers_option = click.option(
    "--accuracy-report", is_flag=True, help="Show what every product loses by --weights, --bf16, --fp16 and --tf32."
)


def with_tf32(target: str, *, tf32: bool) -> str:
    """A target whose Tensor Cores multiply float32, where that was asked for.

    Raises:
        UsageError: the target is of another kind, which has none.
    """
    if not tf32:
        return target
    if target.split()[:1] != ["cuda"]:
        raise UsageError(f"--tf32 is for Tensor Cores, which the target {target!r} has not", hint="--target cuda has")
    return f"{target} -tf32=on"


def require_reason(accuracy_on: str | None, *, by_layer: bool, lossy: bool) -> None:
    """Complains of options of a report that nobody makes, as nothing is ``lossy``.

    Raises:
        UsageError: there are some.
    """
    for name, given in (("--accuracy-on", accuracy_on is not None), ("--accuracy-report", by_layer)):
        if given and not lossy:
            raise UsageError(
                f"{name} is only for --weights, --bf16, --fp16 and --tf32",
                hint="add one of these, or leave it out; what --quantize loses, --quantize-report shows",
            )


@dataclass(frozen=True)
class Measured:
    """What smaller numbers cost: of outputs, and of layers where that was asked for."""

    outputs: tuple[Accuracy, ...]
    layers: tuple[LayerError, ...]


def measured(
    console: Console,
    model: Model,
    package: Package,
    accuracy_on: str | None,
    small: Callable[[Model], Package] | None = None,
) -> Measured | None:
    """What smaller numbers cost; ``None`` with a note where this machine cannot tell.

    Packages for other processor families are run under an emulator where inputs or a report by layer were asked for.

    Args:
        console: takes the note.
        model: in full precision.
        package: in less.
        accuracy_on: the file of inputs.
        small: compiles as ``package`` was; for a report by layer.
    """
    from mlc.api.losses import losses, losses_by_layer
    from mlc.harness.arrays import read_npz

    samples, seed = None if accuracy_on is None else read_npz(accuracy_on), console.settings.seed
    emulate = accuracy_on is not None or small is not None  # only who asks waits for it
    try:
        outputs = losses(model, package, samples, seed=seed, emulate=emulate)
        target = package.manifest.target.string
        layers = () if small is None else losses_by_layer(model, small, target, samples, seed=seed, emulate=emulate)
    except (DeviceError, MissingDependencyError) as error:
        console.note(f"warning: what this costs in accuracy is not known: {error.message}")
        return None
    return Measured(outputs, layers)


def show_accuracy(console: Console, found: Measured, accuracy_on: str | None) -> str:
    """The error of every output, and of every layer."""
    inputs = "random inputs" if accuracy_on is None else accuracy_on
    rows = [
        (a.name, f"{100 * a.error:.3g}", f"{a.snr_db:.1f}", f"{a.agree} of {a.rows}" if a.rows else "")
        for a in found.outputs
    ]
    head = f"against the model in full precision, on {inputs}:"
    columns = ("output", "largest error, % of its range", "SNR dB", "same top 1")
    layers = [_layers(console, found.layers)] if found.layers else []
    return "\n".join([head, *layers, console.table(columns, rows, columns[1:3])])


def _layers(console: Console, layers: Sequence[LayerError]) -> str:
    numbers = ("SNR dB", "largest error", "mean error")
    rows = [
        (layer.name, layer.operator, f"{a.snr_db:.2f}", f"{a.largest:.3g}", f"{a.mean:.3g}")
        for layer in layers
        for a in (layer.accuracy,)
    ]
    return console.table(("layer", "operator", *numbers), rows, numbers)
