"""Functions of one 16-bit number, as the kernels compute them: interpolated between few entries of a table.

All 65,536 results are worked out here, so that what runs is one look-up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlc.errors import UnsupportedError
from mlc.frontend.tflite.model import Quantization
from mlc.frontend.tflite.quant import power_of_two, scale_of, zero_of

Array = np.ndarray

_ALL = np.arange(-32768, 32768, dtype=np.int64)
_ENTRIES = 513  # of an interpolated table, 128 numbers apart


def _round(x: Array) -> Array:
    """Halves away from zero, in single precision."""
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


def entries(function: Callable[[Array], Array], least: float, most: float, factor: float = 32768.0) -> Array:
    """513 values of a function between two bounds, times a factor, as int64.

    Each is moved by half of what interpolating to the next misses in the middle, so that errors spread.
    """
    step = np.float32((np.float32(most) - np.float32(least)) / np.float32(_ENTRIES - 1))
    half, one = np.float32(step / np.float32(2)), np.float32(factor)
    at = np.float32(least) + np.arange(_ENTRIES - 1, dtype=np.float32) * step
    following = np.float32(least) + np.arange(1, _ENTRIES, dtype=np.float32) * step

    def value(x: Array) -> Array:
        return np.asarray(function(x), np.float32) * one

    sample = _round(value(at))
    between = _round((value(following) + sample) / np.float32(2))
    bias = _round((between - _round(value(at + half))) / np.float32(2))
    last = _round(value(np.array([most], np.float32)))
    return np.clip(np.concatenate([sample - bias, last]), -32768, 32767).astype(np.int64)


def interpolated(table: Array, x: Array) -> Array:
    """What a table of 513 entries gives for 16-bit numbers."""
    index = 256 + (x >> 7)
    base = table[index]
    return base + (((table[index + 1] - base) * (x & 0x7F) + 64) >> 7)


def over_all(table: Array) -> Array:
    """The same for every 16-bit number, the least one first."""
    return interpolated(table, _ALL)


def function_table_16(function: Callable[[Array], Array], q: Quantization, out: Quantization) -> Array:
    """Quantised results of a function for every 16-bit number."""
    scale, zero = np.float32(scale_of(q)), zero_of(q)
    ends = [float(scale * np.float32(n - zero)) for n in (-32768, 32767)]
    result, moved = np.float32(scale_of(out)), zero_of(out)
    low, high = (result * np.float32(n - moved) for n in (-32768, 32767))
    table = entries(function, ends[0], ends[1], float(np.float32(65536) / (high - low)))
    return np.clip(over_all(table), -32768, 32767).astype(np.int16)


def _sigmoids() -> Array:
    """Of multiples of 1/24, with 16 binary places, each moved by half of what interpolating misses in the middle."""
    at, middle, following = (65536 / (1 + np.exp(-(np.arange(256) + d) / 24)) for d in (0, 0.5, 1))
    found = np.round(at - ((at + following) / 2 - middle) / 2)
    found[-1] = 65535
    return found.astype(np.int64)


def _at_table_scale(q: Quantization, most_places: int) -> Array:
    """Every number in multiples of 1/(3 * 4096), which the tables of sigmoids are for.

    Raises:
        UnsupportedError: there is a zero point.
    """
    if zero_of(q) != 0:
        raise UnsupportedError("16-bit numbers with a zero point")
    scale = scale_of(q)
    exponent = power_of_two(scale)
    if exponent is not None and 0 <= 12 + exponent <= most_places:
        return _ALL * (3 << (12 + exponent))
    multiplier, places = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and places <= 30:
        places, multiplier = places + 1, multiplier * 2.0
    half = 1 << (places - 1) if places else 0
    return (_ALL * int(multiplier) + half) >> places


def sigmoid_table(q: Quantization) -> Array:
    """Results of LOGISTIC for every 16-bit number, with 15 binary places."""
    x, table = _at_table_scale(q, 0), _sigmoids()
    size = np.abs(x)
    place = np.minimum(size >> 9, 254)
    inner = (table[place] << 9) + (size & 0x1FF) * (table[place + 1] - table[place])
    found = np.where(size >> 9 >= 255, 0x7FFF << 10, inner)
    found = np.where(x >= 0, found + (1 << 9), (1 << 25) - found + (1 << 9) - 1)
    return (found >> 10).astype(np.int16)


def tanh_table(q: Quantization) -> Array:
    """Results of TANH for every 16-bit number, with 15 binary places: twice a sigmoid of twice the number, less 1."""
    x, table = _at_table_scale(q, 1), _sigmoids()
    size = np.abs(x)
    place = np.minimum(size >> 8, 254)
    inner = (table[place] << 8) + (size & 0xFF) * (table[place + 1] - table[place])
    found = np.where(size >> 8 >= 255, 0xFFFF << 8, inner)
    found = np.where(x >= 0, found - (1 << 23) + (1 << 7), -found + (1 << 23) + (1 << 7) - 1)
    return (found >> 8).astype(np.int16)
