"""Reference interpreter of tensor expressions: whole loop nests as numpy broadcasting, in bounded chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Binary, Call, Cast, Const, Expr, IndexValue, Load, Select, Within
from mlc.ir.index import Linear, Var, evaluate
from mlc.ir.interp.scalar import binary, convert, is_float, threefry, unary, widened
from mlc.ir.types import DType
from mlc.ir.unwind import Steps, unwind

Array = Any
_CHUNK = 1 << 21  # grid points evaluated at once
_FEW = 64  # indices that are compared faster one by one than by numpy


def run_tensors(outputs: Sequence[te.Tensor], inputs: Mapping[te.Tensor, np.ndarray]) -> list[np.ndarray]:
    """Values of ``outputs`` given those of the placeholders.

    Raises:
        VerifyError: a load outside its tensor that no ``select`` guards.
    """
    values: dict[int, np.ndarray] = {id(t): np.asarray(a) for t, a in inputs.items()}
    for op in te.topological(outputs):
        if all(id(t) in values for t in op.outputs):
            continue
        for t, array in zip(op.outputs, run_compute(op, values), strict=True):
            values[id(t)] = array
    return [values[id(t)] for t in outputs]


def run_compute(op: te.Compute, values: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Outputs of one compute; ``values`` maps ``id(tensor)`` to its array."""
    if any(a.hi < a.lo for a in op.axes):
        return [np.empty(op.shape, b.dtype.numpy) for b in op.bodies]
    if op.combiner is not None and any(a.hi < a.lo for a in op.reduce_axes):
        ids = op.combiner.identity([b.dtype for b in op.bodies])
        return [np.full(op.shape, c.value, b.dtype.numpy) for c, b in zip(ids, op.bodies, strict=True)]
    if op.combiner is te.SUM and len(op.bodies) == 1:
        fast = _contraction(op, values)
        if fast is not None:
            return [fast]
    outs = [np.empty(op.shape, b.dtype.numpy) for b in op.bodies]
    dims = list(op.axes) + list(op.reduce_axes)
    total = prod(a.hi + 1 for a in dims)
    if op.axes and total > _CHUNK:
        # chunk along the longest data axis
        d = max(range(len(op.axes)), key=lambda k: op.axes[k].hi)
        step = max(1, _CHUNK // max(1, total // (op.axes[d].hi + 1)))
    else:
        d, step = 0, (op.axes[0].hi + 1 if op.axes else 1)
    extent = op.axes[d].hi + 1 if op.axes else 1
    for begin in range(0, extent, step):
        end = min(extent, begin + step)
        env: dict[Var, Array] = {}
        for k, a in enumerate(dims):
            lo, hi = (begin, end) if op.axes and k == d else (0, a.hi + 1)
            shape = [1] * len(dims)
            shape[k] = hi - lo
            env[a] = np.arange(lo, hi).reshape(shape)
        full = [len(env[a].reshape(-1)) for a in dims]
        with np.errstate(all="ignore"):
            terms = [np.broadcast_to(Evaluator(env, values, op).eval(b), full) for b in op.bodies]
            results = terms if op.combiner is None else fold(op, terms, len(op.axes))
        where = tuple(slice(begin, end) if k == d else slice(None) for k in range(len(op.axes)))
        for out, r in zip(outs, results, strict=True):
            out[where] = r
    return outs


def fold(op: te.Compute, terms: list[np.ndarray], n: int) -> list[np.ndarray]:
    """Reduce the axes of a grid from the ``n``-th on, which are the reduce axes, with the compute's combiner."""
    axes = tuple(range(n, n + len(op.reduce_axes)))
    name = next((n for n, c in te.COMBINERS.items() if c is op.combiner), "")
    simple: dict[str, Callable[..., Any]] = {
        "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "all": np.all, "any": np.any,
    }  # fmt: skip
    if name in simple:
        (term,) = terms
        if name in ("sum", "prod"):
            wide = np.float64 if is_float(term) else widened(term).dtype
            return [simple[name](widened(term), axis=axes, dtype=wide).astype(term.dtype)]
        return [simple[name](term, axis=axes)]
    return _fold_pairwise(op, [t.reshape(*t.shape[:n], -1) for t in terms])


def _fold_pairwise(op: te.Compute, terms: list[np.ndarray]) -> list[np.ndarray]:
    """Apply a user's combiner over the last axis, one element at a time, vectorised over the rest."""
    assert op.combiner is not None
    fold = te.fold_of(op.combiner, [b.dtype for b in op.bodies])
    shape = terms[0].shape[:-1]
    acc = [np.full(shape, c.value, t.dtype.numpy) for c, t in zip(fold.identity, fold.before, strict=True)]
    for k in range(terms[0].shape[-1]):
        bound = {id(t): a for t, a in zip(fold.before, acc, strict=True)}
        bound |= {id(t): term[..., k] for t, term in zip(fold.terms, terms, strict=True)}
        ev = Evaluator({}, bound, op, scalars=True)
        acc = [np.asarray(ev.eval(e)) for e in fold.results]
    return acc


class Evaluator:
    """Evaluates scalar expressions over a grid.

    Args:
        env: an array of values for each axis, shaped to broadcast.
        values: ``id(source)`` -> array.
        op: the compute, for messages.
        scalars: loads give whole arrays (used to apply combiners elementwise).
    """

    def __init__(
        self, env: Mapping[Var, Array], values: Mapping[int, np.ndarray], op: te.Compute | None, scalars: bool = False
    ) -> None:
        self.env = env
        self.values = values
        self.op = op
        self.scalars = scalars
        self.memo: dict[tuple[int, bool], Array] = {}

    def eval(self, e: Expr, guarded: bool = False) -> Array:
        """Value of ``e``; under a guard, indices out of range are clipped (their values are not chosen)."""
        found = self.memo.get((id(e), guarded))
        return unwind((e, guarded), self._answer) if found is None else found

    def index(self, ix: Linear, guarded: bool = False) -> Array:
        return evaluate(ix, self.env, self._guarded if guarded else self.eval)

    def _guarded(self, e: Expr) -> Array:
        return self.eval(e, True)

    def _answer(self, query: tuple[Expr, bool]) -> Array | Steps[tuple[Expr, bool], Array]:
        e, guarded = query
        found = self.memo.get((id(e), guarded))
        if found is not None:
            return found
        if isinstance(e, (Binary, Call, Cast, Select)):
            return self._compute(e, guarded)
        found = self.memo[id(e), guarded] = self._leaf(e, guarded)
        return found

    def _compute(self, e: Expr, guarded: bool) -> Steps[tuple[Expr, bool], Array]:
        """What has operands."""
        value: Array = None
        match e:
            case Binary():
                a = yield e.a, guarded
                value = binary(e.op, a, (yield e.b, guarded))
            case Call():
                args = []
                for operand in e.args:
                    args.append((yield operand, guarded))
                value = np.asarray(threefry(*args)) if e.fn == "threefry" else unary(e.fn, *args)
            case Cast():
                value = convert((yield e.a, guarded), e.dtype)
            case Select():
                value = yield from self.select(e, guarded)
        self.memo[id(e), guarded] = value
        return value

    def select(self, e: Select, guarded: bool) -> Steps[tuple[Expr, bool], Array]:
        """A choice, element by element; loads of what is not chosen may be anywhere."""
        cond = yield e.cond, guarded
        a = yield e.a, True
        return np.where(cond, a, (yield e.b, True))

    def _leaf(self, e: Expr, guarded: bool) -> Array:
        match e:
            case Load():
                return self._load(e, guarded)
            case Const():
                return np.asarray(e.value).astype(e.dtype.numpy)
            case IndexValue():
                return convert(self.index(e.index, guarded), e.dtype)
            case Within():
                ix = self.index(e.index, guarded)
                return np.asarray((ix >= e.lo) & (ix < e.hi))
        raise VerifyError(f"no meaning for {type(e).__name__}")

    def _load(self, e: Load, guarded: bool) -> Array:
        array = self.values.get(id(e.source))
        if array is None:
            raise VerifyError(f"{e.source.name} has no value")
        if self.scalars or not e.indices:
            self.reads(e, ())
            return array
        indices, within = [], True
        for d, ix in enumerate(e.indices):
            i = self.index(ix, guarded)
            n = array.shape[d]
            if not inside(i, n):
                if not guarded:
                    raise VerifyError(f"{e!r} leaves axis {d} of extent {n}" + (f" in\n{self.op!r}" if self.op else ""))
                i, within = np.clip(i, 0, max(0, n - 1)), False
            indices.append(i)
        if within:
            self.reads(e, tuple(indices))
        if array.size == 0:
            return np.zeros(np.broadcast_shapes(*map(np.shape, indices)), array.dtype)
        return array[tuple(indices)]

    def reads(self, e: Load, indices: tuple[Array, ...]) -> None:
        """Told of every load whose indices, one an axis, are in range."""


def inside(i: Array, n: int) -> bool:
    """Whether an index, or every index of an array, is in ``range(n)``."""
    if type(i) is int:  # numpy takes its time over single numbers
        return 0 <= i < n
    if i.size <= _FEW:
        values = np.ravel(i).tolist()
        return not values or (min(values) >= 0 and max(values) < n)
    return bool(i.min() >= 0 and i.max() < n)


def _is_exact(narrow: DType, wide: DType) -> bool:
    """Whether a type holds every number of another."""
    if narrow.is_int and wide.is_float:
        return narrow.bits <= 16 < wide.bits
    return narrow.is_int == wide.is_int and narrow.bits <= wide.bits


def _contraction(op: te.Compute, values: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """A sum of a product of affine loads as one einsum over strided views, in double precision; else ``None``."""
    factors: list[Load] = []
    stack = [op.bodies[0]]
    dtype = op.bodies[0].dtype
    while stack:
        e = stack.pop()
        if type(e) is Cast and _is_exact(e.a.dtype, dtype):
            e = e.a
        if type(e) is Binary and e.op == "mul":
            stack += [e.a, e.b]
        elif type(e) is Load:
            factors.append(e)
        else:
            return None
    if len(factors) > 3:
        return None
    letters = {a: k for k, a in enumerate((*op.axes, *op.reduce_axes))}
    operands: list[Any] = []
    used: set[int] = set()
    for f in factors:
        array = values[id(f.source)]
        wide = np.array(array, np.float64 if dtype.is_float else dtype.carrier.numpy, order="C")
        steps: dict[Var, int] = {}
        offset = 0
        for d, ix in enumerate(f.indices):
            lo, hi = ix.bounds()
            if lo < 0 or hi >= array.shape[d]:
                return None
            offset += ix.const * wide.strides[d]
            for a, c in ix.terms.items():
                if not isinstance(a, Var):
                    return None
                steps[a] = steps.get(a, 0) + c * wide.strides[d]
        if not wide.size:
            return None
        flat = np.ndarray(tuple(v.hi + 1 for v in steps), wide.dtype, wide, offset, tuple(steps.values()))
        operands += [flat, [letters[v] for v in steps]]
        used |= {letters[v] for v in steps}
    out = [letters[a] for a in op.axes if letters[a] in used]
    with np.errstate(all="ignore"):
        result = np.einsum(*operands, out, optimize=True)
    missing = prod(a.hi + 1 for a in op.reduce_axes if letters[a] not in used)
    shape = [a.hi + 1 if letters[a] in used else 1 for a in op.axes]
    result = np.asarray(result * missing).reshape(shape)
    return np.array(np.broadcast_to(result, op.shape), dtype.numpy, order="C")
