"""The layout pass: the same values, held in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.ir import te
from mlc.ir.expr import select, within
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
    """A blocked, permuted or fused layout for some tensors."""
    chosen: dict[te.Tensor, Layout] = {}
    for t in tensors(computation):
        if not t.shape or (t.op is not None and len(t.op.outputs) > 1) or draw(st.booleans()):
            continue
        layout = Layout(t.shape)
        match draw(st.sampled_from(["block", "permute", "fuse", "pad"])):
            case "block":
                layout = blocked(t.shape, draw(st.integers(0, t.rank - 1)), draw(st.sampled_from([2, 4])))
            case "permute":
                layout = layout.reorder(*draw(st.permutations(range(t.rank))))
            case "fuse":
                layout = layout.fuse(0, t.rank)
            case "pad":
                layout = layout.pad(draw(st.integers(0, t.rank - 1)), draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        if t.op is None or t in computation.outputs:
            for d in range(len(layout.physical_shape)):
                if draw(st.booleans()):
                    layout = layout.margin(d, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        chosen[t] = layout
    return chosen


def packed(t: te.Tensor, array: np.ndarray, chosen: dict[te.Tensor, Layout]) -> np.ndarray:
    return chosen[t].pack(array) if t in chosen else array


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
