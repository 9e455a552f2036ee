"""Overlap: what a loop's iterations read is computed some iterations before, into versions of its buffers in turns.

One loop does both, iteration ``k`` of what comes ahead beside iteration ``k - ahead`` of the rest. With asynchronous
copies, each iteration's are a group, and an iteration begins by waiting for the group that it reads.

Example, with three versions and copies::

    for k in range(9):                  for k in range(11):
      c[k % 3, tx] = x[k, tx]             wait(1)
      y[tx] = y[tx] + c[k % 3, 7 - tx]    if k < 9:
                                     →      c[k % 3, tx] = x[k, tx]
                                          commit()
                                          if 2 <= k:
                                            y[tx] = y[tx] + c[(k - 2) % 3, 7 - tx]
"""

from __future__ import annotations

from mlc.ir.expr import Const, Expr, Load, Select, all_of, index_vars, within
from mlc.ir.index import Var, as_index, dynamics, weighted
from mlc.ir.loop import Commit, For, ForKind, If, Stmt, Store, Wait, dense_strides, rebuild, seq
from mlc.lower.rewrite import substitute_stmt

COPIED = (4, 8, 16)
"""Bytes that a thread can copy asynchronously at once."""


def overlapped(loop: Var, versions: int, before: Stmt, rest: Stmt, *, asynchronous: bool) -> Stmt:
    """A loop that does one thing some iterations before the other.

    Args:
        loop: the variable of both.
        versions: of the buffers that the first one writes, chosen by the remainder of the variable.
        before: what is done ``versions - 1`` iterations ahead,
        rest: and what reads it.
        asynchronous: whether there are asynchronous copies in the first one.
    """
    ahead, count = versions - 1, loop.hi + 1
    var = Var(loop.name, 0, loop.hi + ahead)
    parts: list[Stmt] = [
        If(within(var, 0, count), substitute_stmt(before, {loop: var})),
        If(within(var, ahead, count + ahead), substitute_stmt(rest, {loop: as_index(var) - ahead})),
    ]
    if asynchronous:
        parts = [Wait(versions - 2), parts[0], Commit(), parts[1]]
    return For(var, count + ahead, ForKind.SERIAL, seq(parts))


def copies(s: Stmt) -> Stmt:
    """Let asynchronous stores that threads cannot make as copies, such as of less than 4 bytes, be done at once."""
    if isinstance(s, Store) and s.asynchronous and copy_of(s) is None:
        return Store(s.buffer, s.indices, s.value, s.lane)
    return rebuild(s, copies)


def copy_of(s: Store) -> tuple[Load, Expr] | None:
    """Where a store copies from, and the condition under which it does; else it stores zeros.

    Returns:
        ``None`` where it is no copy of 4, 8 or 16 bytes next to each other from global to shared memory.
    """
    conds: list[Expr] = []
    e = s.value
    while isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        conds.append(e.cond)
        e = e.a
    if not isinstance(e, Load) or s.buffer.scope != "shared" or e.source.scope != "global":
        return None
    lanes = s.lane.hi + 1 if s.lane is not None else 1
    places = [weighted(ix, dense_strides(b.shape)) for b, ix in ((s.buffer, s.indices), (e.source, e.indices))]
    together = s.lane is None or all(p.coefficient(s.lane) == 1 and not dynamics(p) for p in places)
    whole = lanes == 1 or all(s.lane is not None and p.without(s.lane).multiple_of(lanes) for p in places)
    alike = s.lane is None or all(s.lane not in index_vars(c) for c in conds)
    if lanes * s.buffer.dtype.itemsize not in COPIED or not (together and whole and alike):
        return None
    return e, all_of(conds)
