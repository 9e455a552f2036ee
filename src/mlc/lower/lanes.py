"""Lanes: what the threads of a warp fold together, through each other's registers.

A reduction with an axis that is bound to ``threadIdx.x``, and a result that every thread keeps for itself, is folded in
two parts: each thread folds what is its own, then those of a group exchange what they have and fold that, half of the
group's width further each time. All of them end up with the whole result; there is neither memory between them nor a
barrier. What threads exchange is the same in any order, but for the order of the fold.

Example::

    y[0] = 0                                     y[0] = 0
    for k in thread(4, "threadIdx.x"):           y[0] = y[0] + x[tx]
      y[0] = y[0] + x[k]                    →    other[0] = shuffle(y[0], flip=2)
                                                 y[0] = y[0] + other[0]
                                                 other[0] = shuffle(y[0], flip=1)
                                                 y[0] = y[0] + other[0]
"""

from __future__ import annotations

from collections.abc import Collection

from mlc.errors import ScheduleError
from mlc.ir.expr import Binary, Load
from mlc.ir.index import ZERO
from mlc.ir.loop import THREAD_AXES, Allocate, Buffer, For, Shuffle, Stmt, Store, seq, walk

WARP = 32
"""Threads that can exchange what they have; neighbours along ``threadIdx.x``."""

WORDS = (4, 8)
"""Bytes of what they can exchange."""


def folds_across(s: For, private: Collection[str]) -> list[Store]:
    """Stores of a bound loop to memory that each thread has for itself, and that lives around the loop.

    Args:
        s: the loop.
        private: scopes of such memory.
    """
    own = {x.buffer for x in walk(s.body) if isinstance(x, Allocate)}
    stores = (x for x in walk(s.body) if isinstance(x, Store))
    return [x for x in stores if x.buffer.scope in private and x.buffer not in own]


def exchange(loop: For, fold: Store) -> Stmt:
    """The second part of a fold.

    Args:
        loop: whose iterations are the threads that fold together.
        fold: what each of them did with a term.
    Raises:
        ScheduleError: threads cannot do that.
    """
    what, width, value = fold.buffer, loop.extent, fold.value
    if loop.thread != THREAD_AXES[-1] or width > WARP or width & (width - 1):
        raise ScheduleError(
            f"{what.name} is folded by {width} threads along {loop.thread}; those of a warp can, a power of two along "
            f"{THREAD_AXES[-1]}, {WARP} at most"
        )
    held = isinstance(value, Binary) and isinstance(value.a, Load) and value.a.source is what
    if not held or what.size != 1 or what.dtype.itemsize not in WORDS:
        raise ScheduleError(f"threads cannot exchange what they have of {what!r}, folded by\n{fold!r}")
    assert isinstance(value, Binary)
    other = Buffer(f"{what.name}.other", what.shape, what.dtype, "register")
    at = tuple(ZERO for _ in what.shape)
    steps: list[Stmt] = []
    while width > 1:
        width //= 2
        folded = type(value)(value.op, Load(what, at), Load(other, at), value.dtype)
        steps += [Shuffle(other, at, what, at, width), Store(what, at, folded)]
    return Allocate(other, seq(steps))
