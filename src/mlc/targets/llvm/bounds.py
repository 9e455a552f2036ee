"""Which accesses ranges alone prove to be inside their buffers."""

from __future__ import annotations

from mlc.ir.expr import Expr, Load, loads


def may_leave(e: Expr) -> bool:
    """Whether some load in the expression might be out of bounds if evaluated without its guard."""
    return not all(in_bounds(ld) for ld in loads(e))


def in_bounds(e: Load) -> bool:
    """Whether ranges alone prove that a load stays inside its buffer."""
    for ix, n in zip(e.indices, e.source.shape, strict=True):
        lo, hi = ix.bounds()
        if lo < 0 or hi >= n:
            return False
    return True
