"""Operators that move elements and look up by position, against LiteRT's reference kernels."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError
from mlc.frontend.common.context import UnknownValueError
from mlc.frontend.common.problems import UnsupportedModelError
from tests.unit.frontend.tflite.writer import T, const, imported, one, same


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values):
    return const(values, np.int32)


def test_reshapes(rng):
    x = normal(rng, 2, 3, 4)
    same(one("RESHAPE", [x, ints(4, -1)], [T((4, 6))], "ReshapeOptions"))
    same(one("RESHAPE", [x], [T((6, 4))], "ReshapeOptions", NewShape=[6, 4]))
    same(one("SQUEEZE", [normal(rng, 2, 1, 3, 1)], [T((2, 1, 3))], "SqueezeOptions", SqueezeDims=[-1]))
    same(one("SQUEEZE", [normal(rng, 2, 1, 3, 1)], [T((2, 3))], "SqueezeOptions"))
    same(one("EXPAND_DIMS", [x, ints(-2)], [T((2, 3, 1, 4))], "ExpandDimsOptions"))
    same(one("TRANSPOSE", [x, ints(2, 0, 1)], [T((4, 2, 3))], "TransposeOptions"))
    same(one("SHAPE", [x], [T((3,), "int32")], "ShapeOptions", OutType=2))
    same(one("RANK", [x], [T((), "int32")], "RankOptions"))


def test_joining_and_parting(rng):
    a, b = normal(rng, 2, 3), normal(rng, 2, 5)
    same(one("CONCATENATION", [a, b], [T((2, 8))], "ConcatenationOptions", Axis=-1))
    same(one("PACK", [a, a, a], [T((2, 3, 3))], "PackOptions", ValuesCount=3, Axis=1))
    same(one("UNPACK", [b], [T((2,))] * 5, "UnpackOptions", Num=5, Axis=1))
    same(one("SPLIT", [ints(1), normal(rng, 2, 6)], [T((2, 2))] * 3, "SplitOptions", NumSplits=3))
    parts = [T((2, 1)), T((2, 3)), T((2, 2))]
    same(one("SPLIT_V", [normal(rng, 2, 6), ints(1, -1, 2), ints(1)], parts, "SplitVOptions", NumSplits=3))


def test_slices(rng):
    x = normal(rng, 4, 5, 6)
    same(one("SLICE", [x, ints(1, 0, 2), ints(2, -1, 3)], [T((2, 5, 3))], "SliceOptions"))
    cases = [
        ((1, 0, 5), (3, 5, 1), (1, 2, -2), {}, (2, 3, 2)),
        ((1, -2, 0), (9, 9, 9), (1, 1, 3), {"BeginMask": 1, "EndMask": 4}, (4, 2, 2)),
        ((2, 1, 0), (3, 4, 1), (1, 1, 1), {"ShrinkAxisMask": 5}, (3,)),
        ((0, -1), (0, 0), (1, 1), {"EllipsisMask": 1, "ShrinkAxisMask": 2}, (4, 5)),
        ((0, 0, 1), (0, 0, 3), (1, 1, 1), {"NewAxisMask": 1, "EndMask": 2}, (1, 4, 2, 6)),
        ((3, 4, 5), (-9, -9, -9), (-1, -1, -1), {}, (4, 5, 6)),
    ]
    for begin, end, step, masks, shape in cases:
        operands = [x, ints(*begin), ints(*end), ints(*step)]
        same(one("STRIDED_SLICE", operands, [T(shape)], "StridedSliceOptions", version=2, **masks))


def test_padding_and_repeating(rng):
    x = normal(rng, 2, 3, 4)
    pads = const([[0, 1], [2, 0], [1, 1]], np.int32)
    same(one("PAD", [x, pads], [T((3, 5, 6))], "PadOptions"))
    same(one("PADV2", [x, pads, const(np.float32(7.5))], [T((3, 5, 6))], "PadV2Options"))
    for mode in (0, 1):
        same(
            one(
                "MIRROR_PAD",
                [x, const([[0, 1], [2, 0], [1, 2]], np.int32)],
                [T((3, 5, 7))],
                "MirrorPadOptions",
                Mode=mode,
            )
        )
    same(one("TILE", [x, ints(2, 1, 3)], [T((4, 3, 12))], "TileOptions"))
    same(one("BROADCAST_TO", [normal(rng, 3, 1), ints(2, 3, 4)], [T((2, 3, 4))], version=2))
    same(one("FILL", [ints(2, 3), np.float32(4.5)], [T((2, 3))], "FillOptions"))
    same(one("RANGE", [const(np.int32(1)), const(np.int32(9)), const(np.int32(3))], [T((3,), "int32")], "RangeOptions"))
    same(
        one("RANGE", [const(np.float32(1)), const(np.float32(-1)), const(np.float32(-0.5))], [T((4,))], "RangeOptions")
    )


def test_blocks(rng):
    same(one("SPACE_TO_DEPTH", [normal(rng, 2, 4, 6, 3)], [T((2, 2, 3, 12))], "SpaceToDepthOptions", BlockSize=2))
    same(one("DEPTH_TO_SPACE", [normal(rng, 2, 2, 3, 12)], [T((2, 4, 6, 3))], "DepthToSpaceOptions", BlockSize=2))
    pads, crops = const([[1, 1], [0, 2]], np.int32), const([[1, 0], [0, 1]], np.int32)
    operands = [normal(rng, 1, 4, 4, 2), ints(2, 3), pads]
    same(one("SPACE_TO_BATCH_ND", operands, [T((6, 3, 2, 2))], "SpaceToBatchNDOptions"))
    same(
        one(
            "BATCH_TO_SPACE_ND",
            [normal(rng, 12, 3, 2, 2), ints(2, 3), crops],
            [T((2, 5, 5, 2))],
            "BatchToSpaceNDOptions",
        )
    )


def test_look_ups(rng):
    x = normal(rng, 4, 5, 6)
    at = rng.integers(0, 5, (2, 3)).astype(np.int32)
    same(one("GATHER", [x, at], [T((4, 2, 3, 6))], "GatherOptions", Axis=1))
    same(one("GATHER", [x, const(at)], [T((4, 5, 2, 3))], "GatherOptions", Axis=-1))
    along = rng.integers(0, 6, (4, 2)).astype(np.int32)
    same(one("GATHER", [x, along], [T((4, 5, 2))], "GatherOptions", version=5, Axis=2, BatchDims=1))
    where = np.stack([rng.integers(0, n, (3,)) for n in (4, 5)], -1).astype(np.int32)
    same(one("GATHER_ND", [x, where], [T((3, 6))], "GatherNdOptions"))
    rows = rng.integers(0, 4, 7).astype(np.int32)
    same(one("EMBEDDING_LOOKUP", [rows, const(normal(rng, 4, 5))], [T((7, 5))]))
    for scale in (0.01, [0.01, 0.02, 0.03, 0.04]):
        table = const(rng.integers(-127, 128, (4, 5)), np.int8, scale=scale)
        same(one("EMBEDDING_LOOKUP", [rows, table], [T((7, 5))], version=3), rtol=1e-7)


def test_scatters(rng):
    where = const([[0, 1], [2, 0], [0, 1]], np.int32)
    same(one("SCATTER_ND", [where, normal(rng, 3, 4), ints(3, 2, 4)], [T((3, 2, 4))], "ScatterNdOptions"))
    operands = [const([[0, 1], [2, 0]], np.int32), ints(3, 2), normal(rng, 2), const(np.float32(-1))]
    same(one("SPARSE_TO_DENSE", operands, [T((3, 2))], "SparseToDenseOptions"))
    same(
        one(
            "SPARSE_TO_DENSE",
            [ints(4, 1), ints(6), normal(rng, 2), const(np.float32(-1))],
            [T((6,))],
            "SparseToDenseOptions",
        )
    )


def test_order(rng):
    x = normal(rng, 3, 7)
    same(one("TOPK_V2", [x, ints(3)], [T((3, 3)), T((3, 3), "int32")], "TopKV2Options"))
    same(one("REVERSE_V2", [x, ints(1)], [T((3, 7))], "ReverseV2Options"))
    lengths = np.array([2, 5, 1], np.int32)
    y = normal(rng, 5, 3, 2)
    same(one("REVERSE_SEQUENCE", [y, lengths], [T((5, 3, 2))], "ReverseSequenceOptions", SeqDim=0, BatchDim=1))
    same(
        one(
            "REVERSE_SEQUENCE",
            [y.swapaxes(0, 1).copy(), lengths],
            [T((3, 5, 2))],
            "ReverseSequenceOptions",
            SeqDim=1,
            BatchDim=0,
        )
    )
    for exclusive in (False, True):
        same(one("CUMSUM", [x, ints(1)], [T((3, 7))], "CumsumOptions", Exclusive=exclusive, Reverse=exclusive))


def test_one_hot_and_diagonals(rng):
    at = np.array([[0, 3], [-1, 9]], np.int32)
    operands = [at, ints(4), const(np.float32(2)), const(np.float32(-1))]
    same(one("ONE_HOT", operands, [T((2, 2, 4))], "OneHotOptions", Axis=-1))
    same(one("ONE_HOT", operands, [T((2, 4, 2))], "OneHotOptions", Axis=1))
    same(one("MATRIX_DIAG", [normal(rng, 2, 3)], [T((2, 3, 3))], "MatrixDiagOptions"))
    same(one("MATRIX_SET_DIAG", [normal(rng, 2, 3, 4), normal(rng, 2, 3)], [T((2, 3, 4))], "MatrixSetDiagOptions"))
    same(one("WHERE", [const([[True, False], [True, True]])], [T((3, 2), "int64")], "WhereOptions"))


def test_what_must_be_known_is_named(rng):
    x = normal(rng, 2, 3)
    with pytest.raises(UnsupportedModelError, match="the new shape depends on the model's inputs") as caught:
        imported(one("RESHAPE", [x, np.array([3, 2], np.int32)], [T((3, 2))], "ReshapeOptions")[0])
    assert caught.value.inputs_to_fix == ("t1",)
    assert issubclass(UnknownValueError, Exception)


@pytest.mark.parametrize(
    ("name", "operands", "table", "options", "reason"),
    [
        ("RESHAPE", [ints(4, -1, -1)], "ReshapeOptions", {}, "to the shape"),
        ("RESHAPE", [ints(5, 2)], "ReshapeOptions", {}, "to the shape"),
        ("SLICE", [ints(0, 0), ints(9, 1)], "SliceOptions", {}, "9 elements from 0 of axis 0"),
        ("PAD", [const([[1, 2]], np.int32)], "PadOptions", {}, "pads"),
        ("TRANSPOSE", [ints(0, 0)], "TransposeOptions", {}, "repeat"),
        ("GATHER", [ints(7)], "GatherOptions", {}, "index 7 of an axis of extent 2"),
        ("TOPK_V2", [ints(99)], "TopKV2Options", {}, "k is 99"),
    ],
)
def test_what_does_not_fit_is_refused(rng, name, operands, table, options, reason):
    with pytest.raises(ImportModelError, match=reason):
        imported(one(name, [normal(rng, 2, 3), *operands], [T((2, 3))], table, **options)[0])
