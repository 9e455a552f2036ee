"""Fits the coefficient tables of the LLVM targets' math library (``mlc.targets.llvm.math_f32``).

    python -m benchmarks.fit_polynomials

prints every table as it stands in that module, with the greatest relative error of the fit; it takes half a minute.

The fits are minimax in the relative error of the *whole* function, found by Lawson's iteration (C. L. Lawson,
"Contributions to the theory of linear least maximum approximation", 1961): weighted least squares whose weights are
multiplied by the residual until the residual is level. A rational fit does the same to the linearised quotient
(C. K. Sanathanan and J. Koerner, "Transfer function synthesis as a ratio of two complex polynomials", 1963).
Coefficients are rounded to the precision in which they are used one at a time, lowest power first, and those still
free are fitted again, so that they make up for the rounding of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

POINTS = 3001
ROUNDS = 300
# Added to each residual, relative to the greatest, so that no point's weight vanishes for good.
FLOOR = 0.01

erf = np.vectorize(math.erf, otypes=[np.float64])


def chebyshev(lo: float, hi: float) -> Array:
    """``POINTS`` abscissas in [lo, hi], denser towards both ends."""
    return (lo + hi) / 2 + (hi - lo) / 2 * np.cos(np.pi * (np.arange(POINTS) + 0.5) / POINTS)


def minimax(columns: Array, target: Array) -> Array:
    """Coefficients c that make the greatest of ``|columns @ c - target|`` least."""
    scale = np.linalg.norm(columns, axis=0)
    weight = np.full(len(target), 1 / len(target))
    best, best_error = np.zeros(columns.shape[1]), np.inf
    for _ in range(ROUNDS):
        root = np.sqrt(weight)
        c = np.linalg.lstsq(columns / scale * root[:, None], target * root, rcond=None)[0] / scale
        residual = np.abs(columns @ c - target)
        if residual.max() < best_error:
            best, best_error = c, residual.max()
        weight *= residual + FLOOR * residual.max()
        weight /= weight.sum()
    return best


def rounded_fit(columns: Array, target: Array, single: bool) -> list[float]:
    """As :func:`minimax`, with coefficients of single (or double) precision, rounded one after the other."""
    done: list[float] = []
    for k in range(columns.shape[1]):
        c = float(minimax(columns[:, k:], target)[0])
        done.append(float(np.float32(c)) if single else c)
        target = target - columns[:, k] * done[-1]
    return done


def polynomial(
    f: Function, lo: float, hi: float, powers: Sequence[int], fixed: Sequence[tuple[int, float]], *, single: bool = True
) -> tuple[list[float], float]:
    """Fit ``sum(c[k] * x**powers[k]) + sum(c * x**p for p, c in fixed)`` to ``f`` on [lo, hi].

    Returns:
        the free coefficients and the greatest relative error.
    """
    x = chebyshev(lo, hi)
    y = f(x)
    known = sum((c * x**p for p, c in fixed), np.zeros_like(x))
    columns = np.stack([x**p / y for p in powers], axis=1)
    target = (y - known) / y
    c = rounded_fit(columns, target, single)
    return c, float(np.abs(columns @ np.array(c) - target).max())


def odd_rational(
    f: Function, hi: float, over: int, under: int, slope: float | None
) -> tuple[list[float], list[float], float]:
    """Fit ``x * P(x*x) / Q(x*x)`` with ``Q(0) = 1`` to an odd function on [0, hi].

    Args:
        over: degree of ``P``.
        under: degree of ``Q``.
        slope: ``P(0)`` where it has to be met exactly, or None.
    Returns:
        coefficients of ``P`` and ``Q`` (single precision, lowest power first) and the greatest relative error.
    """
    x = chebyshev(1e-3, hi)
    u, g = (x / hi) ** 2, f(x) / x
    p_columns = np.stack([u**k for k in range(over + 1)], axis=1)
    q_columns = np.stack([u**k for k in range(under + 1)], axis=1)
    weight, q = np.full(len(x), 1 / len(x)), np.ones_like(x)
    best, best_error = np.zeros(under + 1), np.inf
    for _ in range(ROUNDS):
        # P / g - (Q - 1) = 1, divided by the Q of the last round
        columns = np.hstack([p_columns / g[:, None], -q_columns[:, 1:]]) * (np.sqrt(weight) / q)[:, None]
        scale = np.linalg.norm(columns, axis=0)
        c = np.linalg.lstsq(columns / scale, np.sqrt(weight) / q, rcond=1e-16)[0] / scale
        candidate = np.concatenate([[1.0], c[over + 1 :]])
        q = q_columns @ candidate
        residual = np.abs(p_columns @ c[: over + 1] / q / g - 1)
        if q.min() > 0 and residual.max() < best_error:
            best, best_error = candidate, residual.max()
        weight *= residual + FLOOR * residual.max()
        weight /= weight.sum()
    under_c = [float(np.float32(c / hi ** (2 * k))) for k, c in enumerate(best)]
    q = sum((c * x ** (2 * k) for k, c in enumerate(under_c)), np.zeros_like(x))
    # with Q rounded and settled, P is an ordinary polynomial fit
    columns = np.stack([x ** (2 * k) / (q * g) for k in range(over + 1)], axis=1)
    start = 0 if slope is None else 1
    target = np.ones_like(x) if slope is None else 1 - columns[:, 0] * slope
    over_c = ([] if slope is None else [slope]) + rounded_fit(columns[:, start:], target, True)
    return over_c, under_c, float(np.abs(columns @ np.array(over_c) - 1).max())


def table(name: str, coefficients: Sequence[float], error: float, digits: int) -> str:
    """One table as Python text, nine digits for single precision and seventeen for double."""
    numbers = "".join(f"    {c:.{digits}g},\n" for c in coefficients)
    return f"# relative error {error:.1e}\n{name} = (\n{numbers})\n"


def tables() -> Iterator[str]:
    """Every table of the library, as Python text."""
    half = math.log(2) / 2
    c, error = polynomial(np.exp, -half, half, range(2, 7), [(0, 1.0), (1, 1.0)])
    yield table("EXP", c, error, 9)

    root = math.sqrt(0.5)
    c, error = polynomial(np.log1p, root - 1, 2 * root - 1, range(3, 11), [(1, 1.0), (2, -0.5)])
    yield table("LOG", c, error, 9)

    c, error = polynomial(np.sin, 1e-3, math.pi / 4, (3, 5, 7), [(1, 1.0)])
    yield table("SIN", c, error, 9)
    c, error = polynomial(np.cos, 0.0, math.pi / 4, (4, 6, 8), [(0, 1.0), (2, -0.5)])
    yield table("COS", c, error, 9)

    # beyond these points the functions are 1 in single precision
    over, under, error = odd_rational(np.tanh, 9.02, 4, 4, 1.0)
    yield table("TANH_OVER", over, error, 9)
    yield table("TANH_UNDER", under, error, 9)
    over, under, error = odd_rational(erf, 3.93, 5, 5, None)
    yield table("ERF_OVER", over, error, 9)
    yield table("ERF_UNDER", under, error, 9)

    most = (1 - root) / (1 + root)
    c, error = polynomial(lambda s: 2 * np.arctanh(s) / math.log(2), 1e-4, most, range(1, 10, 2), [], single=False)
    yield table("POW_LOG2", c, error, 17)
    c, error = polynomial(np.exp2, -0.5, 0.5, range(1, 7), [(0, 1.0)], single=False)
    yield table("POW_EXP2", c, error, 17)


if __name__ == "__main__":
    for text in tables():
        print(text)
