"""Sliding windows: what convolutions and pools share.

A window has a kernel, strides, dilations and pads, one number a spatial axis (pads: all begins, then all ends).
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, all_of, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ops.common import check

# names of the spatial axes and of the kernel's taps, innermost last
SPACE = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
TAPS = {1: ("s",), 2: ("r", "s"), 3: ("kd", "r", "s")}

Ints = Sequence[int]


def check_window(op: str, rank: int, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> None:
    """Refuse a window that does not fit ``rank`` spatial axes.

    Raises:
        VerifyError: wrong number of entries, or an entry out of range.
    """
    check(rank in SPACE, op, f"{rank} spatial axes, 1 to 3 are supported")
    for name, values, count in (
        ("kernel", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        check(len(values) == count, op, f"{name} {tuple(values)} for {rank} spatial axes, {count} numbers are needed")
        least = 0 if name == "pads" else 1
        check(all(v >= least for v in values), op, f"{name} {tuple(values)} must be at least {least}")


def span(kernel: int, dilation: int) -> int:
    """Distance from a window's first tap to one past its last."""
    return dilation * (kernel - 1) + 1


def output_extents(op: str, space: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> tuple[int, ...]:
    """How often the window fits into the padded input, along each axis.

    Raises:
        VerifyError: it does not fit even once.
    """
    rank = len(space)
    out = []
    for d, n in enumerate(space):
        room, reach = n + pads[d] + pads[rank + d], span(kernel[d], dilations[d])
        check(room >= reach, op, f"the window spans {reach} on axis {d + 2}, the padded input only {room}")
        out.append((room - reach) // strides[d] + 1)
    return tuple(out)


def reach(outputs: Ints, kernel: Ints, strides: Ints, dilations: Ints) -> tuple[int, ...]:
    """Extents of the padded input that the windows touch."""
    return tuple((n - 1) * s + span(k, d) for n, k, s, d in zip(outputs, kernel, strides, dilations, strict=True))


def padded(x: te.Tensor, begins: Ints, extents: Ints, value: float | int) -> te.Tensor:
    """``x[n, c, …]`` with its spatial axes shifted by ``begins`` into ``extents``, ``value`` around it.

    Gives ``x`` itself where nothing has to be added (``extents`` may then be smaller than those of ``x``).
    """
    space = x.shape[2:]
    if not any(begins) and all(e <= n for e, n in zip(extents, space, strict=True)):
        return x

    def element(n: Linear, c: Linear, *at: Linear) -> Expr:
        inner = [i - b for i, b in zip(at, begins, strict=True)]
        guard = all_of([within(i, 0, e) for i, e in zip(inner, space, strict=True)])
        return select(guard, x[(n, c, *inner)], value)

    names = ("n", "c", *SPACE[len(space)])
    return te.compute((*x.shape[:2], *extents), element, "pad", axis_names=names, tag="pad")


def taps(kernel: Ints) -> tuple[Var, ...]:
    """Reduction axes over a kernel."""
    return tuple(te.reduce_axis(k, name) for k, name in zip(kernel, TAPS[len(kernel)], strict=True))


def window_index(at: Sequence[Linear], over: Sequence[Var], strides: Ints, dilations: Ints) -> tuple[Linear, ...]:
    """Where tap ``over`` of the window at output position ``at`` lies in the padded input."""
    return tuple(i * s + as_index(t) * d for i, t, s, d in zip(at, over, strides, dilations, strict=True))
