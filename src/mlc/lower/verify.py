"""What a final loop AST must satisfy; run after every pass in tests and once before code generation.

* Every loop variable is bound by one enclosing loop, and every buffer is a parameter or allocated around its use.
* Loads and stores have one index a dimension, stay in bounds as far as ranges tell, and stores fit the buffer's type.
  Under a condition ranges tell nothing: a branch that is never taken may name any place.
* No vectorised loop, and no loop over virtual threads, is left; unrolled ones only inside of threads.
* Loops over a grid stand around whole nests (:mod:`mlc.lower.threads`), shared buffers between those over blocks and
  those over threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import VerifyError
from mlc.ir import loop
from mlc.ir.expr import Expr, Load, Select, children, indices_of, walk
from mlc.ir.index import Linear, Var
from mlc.lower.bounds import SHARED
from mlc.lower.threads import grid_of, launches


def verify(fn: loop.Function, *, final: bool = True) -> None:
    """Check a kernel.

    Raises:
        VerifyError: the first fault, with the statement.
    """
    _check(fn.body, fn, set(), set(fn.params), final)
    if final:
        for s in launches(fn.body):
            _launch(s, fn)


def _launch(s: loop.Stmt, fn: loop.Function) -> None:
    """A nest has its loops over a grid, if any, around all the rest."""
    loops, _, body = grid_of(s)
    for x in loop.walk(body):
        if isinstance(x, loop.For) and x.kind is loop.ForKind.THREAD:
            raise VerifyError(f"{fn.name}: a loop over {x.thread} inside of the nest:\n{x!r}")
        if isinstance(x, loop.For) and x.kind is loop.ForKind.UNROLLED and not loops:
            raise VerifyError(f"{fn.name}: a loop is still {x.kind}:\n{x!r}")
        if isinstance(x, loop.Allocate) and x.buffer.scope == SHARED:
            raise VerifyError(f"{fn.name}: {x.buffer!r} is shared and allocated inside of threads")


def _check(
    s: loop.Stmt, fn: loop.Function, bound: set[Var], buffers: set[loop.Buffer], final: bool, guarded: bool = False
) -> None:
    def expr(e: Expr, lane: Var | None = None) -> None:
        nodes = walk(e)
        choice = False
        for node in nodes:
            for ix in indices_of(node):
                if loose := _loose(ix, bound, lane):
                    raise VerifyError(f"{fn.name}: {sorted(v.name for v in loose)} unbound in\n{s!r}")
            if type(node) is Load and node.source not in buffers:
                raise VerifyError(f"{fn.name}: {node.source!r} is not in scope in\n{s!r}")
            choice = choice or type(node) is Select
        for node in _certain(e) if choice else nodes:
            if type(node) is Load:
                _bounds(node, fn, s, guarded)

    match s:
        case loop.For():
            if final and s.kind in (loop.ForKind.VECTORIZED, loop.ForKind.VTHREAD):
                raise VerifyError(f"{fn.name}: a loop is still {s.kind}:\n{s!r}")
            if s.var in bound:
                raise VerifyError(f"{fn.name}: {s.var.name} is bound twice")
            if s.var.hi != s.extent - 1 or s.var.lo != 0:
                raise VerifyError(
                    f"{fn.name}: {s.var.name} ranges over [{s.var.lo}, {s.var.hi}], the loop over {s.extent}"
                )
            _check(s.body, fn, bound | {s.var}, buffers, final, guarded)
        case loop.ForRange():
            if s.var in bound:
                raise VerifyError(f"{fn.name}: {s.var.name} is bound twice")
            expr(s.begin)
            expr(s.end)
            _check(s.body, fn, bound | {s.var}, buffers, final, guarded)
        case loop.Store():
            if s.buffer not in buffers:
                raise VerifyError(f"{fn.name}: {s.buffer!r} is not in scope in\n{s!r}")
            if len(s.indices) != len(s.buffer.shape) or s.value.dtype is not s.buffer.dtype:
                raise VerifyError(
                    f"{fn.name}: store of {s.value.dtype} with {len(s.indices)} indices into {s.buffer!r}"
                )
            for ix in s.indices:
                if _loose(ix, bound, s.lane):
                    raise VerifyError(f"{fn.name}: unbound index in\n{s!r}")
            if not guarded and _outside(s.indices, s.buffer.shape):
                raise VerifyError(f"{fn.name}: the store is out of bounds in\n{s!r}")
            expr(s.value, s.lane)
        case loop.If():
            expr(s.cond)
            _check(s.then, fn, bound, buffers, final, True)
            if s.orelse is not None:
                _check(s.orelse, fn, bound, buffers, final, True)
        case loop.Allocate():
            _check(s.body, fn, bound, buffers | {s.buffer}, final, guarded)
        case loop.Seq():
            for c in s.stmts:
                _check(c, fn, bound, buffers, final, guarded)
        case loop.Prefetch():
            if any(ix.vars() - bound for ix in s.indices):
                raise VerifyError(f"{fn.name}: unbound index in\n{s!r}")
        case loop.Evaluate():
            for a in s.args:
                if type(a) is loop.Access:
                    _access(a, fn, s, bound, buffers, guarded)
        case loop.Shuffle():
            for b, indices in ((s.buffer, s.indices), (s.source, s.at)):
                _access(loop.Access(b, indices, ()), fn, s, bound, buffers, guarded)
            if s.buffer.dtype is not s.source.dtype:
                raise VerifyError(f"{fn.name}: {s.source!r} goes to {s.buffer!r} in\n{s!r}")
        case loop.Barrier() | loop.Commit() | loop.Wait():
            pass
        case _:
            raise VerifyError(f"{fn.name}: {type(s).__name__} is no statement")


def _access(
    a: loop.Access, fn: loop.Function, s: loop.Stmt, bound: set[Var], buffers: set[loop.Buffer], guarded: bool
) -> None:
    """An operand of an intrinsic lies in a known buffer, at a known place."""
    if a.buffer not in buffers:
        raise VerifyError(f"{fn.name}: {a.buffer!r} is not in scope in\n{s!r}")
    if len(a.indices) != len(a.buffer.shape):
        raise VerifyError(f"{fn.name}: {a!r} has {len(a.indices)} of {len(a.buffer.shape)} indices")
    if any(ix.vars() - bound for ix in a.indices):
        raise VerifyError(f"{fn.name}: unbound index in\n{s!r}")
    if not guarded and _outside(a.indices, a.buffer.shape):
        raise VerifyError(f"{fn.name}: {a!r} is out of bounds in\n{s!r}")


def _loose(ix: Linear, bound: set[Var], lane: Var | None) -> set[Var]:
    """Variables of an index that no loop around it has."""
    for atom in ix.terms:
        if type(atom) is not Var or (atom not in bound and atom is not lane):
            return ix.vars() - bound - {lane}
    return set()


def _certain(e: Expr) -> list[Expr]:
    """The nodes that are computed whatever a ``select`` chooses."""
    found: list[Expr] = []
    stack = [e]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += (node.cond,) if type(node) is Select else children(node)
    return found


def _bounds(ld: Load, fn: loop.Function, s: loop.Stmt, guarded: bool) -> None:
    """A load that neither a ``select`` nor a condition guards must not be provably out of bounds."""
    if len(ld.indices) != len(ld.source.shape):
        raise VerifyError(f"{fn.name}: {ld!r} has {len(ld.indices)} of {len(ld.source.shape)} indices")
    if not guarded and _outside(ld.indices, ld.source.shape):
        raise VerifyError(f"{fn.name}: {ld!r} is out of bounds in\n{s!r}")


def _outside(indices: Sequence[Linear], shape: Sequence[int]) -> bool:
    """Whether an access leaves its buffer whatever the values of its variables."""
    for ix, n in zip(indices, shape, strict=True):
        lo, hi = ix.bounds() if ix.terms else (ix.const, ix.const)
        if lo <= hi and (lo >= n or hi < 0):
            return True
    return False
