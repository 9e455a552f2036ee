"""Rules that move a reshape or transpose below the elementwise operators and normalisations that follow it.

There it meets the next one and cancels, and what followed a convolution or matrix product comes to stand right behind
it, where it fuses (TVM §3: complex operators take in elementwise ones). With the collapse of batch axes in
:mod:`mlc.rewrite.rules.products` this makes the linear layers of a transformer, their biases, activations, residual
sums and layer norms plain two-dimensional operators.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.ir.graph import FusionKind, Node, Value
from mlc.ops import get
from mlc.rewrite.pattern import Match, rule
from mlc.rewrite.rewriter import Rewriter
from mlc.rewrite.rules.views import inverse_permutation, reshaped, transposed

# Makes an operand for the place above the view. Called only when every operand has one: rules that fail make nothing.
Adapt = Callable[[], Value]


def _below(rw: Rewriter, node: Node, view: str, adapt: Callable[[Node, Value], Adapt | None]) -> Value | None:
    """``f(view(x), …)`` as ``view(f(x, …))``, with ``adapt(view node, operand)`` for the other operands."""
    shape = node.outputs[0].type.shape
    for v in dict.fromkeys(node.inputs):
        maker = rw.maker(v)
        if maker is None or maker.op.name != view or v.type.shape != shape:
            continue
        if node.op.name == "prelu" and v is not node.inputs[0]:
            continue  # its slope may not be the greater operand
        if view == "transpose" and rw.uses(v) != node.inputs.count(v):
            continue  # the transposed tensor would be made all the same
        adapted = [adapt(maker, u) for u in node.inputs]
        if any(a is None for a in adapted):
            continue
        inner = rw.emit(node.op, [a() for a in adapted if a is not None], node.attrs)
        return rw.emit(maker.op, (inner,), maker.attrs, sources=maker.sources)
    return None


def _fuses_upwards(rw: Rewriter, value: Value) -> bool:
    """Whether an elementwise operator on ``value`` could join the kernel that makes it."""
    node = rw.maker(value)
    return node is not None and (node.op.kind is FusionKind.COMPLEX or node.op.elementwise)


@rule("reshape_below_elementwise", "elementwise(…)")
def reshape_below_elementwise(rw: Rewriter, m: Match) -> Value | None:
    """``f(reshape(x), …)`` becomes ``reshape(f(x, …))``; scalars, vectors along an unchanged last axis, constants and
    tensors reshaped alike may be the other operands."""

    def adapt(view: Node, operand: Value) -> Adapt | None:
        (source,), shape = view.inputs, view.outputs[0].type.shape
        inner, own = source.type.shape, operand.type.shape
        node = rw.maker(operand)
        if node is not None and node.op is view.op and own == shape and node.inputs[0].type.shape == inner:
            return lambda: node.inputs[0]
        if operand.type.size == 1:
            return lambda: reshaped(rw, operand, (), ())
        if inner and shape and inner[-1] == shape[-1] == own[-1] == operand.type.size:
            return lambda: reshaped(rw, operand, own[-1:], ())
        if own != shape:
            return None
        # The operand would be reshaped in turn: worth it where the operator comes to stand behind a kernel that takes
        # it in, but not when it leaves one for that, or the rule would go on for ever.
        moves = rw.constant(operand) is not None or (_fuses_upwards(rw, source) and not _fuses_upwards(rw, operand))
        return (lambda: reshaped(rw, operand, inner, ())) if moves else None

    return None if m.root.op is get("broadcast_to") else _below(rw, m.root, "reshape", adapt)


@rule("reshape_below_row_norm", "layer_norm|rms_norm|softmax|log_softmax(r, …)")
def reshape_below_row_norm(rw: Rewriter, m: Match) -> Value | None:
    """Normalising the rows of a tensor whose leading axes were only regrouped."""
    view, shape, axis = rw.maker(m["r"]), m["r"].type.shape, m.root.attrs["axis"]
    if view is None or view.op is not get("reshape") or axis % len(shape) != len(shape) - 1:
        return None
    (source,) = view.inputs
    inner = source.type.shape
    if not inner or inner[-1] != shape[-1]:
        return None
    if any(v.type.size not in (1, shape[-1]) or v.type.rank > 1 for v in m.root.inputs[1:]):
        return None
    normal = rw.emit(m.root.op, (source, *m.root.inputs[1:]), {**m.root.attrs, "axis": len(inner) - 1})
    return reshaped(rw, normal, shape, view.sources)


@rule("transpose_below_elementwise", "elementwise(…)")
def transpose_below_elementwise(rw: Rewriter, m: Match) -> Value | None:
    """``f(transpose(x), …)`` becomes ``transpose(f(x, …))`` where nothing else reads the transposed tensor; scalars,
    constants and tensors transposed alike may be the other operands."""

    def adapt(view: Node, operand: Value) -> Adapt | None:
        perm = tuple(view.attrs["perm"])
        node = rw.maker(operand)
        if node is not None and node.op is view.op and tuple(node.attrs["perm"]) == perm:
            return lambda: node.inputs[0]
        if operand.type.size == 1:
            return lambda: reshaped(rw, operand, (), ())
        if rw.constant(operand) is None:
            return None
        aligned = (1,) * (len(perm) - operand.type.rank) + operand.type.shape
        return lambda: transposed(rw, reshaped(rw, operand, aligned), inverse_permutation(perm))

    return None if m.root.op is get("broadcast_to") else _below(rw, m.root, "transpose", adapt)


RULES = (reshape_below_elementwise, reshape_below_row_norm, transpose_below_elementwise)
