"""Unrolling: the body of an unrolled loop once per iteration, with its variable a constant.

In: ``For(kind=UNROLLED)``. Out: none left, so that indices into register buffers are constants.
"""

from __future__ import annotations

from mlc.ir.loop import For, ForKind, Stmt, rebuild, seq
from mlc.lower.rewrite import substitute_stmt


def unroll(s: Stmt) -> Stmt:
    """Repeat the bodies of unrolled loops, innermost first."""
    s = rebuild(s, unroll)
    if type(s) is For and s.kind is ForKind.UNROLLED:
        return seq([substitute_stmt(s.body, {s.var: k}) for k in range(s.extent)])
    return s
