"""The layout pass: the same values, held in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import select, within
from mlc.ir.index import Linear, as_index
from mlc.ir.interp import run_function, run_tensors
from mlc.ir.layout import Layout, blocked
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.relayout import read_margins, relayout
from tests.fuzz import examples
from tests.unit.lower.computations import COMPUTATIONS, Computation

Draw = Callable[[st.SearchStrategy[Any]], Any]


def tensors(computation: Computation) -> list[te.Tensor]:
    return [*computation.inputs, *(t for op in te.topological(computation.outputs) for t in op.outputs)]


@st.composite
def choices(draw: Draw, computation: Computation) -> dict[te.Tensor, Layout]:
    """A blocked, permuted or fused layout for some tensors, or a place within a partner."""
    chosen: dict[te.Tensor, Layout] = {}
    for t in tensors(computation):
        if not t.shape or (t.op is not None and len(t.op.outputs) > 1) or draw(st.booleans()):
            continue
        layout = Layout(t.shape)
        match draw(st.sampled_from(["block", "permute", "fuse", "pad", "guest"])):
            case "block":
                layout = blocked(t.shape, draw(st.integers(0, t.rank - 1)), draw(st.sampled_from([2, 4])))
            case "permute":
                layout = layout.reorder(*draw(st.permutations(range(t.rank))))
            case "fuse":
                layout = layout.fuse(0, t.rank)
            case "guest":
                extent = draw(st.integers(1, 3))
                layout = layout.store_at(draw(st.integers(0, t.rank)), extent, draw(st.integers(0, extent - 1)))
            case "pad":
                layout = layout.pad(draw(st.integers(0, t.rank - 1)), draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        if t.op is None or t in computation.outputs:
            for d in range(len(layout.physical_shape)):
                if draw(st.booleans()):
                    layout = layout.margin(d, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        chosen[t] = layout
    return chosen


def packed(t: te.Tensor, array: np.ndarray, chosen: dict[te.Tensor, Layout]) -> np.ndarray:
    """The array in its layout; what padding holds is undefined, and margins hold zeros."""
    if t not in chosen:
        return array
    core = chosen[t].core
    padding = core.pack(np.ones(array.shape, np.uint8)) == 0
    whole = core.pack(array)
    whole[padding] = 77
    return np.pad(whole, chosen[t].margins) if chosen[t].has_margins else whole


def unpacked(t: te.Tensor, array: np.ndarray, chosen: dict[te.Tensor, Layout]) -> np.ndarray:
    return chosen[t].unpack(array) if t in chosen else array


@given(name=st.sampled_from(sorted(COMPUTATIONS)), data=st.data())
@examples(60)
def test_values_do_not_depend_on_layouts(name: str, data: st.DataObject) -> None:
    computation = COMPUTATIONS[name]()
    chosen = data.draw(choices(computation))
    note(f"{name}: {[(t.name, str(x)) for t, x in chosen.items()]}")
    outputs, new = relayout(computation.outputs, chosen)
    note("\n".join(map(repr, te.topological(outputs))))
    te.verify(outputs)
    arrays = computation.draw(1)
    want = computation.expect(arrays)
    feeds = {new.get(t, t): packed(t, a, chosen) for t, a in zip(computation.inputs, arrays, strict=True)}
    core = {t: layout.core for t, layout in chosen.items()}  # the loops of an output know nothing of its margins
    for t, got, expected in zip(computation.outputs, run_tensors(outputs, feeds), want, strict=True):
        np.testing.assert_allclose(unpacked(t, got, core), expected, rtol=1e-5)
    fn = lower(Schedule(outputs), [*feeds, *outputs], "kernel")
    note(repr(fn))
    results = [np.full(b.shape, 77, b.dtype.numpy) for b in fn.params[len(feeds) :]]
    run_function(fn, [*feeds.values(), *results])
    for t, got, expected in zip(computation.outputs, results, want, strict=True):
        np.testing.assert_allclose(unpacked(t, got, chosen), expected, rtol=1e-5)
        if t in chosen and chosen[t].has_margins:
            inside = tuple(slice(b, n - a) for n, (b, a) in zip(got.shape, chosen[t].margins, strict=True))
            got[inside] = 0
            assert not got.any()


def test_loops_of_an_output_may_run_over_another_layout_than_it_is_stored_in() -> None:
    x = te.placeholder((1, 8, 7, 7), f32, "x")
    y = te.compute((1, 8, 7, 7), lambda n, c, h, w: x[n, c, h, w] + 1.0, "y")
    stored = blocked((1, 8, 7, 7), 1, 8).margin(2, 1, 1).margin(3, 1, 3)
    tiles = blocked((1, 8, 7, 7), 1, 8).pad(2, 0, 1).pad(3, 0, 1).split(2, 4).split(4, 4).reorder(0, 1, 2, 4, 3, 5, 6)
    (out,), _ = relayout([y], {y: stored}, {y: tiles.fuse(2, 2)})
    assert out.shape == (1, 1, 4, 4, 4, 8)
    fn = lower(Schedule([out]), [x, out], "kernel")
    array = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    got = np.full(stored.physical_shape, 77, np.float32)
    run_function(fn, [array, got])
    np.testing.assert_array_equal(got, stored.pack(array + 1))


def test_fused_loops_over_the_same_memory_need_no_home() -> None:
    x = te.placeholder((4, 6), f32, "x")
    y = te.compute((4, 6), lambda i, j: x[i, j], "y")
    (out,), _ = relayout([y], {}, {y: Layout((4, 6)).fuse(0, 2)})
    assert (out.shape, out.home) == ((24,), None)


def test_zeros_outside_an_input_are_read_from_its_margins() -> None:
    x = te.placeholder((5,), f32, "x")
    pad = te.compute((8,), lambda i: select(within(i - 1, 0, 5), x[i - 1], 0), "pad", tag="pad")
    y = te.compute((6,), lambda i: pad[i] + pad[i + 2], "y")
    (out,) = read_margins([y], {x: Layout((5,)).margin(0, 1, 2)})
    assert repr(te.topological([out])[0]).startswith("pad[i:8] = x[i - 1]")
    (same,) = read_margins([y], {x: Layout((5,)).margin(0, 1, 1)})
    assert same is y


def test_divisions_cancel_when_both_sides_have_the_layout() -> None:
    x = te.placeholder((1, 32, 5), f32, "x")
    y = te.compute((1, 32, 5), lambda n, c, h: x[n, c, h] * 2.0, "y", axis_names="nch")
    layout = blocked((1, 32, 5), 1, 16)
    (out,), new = relayout([y], {x: layout, y: layout})
    assert repr(out.op) == "y[n:1, c:2, h:5, cb:16] = x[0, c, h, cb] * 2.0"
    assert new[x].shape == (1, 2, 5, 16)
    assert new[y] is out


@given(
    window=st.integers(1, 3), stride=st.integers(1, 2), dilation=st.integers(1, 2),
    tiles=st.integers(1, 3), tile=st.integers(1, 3), block=st.sampled_from([1, 2, 4]),
)  # fmt: skip
@examples(30)
def test_windows_read_tiles_that_their_producer_unfolds(
    window: int, stride: int, dilation: int, tiles: int, tile: int, block: int
) -> None:
    """ALT, figures 2 and 5b: the stage that pads writes overlapping tiles, which the convolution's tiles read."""
    count, reach = tiles * tile, (window - 1) * dilation + 1
    whole = (count - 1) * stride + max(reach, stride)
    border = int(whole > 2)
    inside = whole - 2 * border
    x = te.placeholder((4, inside), f32, "x")
    w = te.placeholder((4, 4, window), f32, "w")
    pad = te.compute((4, whole), lambda c, h: select(within(h - border, 0, inside), x[c, h - border], 0), "pad")
    c, r = te.reduce_axis(4, "c"), te.reduce_axis(window, "r")

    def term(o: Linear, h: Linear) -> te.Reduction:
        return te.sum_of(pad[c, h * stride + as_index(r) * dilation] * w[o, c, r], [c, r])

    y = te.compute((4, count), term, "y", axis_names="oh")
    read = (tile - 1) * stride + max(reach, stride)
    layouts = {
        y: Layout(y.shape).split(0, block).split(2, tile).reorder(2, 0, 3, 1),
        pad: Layout(pad.shape).unfold(1, read, tile * stride).split(0, block).reorder(2, 0, 3, 1),
    }
    (out,), new = relayout([y], layouts)
    assert new[pad].shape == (tiles, 4 // block, read, block)
    if tiles > 1 and tile > 1:
        assert "//" not in repr(out.op).replace("c//", "").replace("o//", "")
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, t.shape).astype(np.float32) for t in (x, w)]
    (want,) = run_tensors([y], dict(zip((x, w), arrays, strict=True)))
    fn = lower(Schedule([out]), [x, w, out], "kernel")
    got = np.zeros(out.shape, np.float32)
    run_function(fn, [*arrays, got])
    np.testing.assert_array_equal(layouts[y].unpack(got), want)


def test_accesses_that_leave_overlapping_tiles_are_refused() -> None:
    x = te.placeholder((9,), f32, "x")
    y = te.compute((9,), lambda i: x[i], "y")
    with pytest.raises(ScheduleError, match=r"^y: access i is no window that stays within one of 4 tiles"):
        relayout([y], {x: Layout((9,)).unfold(0, 3, 2)})


def test_tensors_without_a_layout_stay_themselves() -> None:
    x = te.placeholder((4,), f32, "x")
    y = te.compute((4,), lambda i: x[i], "y")
    _, new = relayout([y], {})
    assert new[x] is x


def test_accesses_from_inside_padding_read_zero() -> None:
    x = te.placeholder((5,), f32, "x")
    y = te.compute((5,), lambda i: x[i] * 2.0, "y")
    (out,), _ = relayout([y], {y: Layout((5,)).pad(0, 0, 3)})
    assert repr(out.op) == "y[i:8] = select(i < 5, x[i], 0.0) * 2.0"


def test_fused_dimensions_are_named_after_both() -> None:
    x = te.placeholder((4, 6), f32, "x")
    y = te.compute((4, 6), lambda i, j: x[i, j], "y")
    (out,), _ = relayout([y], {y: Layout((4, 6)).fuse(0, 2)})
    assert repr(out.op) == "y[ij:24] = x[ij//6, ij%6]"
