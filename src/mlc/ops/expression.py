"""Operators that are a compute, in no table: how one is made of a compute, and how it is written in documents.

A document holds the expression as a flat list of terms, each naming those before it by number::

    {"kind": "reduction", "axes": [["i", 4]], "over": [["k", 8]], "fold": "sum", "tag": "",
     "terms": [["load", 0, [<index>, <index>]], ["number", 2.0, "f32"], ["mul", 0, 1]], "results": [2]}

A fold of the user's own is ``{"name": "either", "identity": [0.0], "terms": […], "results": [5]}``, whose terms load
scalars, ``["load", 0, []]``: what was folded before, as many as there are results, and then the new terms.

An index is ``[constant, [times, atom], …]``, where an atom is the number of an axis, or ``["//", index, n]`` or
``["%", index, n]``. What is read may be anything: types are checked as they are built, and nothing that is read can
reach beyond a tensor, whatever its conditions say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mlc.errors import DocumentError, UnsupportedError
from mlc.fields import Fields, as_list, as_text, as_whole, wrong
from mlc.ir import te
from mlc.ir.expr import (
    BINARY,
    INTRINSICS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    IndexValue,
    Load,
    Select,
    Within,
    all_of,
    binary,
    call,
    cast,
    children,
    conjuncts,
    const,
    loads,
    replace_loads,
    select,
    walk,
    within,
)
from mlc.ir.graph import RULE_ERRORS, Attrs, FusionKind, Operator, Value
from mlc.ir.index import ZERO, Linear, Quotient, Remainder, Var, as_index
from mlc.ir.types import DTYPES_BY_NAME, DType, TensorType

MAX_TERMS = 1 << 14
MAX_AXES = 32
MAX_NESTED = 16  # of quotients and remainders in each other
MAX_NUMBER = 1 << 40
_KINDS = {
    True: (FusionKind.REDUCTION, FusionKind.COMPLEX),
    False: (FusionKind.INJECTIVE,),
}


def own_operator(op: te.Compute, kind: FusionKind) -> Operator:
    """The operator that applies a compute to other tensors than those that it was written for.

    Args:
        op: the compute; the operator takes its inputs in their order.
        kind: how it fuses.
    """
    types = [TensorType(t.shape, t.dtype) for t in op.outputs]
    written = op.inputs

    def express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
        stands = {id(old): new for old, new in zip(written, inputs, strict=True)}
        renamed: Callable[[Load], Expr] = lambda ld: Load(stands[id(ld.source)], ld.indices)  # noqa: E731
        bodies = tuple(replace_loads(body, renamed) for body in op.bodies)
        return te.finish(te.Compute(op.name, op.axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs))

    return Operator(op.name, kind, lambda given, attrs: types, express, elementwise=_is_elementwise(op))


def _is_elementwise(op: te.Compute) -> bool:
    """Whether elements depend on those of the operands at their own position, where operands may have fewer axes."""
    if op.combiner is not None or len(op.outputs) != 1:
        return False
    at = [as_index(a) for a in op.axes]
    for body in op.bodies:
        for load in loads(body):
            begin = len(at) - len(load.indices)
            if begin < 0:
                return False
            own = zip(load.indices, at[begin:], load.source.shape, op.shape[begin:], strict=True)
            if not all((ix == a and n == extent) or (n == 1 and ix.is_const) for ix, a, n, extent in own):
                return False
    return True


# -- what lies beyond a tensor ----------------------------------------------------------------------------------------
def kept_inside(body: Expr) -> Expr:
    """The expression, with zeros in place of what it may read beyond a tensor.

    Where conditions say themselves that an index is one of the tensor, nothing is added.

    Raises:
        DocumentError: there are too many conditions to look through.
    """
    open_: dict[int, Load] = {}
    seen: set[tuple[int, frozenset[int]]] = set()
    known: dict[int, Within] = {}
    stack: list[tuple[Expr, frozenset[int]]] = [(body, frozenset())]
    while stack:
        node, given = stack.pop()
        if (id(node), given) in seen:
            continue
        seen.add((id(node), given))
        if len(seen) > MAX_TERMS * 4:
            raise DocumentError("an expression with too many conditions in each other")
        if isinstance(node, Load):
            holds = [known[k] for k in given]
            if not all(_holds(guard, holds) for guard in _guards(node)):
                open_[id(node)] = node
        elif isinstance(node, Select):
            tests = [c for c in conjuncts(node.cond) if isinstance(c, Within)]
            known.update({id(c): c for c in tests})
            stack += [(node.cond, given), (node.b, given), (node.a, given | {id(c) for c in tests})]
        else:
            stack += [(child, given) for child in children(node)]
    if not open_:
        return body

    def closed(ld: Load) -> Expr:
        guards = all_of(_guards(ld))
        return select(guards, ld, const(0, ld.dtype)) if id(ld) in open_ else ld

    return replace_loads(body, closed)


def _guards(ld: Load) -> list[Expr]:
    return [within(ix, 0, n) for ix, n in zip(ld.indices, ld.source.shape, strict=True)]


def _holds(guard: Expr, given: Sequence[Within]) -> bool:
    if isinstance(guard, Const):
        return bool(guard.value)
    assert isinstance(guard, Within)
    return any(g.index == guard.index and g.lo >= guard.lo and g.hi <= guard.hi for g in given)


# -- writing ----------------------------------------------------------------------------------------------------------
def expression_to_json(op: Operator, inputs: Sequence[Value], attrs: Attrs) -> dict[str, Any]:
    """An operator in no table, by its one compute.

    Raises:
        UnsupportedError: it is several, or has what no document can hold.
    """
    if op.express is None:
        raise UnsupportedError(f"operator {op.name} is a routine of one's own, which a document cannot hold")
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in inputs]
    stages = te.topological(op.express(operands, attrs))
    if len(stages) != 1:
        raise UnsupportedError(f"operator {op.name} is more than one compute, which a document cannot hold")
    (stage,) = stages
    axes = {a: k for k, a in enumerate((*stage.axes, *stage.reduce_axes))}
    terms, results = _terms(stage.bodies, operands, axes)
    return {
        "kind": str(op.kind),
        "axes": [[a.name, a.hi + 1] for a in stage.axes],
        "over": [[a.name, a.hi + 1] for a in stage.reduce_axes],
        "fold": _fold(stage),
        "tag": stage.tag,
        "terms": terms,
        "results": results,
    }


def _fold(stage: te.Compute) -> Any:
    if stage.combiner is None or stage.combiner in te.COMBINERS.values():
        return stage.combiner.name if stage.combiner is not None else ""
    fold = te.fold_of(stage.combiner, [b.dtype for b in stage.bodies])
    terms, results = _terms(fold.results, [*fold.before, *fold.terms], {})
    identity = [_number_to_json(c.value) for c in fold.identity]
    return {"name": fold.name, "identity": identity, "terms": terms, "results": results}


def _terms(
    bodies: Sequence[Expr], tensors: Sequence[te.Tensor], axes: dict[Var, int]
) -> tuple[list[list[Any]], list[int]]:
    """Expressions as one list of terms, and where each of them is in it."""
    numbers = {id(t): k for k, t in enumerate(tensors)}
    terms: list[list[Any]] = []
    places: dict[int, int] = {}
    for body in bodies:
        for e in walk(body):
            if id(e) not in places:
                places[id(e)] = len(terms)
                terms.append(_term(e, places, numbers, axes))
    return terms, [places[id(b)] for b in bodies]


def _number_to_json(value: float | int) -> Any:
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else {"float": repr(value)}


def _term(e: Expr, places: dict[int, int], tensors: dict[int, int], axes: dict[Var, int]) -> list[Any]:
    below = [places[id(c)] for c in children(e)]
    match e:
        case Const(value, dtype):
            return ["number", _number_to_json(value), dtype.name]
        case IndexValue(index, dtype):
            return ["index", _index(index, axes), dtype.name]
        case Within(index, lo, hi):
            return ["inside", _index(index, axes), lo, hi]
        case Load(source, indices):
            return ["load", tensors[id(source)], [_index(ix, axes) for ix in indices]]
        case Binary():
            return [e.op, *below]
        case Call():
            return [e.fn, *below]
        case Cast():
            return ["cast", *below, e.dtype.name]
        case Select():
            return ["select", *below]
    raise UnsupportedError(f"{type(e).__name__} in an operator of one's own, which a document cannot hold")


def _index(form: Linear, axes: dict[Var, int]) -> list[Any]:
    found: list[Any] = [form.const]
    for atom, times in form.terms.items():
        if isinstance(atom, Var):
            found.append([times, axes[atom]])
        elif isinstance(atom, (Quotient, Remainder)):
            sign = "//" if isinstance(atom, Quotient) else "%"
            found.append([times, [sign, _index(atom.form, axes), atom.divisor]])
        else:
            raise UnsupportedError("an index that depends on data, in an operator of one's own, cannot be written")
    return found


# -- reading ----------------------------------------------------------------------------------------------------------
def read_expression(value: Any, name: str, inputs: Sequence[Value], where: str) -> Operator:
    """The inverse of :func:`expression_to_json`.

    Args:
        name: of the operator.
        inputs: operands that the document gives it.
    Raises:
        DocumentError: naming the field that is wrong.
    """
    get = Fields(value, where)
    kind = get.take("kind", as_text)
    axes = get.take("axes", _axes)
    over = get.take("over", _axes)
    fold = get.take("fold", lambda value, _: value)
    tag = get.take("tag", as_text)
    tensors = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in inputs]
    found = _read_terms(get, tensors, (*axes, *over), where)
    get.end()
    if (fold == "") == bool(over) or (isinstance(fold, str) and fold and fold not in te.COMBINERS):
        raise wrong(f"{where}.fold", "how the axes to fold over are folded", fold)
    if kind not in _KINDS[bool(over)]:
        raise wrong(f"{where}.kind", f"one of {', '.join(_KINDS[bool(over)])}", kind)
    bodies = tuple(map(kept_inside, found))
    types = [b.dtype for b in bodies]
    combiner = te.COMBINERS.get(fold) if isinstance(fold, str) else _read_fold(fold, types, f"{where}.fold")
    try:
        op = te.Compute(name, axes, over, bodies, combiner, tag)
        te.verify(te.finish(op))
        if combiner is not None:
            combiner.combine(combiner.identity(types), bodies)
    except RULE_ERRORS as error:
        raise DocumentError(f"{where}: {error}") from error
    if [id(t) for t in op.inputs] != [id(t) for t in tensors] or not bodies:
        raise DocumentError(f"{where}: does not read its operands in their order")
    return own_operator(op, FusionKind(kind))


def _read_terms(get: Fields, tensors: Sequence[te.Tensor], axes: Sequence[Var], where: str) -> list[Expr]:
    """The inverse of :func:`_terms`, from the fields ``terms`` and ``results``."""
    terms = get.take("terms", lambda items, at: as_list(items, at, lambda item, _: item, MAX_TERMS))
    count = as_whole(0, max(0, len(terms) - 1))
    results = get.take("results", lambda items, at: as_list(items, at, count, MAX_AXES))
    read: list[Expr] = []
    for k, term in enumerate(terms):
        at = f"{where}.terms[{k}]"
        try:
            read.append(_read_term(term, read, tensors, axes, at))
        except RULE_ERRORS as error:
            raise error if isinstance(error, DocumentError) else DocumentError(f"{at}: {error}") from error
    if results and not read:
        raise wrong(f"{where}.results", "numbers of terms", results)
    return [read[k] for k in results]


def _read_fold(value: Any, types: Sequence[DType], where: str) -> te.Combiner:
    """The inverse of :func:`_fold`, for a fold that is not one of ours.

    Args:
        types: of what is folded.
    """
    get = Fields(value, where)
    name = get.take("name", as_text)
    identity = get.take("identity", lambda items, at: as_list(items, at, _number, MAX_AXES))
    before, terms = (
        tuple(te.placeholder((), t, f"{what}{k}") for k, t in enumerate(types)) for what in ("before", "term")
    )
    results = _read_terms(get, [*before, *terms], (), where)
    get.end()
    if len(identity) != len(types) or name in te.COMBINERS:
        raise wrong(where, f"a fold of {len(types)} values with a name of its own", name)
    try:
        begins = tuple(const(number, t) for number, t in zip(identity, types, strict=True))
        return te.combiner_of(te.Fold(name, begins, before, terms, tuple(results)))
    except RULE_ERRORS as error:
        raise DocumentError(f"{where}: {error}") from error


def _axes(items: Any, where: str) -> tuple[Var, ...]:
    def read(item: Any, at: str) -> Var:
        pair = as_list(item, at, lambda x, _: x, 2)
        if len(pair) != 2:
            raise wrong(at, "a name and an extent", item)
        return te.axis(as_whole(1, MAX_NUMBER)(pair[1], at), as_text(pair[0], at))

    return as_list(items, where, read, MAX_AXES)


def _read_term(
    term: Any, before: Sequence[Expr], tensors: Sequence[te.Tensor], axes: Sequence[Var], where: str
) -> Expr:
    head, *rest = as_list(term, where, lambda item, _: item, MAX_AXES) or (None,)
    name = as_text(head, where)
    if name == "number" and len(rest) == 2:
        return const(_number(rest[0], where), _dtype(rest[1], where))
    if name == "index" and len(rest) == 2:
        index, dtype = _read_index(rest[0], axes, where), _dtype(rest[1], where)
        if not dtype.is_int:
            raise wrong(where, "an index in a type of integers", rest[1])
        return IndexValue(index, dtype)
    if name == "inside" and len(rest) == 3:
        whole = as_whole(-MAX_NUMBER, MAX_NUMBER)
        return within(_read_index(rest[0], axes, where), whole(rest[1], where), whole(rest[2], where))
    if name == "load" and len(rest) == 2:
        t = tensors[as_whole(0, len(tensors) - 1)(rest[0], where)]
        return t[as_list(rest[1], where, lambda item, at: _read_index(item, axes, at), MAX_AXES)]
    if name == "cast" and len(rest) == 2:
        return cast(_before(rest[0], before, where), _dtype(rest[1], where))
    operands = [_before(k, before, where) for k in rest]
    if name == "select" and len(operands) == 3:
        return select(*operands)
    if name in BINARY and len(operands) == 2:
        return binary(name, *operands)
    if name in INTRINSICS and len(operands) == INTRINSICS[name][0]:
        return call(name, *operands)
    raise wrong(where, "a term with its operands", term)


def _before(value: Any, before: Sequence[Expr], where: str) -> Expr:
    if type(value) is not int or not 0 <= value < len(before):
        raise wrong(where, f"the number of one of the {len(before)} terms before it", value)
    return before[value]


def _number(value: Any, where: str) -> float | int:
    if isinstance(value, dict) and value.get("float") in ("inf", "-inf", "nan"):
        return float(value["float"])
    if type(value) not in (int, float) or (isinstance(value, float) and not math.isfinite(value)):
        raise wrong(where, "a number", value)
    found: float | int = value
    return found


def _dtype(value: Any, where: str) -> DType:
    if not isinstance(value, str) or value not in DTYPES_BY_NAME:
        raise wrong(where, "an element type", value)
    return DTYPES_BY_NAME[value]


def _read_index(value: Any, axes: Sequence[Var], where: str, depth: int = 0) -> Linear:
    first, *rest = as_list(value, where, lambda item, _: item, MAX_AXES) or (None,)
    whole = as_whole(-MAX_NUMBER, MAX_NUMBER)
    found = ZERO + whole(first, where)
    for item in rest:
        pair = as_list(item, where, lambda x, _: x, 2)
        if len(pair) != 2 or depth > MAX_NESTED:
            raise wrong(where, "a factor and an axis, quotient or remainder", item)
        times, atom = whole(pair[0], where), pair[1]
        if isinstance(atom, list):
            if len(atom) != 3 or atom[0] not in ("//", "%"):
                raise wrong(where, "a quotient or a remainder", atom)
            inner, by = _read_index(atom[1], axes, where, depth + 1), as_whole(1, MAX_NUMBER)(atom[2], where)
            found += (inner // by if atom[0] == "//" else inner % by) * times
        else:
            found += as_index(axes[as_whole(0, len(axes) - 1)(atom, where)]) * times
    return found
