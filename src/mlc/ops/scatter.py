"""Operators that no expression can state, each written once as a loop AST: scatter, cumulative sum, top-k.

All run their updates in row-major order, so results do not depend on the target even where updates meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir.expr import Expr, IndexValue, Load, binary, call, cast, const
from mlc.ir.graph import Attrs, FusionKind, Operator
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import NOTHING, Allocate, Buffer, For, ForKind, If, Stmt, Store, seq
from mlc.ir.types import TensorType, i64
from mlc.ops._broadcast import check_axes, check_count, check_kinds
from mlc.ops.common import accumulator, check, check_same_dtype
from mlc.ops.index import gather_nd_shape, position
from mlc.ops.registry import register

REDUCTIONS = ("none", "add", "mul", "max", "min")

Index = tuple[Linear, ...]
Routine = Callable[[Sequence[Buffer], Sequence[Buffer], Attrs], Stmt]
Rule = Callable[[Sequence[TensorType], Attrs], Sequence[TensorType]]


def _nest(shape: Sequence[int], body: Callable[[Index], Stmt], name: str = "i") -> Stmt:
    """Serial loops over ``shape``, outermost first."""
    if 0 in shape:
        return NOTHING
    axes = [Var(f"{name}{d}", 0, n - 1) for d, n in enumerate(shape)]
    stmt = body(tuple(as_index(a) for a in axes))
    for a, n in zip(reversed(axes), reversed(shape), strict=True):
        stmt = For(a, n, ForKind.SERIAL, stmt)
    return stmt


def _copy(source: Buffer, target: Buffer) -> Stmt:
    return _nest(source.shape, lambda i: Store(target, i, Load(source, i)), "c")


def _update(target: Buffer, at: Index, value: Expr, reduction: str) -> Stmt:
    return Store(target, at, value if reduction == "none" else binary(reduction, Load(target, at), value))


def _opaque(name: str, infer: Rule, routine: Routine, **attrs: object) -> Operator:
    return register(Operator(name, FusionKind.OPAQUE, infer, routine=routine, attrs=attrs))


def _check_reduction(op: str, reduction: str, data: TensorType) -> None:
    check(reduction in REDUCTIONS, op, f"reduction {reduction!r}, known: {', '.join(REDUCTIONS)}")
    if reduction in ("add", "mul"):
        check_kinds(op, data, "fiu", "data")


def _infer_scatter_elements(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("scatter_elements", types, 3)
    data, indices, updates = types
    axis = attrs["axis"]
    check_kinds("scatter_elements", indices, "iu", "indices")
    check_same_dtype("scatter_elements", data, updates)
    check_axes("scatter_elements", [axis], data.rank)
    _check_reduction("scatter_elements", attrs["reduction"], data)
    check(indices.shape == updates.shape, "scatter_elements", f"indices {indices} and updates {updates}")
    fits = indices.rank == data.rank and all(
        m <= n for d, (m, n) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis
    )
    check(fits, "scatter_elements", f"indices {indices} do not lie within {data}")
    check(data.shape[axis] > 0 or indices.size == 0, "scatter_elements", f"indexes an empty axis of {data}")
    return [data]


def _scatter_elements(ins: Sequence[Buffer], outs: Sequence[Buffer], attrs: Attrs) -> Stmt:
    """``data`` with ``out[i]``, the coordinate along ``axis`` replaced by ``indices[i]``, set to ``updates[i]``."""
    data, indices, updates = ins
    (out,) = outs
    axis = attrs["axis"]

    def update(i: Index) -> Stmt:
        at = (*i[:axis], position(Load(indices, i), data.shape[axis]), *i[axis + 1 :])
        return _update(out, at, Load(updates, i), attrs["reduction"])

    return seq([_copy(data, out), _nest(indices.shape, update)])


_opaque("scatter_elements", _infer_scatter_elements, _scatter_elements, axis=0, reduction="none")


def _infer_scatter_nd(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("scatter_nd", types, 3)
    data, indices, updates = types
    check_same_dtype("scatter_nd", data, updates)
    _check_reduction("scatter_nd", attrs["reduction"], data)
    shape = gather_nd_shape("scatter_nd", data, indices, 0)
    check(updates.shape == shape, "scatter_nd", f"updates {updates}, their shape must be {list(shape)}")
    return [data]


def _scatter_nd(ins: Sequence[Buffer], outs: Sequence[Buffer], attrs: Attrs) -> Stmt:
    """``data`` with the slices at the coordinates along the last axis of ``indices`` set to ``updates``."""
    data, indices, updates = ins
    (out,) = outs
    outer, depth = len(indices.shape) - 1, indices.shape[-1]

    def update(i: Index) -> Stmt:
        at = [position(Load(indices, (*i[:outer], as_index(k))), data.shape[k]) for k in range(depth)]
        return _update(out, (*at, *i[outer:]), Load(updates, i), attrs["reduction"])

    return seq([_copy(data, out), _nest(updates.shape, update)])


_opaque("scatter_nd", _infer_scatter_nd, _scatter_nd, reduction="none")


def _register_cumulative(name: str, fold: str, identity: int) -> Operator:
    """Running ``fold`` along ``axis``: ``exclusive`` leaves the element itself out, ``reverse`` starts at the end."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
        check_count(name, types, 1)
        check_kinds(name, types[0], "fiu")
        check_axes(name, [attrs["axis"]], types[0].rank)
        return [types[0]]

    def routine(ins: Sequence[Buffer], outs: Sequence[Buffer], attrs: Attrs) -> Stmt:
        (x,), (out,) = ins, outs
        axis, n = attrs["axis"], x.shape[attrs["axis"]]
        total = Buffer("total", (1,), accumulator(x.dtype), "local")
        here = (as_index(0),)

        def line(i: Index) -> Stmt:
            def step(ks: Index) -> Stmt:
                k = n - 1 - ks[0] if attrs["reverse"] else ks[0]
                at = (*i[:axis], k, *i[axis:])
                take = Store(total, here, binary(fold, Load(total, here), cast(Load(x, at), total.dtype)))
                give = Store(out, at, cast(Load(total, here), x.dtype))
                return seq([give, take] if attrs["exclusive"] else [take, give])

            return seq([Store(total, here, const(identity, total.dtype)), _nest([n], step, "k")])

        return Allocate(total, _nest([*x.shape[:axis], *x.shape[axis + 1 :]], line))

    return _opaque(name, infer, routine, axis=..., exclusive=False, reverse=False)


_register_cumulative("cumsum", "add", 0)
_register_cumulative("cumprod", "mul", 1)


def _infer_top_k(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("top_k", types, 1)
    (x,) = types
    k, axis = attrs["k"], attrs["axis"]
    check_kinds("top_k", x, "fiu")
    check_axes("top_k", [axis], x.rank)
    check(0 <= k <= x.shape[axis], "top_k", f"k={k} of an axis of extent {x.shape[axis]}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [TensorType(shape, x.dtype), TensorType(shape, i64)]


def _before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether ``a`` sorts strictly before ``b``; NaN is greater than every number, as in numpy."""
    if not a.dtype.is_float:
        return binary("gt" if largest else "lt", a, b)
    if largest:
        more = binary("or", binary("gt", a, b), call("isnan", a))
        return binary("and", more, call("not", call("isnan", b)))
    less = binary("or", binary("lt", a, b), call("isnan", b))
    return binary("and", less, call("not", call("isnan", a)))


def _top_k(ins: Sequence[Buffer], outs: Sequence[Buffer], attrs: Attrs) -> Stmt:
    """The ``k`` greatest (or least) elements along ``axis``, in order, and where they were; the first of equals first.

    An insertion sort into the ``k`` slots of the result: most elements lose against the last slot and cost one
    comparison. A slot whose position is still -1 is free.
    """
    (x,), (values, positions) = ins, outs
    axis, k, n = attrs["axis"], attrs["k"], x.shape[attrs["axis"]]
    if k == 0:
        return NOTHING

    def line(i: Index) -> Stmt:
        def slot(s: Linear) -> Index:
            return (*i[:axis], s, *i[axis:])

        def put(s: Linear, value: Expr, position: Expr) -> list[Stmt]:
            return [Store(values, slot(s), value), Store(positions, slot(s), position)]

        def element(js: Index) -> Stmt:
            new, where = Load(x, slot(js[0])), IndexValue(js[0], i64)

            def wins(s: Linear) -> Expr:
                unused = binary("lt", Load(positions, slot(s)), 0)
                return binary("or", unused, _before(new, Load(values, slot(s)), attrs["largest"]))

            def shift(ts: Index) -> Stmt:
                # slot s + 1 holds the new element by now: hand it on to slot s
                s = k - 2 - ts[0]
                moved = put(s + 1, Load(values, slot(s)), Load(positions, slot(s)))
                return If(wins(s), seq([*moved, *put(s, new, where)]))

            last = as_index(k - 1)
            return If(wins(last), seq([*put(last, new, where), _nest([k - 1], shift, "t")]))

        def free(ss: Index) -> Stmt:
            return seq(put(ss[0], const(0, x.dtype), const(-1, i64)))

        return seq([_nest([k], free, "s"), _nest([n], element, "j")])

    return _nest([*x.shape[:axis], *x.shape[axis + 1 :]], line)


# the result is in order whether `sorted` is asked for or not
_opaque("top_k", _infer_top_k, _top_k, k=..., axis=..., largest=True, sorted=True)
