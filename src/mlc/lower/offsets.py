"""Sums in integers begin with what is added to them, not with zero.

In: loops without unrolled ones left, whose register sums are reset, updated, and then each stored as ``sum + offset``.
Out: ``offset`` in place of each reset, and ``sum`` in place of each addition. Biases of quantised layers cost nothing
so; integers wrap, so the order of terms makes no difference. Floats, whose sums would round otherwise, stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlc.ir.expr import Binary, Const, Load, Select, children, loads, rewrite, same
from mlc.ir.index import Linear, Var
from mlc.ir.intrinsic import Kind
from mlc.ir.loop import Access, Allocate, Buffer, Evaluate, Seq, Stmt, Store, rebuild
from mlc.ir.loop import walk as statements
from mlc.ir.order import post_order
from mlc.lower.rewrite import exprs_of

Slot = tuple[tuple[int, ...], int]  # indices of the first element of a sum, and how many lanes it has (0: no vector)


@dataclass(frozen=True, eq=False)
class _Sum:
    """What is added to a sum where it is read."""

    add: Binary
    held: Load
    offset: Load
    lane: Var | None


def begin_with_offsets(s: Stmt) -> Stmt:
    """Let every integer sum in registers begin with its offset, where all the sums of a buffer have one."""
    s = rebuild(s, begin_with_offsets)
    if not isinstance(s, Allocate) or s.buffer.scope != "register" or s.buffer.dtype.kind != "i":
        return s
    if not isinstance(s.body, Seq):
        return s
    moved = _moved(s.buffer, s.body.stmts)
    return s if moved is None else Allocate(s.buffer, Seq(moved))


def _moved(sums: Buffer, stmts: Sequence[Stmt]) -> tuple[Stmt, ...] | None:
    """The statements with offsets moved to the sums' beginnings; ``None`` where they cannot be."""
    first = next((k for k, s in enumerate(stmts) if _reads(s, sums)), len(stmts))
    found: dict[Slot, _Sum] = {}
    after: list[Stmt] = []
    for s in stmts[first:]:
        if not isinstance(s, Store) or s.buffer is sums:
            return None
        here = list(_sums_of(s, sums))
        if len({id(x.held) for x in here}) < sum(ld.source is sums for ld in loads(s.value)):
            return None
        for x in here:
            slot = _slot(x.held.indices, x.lane)
            if slot is None or not same(found.setdefault(slot, x).offset, x.offset):
                return None
        after.append(_without({id(x.add): x.held for x in here}, s))
    if not found or _writes(stmts, {id(x.offset.source) for x in found.values()}):
        return None
    before, begun = [], set()
    for s in stmts[:first]:
        slot = _reset(s, sums)
        if slot in found:
            x = found[slot]
            s = Store(sums, x.held.indices, x.offset, x.lane)
            begun.add(slot)
        before.append(s)
    return (*before, *after) if begun == found.keys() else None


def _reads(s: Stmt, sums: Buffer) -> bool:
    """Whether a statement takes sums as values, and not only to add to them."""
    for c in statements(s):
        known = _updated(c) if isinstance(c, Store) and c.buffer is sums else None
        if any(ld.source is sums and ld is not known for e in exprs_of(c) for ld in loads(e)):
            return True
    return False


def _updated(s: Store) -> Load | None:
    """The sum that a statement adds to."""
    e = s.value
    if type(e) is not Binary or e.op != "add":
        return None
    return next((x for x in (e.a, e.b) if type(x) is Load and x.source is s.buffer and x.indices == s.indices), None)


def _sums_of(s: Store, sums: Buffer) -> Iterator[_Sum]:
    """Every sum that is read for an addition of an element of another buffer, whatever a ``select`` chooses.

    What one chooses may be all that makes reading the offset legal.
    """
    for e in post_order((s.value,), lambda e: (e.cond,) if type(e) is Select else children(e)):
        if type(e) is Binary and e.op == "add":
            for held, offset in ((e.a, e.b), (e.b, e.a)):
                if type(held) is Load and type(offset) is Load and held.source is sums and offset.source is not sums:
                    yield _Sum(e, held, offset, s.lane)


def _without(added: dict[int, Load], s: Store) -> Store:
    """A store with sums in place of additions to them."""
    return Store(s.buffer, s.indices, rewrite(s.value, lambda e: added.get(id(e), e)), s.lane, s.asynchronous)


def _slot(indices: Sequence[Linear], lane: Var | None) -> Slot | None:
    """What a sum is known by; lanes are neighbours along the last axis."""
    if lane is not None:
        *rest, last = indices
        if last.coefficient(lane) != 1:
            return None
        indices = (*rest, last.without(lane))
    if not all(ix.is_const for ix in indices):
        return None
    return tuple(ix.const for ix in indices), 0 if lane is None else lane.hi + 1


def _reset(s: Stmt, sums: Buffer) -> Slot | None:
    """The sum that a statement sets to zero."""
    if isinstance(s, Store):
        zero = type(s.value) is Const and s.value.value == 0
        return _slot(s.indices, s.lane) if s.buffer is sums and zero else None
    if not isinstance(s, Evaluate) or s.intrinsic is None or s.args[0] != Kind.RESET or s.args[1].buffer is not sums:
        return None
    at, axes = s.args[1], s.intrinsic.op.axes
    if len(axes) != 1 or at.strides != (1,) or not all(ix.is_const for ix in at.indices):
        return None
    return tuple(ix.const for ix in at.indices), axes[0].hi + 1


def _writes(stmts: Sequence[Stmt], buffers: set[int]) -> bool:
    """Whether some statement writes one of the buffers, or may."""
    for s in stmts:
        for c in statements(s):
            if isinstance(c, Store) and id(c.buffer) in buffers:
                return True
            if isinstance(c, Evaluate) and any(isinstance(a, Access) and id(a.buffer) in buffers for a in c.args):
                return True
    return False
