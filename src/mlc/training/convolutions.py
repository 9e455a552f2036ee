"""Gradients of convolutions, as what schedules know: a transposed convolution, and products over all pixels.

What is derived for a convolution (:mod:`mlc.training.autodiff.expression`) sums the same terms. It is told by what a
node's expression does, not by its name, and said in operators so that it meets their schedules: the derivative by the
data is a convolution by turned weights where windows move by one or are single pixels, which then lie apart, and the
transposed convolution elsewhere; that by the weights a sum of products over all pixels, whose operands are turned so
that channels are next to each other and make vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.define.expressions import add_expressions
from mlc.ir import te
from mlc.ir.expr import Const, Expr, Load, Select, Within, all_of, select
from mlc.ir.graph import Builder, Node, Value, express
from mlc.ir.index import Linear, as_index
from mlc.ops import get
from mlc.targets.groups.roles import Convolution, Window, is_border, role_of

ENOUGH = 64  # channels for vectors along them, as many as a register tile has


@dataclass(frozen=True)
class Seen:
    """A node that convolves.

    Args:
        data, weights: which operands these are.
        strides, dilations: of the window.
        pads: zeros around the data, before and behind each spatial axis.
        groups: of channels; as many as there are where each channel has a window of its own.
    """

    data: int
    weights: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int


def seen_in(node: Node) -> Seen | None:
    """What a node convolves, if that is all it does."""
    if node.op.express is None or len(node.outputs) != 1 or len(node.inputs) != 2:
        return None
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    (result,) = express(node, operands)
    role = role_of(result.op) if result.op is not None else None
    if isinstance(role, Convolution):
        groups = 0 if role.bits is not None else role.groups
    else:
        groups = role.data.shape[1] if isinstance(role, Window) else 0
    if not groups or not isinstance(role, (Convolution, Window)):
        return None
    data, pads = role.data, (0,) * (2 * (role.data.rank - 2))
    if data.op is not None:
        bordered = _bordered(data)
        if bordered is None:
            return None
        data, pads = bordered
    if data not in operands or role.weights not in operands:
        return None
    places = operands.index(data), operands.index(role.weights)
    return Seen(*places, role.strides, role.dilations, pads, groups)


def _bordered(t: te.Tensor) -> tuple[te.Tensor, tuple[int, ...]] | None:
    """The tensor that another surrounds by zeros along its spatial axes, and by how many."""
    op = t.op
    if op is None or not is_border(op):
        return None
    body = op.bodies[0]
    assert isinstance(body, Select)
    load, outside = body.a, body.b
    if not isinstance(load, Load) or not isinstance(outside, Const) or outside.value != 0:
        return None
    source: te.Tensor = load.source
    before = [(as_index(a) - ix) for a, ix in zip(op.axes, load.indices, strict=True)]
    if not all(b.is_const for b in before) or any(b.const for b in before[:2]):
        return None
    begins = [b.const for b in before]
    ends = [n - b - m for n, b, m in zip(t.shape, begins, source.shape, strict=True)]
    if min(begins + ends) < 0 or any(ends[:2]):
        return None
    return source, (*begins[2:], *ends[2:])


def add_convolution_gradients(
    g: Builder, node: Node, seen: Seen, received: Value, wanted: Sequence[bool]
) -> list[Value | None]:
    """Appends what the operands of a convolution receive.

    Args:
        received: by its result.
        wanted: whether an operand's is asked for.
    Returns:
        one an operand; ``None`` where it is not asked for.
    """
    found: list[Value | None] = [None, None]
    if wanted[seen.data]:
        found[seen.data] = _by_data(g, node, seen, received)
    if wanted[seen.weights]:
        found[seen.weights] = _by_weights(g, node, seen, received)
    return found


def _by_data(g: Builder, node: Node, seen: Seen, received: Value) -> Value:
    data, weights = node.inputs[seen.data], node.inputs[seen.weights]
    attrs = {"strides": seen.strides, "dilations": seen.dilations, "groups": seen.groups, "pads": seen.pads}
    if set(weights.type.shape[2:]) == {1} and not any(seen.pads):
        attrs["strides"] = (1,) * len(seen.strides)
        operands = [received, _turned(g, node, seen, weights)]
        (met,) = g.add(get("conv"), operands, attrs, names=[f"d{data.name}"], sources=node.sources)
        return met if set(seen.strides) == {1} else _apart(g, node, seen, met)
    reach = [(k - 1) * d for k, d in zip(weights.type.shape[2:], seen.dilations, strict=True)]
    around = tuple(r - pad for r, pad in zip(2 * reach, seen.pads, strict=True))
    if set(seen.strides) != {1} or min(around) < 0:
        op, attrs = "conv_transpose", {**attrs, "output_shape": data.type.shape[2:]}
    else:
        op, weights, attrs = "conv", _turned(g, node, seen, weights), {**attrs, "pads": around}
    return g.add(get(op), [received, weights], attrs, names=[f"d{data.name}"], sources=node.sources)[0]


def _apart(g: Builder, node: Node, seen: Seen, met: Value) -> Value:
    """What the pixels receive of which windows of one pixel meet some, with zeros between them."""
    data = node.inputs[seen.data]
    t = te.placeholder(met.type.shape, met.type.dtype, met.name)

    def element(n: Linear, c: Linear, *at: Linear) -> Expr:
        hit = [Within(p % s, 0, 1) for p, s in zip(at, seen.strides, strict=True) if s > 1]
        return select(all_of(hit), t[(n, c, *(p // s for p, s in zip(at, seen.strides, strict=True)))], 0.0)

    apart = te.compute(data.type.shape, element, f"d{data.name}")
    return add_expressions(g, [apart], {id(t): met}, node.sources)[0]


def _turned(g: Builder, node: Node, seen: Seen, weights: Value) -> Value:
    """Weights from results to data: taps from the last to the first, channels of each group exchanged."""
    w = te.placeholder(weights.type.shape, weights.type.dtype, weights.name)
    out, channels, *taps = w.shape
    out //= seen.groups

    def element(c: Linear, o: Linear, *at: Linear) -> Expr:
        back = (n - 1 - t for n, t in zip(taps, at, strict=True))
        group, inner = (c, as_index(0)) if channels == 1 else (c // channels, c % channels)
        return w[(group * out + o, inner, *back)]

    turned = te.compute((channels * seen.groups, out, *taps), element, f"{weights.name}_turned")
    return add_expressions(g, [turned], {id(w): weights}, node.sources)[0]


def _by_weights(g: Builder, node: Node, seen: Seen, received: Value) -> Value:
    """Products of the channels of every pixel with those of what it meets, summed over all pixels of all examples."""
    data, weights = node.inputs[seen.data], node.inputs[seen.weights]
    rank, name = data.type.rank, f"d{weights.name}"

    def add(op: str, operand: Value, **attrs: object) -> Value:
        return g.add(get(op), [operand], attrs, names=[name], sources=node.sources)[0]

    last = (0, *range(2, rank), 1)  # channels next to each other
    x, d = add("transpose", data, perm=last), add("transpose", received, perm=last)
    if any(seen.pads):
        half = rank - 2
        x = add("pad", x, pads=(0, *seen.pads[:half], 0, 0, *seen.pads[half:], 0))
    xt, dt = (te.placeholder(v.type.shape, v.type.dtype, v.name) for v in (x, d))
    over = tuple(te.reduce_axis(n, f"p{k}") for k, n in enumerate(dt.shape[:-1]))
    out, channels, *taps = weights.type.shape
    out //= seen.groups

    def met(c: Linear, at: Sequence[Linear]) -> Expr:
        steps = zip(over[1:], at, seen.strides, seen.dilations, strict=True)
        return xt[(over[0], *(as_index(p) * s + tap * dilation for p, tap, s, dilation in steps), c)]

    if out == channels == 1:

        def single(*at: Linear) -> te.Reduction:
            return te.sum_of(dt[(*over, at[-1])] * met(at[-1], at[:-1]), over)

        shape, perm = (*taps, seen.groups), (rank - 2, *range(rank - 2))
        sums = te.compute(shape, single, name, axis_names=[*(f"k{k}" for k in range(rank - 2)), "c"])
        (found,) = add_expressions(g, [sums], {id(xt): x, id(dt): d}, node.sources)
        return add("reshape", add("transpose", found, perm=perm), shape=weights.type.shape)
    # Few channels leave vectors to the results. Else those keep their place, so that what is learned is turned around
    # within the weights of a result, not as a whole (512 × 256 × 3 × 3 on a Zen 5: 0.5 ms for 2.2, with the update).
    wide_out = channels < min(out, ENOUGH)

    def term(group: Linear, first: Linear, *at: Linear) -> te.Reduction:
        o, c = (at[-1], first) if wide_out else (first, at[-1])
        return te.sum_of(dt[(*over, group * out + o)] * met(group * channels + c, at[:-1]), over)

    names = (
        ["c", *(f"k{k}" for k in range(rank - 2)), "o"] if wide_out else ["o", *(f"k{k}" for k in range(rank - 2)), "c"]
    )
    shape = (channels, *taps, out) if wide_out else (out, *taps, channels)
    if seen.groups == 1:
        sums = te.compute(shape, lambda *at: term(as_index(0), *at), name, axis_names=names)
    else:
        sums = te.compute((seen.groups, *shape), term, name, axis_names=["g", *names])
    (found,) = add_expressions(g, [sums], {id(xt): x, id(dt): d}, node.sources)
    ends = (rank - 1, 0) if wide_out else (0, rank - 1)
    perm = (*ends, *range(1, rank - 1))
    if seen.groups == 1:
        return add("transpose", found, perm=perm)
    return add("reshape", add("transpose", found, perm=(0, *(k + 1 for k in perm))), shape=weights.type.shape)
