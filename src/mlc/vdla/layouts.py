"""How activations lie in the accelerator's memory: blocks of channels, in any order of the axes outside of a block.

An element of the memories on the chip is a block of the array's width, so blocks are innermost in DRAM, too; everything
around them is free. Of ``[n, c, h, w]``, images come first, then blocks of channels, rows and columns, in any order.
With two levels, some blocks of channels are a *run* that stands at a place of its own: ``[n, c/(16*4), h, 4, w, 16]``.
Of a matrix ``[m, c]``, rows are what columns are of an image.

Schedules compute over ``[n, c/16, h, w, 16]`` whatever the order is: :class:`Blocks` says where an element of these is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlc.ir.index import IndexLike, Linear, as_index
from mlc.ir.layout import Layout, Pad, blocked
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs, divisors
from mlc.targets.base import LEVELS
from mlc.vdla.fold import Fold

ORDER, RUN = f"{LEVELS}.order", f"{LEVELS}.run"
MOST_LEVELS = 2
AXES = ("channels", "rows", "columns")  # outside of a block, as they usually lie
Extents = tuple[int, ...]  # images, blocks of channels, rows, columns, channels of a block


def tensor_layout(type: TensorType, lanes: int) -> Layout | None:
    """Channels in blocks, innermost, in the usual order.

    ``[n, c, h, w]`` becomes ``[n, c/16, h, w, 16]``; rows of matrices, ``[m, c]``, become ``[c/16, m, 16]``, so that
    they lie like pixels.

    Args:
        type: of the tensor.
        lanes: channels of a block.
    """
    if type.rank == 2:
        return arranged(type.shape, lanes, AXES)
    return blocked(type.shape, 1, lanes) if type.rank >= 2 else None


def arranged(shape: Sequence[int], lanes: int, order: Sequence[str], run: int = 0) -> Layout:
    """Activations in blocks of channels, in an order of the axes outside of these.

    Args:
        shape: ``[n, c, h, w]``, or ``[m, c]``.
        lanes: channels of a block.
        order: ``channels``, ``rows`` and ``columns`` from outside to inside, and where there are runs, ``run``; a
            matrix has no columns.
        run: blocks of channels of a run, a divisor of their number; 0 where there are none.
    """
    layout = Layout(tuple(shape)).pad(1, 0, -shape[1] % lanes).split(1, lanes)
    layout = layout.split(1, run) if run else layout
    lane = 3 if run else 2
    image = len(shape) == 4
    places = {"channels": 1, "run": 2, **({"rows": lane + 1, "columns": lane + 2} if image else {"rows": 0})}
    return layout.reorder(*([0] if image else []), *(places[name] for name in order if name in places), lane)


def wanted_layout(type: TensorType, lanes: int, knobs: Knobs) -> Layout | None:
    """How an operator wants what it reads to lie: a layout of the space that its knobs say.

    Args:
        type: of the operand.
        lanes: channels of a block.
        knobs: are asked.
    Returns:
        ``None`` where there is no space: one order of blocks is all that there is.
    """
    if type.rank not in (2, 4) or Fold.of(type) != Fold():
        return None
    many = -(-type.shape[1] // lanes)
    extents = {"channels": many, "rows": type.shape[-2] if type.rank == 4 else type.shape[0]}
    extents |= {"columns": type.shape[3]} if type.rank == 4 else {}
    free = [name for name, n in extents.items() if n > 1]
    if len(free) < 2:
        return None
    levels = knobs.discrete(LEVELS, range(1, MOST_LEVELS + 1), default=1)
    whole = [name for name, n in extents.items() if n == 1]
    runs = [n for n in divisors(many) if 1 < n < many] if levels > 1 else []
    if not runs:
        order = knobs.permutation(ORDER, free, default=_first(free, "rows"))
        return arranged(type.shape, lanes, (*whole, *order))
    run = knobs.discrete(RUN, runs, default=runs[-1])
    order = knobs.permutation(ORDER, [*free, "run"], default=["channels", *_first([*free[1:], "run"], "rows")])
    return arranged(type.shape, lanes, (*whole, *order), run)


def _first(names: Sequence[str], name: str) -> list[str]:
    return sorted(names, key=lambda n: n != name)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Where the blocks of a tensor are.

    Args:
        extents: of ``[n, c/16, h, w, 16]``, as schedules see the tensor.
        layout: of a tensor with whole blocks of channels, ``[n, c, h, w]`` or ``[m, c]``; ``None`` where it lies as
            schedules see it.
    """

    extents: Extents
    layout: Layout | None = None

    @classmethod
    def of(cls, type: TensorType, extents: Extents) -> Blocks:
        """The blocks of a value, by its layout.

        Args:
            type: of the value.
            extents: as schedules see it: of a folded tensor, as layers over it do; whatever is no image is pixels side
                by side.
        """
        layout = type.layout
        if layout is None or type.rank not in (2, 4) or Fold.of(type) != Fold():
            return cls(extents)
        _, blocks, *_, lanes = extents
        shape = tuple(blocks * lanes if d == 1 else n for d, n in enumerate(type.shape))
        inner = tuple(p for p in layout.core.primitives if not (isinstance(p, Pad) and p.dim == 1))
        layout = Layout(shape, inner)
        return cls(extents) if layout == arranged(shape, lanes, AXES) else cls(extents, layout)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in memory."""
        return self.extents if self.layout is None else self.layout.physical_shape

    def at(self, *place: IndexLike) -> tuple[Linear, ...]:
        """Where an element is: an index for each dimension of ``shape``.

        Args:
            place: image, block of channels, row, column and channel in the block.
        """
        n, o, y, x, j = (as_index(ix) for ix in place)
        if self.layout is None:
            return n, o, y, x, j
        channel = o * self.extents[-1] + j
        return self.layout.forward((n, channel, y, x) if len(self.layout.logical_shape) == 4 else (y, channel))

    @cached_property
    def run(self) -> int:
        """Blocks of channels that are evenly far from one another: all, but for runs."""
        steps = [self._offset(1, k + 1) - self._offset(1, k) for k in range(self.extents[1] - 1)]
        return next((k + 1 for k, step in enumerate(steps) if step != steps[0]), self.extents[1])

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The five axes of ``extents``, that whose neighbours lie farthest apart first."""
        moving = [d for d in range(4) if self.extents[d] > 1]
        ranked = sorted(moving, key=lambda d: -self._offset(d, 1))
        places = dict(zip(moving, ranked, strict=True))  # an axis of one element stays where it is
        return (*(places.get(d, d) for d in range(4)), 4)

    def _offset(self, axis: int, k: int) -> int:
        """How far the ``k``-th element along an axis lies from the first one, in numbers."""
        place = self.at(*(k if d == axis else 0 for d in range(5)))
        step, total = 1, 0
        for ix, n in zip(reversed(place), reversed(self.shape), strict=True):
            total, step = total + step * ix.const, step * n
        return total
