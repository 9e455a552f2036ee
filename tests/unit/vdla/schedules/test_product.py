from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.ir.graph import Value
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import TensorType, i8
from mlc.vdla.config import PROFILES
from mlc.vdla.layer import Convolution
from mlc.vdla.schedules.finish import Epilogue, Finish, Range
from mlc.vdla.schedules.product import Sums
from mlc.vdla.schedules.shape import Shape
from tests.unit.vdla.schedules.layers import blocked, inputs_of, make_layer, product_of, wanted

FULL = PROFILES["full"]
LAYERS = [
    make_layer(shift=None),
    make_layer((20, 40), kernel=(1, 1)),
    make_layer(kernel=(1, 1), strides=(2, 2)),
    make_layer(kernel=(1, 1), pads=(1, 2), strides=(2, 1)),
    make_layer(strides=(2, 2)),
    make_layer(dilations=(2, 2), pads=(2, 2)),
    make_layer(kernel=(1, 3), strides=(3, 2)),
]
EPILOGUES = [
    make_layer(kernel=(1, 1), shift=0),
    make_layer((16, 40), kernel=(1, 1), bias=200_000, relu=True, shift=7),
    make_layer(kernel=(1, 1), bias=1_500_000, relu=True, shift=12),
    make_layer(kernel=(1, 1), bias=1 << 30, shift=20),
    make_layer(kernel=(1, 1), bias=5000, residual=3, relu=True, most=5000, shift="vector"),
    make_layer((16, 40), kernel=(1, 1), residual="vector", shift=9),
    make_layer(kernel=(1, 1), residual=0, shift=2),
    make_layer(kernel=(1, 1), residual=6, shift=None),
    make_layer(kernel=(1, 1), residual=8),
    make_layer(kernel=(1, 1), residual=9),
]


@pytest.mark.parametrize("layer", LAYERS, ids=range(len(LAYERS)))
@pytest.mark.parametrize(("rows", "blocks"), [((0, 3), (0, 2)), ((1, 2), (1, 3))])
@pytest.mark.parametrize("inputs_outer", [False, True])
def test_part_of_a_product(layer: Convolution, rows: Range, blocks: Range, inputs_outer: bool) -> None:
    check(layer, rows, blocks, inputs_outer)


@pytest.mark.parametrize("layer", EPILOGUES, ids=range(len(EPILOGUES)))
def test_epilogue(layer: Convolution) -> None:
    check(layer, (2, 5), (1, 3), False)


def check(layer: Convolution, rows: Range, blocks: Range, inputs_outer: bool) -> None:
    sums, epilogue = Sums.of(layer, FULL), Epilogue.of(layer, FULL)
    whole = sums.result.shape
    rows, blocks = (rows[0], min(rows[1], whole[2])), (blocks[0], min(blocks[1], whole[1]))
    finish = Finish(epilogue, whole, rows, blocks, FULL.block_in)
    main = sums.part(rows, blocks, inputs_outer)
    out = finish.result(lambda *at: main.sums[at])
    values = inputs_of(layer)
    arrays = {"w": layer.weights, **epilogue.constants(layer, (16, 16))}
    arrays |= {name: blocked(a) for name, a in values.items()}
    given = {t: arrays[t.name] for t in (sums.x, sums.weights, *finish.params)}
    given[sums.x][:, -1, :, :, layer.shape[1] % 16 or 16 :] = 99  # what is no channel counts for nothing
    (got,) = run_tensors([out], given)
    result = blocked(wanted(layer, values))[:, blocks[0] : blocks[1], rows[0] : rows[1]]
    channels = min(layer.out_shape[1] - 16 * blocks[0], 16 * (blocks[1] - blocks[0]))
    for o in range(blocks[1] - blocks[0]):
        lanes = min(16, channels - 16 * o)
        np.testing.assert_array_equal(got[:, o, :, :, :lanes], result[:, o, :, :, :lanes])


GROUPS = [
    ({"channels": (64, 64), "groups": 64}, [((k, k + 1), (k, k + 1)) for k in range(4)]),
    ({"channels": (12, 12), "groups": 6}, [((0, 1), (0, 1))]),
    ({"channels": (32, 96), "groups": 2}, [((0, 3), (0, 1)), ((3, 6), (1, 2))]),
    ({"channels": (24, 48), "groups": 24}, [((0, 2), (0, 1)), ((2, 3), (1, 2))]),
    ({"channels": (48, 96), "groups": 4}, [((0, 1), (0, 1)), ((1, 3), (0, 2)), ((3, 5), (1, 3)), ((5, 6), (2, 3))]),
]


@pytest.mark.parametrize(("facts", "spans"), GROUPS, ids=range(len(GROUPS)))
def test_groups_of_channels(facts: dict[str, Any], spans: list[tuple[Range, Range]]) -> None:
    layer = make_layer(**facts)
    sums = Sums.of(layer, FULL)
    assert sums.spans() == spans
    for blocks, inputs in sums.spans():
        assert sums.part((0, 2), blocks, False).inputs.shape[1] == inputs[1] - inputs[0]
        check(layer, (0, 3), blocks, False)


def test_rows_of_a_matrix_are_pixels() -> None:
    x, w = np.arange(5 * 20).reshape(5, 20).astype(np.int8), np.arange(20 * 40).reshape(20, 40).astype(np.int8)
    value = Value("x", TensorType(x.shape, i8))
    for transposed in (False, True):
        held = np.ascontiguousarray(w.T) if transposed else w
        node = product_of("matmul", value, held, {"transpose_a": False, "transpose_b": transposed})
        layer = Convolution(value, node.outputs[0], (1, 20, 5, 1), (1, 40, 5, 1), node, held)
        sums = Sums.of(layer, FULL)
        (got,) = run_tensors(
            [sums.part((1, 5), (1, 3), True).sums],
            {sums.x: blocked(x.T[None, :, :, None]), sums.weights: held},
        )
        result = (x.astype(np.int32) @ w)[1:]
        np.testing.assert_array_equal(got[0, 0, :, 0], result[:, 16:32])
        np.testing.assert_array_equal(got[0, 1, :, 0, :8], result[:, 32:])


def test_compulsory_bytes_leave_out_what_no_window_touches() -> None:
    shape = Shape.of(make_layer((32, 48), (8, 8), (1, 1), strides=(2, 2)), FULL)
    assert shape.compulsory_bytes == 16 * (2 * 4 * 7 + 16 * 6 + 3 * 16)
    assert shape.macs == 16 * 6


def test_rows_that_no_window_touches_are_left_out() -> None:
    for layer, rows in ((make_layer((32, 48), (9, 8), (1, 1), strides=(3, 1)), 3), (make_layer(strides=(2, 2)), 5)):
        shape = Shape.of(layer, FULL)
        data = Sums.of(layer, FULL).part((0, rows - shape.taps // 9), (0, 1), False).inputs
        assert data.shape[2] == shape.rows_read(rows - shape.taps // 9)
