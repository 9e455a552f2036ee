"""Meaning of the scalar operators on numpy arrays, shared by the interpreters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from mlc.ir.threefry import threefry as threefry_words
from mlc.ir.types import DType

Array = Any  # numpy scalar or array

# integers of less than a byte, as which bytes they are computed, and how wide they are
_NARROW = {
    np.dtype(narrow): (np.dtype(wide), bits)
    for narrow, wide, bits in (
        (ml_dtypes.int2, np.int8, 2),
        (ml_dtypes.int4, np.int8, 4),
        (ml_dtypes.uint2, np.uint8, 2),
        (ml_dtypes.uint4, np.uint8, 4),
    )
}


def widened(a: Array) -> Array:
    """Integers of less than a byte as bytes, in which numpy can compute; converted back they wrap."""
    return a.astype(_NARROW[a.dtype][0]) if a.dtype in _NARROW else a


def is_float(a: Array) -> bool:
    """Whether an array holds floats."""
    return a.dtype.kind not in "iub" and a.dtype not in _NARROW  # those of ml_dtypes are of numpy's kind "V"


def _int_div(a: Array, b: Array) -> Array:
    """Truncating division in guarded form: x / 0 is 0 and MIN / -1 wraps."""
    b_safe = np.where(b == 0, 1, b).astype(b.dtype)
    q, r = np.floor_divide(a, b_safe), np.remainder(a, b_safe)
    q = q + ((r != 0) & ((a < 0) != (b_safe < 0))).astype(q.dtype)
    return np.where(b == 0, 0, q).astype(a.dtype)


def _mod(a: Array, b: Array) -> Array:
    if is_float(a):
        return np.mod(a, b)
    return np.where(b == 0, 0, np.remainder(a, np.where(b == 0, 1, b).astype(b.dtype))).astype(a.dtype)


def _fmod(a: Array, b: Array) -> Array:
    if is_float(a):
        return np.fmod(a, b)
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype))).astype(a.dtype)


def _pow(a: Array, b: Array) -> Array:
    if is_float(a):
        x, y = a.astype(np.float64), b.astype(np.float64)
        # numpy's own answer for a fractional power of minus infinity depends on the processor
        x = np.where(np.isneginf(x) & (y != np.trunc(y)), np.inf, x)
        return np.power(x, y).astype(a.dtype)
    # numpy refuses negative integer exponents; a ** -n is 0 but for |a| == 1
    positive = np.power(a, np.maximum(b, 0).astype(b.dtype))
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)) if a.dtype.kind == "i" else 0
    return np.where(b < 0, negative, positive).astype(a.dtype)


def _shift(fn: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        big = (b < 0) | (b >= bits)
        return np.where(big, 0, fn(a, np.where(big, 0, b).astype(b.dtype))).astype(a.dtype)

    return apply


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": lambda a, b: np.divide(a, b) if is_float(a) else _int_div(a, b),
    "mod": _mod,
    "fmod": _fmod,
    "pow": _pow,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _through_f64(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Evaluate in double precision and round once."""
    return lambda a: np.asarray(fn(a.astype(np.float64))).astype(a.dtype)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(a: Array) -> Array:
    """Without overflow on either side."""
    e = np.exp(-np.abs(a))
    return np.where(np.signbit(a), e, 1.0) / (1.0 + e)


def _nearest(a: Array) -> Array:
    """What fits an i32; the rest becomes its bounds, and NaN 0."""
    near = np.rint(np.nan_to_num(a.astype(np.float64)))
    return np.clip(near, -(2.0**31), 2.0**31 - 1).astype(np.int32)


def _popcount(a: Array) -> Array:
    octets = np.ascontiguousarray(np.asarray(a)[..., None]).view(np.uint8)
    return np.unpackbits(octets, axis=-1).sum(axis=-1).astype(a.dtype)


UNARY: dict[str, Callable[[Array], Array]] = {
    **{
        fn: _through_f64(getattr(np, fn))
        for fn in ("exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "sinh", "cosh")
    },
    **{
        f"a{fn}": _through_f64(getattr(np, f"arc{fn}"))
        for fn in ("sin", "cos", "tan", "sinh", "cosh", "tanh")
    },
    "rsqrt": _through_f64(lambda a: 1.0 / np.sqrt(a)),
    "sigmoid": _through_f64(_sigmoid),
    "erf": _through_f64(lambda a: _erf(a) if a.size else a),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,  # halves to even
    "trunc": np.trunc,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "not": lambda a: np.logical_not(a) if a.dtype.kind == "b" else np.invert(a),
    "nearest": _nearest,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "popcount": _popcount,
}  # fmt: skip


def binary(op: str, a: Array, b: Array) -> np.ndarray:
    """A binary operator on arrays of one type."""
    if a.dtype not in _NARROW:
        return np.asarray(BINARY[op](a, b))
    bits = _NARROW[a.dtype][1]
    x, y = widened(a), widened(b)
    if op in ("shl", "shr"):
        y = np.where((y < 0) | (y >= bits), 8, y).astype(y.dtype)  # too far is too far for a byte as well
    found = np.asarray(BINARY[op](x, y))
    return found if found.dtype.kind == "b" else found.astype(a.dtype)


def unary(fn: str, a: Array) -> np.ndarray:
    """An intrinsic of one operand."""
    return np.asarray(UNARY[fn](widened(a))).astype(a.dtype) if a.dtype in _NARROW else np.asarray(UNARY[fn](a))


def threefry(*words: Array) -> Array:
    """The intrinsic of that name: two words of a key, two of a counter."""
    with np.errstate(over="ignore"):
        return threefry_words(np.uint32, *(np.asarray(w, np.uint32) for w in words))


def convert(a: Array, dtype: DType) -> Array:
    """Numeric conversion: floats to integers truncate (saturating; NaN gives 0), integers wrap, bool is ``!= 0``."""
    a = widened(np.asarray(a))
    if dtype.kind == "b":
        return a != 0
    if dtype.is_int and is_float(a):
        wide = np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0))
        lo, hi = float(dtype.min_value), float(dtype.max_value)
        inside = np.clip(wide, lo, hi)
        out = inside.astype(np.uint64 if dtype.kind == "u" else np.int64, casting="unsafe")
        # float(max) rounds up for 64-bit types, where the conversion above would overflow
        out = np.where(wide >= hi, np.array(dtype.max_value, out.dtype), out)
        return np.where(wide <= lo, np.array(dtype.min_value, out.dtype), out).astype(dtype.numpy)
    return a.astype(dtype.carrier.numpy).astype(dtype.numpy, copy=False)
