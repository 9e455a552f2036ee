"""Layouts: forward and inverse undo one another, and agree with what packing an array does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.index import Var, as_index, evaluate
from mlc.ir.layout import Layout, Margin, Pad, Split, blocked
from tests.fuzz import examples

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def layouts(draw: Draw) -> Layout:
    """A few random primitives on a small shape."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    layout = Layout(tuple(shape))
    for _ in range(draw(st.integers(0, 5))):
        now = layout.physical_shape
        d = draw(st.integers(0, len(now) - 1))
        match draw(st.sampled_from(["pad", "split", "reorder", "fuse"])):
            case "pad":
                layout = layout.pad(d, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
            case "split":
                layout = layout.split(d, draw(st.sampled_from([f for f in range(1, now[d] + 1) if now[d] % f == 0])))
            case "reorder":
                layout = layout.reorder(*draw(st.permutations(range(len(now)))))
            case "fuse":
                layout = layout.fuse(d, draw(st.integers(1, len(now) - d)))
    for d in range(len(layout.physical_shape)):
        if draw(st.booleans()):
            layout = layout.margin(d, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    return layout


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Every element another, none zero."""
    return np.arange(1, prod(shape) + 1).reshape(shape)


@given(layout=layouts())
@examples(80)
def test_inverse_of_forward_is_the_identity(layout: Layout) -> None:
    axes = [Var(f"x{d}", 0, n - 1) for d, n in enumerate(layout.logical_shape)]
    back = layout.inverse(layout.forward([as_index(a) for a in axes]))
    for point in product(*map(range, layout.logical_shape)):
        env = dict(zip(axes, point, strict=True))
        assert tuple(evaluate(ix, env) for ix in back) == point


@given(layout=layouts())
@examples(80)
def test_forward_finds_the_element_where_packing_put_it(layout: Layout) -> None:
    array = numbered(layout.logical_shape)
    packed = layout.pack(array)
    assert packed.shape == layout.physical_shape
    for point in product(*map(range, layout.logical_shape)):
        at = layout.forward([as_index(k) for k in point])
        assert packed[tuple(ix.const for ix in at)] == array[point]


@given(layout=layouts())
@examples(80)
def test_inverse_of_a_physical_element_is_what_it_holds_or_nothing(layout: Layout) -> None:
    """Padding holds no element: its inverse leaves the logical range unless a part of a split dimension was padded."""
    kinds = [type(p) for p in layout.primitives]
    whole = not {Pad, Margin} & set(kinds[next((k for k, t in enumerate(kinds) if t is Split), len(kinds)) :])
    array = numbered(layout.logical_shape)
    packed = layout.pack(array)
    for point in product(*map(range, layout.physical_shape)):
        at = tuple(ix.const for ix in layout.inverse([as_index(k) for k in point]))
        inside = all(0 <= k < n for k, n in zip(at, layout.logical_shape, strict=True))
        if whole or packed[point]:
            assert packed[point] == (array[at] if inside else 0)
    assert layout.has_padding == (layout.core.pack(array).size != array.size)


@given(layout=layouts())
@examples(80)
def test_unpacking_undoes_packing(layout: Layout) -> None:
    array = numbered(layout.logical_shape)
    np.testing.assert_array_equal(layout.unpack(layout.pack(array)), array)


def test_unpacking_recipe_is_plain_numpy_steps() -> None:
    assert blocked((1, 20, 3), 1, 16).unpack_recipe() == [
        ("transpose", [0, 1, 3, 2]),
        ("reshape", [1, 32, 3]),
        ("slice", [[0, 1], [0, 20], [0, 3]]),
    ]


def test_split_indices_vanish_in_a_blocked_layout() -> None:
    c, h, o, i = Var("c", 0, 31), Var("h", 0, 2), Var("o", 0, 1), Var("i", 0, 15)
    layout = blocked((32, 3), 0, 16)
    assert str(layout.forward([as_index(c), as_index(h)])) == "(c//16, h, c%16)"
    assert str(layout.forward([as_index(o) * 16 + i, as_index(h)])) == "(o, h, i)"
    assert str(layout.inverse([as_index(o), as_index(h), as_index(i)])) == "(16*o + i, h)"


def test_plain_layout() -> None:
    layout = Layout((2, 3))
    assert layout.is_plain
    assert str(layout) == "plain"
    assert layout.pad(0, 0, 0) is layout
    assert not layout.split(1, 3).is_plain


def test_layouts_of_equal_primitives_are_equal() -> None:
    assert blocked((1, 32), 1, 8) == Layout((1, 32)).split(1, 8).reorder(0, 1, 2)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda x: x.split(1, 4), r"split\(1, 4\) does not divide dimension 1 of \(2, 6\); pad it first"),
        (lambda x: x.split(2, 1), r"split\(2, 1\) does not divide dimension 2"),
        (lambda x: x.split(0, 0), r"split\(0, 0\) does not divide"),
        (lambda x: x.reorder(0, 0), r"reorder\(0,0\) is no permutation of the 2 dimensions of \(2, 6\)"),
        (lambda x: x.reorder(0), r"reorder\(0\) is no permutation"),
        (lambda x: x.fuse(1, 2), r"fuse\(1, 2\) reaches past the dimensions of \(2, 6\)"),
        (lambda x: x.fuse(0, 0), r"fuse\(0, 0\) reaches past"),
        (lambda x: x.pad(2, 0, 1), r"pad\(2, 0, 1\) does not fit \(2, 6\)"),
        (lambda x: x.pad(0, -1, 0), r"pad\(0, -1, 0\) does not fit"),
        (lambda x: x.pack(np.zeros((6, 2))), r"layout of \(2, 6\) applied to an array of \(6, 2\)"),
    ],
)
def test_primitives_that_do_not_fit_are_refused(make: Callable[[Layout], Layout], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        make(Layout((2, 6)))
