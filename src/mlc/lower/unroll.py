"""Unrolling: the body of an unrolled loop once per iteration, with its variable a constant.

In: ``For(kind=UNROLLED)``. Out: none left, so that indices into register buffers are constants.
"""

from __future__ import annotations

from mlc.ir.loop import Stmt
from mlc.lower.rewrite import substitute_stmt


def unroll(s: Stmt) -> Stmt:
    """Repeat the bodies of unrolled loops."""
    return substitute_stmt(s, {}, unrolled=True)
