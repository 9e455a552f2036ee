"""How far rounding may move a number, and how much of it a test bears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

PERTURBED_RUNS = 2
# of a result's largest magnitude, a few units in the last place
ROUNDING = {"float16": 1e-3, "float32": 3e-7, "float64": 1e-15}
TOLERANCE, COARSE_TOLERANCE = 1e-4, 5e-2  # of an output's largest magnitude

_MOVES = {
    "Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Concat", "Split", "Pad",
    "Expand", "Tile", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Where", "Trilu",
    "ScatterElements", "ScatterND", "ReverseSequence", "CenterCropPad", "Compress", "Relu", "Neg", "Abs", "Min",
    "Max", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Floor", "Ceil", "Round", "Sign", "Clip",
    "Dropout", "TopK", "Hardmax", "Unique", "OneHot", "ArgMax", "ArgMin",
}  # fmt: skip


def is_exact(op: str, operands: Sequence[Any]) -> bool:
    """Whether every correct implementation gives the same bits for the same operands."""
    return op in _MOVES or (op == "Cast" and operands[0].dtype.kind in "ibu")


def limit_of(coarse: bool) -> float:
    """The most that a tensor may be off, of its largest magnitude: well below the tolerance of the comparison."""
    return (COARSE_TOLERANCE if coarse else TOLERANCE) / 5


def largest(a: np.ndarray) -> float:
    """The largest magnitude; 0 of nothing."""
    return float(np.abs(a).max()) if a.size else 0.0


def assert_equal(name: str, got: np.ndarray, want: np.ndarray, coarse: bool = False) -> None:
    """Floats within the tolerance of the largest magnitude, everything else exactly; shapes and types always."""
    assert got.dtype == want.dtype, f"{name}: {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{name}: {got.shape}, expected {want.shape}"
    if want.dtype.kind != "f":
        wrong = np.argwhere(np.atleast_1d(got != want))
        assert not len(wrong), f"{name}: {len(wrong)} of {want.size} differ, the first at {wrong[0]}"
        return
    tolerance = (COARSE_TOLERANCE if coarse else TOLERANCE) * largest(want)
    off = np.atleast_1d(np.abs(got.astype(np.float64) - want))
    wrong = np.argwhere(~(off <= tolerance))
    assert not len(wrong), (
        f"{name}: {len(wrong)} of {want.size} differ by more than {tolerance:.3g}, the first at {wrong[0]}: "
        f"{np.atleast_1d(got)[tuple(wrong[0])]}, expected {np.atleast_1d(want)[tuple(wrong[0])]}"
    )
