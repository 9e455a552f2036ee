"""Terms that lie in the border add nothing, and are made conditional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.interp.te import run_tensors
from mlc.ir.layout import Layout
from mlc.ir.types import f32
from mlc.lower.knobs import Knobs
from mlc.lower.relayout import read_margins
from mlc.ops import get
from mlc.targets.groups.borders import columns_inside, share_inside, without_border
from mlc.targets.groups.group import Group


def conv(shape: tuple[int, ...], kernel: tuple[int, ...], *, pads: int, strides: int = 1, dilations: int = 1) -> Group:
    rank = len(kernel)
    x, w = te.placeholder(shape, f32, "x"), te.placeholder((4, shape[1], *kernel), f32, "w")
    attrs = {"strides": (strides,) * rank, "dilations": (dilations,) * rank, "pads": (pads,) * (2 * rank), "groups": 1}
    express = get("conv").express
    assert express is not None
    (out,) = express((x, w), attrs)
    return Group((x, w), (out,), out.op, {}, Knobs())


# what is convolved, the share of rows inside, and that of columns
CASES = [
    ({"shape": (1, 3, 7, 9), "kernel": (3, 3), "pads": 1}, 19 / 21, 25 / 27),
    ({"shape": (1, 3, 14, 14), "kernel": (3, 3), "pads": 12, "dilations": 12}, 18 / 42, 18 / 42),
    ({"shape": (1, 3, 9, 9), "kernel": (5, 3), "pads": 2, "strides": 2}, 21 / 25, 14 / 18),
    ({"shape": (1, 3, 4, 5, 6), "kernel": (3, 3, 3), "pads": 1}, 10 / 12 * 13 / 15, 16 / 18),
    ({"shape": (1, 3, 1, 1), "kernel": (3, 3), "pads": 2, "dilations": 2}, 1 / 3, 1 / 3),
    ({"shape": (1, 3, 11), "kernel": (3,), "pads": 1}, 1, 31 / 33),
]


def same_results(plain: Group, bare: Group, feeds: dict[te.Tensor, np.ndarray]) -> None:
    (a,), (b,) = run_tensors(plain.outputs, feeds), run_tensors(bare.outputs, feeds)
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("case, rows, along", CASES)
def test_terms_in_the_border_are_passed_over(case: dict[str, Any], rows: float, along: float, columns: bool) -> None:
    plain = conv(**case)
    share = rows * along if columns else rows
    assert share_inside(plain, columns=columns) == pytest.approx(share)
    bare = without_border(plain, columns=columns)
    assert bare.anchor is not None
    assert ("select" in str(bare.anchor)) is (share < 1)
    # without any border the input itself is read
    assert (bare.anchor.inputs[0] is plain.inputs[0]) is columns
    rng = np.random.default_rng(3)
    same_results(plain, bare, {t: rng.standard_normal(t.shape).astype(np.float32) for t in plain.inputs})


@pytest.mark.parametrize("case, rows, along", CASES)
def test_places_inside_are_told_for_every_tap_of_a_row(case: dict[str, Any], rows: float, along: float) -> None:
    plain = conv(**case)
    assert plain.anchor is not None
    found = columns_inside(plain)
    assert sum(end - first for first, end in found) / (len(found) * plain.anchor.shape[-1]) == pytest.approx(along)
    assert columns_inside(conv((1, 3, 4), (3,), pads=1)) == ((1, 4), (0, 4), (0, 3))


@pytest.mark.parametrize("columns", [False, True])
def test_margins_are_passed_over_like_a_border(columns: bool) -> None:
    plain = conv((1, 3, 7, 9), (3, 3), pads=1)
    x = plain.inputs[0]
    layouts = {x: Layout(x.shape).margin(2, 1, 1).margin(3, 1, 1)}
    out = read_margins(plain.outputs, layouts)
    with_margins = Group(plain.inputs, tuple(out), out[0].op, layouts, Knobs())
    assert with_margins.anchor is not None
    assert "select" not in "".join(map(str, te.topological(out)))
    assert share_inside(with_margins, columns=columns) == share_inside(plain, columns=columns)
    bare = without_border(with_margins, columns=columns).apply({})
    rng = np.random.default_rng(3)
    feeds = {t: rng.standard_normal(t.shape).astype(np.float32) for t in plain.inputs}
    stored = dict(zip(bare.inputs, feeds.values(), strict=True))
    stored[bare.inputs[0]] = np.pad(feeds[x], ((0, 0), (0, 0), (1, 1), (1, 1)))
    (a,), (b,) = run_tensors(plain.outputs, feeds), run_tensors(bare.outputs, stored)
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [False, True])
def test_without_a_border_nothing_changes(columns: bool) -> None:
    plain = conv((1, 3, 7, 9), (3, 3), pads=0)
    assert share_inside(plain, columns=columns) == 1
    assert without_border(plain, columns=columns) is plain
