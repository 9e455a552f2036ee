"""The options that make products less precise and faster, for every command that compiles; and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mlc.cli.console import Console
from mlc.errors import DeviceError, UsageError
from mlc.settings import WEIGHT_TYPES

if TYPE_CHECKING:
    from mlc.api import Model, Package
    from mlc.harness.accuracy import Accuracy

weights_option = click.option(
    "--weights", type=click.Choice(WEIGHT_TYPES),
    help="Store weights of matrix products small, and widen them as they are read.",
)  # fmt: skip
bf16_option = click.option(
    "--bf16", is_flag=True, help="Compute matrix products in bfloat16, summed up in float32 (vdpbf16ps)."
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


def require_reason(accuracy_on: str | None, *, lossy: bool) -> None:
    """Complains of inputs for a report that nobody makes, as nothing is ``lossy``.

    Raises:
        UsageError: there are some.
    """
    if accuracy_on is not None and not lossy:
        raise UsageError(
            "--accuracy-on is only for --weights, --bf16, --fp16 and --tf32", hint="add one of these, or leave it out"
        )


def measured(console: Console, model: Model, package: Package, accuracy_on: str | None) -> tuple[Accuracy, ...] | None:
    """What smaller numbers cost; ``None`` with a note where this machine cannot tell."""
    from mlc.api.losses import losses
    from mlc.harness.arrays import read_npz

    samples = None if accuracy_on is None else read_npz(accuracy_on)
    try:
        return losses(model, package, samples, seed=console.settings.seed)
    except DeviceError as error:
        console.note(f"warning: what this costs in accuracy is not known: {error.message}")
        return None


def show_accuracy(console: Console, found: Sequence[Accuracy], accuracy_on: str | None) -> str:
    """The error of every output."""
    inputs = "random inputs" if accuracy_on is None else accuracy_on
    rows = [
        (a.name, f"{100 * a.error:.3g}", f"{a.snr_db:.1f}", f"{a.agree} of {a.rows}" if a.rows else "") for a in found
    ]
    head = f"against the model in full precision, on {inputs}:"
    columns = ("output", "largest error, % of its range", "SNR dB", "same top 1")
    return "\n".join([head, console.table(columns, rows, columns[1:3])])
