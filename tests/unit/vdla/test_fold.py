"""Narrow tensors: how they lie folded, the convolutions over them, and which are folded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir.graph import Value
from mlc.ir.types import TensorType, i8
from mlc.vdla.config import PROFILES
from mlc.vdla.fold import Fold, folded, over_blocks
from mlc.vdla.layer import Convolution
from mlc.vdla.narrow import folds
from mlc.vdla.schedules.shape import Shape
from tests.fuzz import examples
from tests.unit.vdla.schedules.layers import convolved, inputs_of, make_elementwise, make_layer

FULL = PROFILES["full"]


def laid(layer: Convolution, x: Fold, y: Fold) -> Convolution:
    """The layer with its input and its result folded."""

    def typed(v: Value, fold: Fold) -> Value:
        bare = TensorType(v.type.shape, v.type.dtype)
        return Value(v.name, bare.with_layout(fold.layout(bare, 16)) if fold.pixels > 1 else v.type)

    return replace(layer, x=typed(layer.x, x), out=typed(layer.out, y))


def test_pairs_of_pixels() -> None:
    array = np.arange(1, 11, dtype=np.int8).reshape(1, 2, 1, 5)  # channels 1..5 and 6..10
    fold = Fold(2, 1)
    lies = fold.layout(TensorType(array.shape, i8), 8)
    assert lies.pack(array).tolist() == [
        [[[0, 0, 0, 0, 1, 6, 0, 0], [2, 7, 0, 0, 3, 8, 0, 0], [4, 9, 0, 0, 5, 10, 0, 0]]]
    ]
    np.testing.assert_array_equal(lies.unpack(lies.pack(array)), array)
    assert Fold.of(TensorType(array.shape, i8).with_layout(lies)) == fold
    assert Fold.of(make_layer().x.type) == Fold()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Convolution, Fold, Fold]:
    size = st.integers(1, 8)
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    c, o = (groups * draw(st.integers(1, 8 // groups)) for _ in range(2))
    layer = make_layer(
        (c, o), (draw(st.integers(4, 6)), draw(st.integers(6, 12))), (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        strides=(draw(st.integers(1, 2)), draw(st.integers(1, 3))), groups=groups, seed=draw(size),
        dilations=(1, draw(st.integers(1, 2))), pads=(draw(st.integers(0, 1)), draw(st.integers(0, 3))),
        bias=5000, shift="vector",
    )  # fmt: skip
    pixels = [n for n in (1, 2, 4, 8) if n * max(c, 1) <= 16]
    x = draw(st.sampled_from(pixels))
    return (
        layer,
        Fold(x, draw(st.integers(0, x - 1))),
        Fold(draw(st.sampled_from([n for n in (1, 2, 4) if n * o <= 16]))),
    )


@examples(150)
@given(cases())
def test_a_layer_is_a_convolution_over_blocks(case: tuple[Convolution, Fold, Fold]) -> None:
    layer, x, y = case
    try:
        there = folded(laid(layer, x, y), FULL)
    except ScheduleError:
        assume(False)
        return
    image = inputs_of(layer)["x"]
    if x.pixels > 1:
        there_x = x.layout(TensorType(layer.shape, i8), 16).pack(image).transpose(0, 3, 1, 2)
    else:
        there_x = image
    sums = convolved(there, there_x)
    wanted = convolved(layer, image)
    n, many, rows, blocks = sums.shape
    if y.pixels > 1:
        lanes = 16 // y.pixels
        sums = sums.reshape(n, y.pixels, lanes, rows, blocks)
    else:
        sums = sums.reshape(n, there.spread, -1, rows, blocks)
    # [n, o, h, w]: pixels of a block are neighbours
    got = sums.transpose(0, 2, 3, 4, 1).reshape(n, sums.shape[2], rows, -1)[:, : layer.out_shape[1]]
    np.testing.assert_array_equal(got, wanted)
    assert layer.bias is not None
    assert there.bias is not None
    assert there.shift is not None
    assert layer.shift is not None
    pixels = many // (16 // y.pixels) if y.pixels > 1 else there.spread
    for whole, part in ((there.bias, layer.bias), (there.shift, layer.shift)):
        per_pixel = whole.reshape(pixels, -1)[:, : layer.out_shape[1]] if part.size > 1 else whole
        assert (per_pixel == part).all()


def test_the_layer_itself_where_nothing_is_folded() -> None:
    layer = make_layer()
    assert folded(layer, FULL) is layer


@pytest.mark.parametrize(
    ("facts", "x", "y", "message"),
    [
        # three pixels of the result are no whole number of pairs
        ({"channels": (8, 8), "image": (4, 7)}, Fold(2), Fold(2), "do not lie as blocks of 2 pixels"),
        # the result of four pixels is more than a block
        ({"channels": (4, 32), "image": (4, 8)}, Fold(4), Fold(), "do not lie as blocks of 4 pixels"),
        # rows of the input go on after the last window
        ({"channels": (8, 8), "image": (4, 11), "kernel": (1, 1), "strides": (1, 5), "pads": (0, 0)}, Fold(2), Fold(),
         "do not lie as blocks of 2 pixels"),
    ],
)  # fmt: skip
def test_what_is_no_convolution_over_blocks(facts: dict[str, Any], x: Fold, y: Fold, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        over_blocks(make_layer(**facts), x, y, 16)


def chain(*layers: Convolution) -> list[Convolution]:
    """Layers that read each other's results."""
    found = [layers[0]]
    for k, layer in enumerate(layers[1:]):
        found.append(replace(layer, x=found[-1].out, out=Value(f"out{k}", layer.out.type)))
    return found


DEPTHWISE: dict[str, Any] = {"channels": (8, 8), "image": (12, 12), "groups": 8}
POINTWISE: dict[str, Any] = {"channels": (8, 16), "image": (12, 12), "kernel": (1, 1)}


def test_narrow_tensors_are_folded_where_that_is_faster() -> None:
    first, second = chain(make_layer(**DEPTHWISE), make_layer(**POINTWISE))
    # pairs that the host packs begin with the pixel of the pad; those that the device makes cannot
    assert folds([first, second], FULL) == {first.x: Fold(2, 1), first.out: Fold(2)}
    depthwise = Shape.of(over_blocks(first, Fold(2, 1), Fold(2), 16), FULL)
    assert (depthwise.macs, Shape.of(first, FULL).macs) == (6 * 72, 9 * 144)


def test_what_is_not_folded() -> None:
    wide = make_layer((9, 9), (12, 12), groups=9)
    assert folds([wide], FULL) == {}
    first, second = chain(make_layer((8, 8), (12, 13), groups=8), make_layer((8, 16), (12, 13), (1, 1)))
    assert first.out not in folds([first, second], FULL)  # half of the last pairs would be no pixel
    added = replace(make_layer(**DEPTHWISE, residual=3), residual=first.x)
    assert folds([added], FULL) == {}
    assert folds([make_elementwise((1, 8, 12, 12))], FULL) == {}
