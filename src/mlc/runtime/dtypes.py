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
        itemsize: bytes in memory; sub-byte types take a whole byte.
        numpy: name of the numpy (or ml_dtypes) type.
        safetensors: name of the type in a safetensors header.
        c: the C type whose bits are the same.
    """

    name: str
    itemsize: int
    numpy: str
    safetensors: str
    c: str


ELEMENTS: dict[str, Element] = {
    e.name: e
    for e in (
        Element("f64", 8, "float64", "F64", "double"),
        Element("f32", 4, "float32", "F32", "float"),
        Element("f16", 2, "float16", "F16", "uint16_t"),
        Element("bf16", 2, "bfloat16", "BF16", "uint16_t"),
        Element("i64", 8, "int64", "I64", "int64_t"),
        Element("i32", 4, "int32", "I32", "int32_t"),
        Element("i16", 2, "int16", "I16", "int16_t"),
        Element("i8", 1, "int8", "I8", "int8_t"),
        Element("u64", 8, "uint64", "U64", "uint64_t"),
        Element("u32", 4, "uint32", "U32", "uint32_t"),
        Element("u16", 2, "uint16", "U16", "uint16_t"),
        Element("u8", 1, "uint8", "U8", "uint8_t"),
        Element("bool", 1, "bool", "BOOL", "uint8_t"),
        # One value a byte, in the low bits.
        Element("i4", 1, "int8", "I8", "int8_t"),
        Element("u2", 1, "uint8", "U8", "uint8_t"),
        Element("u1", 1, "uint8", "U8", "uint8_t"),
    )
}

_SHORT = {e.numpy: e.name for e in reversed(ELEMENTS.values())}


def numpy_dtype(name: str) -> np.dtype:
    """The numpy type of an element type; ``bf16`` is ml_dtypes' ``bfloat16``.

    Args:
        name: a key of ``ELEMENTS``.
    """
    if name == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(ELEMENTS[name].numpy)


def describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    """A tensor type as text, e.g. ``f32[1,3,224,224]``; types that mlc lacks keep numpy's name."""
    name = str(dtype) if dtype.byteorder == ">" else _SHORT.get(dtype.name, dtype.name)
    return f"{name}[{','.join(map(str, shape))}]"
