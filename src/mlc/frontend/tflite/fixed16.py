"""Sigmoid and tanh of 16-bit fixed-point numbers, as integer LSTMs compute them.

All 65,536 results are worked out here, step by step as the kernels do (with gemmlowp's arithmetic of 16 bits), so that
what runs is one look-up. Numbers with ``m`` integer bits stand for what lies between ``-2**m`` and ``2**m``.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_ALL = np.arange(-32768, 32768, dtype=np.int64)
_ONE = 32767  # the number 1 where there are no integer bits
_48_17, _NEG_32_17 = 23130, -15420  # 48/17 and -32/17 with two integer bits
_EXP_EIGHTH, _THIRD = 28918, 10923  # exp(-1/8) and 1/3 without integer bits
# exp of minus a quarter, a half, 1, 2, 4, 8 and 16
_POWERS = (25520, 19875, 12055, 4435, 600, 11, 0)


def _wrapped(x: Array) -> Array:
    return ((x + 32768) & 0xFFFF) - 32768


def _mul(a: Array, b: Array | int) -> Array:
    """The high half of twice a product, rounded to the nearest; -1 times -1 saturates."""
    return np.minimum((a * b + (1 << 14)) >> 15, 32767)


def _halved(x: Array, times: int) -> Array:
    """Divided by ``2**times``, halves away from zero."""
    mask = (1 << times) - 1
    return (x >> times) + ((x & mask) > (mask >> 1) + (x < 0))


def _doubled(x: Array, times: int) -> Array:
    """Times ``2**times``, saturating."""
    most = (1 << (15 - times)) - 1
    return np.where(x > most, 32767, np.where(x < -most, -32768, x << times))


def _exp(a: Array, bits: int) -> Array:
    """``exp`` of numbers that are not positive: a polynomial on a quarter, then a factor for each bit."""
    quarter = 1 << (13 - bits)
    within = (a & (quarter - 1)) - quarter
    x = _doubled(within, bits) + (1 << 12) if bits else within + (1 << 12)
    x2 = _mul(x, x)
    x3, x4 = _mul(x2, x), _mul(x2, x2)
    inner = _halved(_mul(_halved(x4, 2) + x3, _THIRD) + x2, 1)
    result = np.clip(_EXP_EIGHTH + _mul(_wrapped(x + inner), _EXP_EIGHTH), -32768, 32767)
    rest = _wrapped(within - a)
    for k, factor in enumerate(_POWERS[: bits + 2]):
        result = np.where(rest & (quarter << k), _mul(result, factor), result)
    if bits > 5:
        result = np.where(a < -(1 << (20 - bits)), 0, result)
    return np.where(a == 0, _ONE, result)


def _reciprocal(a: Array) -> Array:
    """``2 / (1 + a)`` of numbers between 0 and 1, with two integer bits: three rounds of Newton's method."""
    half = (a + _ONE + 1) >> 1
    x = _wrapped(_48_17 + _mul(half, _NEG_32_17))
    for _ in range(3):
        miss = _wrapped((1 << 13) - _mul(half, x))
        x = _wrapped(x + _doubled(_mul(x, miss), 2))
    return x


def sigmoids() -> Array:
    """Sigmoids of all numbers with 3 integer bits, the least first, with 15 binary places, as int16."""
    size = _wrapped(np.where(_ALL > 0, _ALL, -_ALL))
    positive = _doubled(_reciprocal(_exp(_wrapped(-size), 3)), 1)
    found = np.where(_ALL > 0, positive, _ONE - positive)
    return np.where(_ALL == 0, 1 << 14, found).astype(np.int16)


def tanhs(bits: int) -> Array:
    """Hyperbolic tangents of all numbers with some integer bits, from 0 to 6, the least first, as int16."""
    below = np.where(_ALL < 0, _ALL, -_ALL)
    # the same number with one integer bit more is its double
    size = _doubled(_wrapped(_reciprocal(_exp(below, bits + 1)) - (1 << 13)), 2)
    return np.where(_ALL == 0, 0, np.where(_ALL < 0, _wrapped(-size), size)).astype(np.int16)
