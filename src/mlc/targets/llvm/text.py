"""LLVM IR text of types and literals."""

from __future__ import annotations

import struct

import numpy as np

from mlc.ir.types import DType

# What a value of each type is in a register: bf16 is held as a float that is always rounded to bf16, integers are as
# wide as their type. In memory nothing takes less than a byte.
_REGISTER = {"f16": "half", "bf16": "float", "f32": "float", "f64": "double", "bool": "i1"}
_MEMORY = {**_REGISTER, "bf16": "i16", "bool": "i8"}


def register_type(dtype: DType, lanes: int = 0) -> str:
    """Type of a value in registers; ``lanes == 0`` is a scalar."""
    base = _REGISTER.get(dtype.name) or f"i{dtype.bits}"
    return f"<{lanes} x {base}>" if lanes else base


def memory_type(dtype: DType, lanes: int = 0) -> str:
    """Type of an element, or of ``lanes`` neighbouring ones, in memory."""
    base = _MEMORY.get(dtype.name) or f"i{max(dtype.bits, 8)}"
    return f"<{lanes} x {base}>" if lanes else base


def literal(value: float | int, dtype: DType) -> str:
    """A scalar constant; floats as exact bit patterns."""
    if dtype.name == "f16":
        return f"0xH{struct.unpack('<H', np.float16(value).tobytes())[0]:04X}"
    if dtype.name == "bf16":
        import ml_dtypes

        value = float(np.asarray(value, np.float32).astype(ml_dtypes.bfloat16))
    if dtype.is_float:
        wide = float(value) if dtype.name == "f64" else _rounded(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', wide))[0]:016X}"
    if dtype.kind == "b":
        return "true" if value else "false"
    return str(int(value))


def _rounded(value: float | int) -> float:
    """A number as the nearest in single precision."""
    try:
        found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        with np.errstate(over="ignore"):
            found = float(np.float32(value))
    return found


def splat(value: float | int, dtype: DType, lanes: int) -> str:
    """A constant operand of the given lanes."""
    text = literal(value, dtype)
    return f"splat ({register_type(dtype)} {text})" if lanes else text


def mangle_suffix(dtype: DType, lanes: int) -> str:
    """Suffix of an overloaded intrinsic: ``v16f32``, ``i64`` …"""
    base = {"half": "f16", "float": "f32", "double": "f64"}.get(register_type(dtype), register_type(dtype))
    return f"v{lanes}{base}" if lanes else base
