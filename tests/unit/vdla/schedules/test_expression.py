from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.interp.te import run_tensors
from mlc.vdla.config import PROFILES
from mlc.vdla.layer import Convolution
from mlc.vdla.schedules.expression import Shape, constants, express
from mlc.vdla.schedules.finish import Epilogue, Range
from tests.unit.vdla.schedules.layers import blocked, inputs_of, make_layer, wanted

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
    shape = Shape.of(layer, FULL)
    rows = rows[0], min(rows[1], shape.rows)
    part = express(shape, Epilogue.of(layer, FULL), rows, blocks, inputs_outer)
    values = inputs_of(layer)
    arrays = constants(layer, FULL) | {name: blocked(a) for name, a in values.items()}
    (got,) = run_tensors([part.out], {t: arrays[t.name] for t in part.params[:-1]})
    result = blocked(wanted(layer, values))[:, blocks[0] : blocks[1], rows[0] : rows[1]]
    channels = min(layer.out_shape[1] - 16 * blocks[0], 16 * (blocks[1] - blocks[0]))
    for o in range(blocks[1] - blocks[0]):
        lanes = min(16, channels - 16 * o)
        np.testing.assert_array_equal(got[:, o, :, :, :lanes], result[:, o, :, :, :lanes])


def test_compulsory_bytes_leave_out_what_no_window_touches() -> None:
    shape = Shape.of(make_layer((32, 48), (8, 8), (1, 1), strides=(2, 2)), FULL)
    assert shape.compulsory_bytes == 16 * (2 * 4 * 7 + 16 * 6 + 3 * 16)
    assert shape.macs == 16 * 6
