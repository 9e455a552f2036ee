"""Is this output the same as that one? Element by element, with a tolerance that follows how it was computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.dtypes import describe, from_plain


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from the reference: ``absolute + relative * (largest magnitude of the reference)``.

    ``basis`` says in a few words what that rests on.
    """

    absolute: float
    relative: float
    basis: str = ""

    def limit(self, scale: float) -> float:
        return self.absolute + self.relative * scale


# By numpy name, or by what a package says of a tensor's precision. Relative to the largest magnitude of the whole
# output, not to each element: an element that is small only because large terms cancelled carries the rounding of
# those terms. The absolute parts let outputs of zeros pass.
TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-12, 1e-9),
    "float32": Tolerance(1e-7, 1e-4),
    "float16": Tolerance(1e-5, 1e-2),
    "bfloat16": Tolerance(1e-5, 4e-2),
    # Where two programs round a number differently, they are a step apart, and further at the end of a network.
    "int16": Tolerance(1e-6, 2e-3),
    "int8": Tolerance(1e-5, 5e-2),
    # Against the model in f32: networks of random weights get so far off, trained ones seldom do.
    "bfloat16_products": Tolerance(1e-5, 0.1),
    "int8_weights": Tolerance(1e-5, 0.25),
    "int4_weights": Tolerance(1e-5, 0.75),
    # Against the model in floats: what is left to find is nonsense. How good the integers are, their accuracy on the
    # samples says, which was reported when they were made.
    "quantised": Tolerance(1e-5, 0.5),
}
_REASONS: Mapping[str, str] = {
    "int16": "computed in 16-bit steps",
    "int8": "computed in 8-bit steps",
    "bfloat16_products": "products of bfloat16",
    "int8_weights": "weights in 8 bits",
    "int4_weights": "weights in 4 bits",
    "quantised": "quantised from floats",
}
EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True)
class Comparison:
    """How one output compares.

    Args:
        name: of the output.
        type: element type and shape, e.g. ``f32[1,1000]``.
        max_error: largest absolute difference over the elements where both are finite.
        relative_error: ``max_error`` over ``scale``; 0 where both are 0.
        scale: largest finite magnitude of the reference.
        limit: what ``max_error`` may be.
        worst: index of the largest difference; ``None`` without elements.
        basis: what the tolerance rests on, in words.
        reason: why it failed; empty when it passed.
    """

    name: str
    type: str
    max_error: float
    relative_error: float
    scale: float
    limit: float
    worst: tuple[int, ...] | None
    basis: str
    reason: str

    @property
    def ok(self) -> bool:
        return not self.reason

    def summary(self) -> str:
        """Why it failed, in words."""
        if not self.max_error > self.limit:
            return self.reason
        return f"{self.max_error:.3g} at {list(self.worst or ())}, allowed are {self.limit:.3g}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "ok": self.ok,
            "max_error": self.max_error,
            "relative_error": self.relative_error,
            "scale": self.scale,
            "limit": self.limit,
            "worst": None if self.worst is None else list(self.worst),
            "tolerance": self.basis,
            "reason": self.reason,
        }


def tolerance_for(
    dtype: np.dtype, absolute: float | None = None, relative: float | None = None, precision: str | None = None
) -> Tolerance:
    """The tolerance for a tensor, with what the user said in place of the defaults.

    Integers and booleans must be exact unless the user gives a tolerance.

    Args:
        dtype: of its elements.
        absolute, relative: the user's.
        precision: what it was computed in, where that is less than its type says.
    """
    exact = precision is None and dtype.kind in "biu"  # rows of that name are for what was computed in such steps
    default = EXACT if exact else TOLERANCES.get(precision or dtype.name, EXACT)
    if absolute is not None or relative is not None:
        basis = "as asked for"
    elif precision is not None:
        basis = _REASONS.get(precision, f"computed in {precision}")
    else:
        basis = "exact" if exact or dtype.name not in TOLERANCES else dtype.name
    return Tolerance(
        default.absolute if absolute is None else absolute, default.relative if relative is None else relative, basis
    )


def compare_outputs(
    got: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    absolute: float | None = None,
    relative: float | None = None,
    precision: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """Compares all outputs with those of the same name; types of numpy's own stand for those it lacks as well.

    Args:
        got: from the module.
        expected: from the reference; may have more.
        absolute, relative: tolerances in place of those that follow from how the outputs were computed.
        precision: of outputs that were computed less precisely than their types say.
    Raises:
        UsageError: the reference lacks an output.
    """
    found = []
    for name, array in got.items():
        if name not in expected:
            raise UsageError(f"the reference has no output {name!r}", hint=f"it has: {', '.join(map(repr, expected))}")
        other = expected[name]
        other = from_plain(other, array.dtype)
        tolerance = tolerance_for(array.dtype, absolute, relative, (precision or {}).get(name))
        found.append(compare(name, array, other, tolerance))
    return found


def compare(name: str, got: np.ndarray, expected: np.ndarray, tolerance: Tolerance) -> Comparison:
    """Compares an output with its reference.

    Shape and element type must agree, NaNs must stand in the same places, infinities too and with the same sign; the
    rest must be within the tolerance.
    """
    kind = describe(got.dtype, got.shape)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        reason = f"the reference is {describe(expected.dtype, expected.shape)}"
        return Comparison(name, kind, 0.0, 0.0, 0.0, 0.0, None, tolerance.basis, reason)
    # Wide enough to hold every difference: float64 for floats, and for integers of up to 32 bits; 64-bit integers
    # are compared as they are first, so rounding here can only blur the size of a difference, never hide one.
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        difference = np.where(finite, np.abs(a - b), 0.0)
    if got.dtype.kind in "iu":
        difference = np.where(got != expected, np.maximum(difference, 1.0), difference)
    worst = np.unravel_index(int(difference.argmax()), difference.shape) if difference.size else None
    max_error = float(difference.max(initial=0.0))
    scale = float(np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0.0))
    limit = tolerance.limit(scale)
    return Comparison(
        name,
        kind,
        max_error,
        max_error / scale if scale else (0.0 if not max_error else float("inf")),
        scale,
        limit,
        None if worst is None else tuple(int(i) for i in worst),
        tolerance.basis,
        _special_mismatch(a, b) or ("" if max_error <= limit else "beyond the tolerance"),
    )


def _special_mismatch(a: np.ndarray, b: np.ndarray) -> str:
    """Where NaNs or infinities differ, in words; empty when they agree."""
    for what, in_a, in_b in (
        ("NaN", np.isnan(a), np.isnan(b)),
        ("+inf", np.isposinf(a), np.isposinf(b)),
        ("-inf", np.isneginf(a), np.isneginf(b)),
    ):
        differs = in_a != in_b
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            side = "the output" if in_a[at] else "the reference"
            return f"{what} only in {side}, at {list(at)} and {int(differs.sum()) - 1} other places"
    return ""
