"""Element types and tensor types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Self

import numpy as np

from mlc.errors import UsageError

if TYPE_CHECKING:
    from mlc.ir.layout import Layout


@dataclass(frozen=True)
class DType:
    """An element type.

    Args:
        name: short name as printed, e.g. ``f32``.
        kind: ``f`` float, ``i`` signed, ``u`` unsigned, ``b`` boolean.
        bits: width of a value. Integers of less than a byte take a whole one in memory, of which the low bits are read.
        numpy_name: the numpy (or ml_dtypes) name.
        magnitude: that values have at most, of integers that are known to use less than their bits.
    """

    name: str
    kind: str
    bits: int
    numpy_name: str
    magnitude: int | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes one element takes in memory."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer, not boolean."""
        return self.kind in "iu"

    @cached_property
    def numpy(self) -> np.dtype:
        """The numpy type of the same name; ml_dtypes knows those that numpy lacks."""
        if self.name == "bf16" or self.bits < 8:
            import ml_dtypes

            theirs: np.dtype = np.dtype(getattr(ml_dtypes, self.numpy_name))
            return theirs
        return np.dtype(self.numpy_name)

    @property
    def carrier(self) -> DType:
        """The type whose arithmetic numpy and native memory do for this one: bytes for integers of less than a byte."""
        return self if self.bits >= 8 else i8 if self.kind == "i" else u8

    @property
    def min_value(self) -> int | float:
        """The least value: minus infinity for floats."""
        if self.kind == "f":
            return float("-inf")
        if self.magnitude is not None:
            return -self.magnitude
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def max_value(self) -> int | float:
        """The greatest value: infinity for floats."""
        if self.kind == "f":
            return float("inf")
        if self.kind == "b":
            return 1
        if self.magnitude is not None:
            return self.magnitude
        return (1 << (self.bits - 1)) - 1 if self.kind == "i" else (1 << self.bits) - 1


f16 = DType("f16", "f", 16, "float16")
bf16 = DType("bf16", "f", 16, "bfloat16")
f32 = DType("f32", "f", 32, "float32")
f64 = DType("f64", "f", 64, "float64")
i8 = DType("i8", "i", 8, "int8")
i16 = DType("i16", "i", 16, "int16")
i32 = DType("i32", "i", 32, "int32")
i64 = DType("i64", "i", 64, "int64")
u8 = DType("u8", "u", 8, "uint8")
u16 = DType("u16", "u", 16, "uint16")
u32 = DType("u32", "u", 32, "uint32")
u64 = DType("u64", "u", 64, "uint64")
boolean = DType("bool", "b", 8, "bool")
i2 = DType("i2", "i", 2, "int2")
i4 = DType("i4", "i", 4, "int4")
u2 = DType("u2", "u", 2, "uint2")
u4 = DType("u4", "u", 4, "uint4")

# Weights of which two times unsigned bytes add up to at most 16 bits, so that more instructions are exact for them. No
# model has it: it is what the compiler knows of constants in i8.
i7 = DType("i7", "i", 8, "int8", 64)

# those of models
ALL_DTYPES: dict[str, DType] = {
    t.name: t for t in (f16, bf16, f32, f64, i2, i4, i8, i16, i32, i64, u2, u4, u8, u16, u32, u64, boolean)
}
DTYPES_BY_NAME = {**ALL_DTYPES, i7.name: i7}
_FROM_NUMPY = {t.numpy_name: t for t in ALL_DTYPES.values()}


def dtype_of(spec: DType | str | np.dtype | type) -> DType:
    """The element type for a short name (``f32``), a numpy name (``float32``) or a numpy dtype.

    Raises:
        UsageError: there is no such element type.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in ALL_DTYPES:
        return ALL_DTYPES[spec]
    try:
        name = spec if isinstance(spec, str) else np.dtype(spec).name
    except TypeError:
        name = str(spec)
    found = _FROM_NUMPY.get(name)
    if found is None:
        raise UsageError(f"unknown element type {name!r}", hint="known: " + ", ".join(ALL_DTYPES))
    return found


@dataclass(frozen=True)
class TensorType:
    """Shape, element type and layout of a tensor.

    Args:
        shape: logical extents, integers >= 0.
        dtype: element type.
        layout: how the logical index space lies in memory; ``None`` is row-major.
    """

    shape: tuple[int, ...]
    dtype: DType
    layout: Layout | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return prod(self.shape)

    @property
    def physical_shape(self) -> tuple[int, ...]:
        """Extents as stored."""
        return self.shape if self.layout is None else self.layout.physical_shape

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return prod(self.physical_shape) * self.dtype.itemsize

    def with_layout(self, layout: Layout | None) -> Self:
        return replace(self, layout=layout)

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return text if self.layout is None else f"{text}@{self.layout}"
