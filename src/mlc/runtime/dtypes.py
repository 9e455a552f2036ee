"""Element types as the package and the executor see them.

The compiler has its own, richer notion of a type; the runtime must live without the compiler, and needs only how wide
an element is and what numpy, safetensors and C call it. The short names are the same on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Element:
    """One element type.

    Args:
        name: short name, e.g. ``f32``.
        itemsize: bytes in memory; integers of less than a byte take a whole one, and only its low bits are read.
        numpy: name of the numpy (or ml_dtypes) type.
        safetensors: name of the type in a safetensors header.
        c: the C type whose bits are the same.
        plain: numpy's own type that stands for it in ``.npy`` files, where only ml_dtypes has this one.
    """

    name: str
    itemsize: int
    numpy: str
    safetensors: str
    c: str
    plain: str = ""


ELEMENTS: dict[str, Element] = {
    e.name: e
    for e in (
        Element("f64", 8, "float64", "F64", "double"),
        Element("f32", 4, "float32", "F32", "float"),
        Element("f16", 2, "float16", "F16", "uint16_t"),
        Element("bf16", 2, "bfloat16", "BF16", "uint16_t", "float32"),
        Element("i64", 8, "int64", "I64", "int64_t"),
        Element("i32", 4, "int32", "I32", "int32_t"),
        Element("i16", 2, "int16", "I16", "int16_t"),
        Element("i8", 1, "int8", "I8", "int8_t"),
        Element("u64", 8, "uint64", "U64", "uint64_t"),
        Element("u32", 4, "uint32", "U32", "uint32_t"),
        Element("u16", 2, "uint16", "U16", "uint16_t"),
        Element("u8", 1, "uint8", "U8", "uint8_t"),
        Element("bool", 1, "bool", "BOOL", "uint8_t"),
        Element("i4", 1, "int4", "I8", "int8_t", "int8"),
        Element("i2", 1, "int2", "I8", "int8_t", "int8"),
        Element("u4", 1, "uint4", "U8", "uint8_t", "uint8"),
        Element("u2", 1, "uint2", "U8", "uint8_t", "uint8"),
    )
}

_SHORT = {e.numpy: e.name for e in ELEMENTS.values()}


def numpy_dtype(name: str) -> np.dtype:
    """The numpy type of an element type; ml_dtypes has those that numpy lacks.

    Args:
        name: a key of ``ELEMENTS``.
    """
    element = ELEMENTS[name]
    if element.plain:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, element.numpy))
    return np.dtype(element.numpy)


def to_plain(array: np.ndarray) -> np.ndarray:
    """The same values in a type of numpy's own: bfloat16 as float32, integers of less than a byte as bytes."""
    plain = _plain(array.dtype)
    return array.astype(plain) if plain else array


def from_plain(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of :func:`to_plain`, for an array of the type that stands for ``dtype``.

    An array of any other type, or with integers that ``dtype`` lacks, comes back as it is.
    """
    if array.dtype == dtype or array.dtype.name != _plain(dtype):
        return array
    found = array.astype(dtype)
    return found if array.dtype.kind == "f" or np.array_equal(to_plain(found), array) else array


def _plain(dtype: np.dtype) -> str:
    """Name of the type that stands for one of ml_dtypes; empty for others."""
    element = ELEMENTS.get(_SHORT.get(dtype.name, ""))
    return element.plain if element is not None else ""


def describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    """A tensor type as text, e.g. ``f32[1,3,224,224]``; types that mlc lacks keep numpy's name."""
    name = str(dtype) if dtype.byteorder == ">" else _SHORT.get(dtype.name, dtype.name)
    return f"{name}[{','.join(map(str, shape))}]"
