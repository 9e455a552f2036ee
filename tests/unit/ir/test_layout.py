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
from mlc.ir.index import Linear, Var, as_index, evaluate
from mlc.ir.layout import Layout, Margin, Pad, Split, StoreAt, Unfold, Unpad, blocked
from mlc.runtime.layout import Physical
from tests.fuzz import examples

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def layouts(draw: Draw, *, advanced: bool = False) -> Layout:
    """A few random primitives on a small shape; with ``advanced``, tiles that overlap and places in a partner, too."""
    kinds = ["pad", "split", "reorder", "fuse", *(["unfold", "store_at", "unpad"] if advanced else [])]
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    layout = Layout(tuple(shape))
    for _ in range(draw(st.integers(0, 5))):
        now = layout.physical_shape
        d = draw(st.integers(0, len(now) - 1))
        match draw(st.sampled_from(kinds)):
            case "pad":
                layout = layout.pad(d, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
            case "split":
                layout = layout.split(d, draw(st.sampled_from([f for f in range(1, now[d] + 1) if now[d] % f == 0])))
            case "reorder":
                layout = layout.reorder(*draw(st.permutations(range(len(now)))))
            case "fuse":
                layout = layout.fuse(d, draw(st.integers(1, len(now) - d)))
            case "unfold":
                tile = draw(st.integers(1, now[d]))
                strides = [s for s in range(1, tile + 1) if (now[d] - tile) % s == 0]
                layout = layout.unfold(d, tile, draw(st.sampled_from(strides))) if strides else layout
            case "store_at":
                extent = draw(st.integers(1, 3))
                layout = layout.store_at(d, extent, draw(st.integers(0, extent - 1)))
            case "unpad":  # only of what was padded: elements cannot come back
                last = layout.primitives[-1] if layout.primitives else None
                if isinstance(last, Pad):
                    layout = layout.unpad(last.dim, last.before, last.after)
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


@given(layout=layouts(advanced=True))
@examples(80)
def test_inverted_layouts_lead_back(layout: Layout) -> None:
    array = numbered(layout.logical_shape)
    packed = layout.pack(array)
    back = layout.inverted
    assert (back.logical_shape, back.physical_shape) == (layout.physical_shape, layout.logical_shape)
    np.testing.assert_array_equal(back.pack(packed), array)
    np.testing.assert_array_equal(back.inverted.pack(array), packed)


@given(layout=layouts(advanced=True))
@examples(80)
def test_recipes_unpack_what_was_packed(layout: Layout) -> None:
    if any(type(p) is Unpad for p in layout.primitives):
        with pytest.raises(VerifyError, match=r"nothing but pad\(.* undoes what is stored"):
            layout.unpack_recipe()
        return
    array = numbered(layout.logical_shape)
    steps = tuple((kind, tuple(argument)) for kind, argument in layout.unpack_recipe())
    physical = Physical(str(layout), layout.physical_shape, steps)
    assert physical.logical_shape() == layout.logical_shape
    np.testing.assert_array_equal(physical.undo(layout.pack(array)), array)


@given(layout=layouts(advanced=True))
@examples(80)
def test_loops_over_a_layout_read_and_write_their_own_element(layout: Layout) -> None:
    """A stage rebuilt over a layout reads a tensor of the same layout where it stands itself, overlaps included."""
    array = numbered(layout.logical_shape)
    axes = [Var(f"x{d}", 0, n - 1) for d, n in enumerate(layout.physical_shape)]
    try:
        there = layout.forward(layout.inverse(axes))
    except VerifyError:  # padding in front of a tile, where an access may leave it
        assert layout.expands
        return
    packed = layout.pack(array)
    for point in product(*map(range, layout.physical_shape)):
        env = dict(zip(axes, point, strict=True))
        at = tuple(evaluate(ix, env) for ix in there)
        if all(0 <= k < n for k, n in zip(at, packed.shape, strict=True)):
            assert packed[at] == packed[point] or packed[point] == 0


@given(data=st.data(), stride=st.integers(1, 3), window=st.integers(1, 4), split=st.booleans())
@examples(80)
def test_windows_read_overlapping_tiles(data: st.DataObject, stride: int, window: int, split: bool) -> None:
    """ALT, equation 1: windows of a convolution, over its positions as they are or cut into tiles."""
    a_tile, tiles = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    count, step = a_tile * tiles, a_tile * stride
    extent = (count - 1) * stride + max(window, stride)
    tile = (a_tile - 1) * stride + max(window, stride)
    layout = Layout((2, extent)).unfold(1, tile, step).reorder(1, 0, 2)
    assert layout.physical_shape == (tiles, 2, tile)
    c, i, r = Var("c", 0, 1), Var("i", 0, count - 1), Var("r", 0, window - 1)
    o, k = Var("o", 0, tiles - 1), Var("k", 0, a_tile - 1)
    at = (as_index(o) * a_tile + k if split else as_index(i)) * stride + r
    place = layout.forward([as_index(c), at], {r})
    if split:
        assert place == (as_index(o), as_index(c), as_index(k) * stride + r)
    array = numbered((2, extent))
    packed = layout.pack(array)
    for point in product(range(2), range(count), range(window)):
        env = dict(zip((c, i, r, o, k), (*point, point[1] // a_tile, point[1] % a_tile), strict=True))
        assert packed[tuple(evaluate(ix, env) for ix in place)] == array[point[0], point[1] * stride + point[2]]


def test_example_of_the_paper() -> None:
    layout = Layout((5,)).unfold(0, 3, 2)
    np.testing.assert_array_equal(layout.pack(np.array([1, 2, 3, 4, 5])), [[1, 2, 3], [3, 4, 5]])
    assert str(layout.inverted) == "fold(0, 2)"


def test_a_guest_lies_within_its_partner() -> None:
    """A bias attached to the columns of a weight matrix (ALT §4.1.2)."""
    weights, bias = Layout((4, 6)).pad(0, 0, 1), Layout((6,)).store_at(0, 5, 4)
    panels = [layout.split(1, 2).reorder(1, 0, 2) for layout in (weights, bias)]
    w, b = numbered((4, 6)), numbered((6,))
    both = panels[0].pack(w) + panels[1].pack(b)
    np.testing.assert_array_equal(panels[0].unpack(both), w)
    np.testing.assert_array_equal(panels[1].unpack(both), b)
    j = Var("j", 0, 5)
    assert str(panels[1].forward([as_index(j)])) == "(j//2, 4, j%2)"
    assert panels[1].expands
    assert not panels[0].expands


@pytest.mark.parametrize(
    "make",
    [
        lambda i, r: as_index(i),  # any element: it may lie in two tiles
        lambda i, r: as_index(i) * 2 + as_index(r) * 5,  # a window that is wider than a tile
        lambda i, r: as_index(r) - 1,  # begins before the first tile
    ],
)
def test_accesses_that_are_no_window_of_a_tile_are_refused(make: Callable[[Var, Var], Linear]) -> None:
    layout = Layout((17,)).unfold(0, 9, 8)
    i, r = Var("i", 0, 7), Var("r", 0, 2)
    at = make(Var("i", 0, 16), r) if make(i, r) == as_index(i) else make(i, r)
    with pytest.raises(VerifyError, match="is no window that stays within one of 2 tiles of 9 elements, 8 apart"):
        layout.forward([at])


@given(layout=layouts(advanced=True))
@examples(80)
def test_inverse_of_a_physical_element_is_what_it_holds_or_nothing(layout: Layout) -> None:
    """Padding holds no element: its inverse leaves the logical range unless a part of a split dimension was padded."""
    kinds = [type(p) for p in layout.primitives]
    whole = not {Pad, Margin} & set(kinds[next((k for k, t in enumerate(kinds) if t in (Split, Unfold)), len(kinds)) :])
    whole = whole and not {StoreAt, Unpad} & set(kinds)
    array = numbered(layout.logical_shape)
    packed = layout.pack(array)
    for point in product(*map(range, layout.physical_shape)):
        at = tuple(ix.const for ix in layout.inverse([as_index(k) for k in point]))
        inside = all(0 <= k < n for k, n in zip(at, layout.logical_shape, strict=True))
        if whole or packed[point]:
            assert packed[point] == (array[at] if inside else 0)
    if not {Unfold, StoreAt, Unpad} & set(kinds):
        assert layout.has_padding == (layout.core.pack(array).size != array.size)


@given(layout=layouts(advanced=True))
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


def test_indices_vanish_where_all_of_a_dimension_is_one_block() -> None:
    """A window that slides past the border, whose zeros a guard chooses, divides nothing either."""
    h, r = Var("h", 0, 11), Var("r", 0, 2)
    layout = Layout((12, 4)).split(0, 12).split(2, 1)
    assert str(layout.forward([as_index(h) + r - 1, as_index(r)])) == "(0, h + r - 1, r, 0)"


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
        (lambda x: x.unfold(1, 4, 3), r"unfold\(1, 4, 3\) does not cut dimension 1 of \(2, 6\) into whole tiles"),
        (lambda x: x.unfold(1, 2, 3), r"unfold\(1, 2, 3\) does not cut"),
        (lambda x: x.unfold(2, 1, 1), r"unfold\(2, 1, 1\) does not cut"),
        (lambda x: x.fold(1, 1), r"fold\(1, 1\) puts no tiles of \(2, 6\) together"),
        (lambda x: x.fold(0, 7), r"fold\(0, 7\) puts no tiles"),
        (lambda x: x.unpad(1, 4, 3), r"unpad\(1, 4, 3\) leaves nothing of dimension 1 of \(2, 6\)"),
        (lambda x: x.store_at(3, 2, 0), r"store_at\(3, 2, 0\) names no place beside \(2, 6\)"),
        (lambda x: x.store_at(0, 2, 2), r"store_at\(0, 2, 2\) names no place beside"),
        (lambda x: x.decouple_at(0, 3, 1), r"decouple_at\(0, 3, 1\) names no place in \(2, 6\)"),
        (lambda x: x.pack(np.zeros((6, 2))), r"layout of \(2, 6\) applied to an array of \(6, 2\)"),
    ],
)
def test_primitives_that_do_not_fit_are_refused(make: Callable[[Layout], Layout], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        make(Layout((2, 6)))
