"""The layout pass on tensor expressions: rebuild loop nests over physical shapes, rewrite accesses (ALT §4.1).

In: computes over logical index spaces and a layout for some tensors. Out: the same computes where every such tensor has
its physical shape. ``y[n, c, h, w] = x[n, c, h, w]`` with ``NCHW16c`` on both becomes ``y[n, C, h, w, ci] = x[n, C, h,
w, ci]``: the divisions cancel in the canonical forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.ir import te
from mlc.ir.expr import Const, Expr, Load, all_of, const, replace_loads, select, substitute_vars, within
from mlc.ir.index import IndexLike, Var, as_index
from mlc.ir.layout import Fuse, Layout, Pad, Reorder, Split


def relayout(
    outputs: Sequence[te.Tensor], layouts: Mapping[te.Tensor, Layout]
) -> tuple[list[te.Tensor], dict[te.Tensor, te.Tensor]]:
    """Apply layouts.

    Args:
        outputs: results in logical index space.
        layouts: layout of inputs, intermediate tensors and outputs; tensors left out stay as they are.
    Returns:
        the new outputs, and the new tensor for every old one (inputs included).
    """
    new: dict[te.Tensor, te.Tensor] = {}

    def source(t: te.Tensor) -> te.Tensor:
        if t not in new:
            layout = layouts.get(t)
            new[t] = t if layout is None else te.Tensor(t.name, layout.physical_shape, t.dtype)
        return new[t]

    for op in te.topological(outputs):
        layout = layouts.get(op.outputs[0])
        env: dict[Var, IndexLike] = {}
        padded = False
        if layout is None:
            axes = op.axes
        else:
            axes = tuple(Var(name, 0, n - 1) for name, n in zip(_names(op, layout), layout.physical_shape, strict=True))
            logical = layout.inverse([as_index(a) for a in axes])
            env = dict(zip(op.axes, logical, strict=True))
            padded = layout.has_padding
        bodies = tuple(_rewrite(b, env, layouts, source, padded) for b in op.bodies)
        fresh = te.Compute(op.name, axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs)
        for old, t in zip(op.outputs, te.finish(fresh), strict=True):
            new[old] = t
            t.name = old.name
    return [source(t) for t in outputs], new


def _names(op: te.Compute, layout: Layout) -> list[str]:
    """Names of physical axes: those of the logical ones, a suffix for the parts of a split one."""
    names = [a.name for a in op.axes]
    for p in layout.primitives:
        match p:
            case Split(d, _):
                names[d : d + 1] = [names[d], names[d] + "b"]  # b for block
            case Reorder(perm):
                names = [names[k] for k in perm]
            case Fuse(d, n):
                names[d : d + n] = ["".join(names[d : d + n])]
            case Pad():
                pass
    return names


def _rewrite(
    body: Expr,
    env: Mapping[Var, IndexLike],
    layouts: Mapping[te.Tensor, Layout],
    source: Callable[[te.Tensor], te.Tensor],
    padded: bool,
) -> Expr:
    """Accesses through their layouts; where padding makes an access leave its tensor, zero is read."""
    body = substitute_vars(body, env)

    def swap(ld: Load) -> Expr:
        t: te.Tensor = ld.source
        layout = layouts.get(t)
        target = source(t)
        indices = ld.indices if layout is None else layout.forward(ld.indices)
        if target is t and indices is ld.indices and not padded:
            return ld
        access = Load(target, tuple(indices))
        if not padded:
            return access
        guard = all_of([within(ix, 0, n) for ix, n in zip(indices, target.shape, strict=True)])
        if type(guard) is Const and guard.value:
            return access
        # inside padding nothing meaningful is computed: read zero rather than a neighbour's memory
        logical = all_of([within(ix, 0, n) for ix, n in zip(ld.indices, t.shape, strict=True)])
        return select(logical, access, const(0, t.dtype))

    return replace_loads(body, swap)
