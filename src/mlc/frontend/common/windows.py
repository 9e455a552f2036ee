"""Sliding windows of convolutions and pools: output extents, padding conventions, limits. Channels are axis 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.ir.graph import Value
from mlc.ops.window import span


@dataclass(frozen=True)
class Window:
    """A sliding window with all its numbers, one a spatial axis (pads: begins, then ends)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    ceil: bool = False

    @property
    def attrs(self) -> dict[str, tuple[int, ...]]:
        """What core operators take besides the kernel."""
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}

    def outputs(self, space: Sequence[int]) -> tuple[int, ...]:
        """Output extents; rounded up, but a last window that would start behind the input is dropped.

        As in onnxruntime, quotients are rounded towards zero: an input that a single window hangs over by less than a
        stride gives one output.

        Raises:
            ImportModelError: the window is larger than the padded input by more than that.
        """
        out = []
        for d, n in enumerate(space):
            before, after = self.pads[d], self.pads[len(space) + d]
            reach = span(self.kernel[d], self.dilations[d])
            room = n + before + after - reach
            count = (-(-room // self.strides[d]) if self.ceil or room < 0 else room // self.strides[d]) + 1
            if count < 0:
                raise ImportModelError(
                    f"the window spans {reach} on axis {d + 2}, the padded input only {room + reach}"
                )
            if self.ceil and (count - 1) * self.strides[d] >= n + before:
                count -= 1
            out.append(count)
        return tuple(out)


def slide(ctx: Context, x: Value, window: Window) -> tuple[tuple[int, ...], Window]:
    """The output extents of a window over ``x``, and the window without absurd numbers that nothing depends on.

    These are the dilation of a single tap and a stride that leaves the padded input.

    Raises:
        ImportModelError: the window is larger than the padded input, or the padded input is beyond the limit
            ``tensor_bytes``, however few outputs it has.
    """
    space = x.type.shape[2:]
    outputs = window.outputs(space)
    whole = [n + window.pads[d] + window.pads[len(space) + d] for d, n in enumerate(space)]
    check_spatial(ctx, x, whole)
    dilations = tuple(1 if k == 1 else d for k, d in zip(window.kernel, window.dilations, strict=True))
    strides = tuple(min(s, max(n, 1)) for n, s in zip(whole, window.strides, strict=True))
    return outputs, replace(window, dilations=dilations, strides=strides)


def check_spatial(ctx: Context, x: Value, space: Sequence[int]) -> None:
    """Refuse ``x`` padded or spread to spatial extents beyond the limit ``tensor_bytes``: its indices are made of them.

    Raises:
        ImportModelError: they are.
    """
    elements = prod(max(n, 1) for n in (*x.type.shape[:2], *space))
    ctx.limits.check("tensor_bytes", elements * x.type.dtype.itemsize, "the padded input")


def same_pads(
    space: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    upper: bool = True,
    crop: bool = False,
) -> tuple[int, ...]:
    """Pads for which an output has ``ceil(n / stride)`` elements, as ``SAME`` of TensorFlow and others wants it.

    Args:
        space: extents of the input.
        kernel: extents of the window.
        strides: between windows.
        dilations: between taps.
        upper: whether an odd element goes to the end.
        crop: whether pads are negative where windows leave gaps, and so cut off the ends of the input.
    """
    reaches = [span(k, d) for k, d in zip(kernel, dilations, strict=True)]
    totals = [(-(-n // s) - 1) * s + r - n for n, s, r in zip(space, strides, reaches, strict=True)]
    return split_pads(totals if crop else [max(0, t) for t in totals], upper=upper)


def split_pads(totals: Sequence[int], *, upper: bool) -> tuple[int, ...]:
    """Padding of each axis divided into begins and ends; an odd one goes to the end if ``upper``."""
    begins = [int((t if upper else t + 1) / 2) for t in totals]  # towards zero, as onnxruntime does
    return (*begins, *(t - b for t, b in zip(totals, begins, strict=True)))
