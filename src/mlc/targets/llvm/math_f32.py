"""The functions of single precision, as formulas over vectors without tables, branches or calls.

Each takes the emitter and its operands and gives the result. ``benchmarks/fit_polynomials.py`` derives and prints the
coefficient tables (lowest power first). Large constants such as 1.5 * 2^23 round to an integer in the default rounding
mode: once that much is added, the last place of a float is worth 1 and its low bits are the integer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from mlc.targets.llvm.math_emit import Emitter, Value

# exp(r) = 1 + r + r^2 * (...) for |r| <= ln(2) / 2; relative error 3.1e-9
EXP = (
    0.49999994,
    0.166665226,
    0.0416682921,
    0.00836853217,
    0.00138182985,
)

# log(1 + f) = f - f^2 / 2 + f^3 * (...) for sqrt(1/2) <= 1 + f <= sqrt(2); relative error 5.8e-9
LOG = (
    0.333333313,
    -0.250008196,
    0.200012416,
    -0.166234091,
    0.1420158,
    -0.131596103,
    0.127622157,
    -0.0763643533,
)

# sin(r) = r + r^3 * (... in r^2) for |r| <= pi / 4; relative error 4.0e-9
SIN = (
    -0.166666552,
    0.00833218917,
    -0.000195182918,
)

# cos(r) = 1 - r^2 / 2 + r^4 * (... in r^2) for |r| <= pi / 4; relative error 1.2e-10
COS = (
    0.0416666456,
    -0.00138873095,
    2.44323273e-05,
)

# tanh(x) = x * over(x^2) / under(x^2) for |x| <= 9.02; relative error 3.4e-8
TANH_OVER = (
    1.0,
    0.133797139,
    0.00349403359,
    2.05834349e-05,
    1.33190552e-08,
)
TANH_UNDER = (
    1.0,
    0.467130303,
    0.0258710645,
    0.000328308961,
    7.76200125e-07,
)
TANH_ONE = 9.02  # 1 - tanh is less than half the last place of 1 from here on

# erf(x) = x * over(x^2) / under(x^2) for |x| <= 3.93; relative error 5.7e-8
ERF_OVER = (
    1.12837911,
    0.19078356,
    0.0527899563,
    0.00377964857,
    0.000284801674,
    2.04217872e-06,
)
ERF_UNDER = (
    1.0,
    0.502409995,
    0.114257276,
    0.0149973864,
    0.00116520654,
    3.80040874e-05,
)
ERF_ONE = 3.93  # likewise

# log2(m) = s * (... in s^2) with s = (m - 1) / (m + 1) for sqrt(1/2) <= m <= sqrt(2), in double precision; relative
# error 4.2e-12
POW_LOG2 = (
    2.8853900817900713,
    0.96179667335415686,
    0.5770835827608356,
    0.41167285026605488,
    0.34072765106071717,
)

# 2^r = 1 + r * (...) for |r| <= 1/2, in double precision; relative error 2.0e-9
POW_EXP2 = (
    0.69314720285508213,
    0.24022647913635259,
    0.055503324710968402,
    0.0096184373569426912,
    0.0013398874423747283,
    0.00015353362101430893,
)

ROUND_F32 = 1.5 * 2.0**23
ROUND_F64 = 1.5 * 2.0**52

LOG2_E = 1 / math.log(2)
# ln(2) in two parts: the first has 9 significant bits, so that its product with an exponent is exact without an FMA
LN2_HI = 355 / 512
LN2_LO = math.log(2) - LN2_HI

EXP_ZERO = -104.0  # less than half the least subnormal number from here on
EXP_INFINITE = 128 * math.log(2)  # more than the greatest float from here on

LEAST_NORMAL = 2.0**-126
ROOT_HALF = math.sqrt(0.5)

# pi / 2 in two parts: 31 significant bits, so that a product with a 22-bit integer is exact in double precision, and
# what is left of it (pi = 3.14159265358979323846264338327950288...)
HALF_PI_HI = math.floor(math.pi / 2 * 2.0**30) / 2.0**30
HALF_PI_LO = (math.pi / 2 - HALF_PI_HI) + 6.123233995736766e-17
# Beyond that, the nearest multiple of pi / 2 takes more than 22 bits; the C library knows more of pi.
REDUCIBLE = 2.0**22


def exp(e: Emitter, x: Value) -> Value:
    """``exp(x) = 2^n * exp(x - n ln 2)``, subnormal results too.

    Results that vanish are set to zero rather than computed: a product too small for a normal number takes a processor
    ten times as long as all the rest, and a masked softmax is full of them.
    """
    # 2^n does not fit one float when the result is subnormal or near the top: multiply by 2^a * 2^b, a + b = n. Both
    # biases of 127 come with the rounding constant.
    biased, p = _exp_parts(e, x, 254)
    first = biased >> 1
    y = p * (first << 23).as_float() * ((biased - first) << 23).as_float()
    return (x > EXP_INFINITE).select(math.inf, (x < EXP_ZERO).select(0.0, y))


def _exp_parts(e: Emitter, x: Value, bias: int) -> tuple[Value, Value]:
    """Integers whose low 9 bits hold n + ``bias``, and ``exp(x - n ln 2)``, for n = round(x / ln 2).

    Without meaning where :func:`exp` overflows or vanishes.
    """
    shifted = x * LOG2_E + (ROUND_F32 + bias)
    n = shifted - (ROUND_F32 + bias)
    r = x - n * LN2_HI - n * LN2_LO
    return shifted.bits(), e.polynomial(r, (1.0, 1.0, *EXP))


def sigmoid(e: Emitter, x: Value) -> Value:
    """``1 / (1 + exp(-x))``, as ``z / (1 + z)`` for negative x, with ``z = exp(-|x|)`` which never overflows."""
    vanishes = x < EXP_ZERO
    # beyond 80, z is nothing beside 1 but still a normal number
    size = abs(vanishes.select(0.0, x.at_most(80.0)))
    # n <= 0 here: one power of two suffices, made too large by 2^64 so that it is no subnormal number itself
    biased, p = _exp_parts(e, -size, 127 + 64)
    z = p * (biased << 23).as_float() * 2.0**-64
    y = (x < 0.0).select(z, 1.0) / (z + 1.0)
    return vanishes.select(0.0, y)


def log(e: Emitter, x: Value) -> Value:
    """``log(m 2^k) = log(m) + k ln 2`` with m in [sqrt(1/2), sqrt(2)); at most 1 ulp off."""
    small = x < LEAST_NORMAL
    root = _bits_f32(ROOT_HALF)
    above = small.select(x * 2.0**23, x).bits() - root
    k = above.shift_signed(23).to("float") - small.select(e.value("float", 23.0), 0.0)
    f = ((above & 0x7FFFFF) + root).as_float() - 1.0
    square = f * f
    tail = e.paired_polynomial(f, LOG) * (f * square) + k * LN2_LO - square * 0.5
    result = k * LN2_HI + (f + tail)
    outside = x.equals(0.0).select(e.value("float", -math.inf), math.nan)
    result = (x > 0.0).select(result, outside)
    return x.equals(math.inf).select(x, result)


def tanh(e: Emitter, x: Value) -> Value:
    """An odd rational function, and exactly 1 from where tanh rounds to it; never more than 1."""
    return _saturating(e, x, TANH_OVER, TANH_UNDER, TANH_ONE)


def erf(e: Emitter, x: Value) -> Value:
    """An odd rational function, and exactly 1 from where erf rounds to it; never more than 1."""
    return _saturating(e, x, ERF_OVER, ERF_UNDER, ERF_ONE)


def _saturating(e: Emitter, x: Value, over: tuple[float, ...], under: tuple[float, ...], one: float) -> Value:
    size = abs(x)
    square = size * size
    y = (size * e.polynomial(square, over) / e.polynomial(square, under)).at_most(1.0)
    return (size > one).select(1.0, y).flip(x.sign())


def sin(e: Emitter, x: Value) -> Value:
    """Polynomials for a quarter of a period around 0; arguments of more than 2^22 go to the C library."""
    return _circular(e, x, 0, "sinf")


def cos(e: Emitter, x: Value) -> Value:
    """The sine a quarter of a period further."""
    return _circular(e, x, 1, "cosf")


def _circular(e: Emitter, x: Value, ahead: int, library: str) -> Value:
    """sin(x + ``ahead`` pi/2), where the difference to a multiple of pi/2 is taken in double precision."""
    wide = x.to("double")
    shifted = wide * (2 / math.pi) + ROUND_F64
    n = shifted - ROUND_F64
    r = (wide - n * HALF_PI_HI - n * HALF_PI_LO).to("float")
    quadrant = shifted.bits().to("i32")
    if ahead:
        quadrant = quadrant + ahead
    # the sine of the magnitude, with the sign put back: that keeps -0
    size = abs(r)
    square = r * r
    sine = (size * (square * e.polynomial(square, SIN)) + size).flip(r.sign())
    cosine = e.polynomial(square, (1.0, -0.5, *COS))
    y = (quadrant & 1).equals(0).select(sine, cosine).flip((quadrant & 2) << 30)
    return e.replace_rarely(abs(x) > REDUCIBLE, y, lambda: e.call_each(library, [x]))


def power(e: Emitter, x: Value, y: Value) -> Value:
    """``2^(y log2 |x|)`` in double precision, rounded once, with the special cases of IEEE 754 (clause 9.2.1)."""
    # Nothing changes beyond 2^40: there every |x| but 1 has overflowed or vanished. Infinity times zero is avoided.
    exponent = y.to("double").at_most(2.0**40).at_least(-(2.0**40))
    size = _exp2_f64(e, exponent * _log2_f64(e, abs(x))).to("float")

    # beyond 2^24 every float is an even integer; NaN becomes one of them and is put right by `size`
    near = (y < 2.0**24).select(y, 2.0**24)
    near = (near > -(2.0**24)).select(near, -(2.0**24))
    integer = near.to("i32")
    whole = integer.to("float").equals(near)
    result = size.flip(x.sign() & whole.select(integer << 31, 0))
    # a negative number to no integer; infinity and -0 are like positive ones
    undefined = (x < 0.0) & (x > -math.inf) & (whole ^ 1)
    result = undefined.select(math.nan, result)
    return (x.equals(1.0) | y.equals(0.0)).select(1.0, result)


def _log2_f64(e: Emitter, size: Value) -> Value:
    """log2 in double precision of floats without a sign, all of which are normal there; NaN stays NaN."""
    wide = size.to("double")
    one, root = _bits_f64(1.0), _bits_f64(ROOT_HALF)
    # exponent + 1023, of a mantissa in [sqrt(1/2), sqrt(2))
    above = wide.bits() + (one - root)
    field = above >> 52
    m = ((above & ((1 << 52) - 1)) + root).as_float()
    # the field becomes a double as the low bits of 2^52 + field
    k = (field | _bits_f64(2.0**52)).as_float() - (2.0**52 + 1023)
    s = (m - 1.0) / (m + 1.0)
    result = s * e.polynomial(s * s, POW_LOG2) + k
    # zero, infinity and NaN
    edge = wide.equals(0.0).select(-math.inf, wide)
    return ((wide > 0.0) & (wide < math.inf)).select(result, edge)


def _exp2_f64(e: Emitter, z: Value) -> Value:
    """2^z in double precision, already zero and infinity where a float would be."""
    shifted = z + ROUND_F64
    p = e.polynomial(z - (shifted - ROUND_F64), (1.0, *POW_EXP2))
    y = (p.bits() + (shifted.bits() << 52)).as_float()
    return (z > 128.0).select(math.inf, (z < -150.0).select(0.0, y))


def _bits_f32(number: float) -> int:
    return int.from_bytes(struct.pack("<f", number), "little")


def _bits_f64(number: float) -> int:
    return int.from_bytes(struct.pack("<d", number), "little")


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "pow": power,
}
