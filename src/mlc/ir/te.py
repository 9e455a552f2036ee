"""Tensor expressions: what every element of an output is, in logical index space.

A reduction is a property of a :class:`Compute`, not an expression: its body gives the reduced terms, its combiner and
reduction axes say how they are folded. Several outputs may be folded at once (argmax folds values and positions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from mlc.errors import VerifyError
from mlc.ir.expr import (
    Const,
    Expr,
    ExprLike,
    Load,
    all_of,
    as_expr,
    binary,
    call,
    const,
    index_vars,
    loads,
    replace_loads,
    select,
    within,
)  # fmt: skip
from mlc.ir.index import IndexLike, Linear, Var, as_index, substitute
from mlc.ir.order import post_order
from mlc.ir.text import Printable
from mlc.ir.types import DType


@dataclass(frozen=True, eq=False)
class Home:
    """Where the elements of a result lie, when that is not a row-major array of its shape.

    Args:
        shape: of the array that holds them.
        axes: stand for the indices of an element.
        indices: its place in the array, over ``axes``; an element whose place is none of the array, or lies in a
            margin, is not stored.
        margins: how many zeros surround the elements before and after each dimension of the array.
    """

    shape: tuple[int, ...]
    axes: tuple[Var, ...]
    indices: tuple[Linear, ...]
    margins: tuple[tuple[int, int], ...]

    def place(self, element: Sequence[Linear]) -> tuple[Linear, ...]:
        """Where an element lies."""
        env = dict(zip(self.axes, element, strict=True))
        return tuple(substitute(ix, env) for ix in self.indices)

    def holds(self, element: Sequence[Linear]) -> Expr:
        """Whether an element is stored at all."""
        inside = zip(self.place(element), self.shape, self.margins, strict=True)
        return all_of([within(ix, before, n - after) for ix, n, (before, after) in inside])


@dataclass(slots=True, eq=False, repr=False)
class Tensor:
    """An n-dimensional value: an input (``op is None``) or one output of a :class:`Compute`.

    Args:
        name: for printing.
        shape: extents.
        dtype: element type.
        op: what computes it.
        which: which output of ``op``.
        home: for a result of a kernel, where its elements lie if not at their own indices.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    op: Compute | None = None
    which: int = 0
    home: Home | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __getitem__(self, indices: IndexLike | tuple[IndexLike, ...]) -> Load:
        ixs = indices if isinstance(indices, tuple) else (indices,)
        if len(ixs) != len(self.shape):
            raise VerifyError(f"{self.name} has {len(self.shape)} axes, indexed with {len(ixs)}")
        return Load(self, tuple([as_index(i) for i in ixs]))

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Combiner:
    """How a reduction folds terms.

    Args:
        name: for printing and code generation (``sum``, ``max`` …).
        identity: the neutral value of each output, given their types.
        combine: accumulated values and new terms -> accumulated values; associative.
    """

    name: str
    identity: Callable[[Sequence[DType]], tuple[Const, ...]]
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]

    def __repr__(self) -> str:
        return self.name


def _simple(name: str, op: str, identity: Callable[[DType], float | int]) -> Combiner:
    return Combiner(
        name,
        lambda ts: tuple(const(identity(t), t) for t in ts),
        lambda acc, new: tuple(binary(op, a, b) for a, b in zip(acc, new, strict=True)),
    )


SUM = _simple("sum", "add", lambda t: 0)
PROD = _simple("prod", "mul", lambda t: 1)
MAX = _simple("max", "max", lambda t: t.min_value)
MIN = _simple("min", "min", lambda t: t.max_value)
ALL = _simple("all", "and", lambda t: 1)
ANY = _simple("any", "or", lambda t: 0)


def _arg(name: str, better: str, worst: Callable[[DType], float | int], last: bool) -> Combiner:
    """Fold of ``(value, position)``: the best value, at its first (or last) position; NaN wins, as in numpy."""

    def combine(acc: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
        wins = binary(better, new[0], acc[0])
        tie = binary("eq", new[0], acc[0])
        if new[0].dtype.is_float:
            acc_nan, new_nan = call("isnan", acc[0]), call("isnan", new[0])
            wins = binary("and", binary("or", wins, new_nan), call("not", acc_nan))
            tie = binary("or", tie, binary("and", acc_nan, new_nan))
        # positions may arrive in any order (vector lanes, threads), so a tie looks at the position;
        # the identity's position -1 loses every tie
        earlier = binary("gt" if last else "lt", new[1], acc[1])
        tie_wins = binary("and", tie, binary("or", binary("lt", acc[1], 0), earlier))
        tie_wins = binary("and", tie_wins, binary("ge", new[1], 0))
        take = binary("or", wins, tie_wins)
        return select(take, new[0], acc[0]), select(take, new[1], acc[1])

    return Combiner(name, lambda ts: (const(worst(ts[0]), ts[0]), const(-1, ts[1])), combine)


ARGMAX = _arg("argmax", "gt", lambda t: t.min_value, last=False)
ARGMIN = _arg("argmin", "lt", lambda t: t.max_value, last=False)
ARGMAX_LAST = _arg("argmax_last", "gt", lambda t: t.min_value, last=True)
ARGMIN_LAST = _arg("argmin_last", "lt", lambda t: t.max_value, last=True)
COMBINERS = {c.name: c for c in (SUM, PROD, MAX, MIN, ALL, ANY, ARGMAX, ARGMIN, ARGMAX_LAST, ARGMIN_LAST)}


@dataclass(slots=True, eq=False, repr=False)
class Compute(Printable):
    """One loop nest over data axes, with an optional reduction.

    Args:
        name: for printing.
        axes: data axes, outermost first; ``axes[d]`` ranges over dimension ``d`` of every output.
        reduce_axes: reduction axes.
        bodies: one expression an output: the element, or the term that is folded.
        combiner: ``None`` exactly when there is no reduction.
        tag: a name for the kind of computation in messages (``conv``, ``matmul``, ``pad`` …); it decides nothing.
        attrs: facts for people (strides, groups …).
    """

    name: str
    axes: tuple[Var, ...]
    reduce_axes: tuple[Var, ...]
    bodies: tuple[Expr, ...]
    combiner: Combiner | None
    tag: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()
    _inputs: tuple[Tensor, ...] | None = field(default=None, init=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([a.hi + 1 for a in self.axes])

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors read, each once, in order of appearance."""
        if self._inputs is None:
            seen: dict[int, Tensor] = {}
            for body in self.bodies:
                for ld in loads(body):
                    seen.setdefault(id(ld.source), ld.source)
            self._inputs = tuple(seen.values())
        return list(self._inputs)


@dataclass(slots=True, eq=False)
class Reduction:
    """What a ``compute`` callback returns to fold terms over axes."""

    combiner: Combiner
    terms: tuple[Expr, ...]
    axes: tuple[Var, ...]


@dataclass(frozen=True, eq=False)
class Fold:
    """A combiner as expressions over scalars, for some element types.

    Args:
        name: the combiner's.
        identity: the neutral value of each output.
        before, terms: scalars that stand for accumulated values and for new terms.
        results: accumulated values after that.
    """

    name: str
    identity: tuple[Const, ...]
    before: tuple[Tensor, ...]
    terms: tuple[Tensor, ...]
    results: tuple[Expr, ...]

    def __repr__(self) -> str:
        values = [*map(repr, self.results), *(f"from {c!r}" for c in self.identity)]
        return f"{self.name}: {', '.join(values)}"


def fold_of(combiner: Combiner, types: Sequence[DType]) -> Fold:
    """What a combiner says, of terms of some types."""
    before, terms = (
        tuple(placeholder((), t, f"{what}{k}") for k, t in enumerate(types)) for what in ("before", "term")
    )
    results = combiner.combine(tuple(t[()] for t in before), tuple(t[()] for t in terms))
    return Fold(combiner.name, combiner.identity(types), before, terms, results)


def combiner_of(fold: Fold) -> Combiner:
    """The inverse of :func:`fold_of`: it folds terms of those types.

    Raises:
        VerifyError: values do not stay of their types, or something else is read.
    """
    scalars = [*fold.before, *fold.terms]
    types = [t.dtype for t in fold.before]
    if [r.dtype for r in fold.results] != types:
        made = ", ".join(str(r.dtype) for r in fold.results)
        raise VerifyError(f"{fold.name}: values of {', '.join(map(str, types))} become {made}")
    known = {id(t) for t in scalars}
    for r in fold.results:
        stray = next((ld for ld in loads(r) if id(ld.source) not in known), None)
        if stray is not None or index_vars(r):
            raise VerifyError(f"{fold.name}: depends on more than the values that it folds: {r!r}")

    def combine(acc: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
        stands = {id(t): e for t, e in zip(scalars, (*acc, *new), strict=True)}
        return tuple(replace_loads(r, lambda ld: stands.get(id(ld.source), ld)) for r in fold.results)

    return Combiner(fold.name, lambda _: fold.identity, combine)


def axis(extent: int, name: str) -> Var:
    """A loop variable over ``range(extent)``."""
    return Var(name, 0, extent - 1)


reduce_axis = axis


def placeholder(shape: Sequence[int], dtype: DType, name: str = "x") -> Tensor:
    """An input tensor."""
    return Tensor(name, tuple(shape), dtype)


def _reduction(combiner: Combiner) -> Callable[[ExprLike, Var | Iterable[Var]], Reduction]:
    def fold(term: ExprLike, axes: Var | Iterable[Var]) -> Reduction:
        return Reduction(combiner, (as_expr(term),), (axes,) if isinstance(axes, Var) else tuple(axes))

    return fold


sum_of = _reduction(SUM)
prod_of = _reduction(PROD)
max_of = _reduction(MAX)
min_of = _reduction(MIN)

_AXIS_NAMES = "ijklmnopq"
UNNAMED = "t"  # what a compute is called that nobody gave a name


def compute(
    shape: Sequence[int],
    fn: Callable[..., ExprLike | Reduction],
    name: str = UNNAMED,
    *,
    axis_names: Sequence[str] | None = None,
    tag: str = "",
    attrs: dict[str, Any] | None = None,
) -> Tensor:
    """The tensor whose element at ``(i, j, …)`` is ``fn(i, j, …)``.

    Args:
        shape: extents of the result.
        fn: takes one index a dimension; gives an expression or a :class:`Reduction` of one term.
        name: for printing.
        axis_names: names of the axes; letters otherwise.
        tag: name of the kind of computation, see :class:`Compute`.
        attrs: facts for people.
    """
    return compute_many(shape, fn, name, axis_names=axis_names, tag=tag, attrs=attrs)[0]


def compute_many(
    shape: Sequence[int],
    fn: Callable[..., Any],
    name: str = UNNAMED,
    *,
    axis_names: Sequence[str] | None = None,
    tag: str = "",
    attrs: dict[str, Any] | None = None,
) -> tuple[Tensor, ...]:
    """Several outputs from one loop nest: ``fn`` gives a tuple of expressions, or a :class:`Reduction` of as many."""
    names = axis_names or [_AXIS_NAMES[d] if d < len(_AXIS_NAMES) else f"i{d}" for d in range(len(shape))]
    axes = tuple(axis(n, a) for n, a in zip(shape, names, strict=True))
    body = fn(*[as_index(a) for a in axes])
    if isinstance(body, Reduction):
        op = Compute(name, axes, body.axes, body.terms, body.combiner, tag, attrs or {})
    else:
        bodies = tuple(as_expr(b) for b in (body if isinstance(body, tuple) else (body,)))
        op = Compute(name, axes, (), bodies, None, tag, attrs or {})
    return finish(op)


def finish(op: Compute) -> tuple[Tensor, ...]:
    """Give a freshly built compute its output tensors."""
    many = len(op.bodies) > 1
    op.outputs = tuple(
        Tensor(f"{op.name}_{k}" if many else op.name, op.shape, b.dtype, op, k) for k, b in enumerate(op.bodies)
    )
    return op.outputs


def with_bodies(op: Compute, bodies: Iterable[Expr]) -> Compute:
    """The same compute, for the same outputs, over other expressions."""
    return Compute(op.name, op.axes, op.reduce_axes, tuple(bodies), op.combiner, op.tag, op.attrs, op.outputs)


def topological(outputs: Sequence[Tensor]) -> list[Compute]:
    """Every compute that ``outputs`` need, producers first."""
    return post_order(_makers(outputs), lambda op: _makers(op.inputs))


def _makers(tensors: Sequence[Tensor]) -> list[Compute]:
    return [t.op for t in tensors if t.op is not None]


def verify(outputs: Sequence[Tensor]) -> None:
    """Check ranks, types, and that every variable is an axis.

    Raises:
        VerifyError: the first fault found, with the compute's text.
    """
    for op in topological(outputs):
        known = set(op.axes) | set(op.reduce_axes)
        if (op.combiner is None) != (not op.reduce_axes):
            raise VerifyError(f"{op.name}: reduction axes and combiner must come together")
        for body in op.bodies:
            loose = index_vars(body) - known
            if loose:
                raise VerifyError(f"{op.name}: {sorted(v.name for v in loose)} is no axis of it, in\n{op!r}")
            for ld in loads(body):
                if len(ld.indices) != len(ld.source.shape):
                    raise VerifyError(f"{op.name}: {ld!r} has {len(ld.indices)} of {len(ld.source.shape)} indices")


__all__ = [
    "ALL", "ANY", "ARGMAX", "ARGMAX_LAST", "ARGMIN", "ARGMIN_LAST", "COMBINERS", "MAX", "MIN", "PROD", "SUM",
    "Combiner", "Compute", "Fold", "Reduction", "Tensor", "axis", "combiner_of", "compute", "compute_many", "finish",
    "fold_of", "max_of", "min_of", "placeholder", "prod_of", "reduce_axis", "sum_of", "topological", "verify",
    "with_bodies",
]  # fmt: skip
