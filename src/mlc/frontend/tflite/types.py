"""Element types of TFLite, and the values of stored tensors."""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.tflite.schema import enumeration
from mlc.ir.types import DType, dtype_of

# name in the schema -> numpy's; INT4 is stored two to a byte and becomes int8
_TYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BFLOAT16": ml_dtypes.bfloat16,
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "BOOL": "bool", "INT4": "int8",
}  # fmt: skip


def type_name(number: int) -> str:
    """``FLOAT32`` for 0; a number for what is unknown."""
    return enumeration("TensorType").get(number, f"number {number}")


def element_type(number: int, where: str) -> DType:
    """Our element type for one of TFLite.

    Raises:
        ImportModelError: there is no such type.
        UnsupportedError: ``mlc`` does not compute with it.
    """
    name = type_name(number)
    if name in _TYPES:
        return dtype_of(np.dtype(_TYPES[name]))
    if number not in enumeration("TensorType"):
        raise ImportModelError(f"{where}: has no valid element type ({number})")
    raise UnsupportedError(f"{where}: element type {name} is not supported", hint=f"supported: {', '.join(_TYPES)}")


def stored_bytes(number: int, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor's values take in a file; 0 for types that are not supported."""
    name = type_name(number)
    if name == "INT4":
        return -(-prod(shape) // 2)
    return prod(shape) * np.dtype(_TYPES[name]).itemsize if name in _TYPES else 0


def decode(number: int, shape: tuple[int, ...], data: np.ndarray, where: str) -> np.ndarray:
    """The values of a stored tensor, read-only where nothing had to be unpacked.

    Args:
        number: the element type.
        shape: extents, none of them negative.
        data: bytes.
        where: what it is, for messages.
    Raises:
        ImportModelError: there are fewer or more bytes than shape and type need.
        UnsupportedError: ``mlc`` does not compute with the element type.
    """
    dtype = element_type(number, where)
    needed = stored_bytes(number, shape)
    if needed != data.nbytes:
        raise ImportModelError(
            f"{where}: {type_name(number)}{list(shape)} takes {needed} bytes, {data.nbytes} are stored"
        )
    if type_name(number) == "INT4":
        pairs = data.view(np.int8)
        # the low half comes first; shifting it up and back spreads its sign
        both = np.stack([np.left_shift(pairs, 4) >> 4, pairs >> 4], axis=-1)
        return both.reshape(-1)[: prod(shape)].reshape(shape)
    return np.frombuffer(data, dtype.numpy).reshape(shape) if data.size else np.zeros(shape, dtype.numpy)
