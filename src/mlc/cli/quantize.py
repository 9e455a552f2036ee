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
    """How to quantise a model: what ``mlc.api.quantize`` takes besides it and the target."""

    precision: str
    samples: Mapping[str, np.ndarray]
    calibration: str | None
    per_channel: bool | None
    ends: bool | None
    keep: tuple[str, ...]
    reduce_range: bool | None
    report: bool

    def quantize(self, model: Model, target: str, observer: Observer) -> Quantization:
        """The model in integers; see ``mlc.api.quantize`` for the errors."""
        from mlc.api import quantize

        return quantize(
            model,
            self.samples,
            target,
            precision=self.precision,
            calibration=self.calibration,
            per_channel=self.per_channel,
            ends=self.ends,
            keep=self.keep,
            reduce_range=self.reduce_range,
            by_layer=self.report,
            observer=observer,
        )


def quantize_options(function: F) -> F:
    """Decorator: the options of a quantisation, given to the command as ``quantize``; ``None`` without it."""

    @wraps(function)
    def gathered(
        *args: Any,
        quantize: str | None,
        calibrate: str | None,
        calibration: str | None,
        quantize_weights: str | None,
        quantize_ends: bool | None,
        keep_float: tuple[str, ...],
        reduce_range: bool | None,
        quantize_report: bool,
        **kwargs: Any,
    ) -> Any:
        options = None
        if quantize is not None:
            how, keep = _calibration(calibration), tuple(values.comma_separated(keep_float))
            per_channel = None if quantize_weights is None else quantize_weights == "channel"
            options = QuantizeOptions(
                quantize, _samples(calibrate), how, per_channel, quantize_ends, keep, reduce_range, quantize_report
            )
        else:
            given = {
                "--calibrate": calibrate, "--calibration": calibration, "--quantize-weights": quantize_weights,
                "--quantize-ends": quantize_ends, "--keep-float": keep_float or None,
                "--reduce-range" if reduce_range else "--full-range": reduce_range,
                "--quantize-report": quantize_report or None,
            }  # fmt: skip
            for name, value in given.items():
                if value is not None:
                    raise UsageError(f"{name} is only for --quantize", hint="add --quantize int8, or leave it out")
        return function(*args, quantize=options, **kwargs)

    for option in reversed(
        (
            click.option(
                "--quantize", type=click.Choice(["int8", "w1a2", "w2a2"]),
                help="Compute in 8-bit integers where that is possible; or in weights of 1 or 2 bits and data of 2.",
            ),
            click.option(
                "--calibrate", metavar="FILE.npz", help="Typical inputs, several along the first axis, for --quantize."
            ),
            click.option(
                "--calibration", metavar="METHOD",
                help="How ranges are chosen: minmax, mse, entropy, or percentile[=99.99].  "
                "[default: minmax; mse where scales are powers of two, and for w1a2 and w2a2]",
            ),
            click.option(
                "--quantize-weights", type=click.Choice(["tensor", "channel"]),
                help="One scale for all weights of a product, or one for each output channel.  "
                "[default: channel; tensor where scales are powers of two]",
            ),
            click.option(
                "--quantize-ends/--keep-ends", default=None,
                help="Quantise the first convolution and the last product too, or keep them in floating point.  "
                "[default: quantise; keep where scales are powers of two, and for w1a2 and w2a2]",
            ),
            click.option(
                "--keep-float", multiple=True, metavar="A,B",
                help="Nodes of the model that stay in floating point; may be repeated.",
            ),
            click.option(
                "--reduce-range/--full-range", default=None,
                help="Weights use 7 of their 8 bits, with which processors without VNNI are faster, or all.  "
                "[default: 7 for those of x86 without VNNI]",
            ),
            click.option("--quantize-report", is_flag=True, help="Show what every layer loses."),
        )
    ):  # fmt: skip
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]


def show_quantization(console: Console, found: Quantization) -> str:
    """What is in integers, and what that costs in accuracy."""
    kept = [f"  in floats  {name}: {reason}" for name, reason in found.floats.items()]
    head = f"quantised {found.products} of {found.products + len(kept)} products to {found.precision}, on "
    head += f"{found.samples} samples"
    rows = [(a.name, f"{a.snr_db:.2f}", f"{a.agree} of {a.rows}" if a.rows else "") for a in found.accuracy]
    table = console.table(("output", "SNR dB", "same top 1 as in floats"), rows, ("SNR dB",))
    return "\n".join([head, *kept, *([_layers(console, found)] if found.layers else []), table])


def _layers(console: Console, found: Quantization) -> str:
    rows = []
    for layer in found.layers:
        a = layer.accuracy
        kind = "f32" if layer.reason else found.precision
        rows.append((layer.name, layer.operator, kind, f"{a.snr_db:.2f}", f"{a.largest:.3g}", f"{a.mean:.3g}"))
    numbers = ("SNR dB", "largest error", "mean error")
    return console.table(("layer", "operator", "in", *numbers), rows, numbers)


def _calibration(text: str | None) -> str | None:
    """Refuses what is none before a model is read."""
    from mlc.api import check_calibration

    return None if text is None else check_calibration(text)


def _samples(calibrate: str | None) -> Mapping[str, np.ndarray]:
    if calibrate is None:
        raise UsageError(
            "--quantize needs typical inputs to find scales with",
            hint="--calibrate FILE.npz, with some tens of samples of each input",
        )
    from mlc.harness.arrays import read_npz

    return read_npz(calibrate)
