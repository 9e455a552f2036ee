"""Windows over more taps than they have: what they slide over gets wider, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Expr, all_of, binary, cast, const, select, within
from mlc.ir.index import Linear
from mlc.ir.interp.te import run_tensors
from mlc.ir.layout import Layout
from mlc.ir.types import i8, i32, u8
from mlc.lower.knobs import Knobs
from mlc.targets.groups.group import Group
from mlc.targets.groups.terms import over_taps

C, H, W, TAPS = 4, 7, 9, 3

Element = Callable[[te.Tensor, Linear, Linear, Linear, Linear], Expr]


def moved(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    return x[n, c % 2 * 2 + c // 2, h, w]


def bordered(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    inside = all_of([within(h - 1, 0, H), within(w - 2, 0, W)])
    return select(inside, x[n, c, h - 1, w - 2], const(7, u8))


def cropped(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    return x[n, c, h, w + 2]


def framed(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    return select(all_of([within(h, 1, H - 1), within(w, 1, W - 1)]), x[n, c, h, w], const(7, u8))


def thresholded(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    return select(binary("lt", const(99, u8), x[n, c, h, w]), x[n, c, h, w], const(7, u8))


def joined(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    return select(within(w, 0, 4), x[n, c, h, w], x[n, c, h, w - 4])


def counted(x: te.Tensor, n: Linear, c: Linear, h: Linear, w: Linear) -> Expr:
    return binary("add", x[n, c, h, w], const(3, u8))


MADE: list[tuple[Element | None, int]] = [
    (None, W), (moved, W), (bordered, W + 4), (cropped, W - 2), (framed, W), (thresholded, W), (joined, W + 4),
    (counted, W),
]  # fmt: skip


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("element", "width"), MADE, ids=lambda v: getattr(v, "__name__", str(v)))
def test_what_a_window_slides_over_stays_as_it_is(element: Element | None, width: int, stride: int) -> None:
    x, k = te.placeholder((1, C, H, W), u8, "x"), te.placeholder((C, 1, TAPS, TAPS), i8, "k")
    data = x if element is None else te.compute((1, C, H, width), lambda *at: element(x, *at), "data")
    r, s = te.reduce_axis(TAPS, "r"), te.reduce_axis(TAPS, "s")
    shape = (1, C, (H - TAPS) // stride + 1, (width - TAPS) // stride + 1)
    y = te.compute(
        shape,
        lambda n, c, h, w: te.sum_of(
            cast(data[n, c, h * stride + r, w * stride + s], i32) * cast(k[c, 0, r, s], i32), (r, s)
        ),
        "y",
    )
    padded = Layout(k.shape).pad(3, 0, 1)
    rng = np.random.default_rng(0)
    xs, ks = rng.integers(0, 256, x.shape, np.uint8), rng.integers(-128, 128, k.shape, np.int8)
    (wanted,) = run_tensors([y], {x: xs, k: ks})
    g = over_taps(Group((x, k), (y,), y.op, {k: padded}, Knobs()), TAPS + 1).apply({})
    (found,) = run_tensors(g.outputs, {g.inputs[0]: xs, g.inputs[1]: padded.pack(ks)})
    np.testing.assert_array_equal(found, wanted)
