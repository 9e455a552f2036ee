from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, operators_of, ours, output_of

F = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.arange(2 * 8 * 4 * 6, dtype=np.float32).reshape(2, 8, 4, 6)


def vector(*values, dtype=np.int64):
    return np.array(values, dtype)


def stored(name, operands, **options):
    """Compare with all operands but the first stored in the model."""
    compare(name, operands, constants=[k for k, a in enumerate(operands) if k and a is not None], **options)


@pytest.mark.parametrize("shape", [[6, 4], [0, -1], [2, 0, 2, 2], [-1], [1, 2, 3, 4]])
@pytest.mark.parametrize("opset", [7, 14])
def test_reshape(shape, opset):
    stored("Reshape", [F, vector(*shape)], opset=opset)


def test_reshape_of_empty_tensors():
    empty = np.zeros((0, 3), np.float32)
    assert output_of("Reshape", [empty, vector(3, 0)], opset=14, constants=[1], allowzero=1).shape == (3, 0)
    assert output_of("Reshape", [empty, vector(0, -1)], opset=14, constants=[1], allowzero=0).shape == (0, 3)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2, 3])
def test_flatten(axis):
    compare("Flatten", [F], opset=13, axis=axis)


def test_flatten_of_a_scalar():
    assert output_of("Flatten", [np.array(1.0)], opset=13, axis=0).shape == (1, 1)


@pytest.mark.parametrize("perm", [None, [2, 0, 1], [0, 1, 2]])
def test_transpose(perm):
    compare("Transpose", [F], opset=13, perm=perm)


def test_squeeze_and_unsqueeze():
    x = F.reshape(1, 2, 1, 12)
    compare("Squeeze", [x], opset=11, axes=[0, -2])
    compare("Squeeze", [x], opset=13)
    stored("Squeeze", [x, vector(2)], opset=13)
    compare("Unsqueeze", [F], opset=11, axes=[0, -1])
    stored("Unsqueeze", [F, vector(4, 1)], opset=13)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis):
    compare("Concat", [F, F + 1, F + 2], opset=13, axis=axis)
    assert operators_of(imported("Concat", [F], opset=13, axis=axis)) == []


@pytest.mark.parametrize("opset, operands, attrs, outputs", [
    (7, [F], {"axis": 1}, 3),
    (11, [F], {"axis": -1, "split": [1, 3]}, 2),
    (13, [F], {"axis": 2}, 2),
    (13, [F, vector(1, 0, 3)], {"axis": 2}, 3),
    (18, [F], {"axis": 1, "num_outputs": 2}, 2),
    (18, [F], {"axis": 0, "num_outputs": 1}, 1),
])  # fmt: skip
def test_split(opset, operands, attrs, outputs):
    stored("Split", operands, opset=opset, outputs=outputs, **attrs)


@pytest.mark.parametrize("begin, end, step", [
    (0, 99, 1), (1, 3, 1), (-2, 99, 1), (0, -1, 2), (-1, -99, -1), (99, 0, -2), (3, 1, 1), (1, 3, -1), (-99, -99, -1),
    (-1, -(2**63), -1), (0, 2**63 - 1, 3),
])  # fmt: skip
def test_slice(begin, end, step):
    stored("Slice", [F, vector(begin), vector(end), vector(-1), vector(step)], opset=13)
    if step == 1:
        compare("Slice", [F], opset=9, starts=[begin], ends=[end], axes=[2])


def test_slice_defaults():
    stored("Slice", [F, vector(1, 0), vector(2, 2)], opset=10)
    narrow = [np.array(v, np.int32) for v in ([1, 1], [3, 2], [2, 1])]
    stored("Slice", [F, *narrow[:2], None, narrow[2]], opset=13)
    assert operators_of(imported("Slice", [F, vector(0), vector(9)], opset=13, constants=[1, 2])) == []


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode):
    pads = [0, 1, 2, 1, 0, 1]
    stored("Pad", [F, vector(*pads)], opset=19, mode=mode)
    if mode != "wrap":
        compare("Pad", [F], opset=10, pads=pads, mode=mode)


def test_pad_with_value_axes_and_crop():
    stored("Pad", [F, vector(0, 1, -1, 0, 0, 1), np.array(7, np.float32)], opset=13)
    stored("Pad", [F, vector(1, 2), np.array(7, np.float32), vector(-1)], opset=18)
    compare("Pad", [F], opset=7, pads=[0, 0, 1, 0, 0, 0], value=3.0)
    stored("Pad", [F.astype(np.int64), vector(0, 0, 1, 0, 0, 0), np.array(2**60 + 1)], opset=13)
    assert operators_of(imported("Pad", [F, vector(*[0] * 6)], opset=13, constants=[1])) == []


@pytest.mark.parametrize("shape, axes", [((4, 3, 1), None), ((1, 1, 9), None), ((5,), [-1]), ((1, 4), [0, 2])])
def test_center_crop_pad(shape, axes):
    stored("CenterCropPad", [F, vector(*shape)], opset=18, axes=axes)


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 2, 3, 4), (1,), (1, 1, 1), (3, 1)])
def test_expand(shape):
    stored("Expand", [F, vector(*shape)], opset=13)
    stored("Expand", [np.array(3, np.float32), vector(*shape)], opset=13)


def test_tile():
    stored("Tile", [F, vector(1, 2, 3)], opset=13)
    assert operators_of(imported("Tile", [F, vector(1, 1, 1)], opset=13, constants=[1])) == []


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    compare("DepthToSpace", [IMAGE], opset=13, blocksize=2, mode=mode)


def test_space_to_depth():
    compare("SpaceToDepth", [IMAGE], opset=13, blocksize=2)
    there = output_of("SpaceToDepth", [IMAGE], opset=28, blocksize=2, mode="CRD")
    np.testing.assert_array_equal(output_of("DepthToSpace", [there], opset=28, blocksize=2, mode="CRD"), IMAGE)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 1, -2])
def test_trilu(upper, k):
    stored("Trilu", [F, *([] if k is None else [np.array(k)])], opset=14, upper=upper)


HUGE = vector(1 << 20, 1 << 20)


@pytest.mark.parametrize(
    "name, operands, kwargs, error, message",
    [
        (
            "Reshape",
            [F, vector(5, -1)],
            {"opset": 13},
            ImportModelError,
            "has 24 elements, they do not fit",
        ),
        ("Reshape", [F, vector(-1, -1)], {"opset": 13}, ImportModelError, r"\[-1, -1\] is no shape"),
        ("Reshape", [F, vector(24, -2)], {"opset": 13}, ImportModelError, r"\[24, -2\] is no shape"),
        ("Reshape", [F, vector(2, 3, 4, 0)], {"opset": 13}, ImportModelError, "copies an extent that"),
        ("Reshape", [F, vector(0, -1)], {"opset": 14, "allowzero": 1}, ImportModelError, "they do not fit"),
        ("Flatten", [F], {"opset": 13, "axis": 4}, ImportModelError, "axis 4 of a tensor of rank 3"),
        ("Transpose", [F], {"opset": 13, "perm": [0, 1]}, ImportModelError, r"\[0, 1\] is no order of 3 axes"),
        ("Squeeze", [F, vector(1)], {"opset": 13}, ImportModelError, "axis 1 of f32.2,3,4. is not of extent 1"),
        ("Unsqueeze", [F, vector(0, 0)], {"opset": 13}, ImportModelError, r"axes \[0, 0\] repeat"),
        ("Split", [F], {"opset": 13, "axis": 1, "outputs": 2}, ImportModelError, "does not split into 2 equal parts"),
        ("Split", [F, vector(3, -1)], {"opset": 13, "outputs": 2}, ImportModelError, r"does not split into \[3, -1\]"),
        (
            "Slice",
            [F, vector(0), vector(1), vector(0), vector(0)],
            {"opset": 13},
            ImportModelError,
            "slice of step 0",
        ),
        ("Slice", [F, vector(0, 1), vector(1)], {"opset": 13}, ImportModelError, "have 2, 1, 2, 2 values"),
        ("Slice", [F, vector(0, 1), vector(1, 1), vector(0, -3)], {"opset": 13}, ImportModelError, "repeat"),
        ("Pad", [F, vector(1, 1)], {"opset": 13}, ImportModelError, "2 pads for 3 axes"),
        (
            "Pad",
            [F.astype(int), vector(*[1] * 6), vector(1, 2)],
            {"opset": 13},
            ImportModelError,
            "constant_value has 2 elements, one is needed",
        ),
        ("Pad", [F, vector(*[1] * 6)], {"opset": 13, "mode": "mirror"}, ImportModelError, "pad: mode 'mirror'"),
        ("CenterCropPad", [F, vector(1)], {"opset": 18}, ImportModelError, r"the shape \[1\] for 3 axes"),
        ("Expand", [F, vector(2, 4)], {"opset": 13}, ImportModelError, r"does not broadcast to \[2, 4\]"),
        ("Expand", [F, vector(-1, 1, 1)], {"opset": 13}, ImportModelError, r"does not broadcast to \[-1, 1, 1\]"),
        ("Tile", [F, vector(1, 1)], {"opset": 13}, ImportModelError, r"repeats \[1, 1\] of a tensor of rank 3"),
        ("DepthToSpace", [IMAGE], {"opset": 13, "blocksize": 3}, ImportModelError, "does not divide into blocks of 3"),
        ("DepthToSpace", [IMAGE], {"opset": 13, "blocksize": 2, "mode": "X"}, ImportModelError, "mode 'X', DCR or CRD"),
        ("SpaceToDepth", [IMAGE], {"opset": 13, "blocksize": 0}, ImportModelError, "does not divide into blocks of 0"),
        ("SpaceToDepth", [F], {"opset": 13, "blocksize": 1}, ImportModelError, "the input has rank 3, 4"),
        ("Expand", [F[:1, :1, :1], vector(*HUGE, 4)], {"opset": 9}, ImportModelError, "the limit 'tensor_bytes'"),
        ("Tile", [F, vector(1, *HUGE)], {"opset": 9}, ImportModelError, "the limit 'tensor_bytes'"),
        ("Pad", [F, vector(*[1 << 40] * 6)], {"opset": 13}, ImportModelError, "the limit 'tensor_bytes'"),
    ],
)
def test_refusals(name, operands, kwargs, error, message):
    with pytest.raises(error, match=message):
        ours(name, operands, constants=[k for k, a in enumerate(operands) if a.dtype != np.float32], **kwargs)


def test_a_shape_that_depends_on_inputs_is_refused():
    with pytest.raises(UnsupportedError, match="the shape depends on the model's inputs"):
        ours("Reshape", [F, vector(24)], opset=13)
