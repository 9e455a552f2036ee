"""``TensorProto`` to numpy, checked: shape, type, and exactly as much data as they need."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import check_type
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.external import ExternalData
from mlc.ir.types import ALL_DTYPES, DType, TensorType, bf16, boolean, dtype_of, u8

# name of ours -> (number of ONNX's element type, field of TensorProto that holds the values when raw_data does not)
ELEMENT_TYPES: dict[str, tuple[int, str]] = {
    "f32": (TensorProto.FLOAT, "float_data"),
    "f64": (TensorProto.DOUBLE, "double_data"),
    "f16": (TensorProto.FLOAT16, "int32_data"),
    "bf16": (TensorProto.BFLOAT16, "int32_data"),
    "i2": (26, "int32_data"),  # onnx has a name for it from 1.20 on
    "i4": (TensorProto.INT4, "int32_data"),
    "i8": (TensorProto.INT8, "int32_data"),
    "i16": (TensorProto.INT16, "int32_data"),
    "i32": (TensorProto.INT32, "int32_data"),
    "i64": (TensorProto.INT64, "int64_data"),
    "u2": (25, "int32_data"),
    "u4": (TensorProto.UINT4, "int32_data"),
    "u8": (TensorProto.UINT8, "int32_data"),
    "u16": (TensorProto.UINT16, "int32_data"),
    "u32": (TensorProto.UINT32, "uint64_data"),
    "u64": (TensorProto.UINT64, "uint64_data"),
    "bool": (TensorProto.BOOL, "int32_data"),
}
_OURS = {number: ALL_DTYPES[name] for name, (number, _) in ELEMENT_TYPES.items()}
_FIELDS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")


def element_type_name(elem_type: int) -> str:
    """``float8e4m3fn`` for ``TensorProto.FLOAT8E4M3FN``; a number for what is unknown."""
    try:
        return str(TensorProto.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"number {elem_type}"


def element_type(elem_type: int, where: str) -> DType:
    """Our element type for one of ONNX.

    Raises:
        UnsupportedError: a type that ``mlc`` does not compute with.
        ImportModelError: no type at all.
    """
    if elem_type in _OURS:
        return _OURS[elem_type]
    if elem_type == TensorProto.UNDEFINED or elem_type not in TensorProto.DataType.values():
        raise ImportModelError(f"{where}: has no valid element type ({elem_type})")
    raise UnsupportedError(
        f"{where}: element type {element_type_name(elem_type)} is not supported",
        hint="supported: " + ", ".join(element_type_name(t) for t in _OURS),
    )


def stored_bytes(tensor: TensorProto) -> int:
    """What a tensor's values take, by its shape and type; 0 where these make no sense (decoding says so)."""
    dtype = _OURS.get(tensor.data_type)
    if dtype is None or min(tensor.dims, default=0) < 0:
        return 0
    return _packed_bytes(prod(tensor.dims), dtype)


def _packed_bytes(count: int, dtype: DType) -> int:
    """Bytes of ``count`` values as ONNX stores them: integers of less than a byte share one."""
    return -(-count * min(dtype.bits, 8) // 8) * dtype.itemsize


def decode_tensor(tensor: TensorProto, where: str, external: ExternalData, limits: Limits) -> np.ndarray:
    """The values of a tensor; raw data is not copied once more, and the array is then read-only.

    Args:
        tensor: from the model.
        where: what it is, for messages: ``"tensor 'w'"``.
        external: reader of data beside the model.
        limits: budgets.
    Raises:
        ImportModelError: shape, type and data do not fit.
        UnsupportedError: an element type that ``mlc`` does not compute with.
    """
    dtype = element_type(tensor.data_type, where)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{where}: tensors in segments are not supported")
    shape = tuple(tensor.dims)
    check_type(TensorType(shape, dtype), limits, where)
    count = prod(shape)
    nbytes = _packed_bytes(count, dtype)
    typed = [f for f in _FIELDS if len(getattr(tensor, f))]
    if tensor.data_location == TensorProto.EXTERNAL:
        if tensor.HasField("raw_data") or typed:
            raise ImportModelError(f"{where}: has data both in the model and outside it")
        return _from_bytes(external.read(tensor, nbytes, where), dtype, shape)
    if tensor.data_location != TensorProto.DEFAULT or len(tensor.external_data):
        raise ImportModelError(f"{where}: does not say where its data lies")
    if tensor.HasField("raw_data"):
        data = tensor.raw_data
        if typed and data:
            raise ImportModelError(f"{where}: has data both raw and in {typed[0]}")
        if not typed:
            if len(data) != nbytes:
                raise ImportModelError(f"{where}: has {len(data)} bytes of data, its shape and type need {nbytes}")
            return _from_bytes(data, dtype, shape)
    field = ELEMENT_TYPES[dtype.name][1]
    if typed not in ([], [field]):
        raise ImportModelError(f"{where}: has data in {', '.join(typed)}, its type needs {field}")
    values = getattr(tensor, field)
    needed = count if dtype.bits >= 8 else nbytes
    if len(values) != needed:
        raise ImportModelError(f"{where}: has {len(values)} values, its shape {list(shape)} needs {needed}")
    if dtype.bits < 8:
        return _from_bytes(_from_field(values, u8, where).tobytes(), dtype, shape)
    return _from_field(values, dtype, where).reshape(shape)


def _from_bytes(data: bytes, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype is boolean:
        # any other byte than 0 and 1 in a boolean array is undefined behaviour further on
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    if dtype.bits < 8:
        return _unpacked(np.frombuffer(data, np.uint8), dtype, prod(shape)).reshape(shape)
    little = dtype.numpy if dtype is bf16 else dtype.numpy.newbyteorder("<")
    return np.frombuffer(data, little).astype(dtype.numpy, copy=False).reshape(shape)


def _unpacked(packed: np.ndarray, dtype: DType, count: int) -> np.ndarray:
    """Integers of which several share a byte, the first in its lowest bits, as one a byte."""
    parts = packed[:, None] >> np.arange(0, 8, dtype.bits, dtype=np.uint8)
    return (parts & ((1 << dtype.bits) - 1)).reshape(-1)[:count].view(dtype.numpy)


def _from_field(values: Any, dtype: DType, where: str) -> np.ndarray:
    """Values of a repeated field; the 16-bit floats are stored as their bits."""
    if dtype.kind == "f" and dtype.bits >= 32:
        return np.fromiter(values, dtype.numpy, len(values))
    wide = np.fromiter(values, np.uint64 if dtype.kind == "u" and dtype.bits >= 32 else np.int64, len(values))
    if dtype is boolean:
        return wide != 0
    narrow = np.dtype(np.uint16) if dtype.is_float else dtype.numpy
    info = np.iinfo(narrow)
    if wide.size and (wide.min() < info.min or wide.max() > info.max):
        raise ImportModelError(f"{where}: a value does not fit its type {dtype}")
    return wide.astype(narrow).view(dtype.numpy)


def decode_sparse(sparse: onnx.SparseTensorProto, where: str, external: ExternalData, limits: Limits) -> np.ndarray:
    """A sparse tensor in dense form.

    Raises:
        ImportModelError: indices outside the shape, or a wrong number of them.
        UnsupportedError: see :func:`decode_tensor`.
    """
    shape = tuple(sparse.dims)
    values = decode_tensor(sparse.values, f"{where} (values)", external, limits)
    indices = decode_tensor(sparse.indices, f"{where} (indices)", external, limits)
    check_type(TensorType(shape, dtype_of(values.dtype)), limits, where)
    limits.check("constant_bytes", prod(shape) * values.itemsize, f"{where} in dense form")
    if values.ndim != 1 or indices.dtype != np.int64:
        raise ImportModelError(f"{where}: sparse values of rank {values.ndim} with {indices.dtype} indices")
    size = prod(shape)
    if indices.ndim == 1:
        flat, inside = indices, (indices >= 0) & (indices < size)
    elif indices.ndim == 2 and indices.shape[1] == len(shape):
        inside = ((indices >= 0) & (indices < np.array(shape, np.int64))).all(axis=1)
        flat = np.zeros(len(indices), np.int64)
        for d, n in enumerate(shape):
            flat = flat * n + indices[:, d]
    else:
        raise ImportModelError(f"{where}: indices of shape {list(indices.shape)} for a tensor of rank {len(shape)}")
    if len(flat) != len(values) or not inside.all():
        raise ImportModelError(f"{where}: sparse indices do not fit the values or the shape {list(shape)}")
    dense = np.zeros(size, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)
