"""The options that quantise a model, for every command that takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlc.cli import values
from mlc.cli.console import Console
from mlc.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from mlc.api import Model, Quantization
    from mlc.settings import Observer

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class QuantizeOptions:
    """How to quantise a model: what ``mlc.api.quantize`` takes besides it."""

    samples: Mapping[str, np.ndarray]
    per_channel: bool
    ends: bool
    keep: tuple[str, ...]

    def quantize(self, model: Model, observer: Observer) -> Quantization:
        """The model in integers; see ``mlc.api.quantize`` for the errors."""
        from mlc.api import quantize

        return quantize(
            model, self.samples, per_channel=self.per_channel, ends=self.ends, keep=self.keep, observer=observer
        )


def quantize_options(function: F) -> F:
    """Decorator: the options of a quantisation, given to the command as ``quantize``; ``None`` without it."""

    @wraps(function)
    def gathered(
        *args: Any,
        quantize: str | None,
        calibrate: str | None,
        quantize_weights: str | None,
        quantize_ends: bool,
        keep_float: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        options = None
        if quantize is not None:
            per_channel, keep = quantize_weights == "channel", tuple(values.comma_separated(keep_float))
            options = QuantizeOptions(_samples(calibrate), per_channel, quantize_ends, keep)
        elif calibrate is not None or quantize_weights is not None or quantize_ends or keep_float:
            raise UsageError(
                "--calibrate, --quantize-weights, --quantize-ends and --keep-float are only for --quantize",
                hint="add --quantize int8, or leave them out",
            )
        return function(*args, quantize=options, **kwargs)

    for option in reversed(
        (
            click.option(
                "--quantize", type=click.Choice(["int8"]), help="Compute in 8-bit integers where that is possible."
            ),
            click.option(
                "--calibrate", metavar="FILE.npz", help="Typical inputs, several along the first axis, for --quantize."
            ),
            click.option(
                "--quantize-weights", type=click.Choice(["tensor", "channel"]),
                help="One scale for all weights of a product, or one for each output channel.  [default: tensor]",
            ),
            click.option(
                "--quantize-ends", is_flag=True, help="Quantise the first convolution and the last product too."
            ),
            click.option(
                "--keep-float", multiple=True, metavar="A,B", help="Nodes of the model that stay in floating point."
            ),
        )
    ):  # fmt: skip
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]


def show_quantization(console: Console, found: Quantization) -> str:
    """What is in integers, and what that costs in accuracy."""
    kept = [f"  in floats  {name}: {reason}" for name, reason in found.floats.items()]
    head = f"quantised {found.products} of {found.products + len(kept)} products to int8, on {found.samples} samples"
    rows = [(a.name, f"{a.snr_db:.2f}", f"{a.agree} of {a.rows}" if a.rows else "") for a in found.accuracy]
    table = console.table(("output", "SNR dB", "same top 1 as in floats"), rows, ("SNR dB",))
    return "\n".join([head, *kept, table])


def _samples(calibrate: str | None) -> Mapping[str, np.ndarray]:
    if calibrate is None:
        raise UsageError(
            "--quantize needs typical inputs to find scales with",
            hint="--calibrate FILE.npz, with some tens of samples of each input",
        )
    from mlc.harness.arrays import read_npz

    return read_npz(calibrate)
