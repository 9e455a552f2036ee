"""Gradients of convolutions, as what schedules know: a transposed convolution, and products over all pixels.

What is derived for a convolution (:mod:`mlc.training.autodiff.expression`) sums the same terms. It is told by what a
node's expression does, not by its name, and said in operators so that it meets their schedules: the derivative by the
data is the transposed convolution; that by the weights a sum of products over all pixels, whose operands are turned so
that channels are next to each other and make vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.define.expressions import add_expressions
from mlc.ir import te
from mlc.ir.expr import Const, Load, Select
from mlc.ir.graph import Builder, Node, Value, express
from mlc.ir.index import Linear, as_index
from mlc.ops import get
from mlc.targets.groups.roles import Convolution, is_border, role_of


@dataclass(frozen=True)
class Seen:
    """A node that convolves.

    Args:
        role: what it does.
        data, weights: which operands these are.
        pads: zeros around the data, before and behind each spatial axis.
    """

    role: Convolution
    data: int
    weights: int
    pads: tuple[int, ...]


def seen_in(node: Node) -> Seen | None:
    """What a node convolves, if that is all it does."""
    if node.op.express is None or len(node.outputs) != 1 or len(node.inputs) != 2:
        return None
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    (result,) = express(node, operands)
    role = role_of(result.op) if result.op is not None else None
    if not isinstance(role, Convolution) or role.bits is not None:
        return None
    data, pads = role.data, (0,) * (2 * (role.data.rank - 2))
    if data.op is not None:
        bordered = _bordered(data)
        if bordered is None:
            return None
        data, pads = bordered
    if data not in operands or role.weights not in operands:
        return None
    return Seen(role, operands.index(data), operands.index(role.weights), pads)


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
    role, data = seen.role, node.inputs[seen.data]
    attrs = {
        "strides": role.strides,
        "pads": seen.pads,
        "dilations": role.dilations,
        "groups": role.groups,
        "output_shape": data.type.shape[2:],
    }
    operands = [received, node.inputs[seen.weights]]
    return g.add(get("conv_transpose"), operands, attrs, names=[f"d{data.name}"], sources=node.sources)[0]


def _by_weights(g: Builder, node: Node, seen: Seen, received: Value) -> Value:
    """Products of the channels of every pixel with those of what it meets, summed over all pixels of all examples."""
    role, data, weights = seen.role, node.inputs[seen.data], node.inputs[seen.weights]
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

    out, channels = weights.type.shape[:2]
    wide_out = out > channels  # vectors run along what there is more of

    def term(first: Linear, *at: Linear) -> te.Reduction:
        *taps, inner = at
        o, c = (inner, first) if wide_out else (first, inner)
        steps = zip(over[1:], taps, role.strides, role.dilations, strict=True)
        met = [as_index(p) * stride + tap * dilation for p, tap, stride, dilation in steps]
        return te.sum_of(dt[(*over, o)] * xt[(over[0], *met, c)], over)

    names = ["c", "o"] if wide_out else ["o", "c"]
    shape = (channels if wide_out else out, *weights.type.shape[2:], out if wide_out else channels)
    sums = te.compute(shape, term, name, axis_names=[names[0], *(f"k{k}" for k in range(rank - 2)), names[1]])
    (found,) = add_expressions(g, [sums], {id(xt): x, id(dt): d}, node.sources)
    ends = (rank - 1, 0) if wide_out else (0, rank - 1)
    return add("transpose", found, perm=(*ends, *range(1, rank - 1)))
