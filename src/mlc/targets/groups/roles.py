"""What a compute does, found from its axes and accesses: products, convolutions, windows, borders, exponentials.

Schedules ask for these and never for a name, so that a user's own operator, or a gradient derived from an expression,
meets the schedule that its like has. An axis of extent 1 occurs in no index; where nothing tells what it would do,
it counts as stepping by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Within, conjuncts, loads, same
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.types import i32
from mlc.ops.bits import PLANES, Weights, bit_product

SPATIAL = (1, 2, 3)  # how many axes a window may slide along


@dataclass(frozen=True)
class Contraction:
    """``out[…, i, j] = sum(left[…, i, k] * right[…, k, j] for k)``; leading axes may be missing, or read at 0.

    Args:
        left: has the rows ``i``, before or behind ``k``.
        right: has the columns ``j``.
        transposed: whether ``right`` is ``[…, j, k]``.
        bits: where products are those of words of bits (:mod:`mlc.ops.bits`), what the right operand's stand for.
    """

    left: te.Tensor
    right: te.Tensor
    transposed: bool
    bits: Weights | None = None


@dataclass(frozen=True)
class Window:
    """``out[n, c, at…] = fold(f(data[n, c, at * stride + tap * dilation, …]) for taps)``, or with a weight a channel.

    Args:
        data: what it slides over.
        weights: ``[o, 1, taps…]`` of a sum of products, where output channel ``o`` reads channel ``o // multiplier``;
            ``None`` where there is nothing but data (a pool), and what ``f`` may read at ``out``'s own place.
        taps: extents of the window.
        strides: of the window, along each spatial axis.
        dilations: distances of taps.
    """

    data: te.Tensor
    weights: te.Tensor | None
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """``out[n, o, at…] = sum(data[n, c, at * stride + tap * dilation, …] * weights[o, c, taps…] for c, taps)``.

    With groups, the output channels of each read its own input channels. Reduction axes are channels, then taps.

    Args:
        data: ``[n, c, …]``.
        weights: ``[o, c / groups, taps…]``.
        taps: extents of the window.
        strides: of the window, along each spatial axis.
        dilations: distances of taps.
        groups: of channels.
        bits: where products are those of words of bits (:mod:`mlc.ops.bits`), what the weights' stand for.
    """

    data: te.Tensor
    weights: te.Tensor
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    bits: Weights | None = None

    @property
    def single_pixels(self) -> bool:
        """Whether every window is one pixel."""
        return all(k == 1 for k in self.taps)


@dataclass(frozen=True)
class PhasedConvolution:
    """Phases of a transposed convolution: ``out[n, o, f…, q…] = sum(data[n, c, …] * weights[c, o, …] for c, taps)``.

    Output position ``q * stride + f`` meets the taps ``first(f) + t * step`` of the kernel.

    Args:
        data: ``[n, c, …]``.
        weights: ``[c, o / groups, taps…]``.
        strides: phases along each spatial axis.
        steps: distances in the kernel between the taps of one phase.
        groups: of channels.
    """

    data: te.Tensor
    weights: te.Tensor
    strides: tuple[int, ...]
    steps: tuple[int, ...]
    groups: int


Role = Contraction | Convolution | PhasedConvolution | Window


def role_of(op: te.Compute) -> Role | None:
    """What a reduction does; ``None`` for everything else.

    >>> from mlc.ir.types import f32
    >>> a, b = te.placeholder((4, 8), f32, "a"), te.placeholder((6, 8), f32, "b")
    >>> k = te.reduce_axis(8, "k")
    >>> y = te.compute((4, 6), lambda i, j: te.sum_of(a[i, k] * b[j, k], k), "y")
    >>> role_of(y.op)
    Contraction(left=a: f32[4,8], right=b: f32[6,8], transposed=True, bits=None)
    """
    found = _found(op)
    return None if found is None else found[0]


def canonical(op: te.Compute) -> te.Compute:
    """A compute with its operands and reduction axes in the order that its role names them.

    Returns:
        the same object where they are in that order, or where it has no role.
    """
    found = _found(op)
    if found is None:
        return op
    _, operands, axes = found
    bodies = op.bodies
    if operands and factors_of(op) != operands:
        (body,) = bodies
        bodies = (_exchanged(body),)
    if bodies is op.bodies and axes == op.reduce_axes:
        return op
    return te.Compute(op.name, op.axes, axes, bodies, op.combiner, op.tag, op.attrs)


def factors_of(op: te.Compute) -> tuple[Load, Load] | None:
    """The operands of a sum of products of two tensors, which may be widened, and chosen against zero."""
    if op.combiner is not te.SUM or len(op.bodies) != 1:
        return None
    body = op.bodies[0]
    if type(body) is Select and type(body.b) is Const and body.b.value == 0:
        body = body.a
    words = _words(body)
    if words is not None:
        return words[0]
    if type(body) is not Binary or body.op != "mul":
        return None
    a, b = _widened(body.a), _widened(body.b)
    return (a, b) if type(a) is Load and type(b) is Load else None


def is_heavy(op: te.Compute) -> bool:
    """Whether a compute is a sum of products that reads its operands more than once each, or one with a role."""
    pair = factors_of(op)
    if (pair is not None and role_of(op) is not None) or _nibbles(op) is not None:
        return True
    if pair is None:
        return False
    a, b = ({v for ix in ld.indices for v in ix.vars()} for ld in pair)
    data = {v for v in op.axes if v.hi > 0}
    if (a - b) & data and (b - a) & data:
        return True
    # as many results meet an element as windows that slide over it: the weights of a depthwise convolution
    sliding = {v for ld in pair for ix in ld.indices if set(ix.vars()) & set(op.reduce_axes) for v in ix.vars()}
    return bool(sliding & data & (a ^ b))


def is_border(op: te.Compute) -> bool:
    """Whether a compute surrounds a tensor by a number: ``select(inside, x[i - before, …], number)``."""
    if op.combiner is not None or len(op.bodies) != 1 or type(op.bodies[0]) is not Select:
        return False
    body = op.bodies[0]
    ld = _widened(body.a)
    if type(ld) is not Load or type(body.b) is not Const:
        return False
    inside = {(ix, 0, n) for ix, n in zip(ld.indices, ld.source.shape, strict=True)}
    return all(type(g) is Within and (g.index, g.lo, g.hi) in inside for g in conjuncts(body.cond))


def is_exponential(op: te.Compute) -> bool:
    """Whether elements are exponentials."""
    return op.combiner is None and any(type(b) is Call and b.fn == "exp" for b in op.bodies)


def keeps_rows(op: te.Compute) -> bool:
    """Whether a compute takes whole rows from a tensor, those of its own position in each plane."""
    if op.combiner is not None or len(op.bodies) != 1 or type(op.bodies[0]) is not Load:
        return False
    ld = op.bodies[0]
    space = op.axes[2:]
    return len(ld.indices) == len(op.axes) and list(ld.indices[2:]) == [as_index(a) for a in space]


# -- recognition ----------------------------------------------------------------------------------------------------
_Found = tuple[Role, tuple[Load, Load] | None, tuple[Var, ...]]  # and what is canonical: operands, reduction axes


def _found(op: te.Compute) -> _Found | None:
    if op.combiner is None or len(op.axes) < 2:
        return None
    nibbles = _nibbles(op)
    if nibbles is not None:
        return nibbles, None, op.reduce_axes
    pair = factors_of(op)
    words = None if pair is None else _words(op.bodies[0])
    if words is not None:
        return _of_bits(op, *words)
    for a, b in (pair, pair[::-1]) if pair is not None else ():
        found = _contraction(op, a, b) or _convolution(op, a, b) or _phased(op, a, b)
        if found is not None:
            return found
    return _pool(op)


def _contraction(op: te.Compute, left: Load, right: Load) -> _Found | None:
    if len(op.reduce_axes) != 1 or type(op.bodies[0]) is Select or min(len(left.indices), len(right.indices)) < 2:
        return None
    if left is right:  # the square of an only number, as where one of one channel is normalised
        return None
    *batch, i, j = (as_index(a) for a in op.axes)
    (axis,) = op.reduce_axes
    k, (m, n), depth = as_index(axis), op.shape[-2:], axis.hi + 1
    for ld in (left, right):
        if not all(ix in batch or ix == as_index(0) for ix in ld.indices[:-2]):
            return None
    if not (_ends(left, (i, k), (m, depth)) or _ends(left, (k, i), (depth, m))):
        return None
    upright = _ends(right, (k, j), (depth, n))
    if not upright and not _ends(right, (j, k), (n, depth)):
        return None
    return Contraction(left.source, right.source, not upright), (left, right), op.reduce_axes


def _words(body: Expr) -> tuple[tuple[Load, Load], Weights] | None:
    """The operands of a product of words of bits, data and weights, and what the latter's planes stand for."""
    if type(body) not in (Binary, Cast, Call) or body.dtype is not i32:
        return None
    read = list(dict.fromkeys(loads(body)))
    if len(read) != 2 or any(ld.dtype not in PLANES for ld in read):
        return None
    x, w = read
    kind = next((kind for kind in Weights if same(body, bit_product(x, w, kind))), None)
    return None if kind is None else ((x, w), kind)


def _of_bits(op: te.Compute, pair: tuple[Load, Load], bits: Weights) -> _Found | None:
    """A role whose products are those of words; which operand holds data is known."""
    found = _contraction(op, *pair) or _convolution(op, *pair)
    if found is None or isinstance(found[0], Window):
        return None
    role, operands, axes = found
    assert isinstance(role, (Contraction, Convolution))
    return replace(role, bits=bits), operands, axes


def _nibbles(op: te.Compute) -> Contraction | None:
    """A product by numbers two to a byte: ``sum(x[…, i, 2q] * f(w[q, j]) + x[…, i, 2q + 1] * g(w[q, j]) for q)``."""
    if op.combiner is not te.SUM or len(op.bodies) != 1 or len(op.reduce_axes) != 1 or len(op.axes) < 2:
        return None
    body = op.bodies[0]
    if type(body) is not Binary or body.op != "add":
        return None
    terms = [t for t in (body.a, body.b) if type(t) is Binary and t.op == "mul" and type(t.a) is Load]
    read = [[ld for ld in loads(t)] for t in terms]
    if [len(r) for r in read] != [2, 2]:
        return None
    (even, right), (odd, same) = read
    *batch, i, j = (as_index(a) for a in op.axes)
    q, (m, n), depth = as_index(op.reduce_axes[0]), op.shape[-2:], op.reduce_axes[0].hi + 1
    if right.source is not same.source or right.indices != same.indices or not _ends(right, (q, j), (depth, n)):
        return None
    if even.source is not odd.source or even.source.shape[-2:] != (m, 2 * depth) or len(right.indices) != 2:
        return None
    if even.indices != (*batch, i, q * 2) or odd.indices != (*batch, i, q * 2 + 1):
        return None
    return Contraction(even.source, right.source, False)


def _ends(ld: Load, last: tuple[Linear, Linear], shape: tuple[int, int]) -> bool:
    return ld.indices[-2:] == last and ld.source.shape[-2:] == shape


def _convolution(op: te.Compute, data: Load, weights: Load) -> _Found | None:
    n, o, *space = op.axes
    rank = len(space)
    if rank not in SPATIAL or type(op.bodies[0]) is Select:
        return None
    if not len(data.indices) == len(weights.indices) == rank + 2 or len(op.reduce_axes) not in (rank, rank + 1):
        return None
    order = _axes_in_order(op, weights.indices[1:])
    if order is None:
        return None
    c, *taps = order
    per_group, channels = weights.source.shape[1], data.source.shape[1]
    extents = (o.hi + 1, c.hi + 1, *(t.hi + 1 for t in taps))
    if weights.source.shape != extents or data.source.shape[0] != n.hi + 1 or channels % max(per_group, 1):
        return None
    groups = channels // max(per_group, 1)
    if not groups or (o.hi + 1) % groups:
        return None
    own = as_index(c) if groups == 1 else as_index(o) // ((o.hi + 1) // groups) * per_group + as_index(c)
    if (weights.indices[0], *data.indices[:2]) != (as_index(o), as_index(n), own):
        return None
    steps = [_step(ix, a, t) for ix, a, t in zip(data.indices[2:], space, taps, strict=True)]
    if None in steps:
        return None
    strides, dilations = zip(*(s for s in steps if s is not None), strict=True)
    if groups > 1 and per_group == 1:
        window = Window(data.source, weights.source, extents[2:], strides, dilations)
        return window, (data, weights), tuple(taps)
    role = Convolution(data.source, weights.source, extents[2:], strides, dilations, groups)
    return role, (data, weights), (c, *taps)


def _axes_in_order(op: te.Compute, indices: Sequence[Linear]) -> list[Var] | None:
    """The reduction axis behind each index of weights, channels first; those of extent 1 fill the gaps in order."""
    named = {as_index(a): a for a in op.reduce_axes if a.hi > 0}
    found = [named.pop(ix, None) if ix.terms else None for ix in indices]
    if named or any(ix.terms and a is None for ix, a in zip(indices, found, strict=True)):
        return None
    if any(not ix.terms and ix.const for ix in indices):
        return None
    single: Iterator[Var] = iter([a for a in op.reduce_axes if a.hi <= 0])
    if len(op.reduce_axes) < len(indices) and found[0] is None:
        found[0] = te.reduce_axis(1, "c")
    order = [a if a is not None else next(single, None) for a in found]
    return [a for a in order if a is not None] if None not in order and next(single, None) is None else None


def _step(ix: Linear, at: Var, tap: Var) -> tuple[int, int] | None:
    """Stride and dilation of ``at * stride + tap * dilation``; ``None`` for any other index."""
    stride, dilation = (ix.terms.get(a, 0) if a.hi > 0 else 1 for a in (at, tap))
    fits = stride > 0 and dilation > 0 and ix == as_index(at) * stride + as_index(tap) * dilation
    return (stride, dilation) if fits else None


def _phased(op: te.Compute, data: Load, weights: Load) -> _Found | None:
    rank = (len(op.axes) - 2) // 2
    if rank not in SPATIAL or len(op.axes) != 2 + 2 * rank or len(op.reduce_axes) != rank + 1:
        return None
    if not len(data.indices) == len(weights.indices) == rank + 2:
        return None
    n, o = op.axes[:2]
    phases, places = op.axes[2 : 2 + rank], op.axes[2 + rank :]
    c, *taps = op.reduce_axes
    filters, per_group = o.hi + 1, weights.source.shape[1]
    if not per_group or filters % per_group or data.source.shape[1] != weights.source.shape[0]:
        return None
    groups = filters // per_group
    own = as_index(c) if groups == 1 else as_index(o) // per_group * (c.hi + 1) + as_index(c)
    if (*data.indices[:2], *weights.indices[:2]) != (as_index(n), own, own, as_index(o) % per_group):
        return None
    steps = []
    for f, q, t, at, k in zip(phases, places, taps, data.indices[2:], weights.indices[2:], strict=True):
        if not (at.vars() <= {f, q, t} and k.vars() <= {f, t} and at.coefficient(q) == (1 if q.hi > 0 else 0)):
            return None
        first = k.without(t)
        if first.coefficient(t) != 0:
            return None
        # a phase's first tap is one of as many as there are between its taps
        steps.append(first.bounds()[1] + 1)
    role = PhasedConvolution(data.source, weights.source, tuple(p.hi + 1 for p in phases), tuple(steps), groups)
    return role, (data, weights), op.reduce_axes


def _pool(op: te.Compute) -> _Found | None:
    n, c, *space = op.axes
    every = [ld for body in op.bodies for ld in loads(body)]
    # what is read once for all taps, as the greatest element that they are compared with
    own = {ld.source for ld in every if list(ld.indices) == [as_index(a) for a in op.axes]}
    read = [ld for ld in every if ld.source not in own]
    if len(space) not in SPATIAL or len(op.reduce_axes) != len(space) or not read:
        return None
    data = read[0]
    if any(ld.source is not data.source or ld.indices != data.indices for ld in read):
        return None
    if len(data.indices) != len(op.axes) or data.indices[:2] != (as_index(n), as_index(c)):
        return None
    left = [a for a in op.reduce_axes if a.hi <= 0]
    taps: list[Var] = []
    steps: list[tuple[int, int]] = []
    for ix, at in zip(data.indices[2:], space, strict=True):
        along = [a for a in op.reduce_axes if a.hi > 0 and a in ix.terms]
        if len(along) > 1 or not (along or left):
            return None
        tap = along[0] if along else left.pop(0)
        step = _step(ix, at, tap)
        if step is None or tap in taps:
            return None
        taps.append(tap)
        steps.append(step)
    slides = any((at.hi > 0 and t.hi > 0) or s > 1 for at, t, (s, _) in zip(space, taps, steps, strict=True))
    if left or not slides:
        return None
    strides, dilations = zip(*steps, strict=True)
    window = Window(data.source, None, tuple(t.hi + 1 for t in taps), strides, dilations)
    return window, None, tuple(taps)


def _widened(e: Expr) -> Expr:
    return e.a if type(e) is Cast else e


def _exchanged(body: Expr) -> Expr:
    """A product, which may be chosen against zero, with its factors exchanged."""
    if type(body) is Select:
        return Select(body.cond, _exchanged(body.a), body.b)
    assert type(body) is Binary
    return Binary(body.op, body.b, body.a, body.dtype)
