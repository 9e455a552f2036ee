"""Sums of products of any axes become products of matrices and convolutions, with their axes turned and joined.

An operator of the user's own, or a derived gradient, may multiply tensors of many axes: capsules are matrices in every
pixel. What each axis does says which product it is (NeoFlow §4.3, "pattern matching for a vector or matrix"): axes of
both operands and the result are batches, of one operand and the result rows or columns, of both operands alone what is
summed; where an index of one operand is ``p * stride + tap * dilation``, a window slides. Operands are swapped where
the result then needs no transpose ("tensor swapping").

Stage in: a graph of single operators. Stage out: the same.

Example: ``out[b, o, p, q, i, j] = sum(x[b, c, p*2 + r, q*2 + s, i, k] * w[o, c, r, s, k, j])`` becomes a convolution of
``[b·i, c·k, h, w]`` with ``[o·j, c·k, r, s]``, and ``out[i, j] = sum(a[t, n, i] * b[t, n, j])`` the product of
``[t·n, i]``, transposed, with ``[t·n, j]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from mlc.ir import te
from mlc.ir.expr import Binary, Load
from mlc.ir.graph import Graph, Node, Value, express
from mlc.ir.index import Linear, Var
from mlc.ops import get
from mlc.ops.registry import is_core
from mlc.rewrite.rewriter import Rewriter, replay

MOST_SPATIAL = 3


def state_contractions(graph: Graph) -> Graph:
    """States sums of products that are in no table as the operators that schedules know best."""

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        found = _contraction_in(node)
        return None if found is None else [_stated(rw, node, found)]

    return replay(graph, visit)


@dataclass(frozen=True)
class _Window:
    """How a window slides along one axis: ``out * stride + tap * dilation``."""

    out: Var
    tap: Var | None
    stride: int
    dilation: int


@dataclass(frozen=True)
class _Contraction:
    """A sum of products by what its axes do.

    Args:
        op: the compute.
        data, weights: places of the operands; what slides is ``data``.
        dims: of either operand, the variable of each axis; of one that a window slides along, the result's axis.
        batch, rows, columns, summed: axes by what they do, in the result's order or else in ``data``'s.
        windows: along which axes a window slides.
    """

    op: te.Compute
    data: int
    weights: int
    dims: tuple[tuple[Var | None, ...], tuple[Var | None, ...]]
    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    summed: tuple[Var, ...]
    windows: tuple[_Window, ...] = field(default=())


def _contraction_in(node: Node) -> _Contraction | None:
    """What a node multiplies and sums, if it is no operator of the table and not plain already."""
    if is_core(node.op) or node.op.express is None or (len(node.inputs), len(node.outputs)) != (2, 1):
        return None
    if not all(v.type.dtype.is_float and v.type.layout is None for v in node.inputs):
        return None
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    (result,) = express(node, operands)
    op = result.op
    if op is None or op.combiner is not te.SUM or type(op.bodies[0]) is not Binary or op.bodies[0].op != "mul":
        return None
    pair = [ld for ld in (op.bodies[0].a, op.bodies[0].b) if type(ld) is Load]
    if len(pair) < 2 or {id(ld.source) for ld in pair} != {id(t) for t in operands}:
        return None
    for first, second in ((0, 1), (1, 0)):
        found = _seen(op, pair[first], pair[second], [operands.index(pair[k].source) for k in (first, second)])
        if found is not None:
            return None if _is_plain(found) else found
    return None


def _seen(op: te.Compute, data: Load, weights: Load, places: Sequence[int]) -> _Contraction | None:
    """The roles of axes where windows slide along ``data`` alone."""
    windows: dict[Var, _Window] = {}
    dims: list[Var | None] = []
    for ix, n in zip(data.indices, data.source.shape, strict=True):
        window = _window(ix, n, op)
        if window is None:
            return None
        var, slides = window
        dims.append(var)
        if slides is not None and var is not None:
            windows[var] = slides
    of_weights: list[Var | None] = []
    for ix, n in zip(weights.indices, weights.source.shape, strict=True):
        window = _window(ix, n, op)
        if window is None or window[1] is not None:
            return None
        of_weights.append(window[0])
    in_data, in_weights = [v for v in dims if v is not None], [v for v in of_weights if v is not None]
    taps = {w.tap for w in windows.values()}
    every = [*in_data, *in_weights]
    if len(set(in_data)) < len(in_data) or len(set(in_weights)) < len(in_weights) or len(windows) > MOST_SPATIAL:
        return None
    outs = [a for a in op.axes if a.hi > 0]
    over = [a for a in op.reduce_axes if a.hi > 0]
    if any(a not in every for a in outs) or any(a in in_weights for a in windows):
        return None
    summed = [v for v in in_data if v in over]
    if any(a not in in_weights or (a not in summed and a not in taps) for a in over) or taps & set(summed):
        return None
    if any(v not in over and v not in outs for v in every):
        return None
    return _Contraction(
        op,
        places[0],
        places[1],
        (tuple(dims), tuple(of_weights)),
        tuple(a for a in outs if a in in_data and a in in_weights),
        tuple(a for a in outs if a in in_data and a not in in_weights and a not in windows),
        tuple(a for a in outs if a not in in_data),
        tuple(summed),
        tuple(windows[a] for a in outs if a in windows),
    )


def _window(ix: Linear, extent: int, op: te.Compute) -> tuple[Var | None, _Window | None] | None:
    """The variable of an axis, with the window that slides along it; ``None`` for any other index."""
    terms = ix.terms
    if ix.const != 0 or not all(type(a) is Var for a in terms):
        return None
    if not terms:
        return (None, None) if extent == 1 else None
    variables = [a for a in terms if type(a) is Var]
    if len(terms) == 1 and terms[variables[0]] == 1:
        (var,) = variables
        return (var, None) if var.hi + 1 == extent else None
    outs = [v for v in variables if v in op.axes]
    taps = [v for v in variables if v in op.reduce_axes]
    if len(outs) != 1 or len(taps) > 1 or any(c < 1 for c in terms.values()):
        return None
    (out,), tap = outs, taps[0] if taps else None
    stride, dilation = terms[out], terms[tap] if tap is not None else 1
    reach = dilation * (tap.hi if tap is not None else 0)
    if (extent - reach - 1) // stride != out.hi:
        return None  # a convolution would have other positions
    if tap is not None and tap.hi > out.hi:
        return None  # a gradient by weights: taps of the size of images, which no schedule of convolutions is for
    return out, _Window(out, tap, stride, dilation)


def _is_plain(c: _Contraction) -> bool:
    """Whether nothing is to be joined, or there are no two sides to multiply."""
    if not c.rows or not c.columns or not (c.summed or c.windows):
        return True
    return not c.windows and max(map(len, (c.batch, c.rows, c.columns, c.summed))) == 1


# -- stating -----------------------------------------------------------------------------------------------------------
def _extent(axes: Sequence[Var]) -> int:
    return prod(a.hi + 1 for a in axes)


def _stated(rw: Rewriter, node: Node, c: _Contraction) -> Value:
    before = rw.claim_sources([node])
    x, w = (rw.lookup(node.inputs[k]) for k in (c.data, c.weights))
    result = _convolution(rw, c, x, w) if c.windows else _product(rw, c, x, w)
    rw.sources = before
    return result


def _turned(rw: Rewriter, v: Value, dims: Sequence[Var | None], groups: Sequence[Sequence[Var]]) -> Value:
    """A tensor whose axes, each standing for a variable, are those of ``groups``, one after the other, each joined."""
    order = [dims.index(a) for group in groups for a in group]
    perm = (*order, *(d for d, a in enumerate(dims) if a is None))
    if perm != tuple(range(len(perm))):
        v = rw.emit(get("transpose"), (v,), {"perm": perm})
    shape = tuple(prod(n for n in (_size(v, dims, perm, a) for a in group)) for group in groups)
    return v if v.type.shape == shape else rw.emit(get("reshape"), (v,), {"shape": shape})


def _size(v: Value, dims: Sequence[Var | None], perm: Sequence[int], a: Var) -> int:
    return v.type.shape[perm.index(dims.index(a))]


def _back(rw: Rewriter, v: Value, axes: Sequence[Var], op: te.Compute) -> Value:
    """A result with joined axes as the compute has them."""
    shape = tuple(a.hi + 1 for a in axes)
    if v.type.shape != shape:
        v = rw.emit(get("reshape"), (v,), {"shape": shape})
    wanted = [a for a in op.axes if a.hi > 0]
    perm = tuple(list(axes).index(a) for a in wanted)
    if perm != tuple(range(len(perm))):
        v = rw.emit(get("transpose"), (v,), {"perm": perm})
    return v if v.type.shape == op.shape else rw.emit(get("reshape"), (v,), {"shape": op.shape})


def _product(rw: Rewriter, c: _Contraction, x: Value, w: Value) -> Value:
    outs = [a for a in c.op.axes if a.hi > 0]
    sides = [(x, c.dims[0], c.rows), (w, c.dims[1], c.columns)]
    if [*c.batch, *c.rows, *c.columns] != outs and [*c.batch, *c.columns, *c.rows] == outs:
        sides.reverse()
    (a, of_a, rows), (b, of_b, columns) = sides
    left, transposed_a = _side(rw, a, of_a, c.batch, rows, c.summed)
    right, straight = _side(rw, b, of_b, c.batch, columns, c.summed)
    attrs = {"transpose_a": transposed_a, "transpose_b": not straight}
    y = rw.emit(get("matmul"), (left, right), attrs)
    return _back(rw, y, [*c.batch, *rows, *columns], c.op)


def _side(
    rw: Rewriter,
    v: Value,
    dims: Sequence[Var | None],
    batch: Sequence[Var],
    own: Sequence[Var],
    summed: Sequence[Var],
) -> tuple[Value, bool]:
    """An operand as ``[batch, own, summed]`` or, where it then needs no transpose, ``[batch, summed, own]``."""
    lead = [list(batch)] if batch else []
    turned = [a for a in dims if a is not None] == [*batch, *summed, *own]
    groups = [*lead, list(summed), list(own)] if turned else [*lead, list(own), list(summed)]
    return _turned(rw, v, dims, groups), turned


def _convolution(rw: Rewriter, c: _Contraction, x: Value, w: Value) -> Value:
    outs = [s.out for s in c.windows]
    taps = [[s.tap] if s.tap is not None else [] for s in c.windows]
    data = _turned(rw, x, c.dims[0], [c.rows, [*c.batch, *c.summed], *([a] for a in outs)])
    weights = _turned(rw, w, c.dims[1], [[*c.batch, *c.columns], c.summed, *taps])
    attrs = {
        "strides": tuple(s.stride for s in c.windows),
        "pads": (0,) * (2 * len(outs)),
        "dilations": tuple(s.dilation for s in c.windows),
        "groups": _extent(c.batch),
    }
    y = rw.emit(get("conv"), (data, weights), attrs)
    return _back(rw, y, [*c.rows, *c.batch, *c.columns, *outs], c.op)
