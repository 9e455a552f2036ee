"""Weights that are stored sparsely, against LiteRT's DENSIFY."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError
from tests.unit.frontend.tflite.writer import T, imported, one, same

VALUES = np.arange(1, 9, dtype=np.float32)
# rows dense, columns compressed
ROWS = ([0, 1], [], [3, ([0, 2, 2, 5], [1, 3, 0, 2, 3])])
# blocks of two columns, compressed along the rows of blocks
BLOCKS = ([0, 1, 2], [1], [4, ([0, 1, 1, 3, 4], [1, 0, 1, 0]), 2])


def densify(shape, count, sparsity, dtype="float32"):
    stored = T(shape, dtype, raw=VALUES[:count].astype(dtype).tobytes(), sparsity=sparsity)
    return one("DENSIFY", [stored], [T(shape, dtype)], "DensifyOptions")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_sparse_weights_are_made_dense(dtype):
    same(densify((3, 4), 5, ROWS, dtype))
    same(densify((4, 4), 8, BLOCKS, dtype))


@pytest.mark.parametrize(
    ("shape", "count", "sparsity", "message"),
    [
        ((3, 4), 4, ROWS, "4 values for 5 places"),
        ((2, 4), 5, ROWS, "a level of 3 where an axis has 2"),
        ((3, 2), 5, ROWS, "segments of a compressed level"),
        ((4, 5), 8, BLOCKS, r"blocks \[1, 2\] of \[4, 5\]"),
        ((3, 4), 5, ([0, 0], [], ROWS[2]), "levels"),
        ((3, 4), 5, ([0, 1], [], [3, ([0, 2, 1, 5], [1, 3, 0, 2, 3])]), "segments of a compressed level"),
    ],
)
def test_what_contradicts_itself_is_refused(shape, count, sparsity, message):
    with pytest.raises(ImportModelError, match=message):
        imported(densify(shape, count, sparsity)[0])
