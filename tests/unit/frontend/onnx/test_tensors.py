from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.external import ExternalData
from mlc.frontend.onnx.tensors import decode_sparse, decode_tensor, element_type, element_type_name


def decode(tensor, **limits):
    return decode_tensor(tensor, "tensor 't'", ExternalData(None), Limits(**limits))


VALUES = {
    np.float32: [0.5, -0.0, np.inf, np.nan],
    np.float64: [1e300, -np.inf],
    np.float16: [0.5, -65504, np.nan],
    ml_dtypes.bfloat16: [1.5, -3e38],
    np.int8: [-128, 127],
    np.int16: [-32768, 32767],
    np.int32: [-(2**31), 2**31 - 1],
    np.int64: [-(2**63), 2**63 - 1, 2**53 + 1],
    np.uint8: [0, 255],
    np.uint16: [0, 65535],
    np.uint32: [0, 2**32 - 1],
    np.uint64: [0, 2**64 - 1],
    np.bool_: [True, False],
    ml_dtypes.int4: [-8, 7, 1],
    ml_dtypes.uint4: [15, 0, 9],
    ml_dtypes.int2: [-2, 1, 0, -1, 1],
    ml_dtypes.uint2: [3, 0, 2],
}


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("raw", [True, False])
def test_every_type_is_decoded_from_both_kinds_of_storage(dtype, raw):
    array = np.array(VALUES[dtype], dtype)
    elem = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = (
        numpy_helper.from_array(array) if raw else helper.make_tensor("t", elem, array.shape, array.tolist(), raw=False)
    )
    assert tensor.HasField("raw_data") == raw
    got = decode(tensor)
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize("raw", [True, False])
def test_packed_integers_of_another_number_are_refused(raw):
    tensor = numpy_helper.from_array(np.ones(5, ml_dtypes.int4))
    tensor.dims[0] = 7
    if not raw:
        tensor.int32_data.extend(tensor.raw_data)
        tensor.ClearField("raw_data")
    with pytest.raises(ImportModelError, match=r"has 3 (bytes of data|values), .* needs? 4"):
        decode(tensor)


def test_raw_data_is_not_copied_once_more():
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3))
    array = decode(tensor)
    assert not array.flags.writeable
    assert array.shape == (2, 3)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_scalars_and_empty_tensors_are_right(shape):
    array = np.ones(shape, np.float32)
    assert decode(numpy_helper.from_array(array)).shape == shape
    assert decode(helper.make_tensor("t", TensorProto.FLOAT, shape, array.reshape(-1).tolist())).shape == shape


def test_any_nonzero_byte_is_true():
    tensor = TensorProto(data_type=TensorProto.BOOL, dims=[3], raw_data=b"\0\1\x80")
    assert decode(tensor).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"dims": [2], "raw_data": b"1234567"}, "has 7 bytes of data, its shape and type need 8"),
        ({"dims": [2], "raw_data": b"123456789"}, "has 9 bytes of data"),
        ({"dims": [2], "float_data": [1.0]}, r"has 1 values, its shape \[2\] needs 2"),
        ({"dims": [2]}, "has 0 values"),
        ({"dims": [1], "int32_data": [1]}, "has data in int32_data, its type needs float_data"),
        ({"dims": [1], "float_data": [1.0], "int64_data": [1]}, "has data in float_data, int64_data"),
        ({"dims": [1], "float_data": [1.0], "raw_data": b"1234"}, "has data both raw and in float_data"),
        ({"dims": [-1], "raw_data": b""}, r"negative extent in shape \[-1\]"),
        ({"dims": [1 << 40], "raw_data": b""}, "4398046511104 bytes, the limit 'tensor_bytes'"),
        ({"dims": [1 << 40, 0], "raw_data": b""}, "the limit 'tensor_bytes'"),
        ({"dims": [1] * 33, "raw_data": b"1234"}, "rank: 33, the limit 'rank' is 32"),
    ],
)
def test_shape_and_data_must_fit(fields, match):
    with pytest.raises(ImportModelError, match=f"tensor 't'.*{match}"):
        decode(TensorProto(data_type=TensorProto.FLOAT, **fields))


@pytest.mark.parametrize(
    "kind, values", [(TensorProto.UINT8, [256]), (TensorProto.INT8, [-129]), (TensorProto.FLOAT16, [1 << 16])]
)
def test_values_must_fit_their_type(kind, values):
    with pytest.raises(ImportModelError, match="a value does not fit its type"):
        decode(TensorProto(data_type=kind, dims=[1], int32_data=values))


def test_segments_are_not_supported():
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[1], segment=TensorProto.Segment(begin=0, end=1))
    with pytest.raises(UnsupportedError, match="tensors in segments are not supported"):
        decode(tensor)


@pytest.mark.parametrize(
    "kind, name",
    [
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
        (TensorProto.FLOAT4E2M1, "float4e2m1"),
        (TensorProto.STRING, "string"),
        (TensorProto.COMPLEX64, "complex64"),
    ],
)
def test_types_that_mlc_lacks_are_named(kind, name):
    with pytest.raises(UnsupportedError, match=f"tensor 't': element type {name} is not supported") as caught:
        element_type(kind, "tensor 't'")
    assert "bfloat16" in caught.value.hint


@pytest.mark.parametrize("kind", [0, 99])
def test_numbers_that_are_no_type_are_refused(kind):
    with pytest.raises(ImportModelError, match=rf"has no valid element type \({kind}\)"):
        element_type(kind, "tensor 't'")
    assert element_type_name(99) == "number 99"


def sparse(indices, values=(1.0, 2.0), dims=(2, 3)):
    return onnx.SparseTensorProto(
        values=numpy_helper.from_array(np.array(values, np.float32)),
        indices=numpy_helper.from_array(np.array(indices, np.int64)),
        dims=dims,
    )


def densified(proto, **limits):
    return decode_sparse(proto, "tensor 's'", ExternalData(None), Limits(**limits))


def test_sparse_tensors_become_dense():
    expected = [[0, 1, 0], [0, 0, 2]]
    np.testing.assert_array_equal(densified(sparse([1, 5])), expected)
    np.testing.assert_array_equal(densified(sparse([[0, 1], [1, 2]])), expected)


@pytest.mark.parametrize(
    "proto, match",
    [
        (sparse([1, 6]), "sparse indices do not fit"),
        (sparse([-1, 2]), "sparse indices do not fit"),
        (sparse([[0, 1], [2, 0]]), "sparse indices do not fit"),
        (sparse([1]), "sparse indices do not fit"),
        (sparse([[0], [1]]), r"indices of shape \[2, 1\] for a tensor of rank 2"),
        (sparse([1, 2], dims=(-2, 3)), "negative extent"),
        (sparse([1, 2], dims=(1 << 15, 1 << 15)), "in dense form: 4294967296 bytes, the limit 'constant_bytes'"),
    ],
)
def test_wrong_sparse_tensors_are_refused(proto, match):
    with pytest.raises(ImportModelError, match=f"tensor 's'.*{match}"):
        densified(proto)


def test_sparse_tensors_need_integer_indices():
    proto = sparse([1, 2])
    proto.indices.CopyFrom(numpy_helper.from_array(np.array([1, 2], np.int32)))
    with pytest.raises(ImportModelError, match="sparse values of rank 1 with int32 indices"):
        densified(proto)
