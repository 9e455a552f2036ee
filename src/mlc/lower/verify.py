"""What a final loop AST must satisfy; run after every pass in tests and once before code generation.

* Every loop variable is bound by one enclosing loop, and every buffer is a parameter or allocated around its use.
* Loads and stores have one index a dimension, stay in bounds as far as ranges tell, and stores fit the buffer's type.
  Under a condition ranges tell nothing: a branch that is never taken may name any place.
* No vectorised or unrolled loop, and no loop over virtual threads, is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import VerifyError
from mlc.ir import loop
from mlc.ir.expr import Expr, Load, Select, children, indices_of, walk
from mlc.ir.index import Linear, Var


def verify(fn: loop.Function, *, final: bool = True) -> None:
    """Check a kernel.

    Raises:
        VerifyError: the first fault, with the statement.
    """
    _check(fn.body, fn, set(), set(fn.params), final)


def _check(
    s: loop.Stmt, fn: loop.Function, bound: set[Var], buffers: set[loop.Buffer], final: bool, guarded: bool = False
) -> None:
    def expr(e: Expr, lane: Var | None = None) -> None:
        nodes = walk(e)
        for ix in (ix for node in nodes for ix in indices_of(node)):
            if loose := ix.vars() - bound - {lane}:
                raise VerifyError(f"{fn.name}: {sorted(v.name for v in loose)} unbound in\n{s!r}")
        for node in nodes:
            if type(node) is Load and node.source not in buffers:
                raise VerifyError(f"{fn.name}: {node.source!r} is not in scope in\n{s!r}")
        _bounds(e, fn, s, guarded)

    match s:
        case loop.For():
            if final and s.kind in (loop.ForKind.VECTORIZED, loop.ForKind.UNROLLED, loop.ForKind.VTHREAD):
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
            lanes = {s.lane} if s.lane is not None else set()
            for ix in s.indices:
                if ix.vars() - bound - lanes:
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
        case loop.Barrier():
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


def _bounds(e: Expr, fn: loop.Function, s: loop.Stmt, guarded: bool) -> None:
    """Loads that neither a ``select`` nor a condition guards must not be provably out of bounds."""
    stack = [e]
    while stack:
        node = stack.pop()
        if type(node) is Select:
            stack.append(node.cond)
            continue
        if type(node) is Load:
            if len(node.indices) != len(node.source.shape):
                raise VerifyError(f"{fn.name}: {node!r} has {len(node.indices)} of {len(node.source.shape)} indices")
            if not guarded and _outside(node.indices, node.source.shape):
                raise VerifyError(f"{fn.name}: {node!r} is out of bounds in\n{s!r}")
        stack += children(node)


def _outside(indices: Sequence[Linear], shape: Sequence[int]) -> bool:
    """Whether an access leaves its buffer whatever the values of its variables."""
    ranges = [ix.bounds() for ix in indices]
    return any(lo <= hi and (lo >= n or hi < 0) for (lo, hi), n in zip(ranges, shape, strict=True))
