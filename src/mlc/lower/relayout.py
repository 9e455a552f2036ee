"""The layout pass on tensor expressions: rebuild loop nests over physical shapes, rewrite accesses (ALT §4.1).

In: computes over logical index spaces and a layout for some tensors. Out: the same computes where every such tensor has
its physical shape. ``y[n, c, h, w] = x[n, c, h, w]`` with ``NCHW16c`` on both becomes ``y[n, C, h, w, ci] = x[n, C, h,
w, ci]``: the divisions cancel in the canonical forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.errors import ScheduleError, VerifyError
from mlc.ir import te
from mlc.ir.expr import (
    Const,
    Expr,
    Load,
    Select,
    Within,
    all_of,
    conjuncts,
    const,
    replace_loads,
    select,
    substitute_vars,
    within,
)  # fmt: skip
from mlc.ir.index import IndexLike, Var, as_index
from mlc.ir.layout import DecoupleAt, Fold, Fuse, Layout, Margin, Pad, Reorder, Split, StoreAt, Unfold, Unpad


def relayout(
    outputs: Sequence[te.Tensor],
    layouts: Mapping[te.Tensor, Layout],
    loops: Mapping[te.Tensor, Layout] | None = None,
) -> tuple[list[te.Tensor], dict[te.Tensor, te.Tensor]]:
    """Apply layouts.

    Args:
        outputs: results in logical index space.
        layouts: layout of inputs, intermediate tensors and outputs; tensors left out stay as they are.
        loops: layouts that the loops of outputs run over, where those are not the ones that they are stored in (which
            they are without margins, unless told here); the new output has the shape of these loops and a ``home``.
    Returns:
        the new outputs, and the new tensor for every old one (inputs included).
    Raises:
        ScheduleError: an access cannot go through its tensor's layout, since it leaves overlapping tiles.
    """
    new: dict[te.Tensor, te.Tensor] = {}
    core = {t: layout.core if t.op is not None else layout for t, layout in layouts.items()}
    core.update(loops or {})

    def source(t: te.Tensor) -> te.Tensor:
        if t not in new:
            layout = core.get(t)
            new[t] = t if layout is None else te.Tensor(t.name, layout.physical_shape, t.dtype)
        return new[t]

    for op in te.topological(outputs):
        layout = core.get(op.outputs[0])
        stored = layouts.get(op.outputs[0])
        env: dict[Var, IndexLike] = {}
        padded = False
        if layout is None:
            axes = op.axes
        else:
            axes = tuple(Var(name, 0, n - 1) for name, n in zip(_names(op, layout), layout.physical_shape, strict=True))
            logical = layout.inverse([as_index(a) for a in axes])
            env = dict(zip(op.axes, logical, strict=True))
            # what the loops alone add is not stored, so it need not be kept from reading its neighbours
            padded = stored.has_padding if stored is not None else layout.has_padding and op.outputs[0] not in outputs
        try:
            bodies = tuple(_rewrite(b, env, core, source, padded, op.reduce_axes) for b in op.bodies)
        except VerifyError as error:
            raise ScheduleError(f"{op.name}: {error.message}") from error
        fresh = te.Compute(op.name, axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs)
        for old, t in zip(op.outputs, te.finish(fresh), strict=True):
            new[old] = t
            t.name = old.name
            if old in outputs and layout is not None:
                t.home = _home(stored or Layout(old.shape), layout)
    return [source(t) for t in outputs], new


def _home(stored: Layout, loops: Layout) -> te.Home | None:
    """Where elements of loops over one layout lie in an array of another; ``None`` if both are the same memory."""
    same, further = loops.primitives[: len(stored.primitives)], loops.primitives[len(stored.primitives) :]
    if same == stored.primitives and all(type(p) is Fuse for p in further):
        return None
    axes = tuple(Var(f"e{k}", 0, n - 1) for k, n in enumerate(loops.physical_shape))
    indices = stored.forward(loops.inverse([as_index(a) for a in axes]))
    return te.Home(stored.physical_shape, axes, indices, stored.margins)


def read_margins(outputs: Sequence[te.Tensor], layouts: Mapping[te.Tensor, Layout]) -> list[te.Tensor]:
    """Read zeros from margins where expressions choose zero outside of an input.

    ``pad[h] = select(1 <= h < 57, x[h - 1], 0)`` becomes ``pad[h] = x[h - 1]`` when ``x`` has margins of one.

    Returns:
        the outputs over rewritten computes (tagged ``shift``); the same where nothing changed.
    """
    new: dict[te.Tensor, te.Tensor] = {}

    def swap(ld: Load) -> Expr:
        return Load(new[ld.source], ld.indices) if ld.source in new else ld

    for op in te.topological(outputs):
        bare = [_unguarded(b, layouts) for b in op.bodies]
        shifted = all(b is not None for b in bare)
        bodies = [b if b is not None else old for b, old in zip(bare, op.bodies, strict=True)] if shifted else op.bodies
        if not shifted and not any(t in new for t in op.inputs):
            continue
        bodies = tuple(replace_loads(b, swap) for b in bodies)
        tag = "shift" if shifted else op.tag
        fresh = te.Compute(op.name, op.axes, op.reduce_axes, bodies, op.combiner, tag, op.attrs)
        new.update(zip(op.outputs, te.finish(fresh), strict=True))
    return [new.get(t, t) for t in outputs]


def padded_load(body: Expr) -> Load | None:
    """The load of ``select(inside, load, 0)``; ``None`` for any other expression."""
    zero = type(body) is Select and type(body.b) is Const and body.b.value == 0
    return body.a if zero and type(body) is Select and type(body.a) is Load else None


def _unguarded(body: Expr, layouts: Mapping[te.Tensor, Layout]) -> Load | None:
    """The load of ``select(inside, load, 0)`` where margins hold the zeros; ``None`` for any other expression."""
    ld = padded_load(body)
    layout = layouts.get(ld.source) if ld is not None else None
    if ld is None or type(body) is not Select or ld.source.op is not None or layout is None or not layout.has_margins:
        return None
    ranges = {(ix, 0, n) for ix, n in zip(ld.indices, ld.source.shape, strict=True)}
    guards = conjuncts(body.cond)
    if not all(type(g) is Within and (g.index, g.lo, g.hi) in ranges for g in guards):
        return None
    inside = all(
        ix.bounds()[0] >= 0 and ix.bounds()[1] < n
        for ix, n in zip(layout.forward(ld.indices), layout.physical_shape, strict=True)
    )
    return ld if inside else None


def _names(op: te.Compute, layout: Layout) -> list[str]:
    """Names of physical axes: those of the logical ones, a suffix for the parts of a split one."""
    names = [a.name for a in op.axes]
    for p in layout.primitives:
        match p:
            case Split(d, _) | Unfold(d):
                names[d : d + 1] = [names[d], names[d] + "b"]  # b for block
            case Fold(d):
                names[d : d + 2] = [names[d]]
            case StoreAt(d):
                names.insert(d, "at")
            case DecoupleAt(d):
                del names[d]
            case Reorder(perm):
                names = [names[k] for k in perm]
            case Fuse(d, n):
                names[d : d + n] = ["".join(names[d : d + n])]
            case Pad() | Unpad() | Margin():
                pass
    return names


def _surely(condition: Expr) -> bool:
    return type(condition) is Const and bool(condition.value)


def _rewrite(
    body: Expr,
    env: Mapping[Var, IndexLike],
    layouts: Mapping[te.Tensor, Layout],
    source: Callable[[te.Tensor], te.Tensor],
    padded: bool,
    inside: Sequence[Var],
) -> Expr:
    """Accesses through their layouts; where padding makes an access leave its tensor, zero is read."""
    body = substitute_vars(body, env)

    def swap(ld: Load) -> Expr:
        t: te.Tensor = ld.source
        layout = layouts.get(t)
        target = source(t)
        indices = ld.indices if layout is None else layout.forward(ld.indices, inside)
        if target is t and indices is ld.indices and not padded:
            return ld
        access = Load(target, tuple(indices))
        if not padded:
            return access
        leaves = [(ix, n) for ix, n in zip(indices, target.shape, strict=True) if not _surely(within(ix, 0, n))]
        if not leaves:
            return access
        # inside padding nothing meaningful is computed: read zero rather than a neighbour's memory
        ranges = list(zip(ld.indices, t.shape, strict=True))
        # axes that are as they were say all that is to be asked; lanes of a ragged block, say, are there in any case
        guards = leaves if all(pair in ranges for pair in leaves) else ranges
        return select(all_of([within(ix, 0, n) for ix, n in guards]), access, const(0, t.dtype))

    return replace_loads(body, swap)
