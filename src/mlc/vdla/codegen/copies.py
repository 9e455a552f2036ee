"""Nests that copy, over whole elements: the loops within an element apart from those between elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.errors import ScheduleError
from mlc.ir.index import Linear
from mlc.vdla.codegen.dma import Dim
from mlc.vdla.codegen.nest import Env, Form, Nest, Range, form


@dataclass(slots=True, eq=False)
class Copy:
    """A nest that loads or stores, with the loops within an element apart.

    Attributes:
        loops: which loops of the nest move from element to element.
        lanes: the others, and ...
        lane_steps: ... how many numbers every loop of the nest moves on the chip.
        sram: on-chip elements, over ``loops``.
        dram: elements of DRAM.
    """

    loops: list[int]
    lanes: list[int]
    lane_steps: tuple[int, ...]
    sram: Form
    dram: Form

    def dims(
        self, env: Env, at: list[tuple[int, int]], zeros: Sequence[Range], nest: Nest
    ) -> tuple[tuple[Dim, ...], int, int]:
        """The transfer's loops in one iteration around the nest, and where they begin on the chip and in DRAM.

        Args:
            env: variables around the nest.
            at: the iterations of each loop that count.
            zeros: checks that fail where zero is written.
            nest: the nest.
        """
        if any(at[k] != (0, nest.loops[k][1]) for k in self.lanes):
            raise ScheduleError(f"{nest.leaf!r}: a condition divides an element")
        copied: dict[int, tuple[int, int]] = {}
        nothing = False
        for z in zeros:
            if z.loop < 0:
                nothing |= not z.limits(env, 1)[1]
                continue
            lo, hi = z.limits(env, nest.loops[z.loop][1])
            old = copied.get(z.loop, (lo, hi))
            copied[z.loop] = max(lo, old[0]), min(hi, old[1])
        sram, dram = self.sram.at(env), self.dram.at(env)
        out = []
        for k, s, d in zip(self.loops, self.sram.steps, self.dram.steps, strict=True):
            b, e = at[k]
            lo, hi = (0, 0) if nothing else copied.get(k, (b, e))
            lo = min(max(lo, b), e)
            out.append(Dim(e - b, s, d, lo - b, max(lo, min(hi, e)) - b))
            sram, dram = sram + b * s, dram + b * d
        if nothing and not out:  # a single element, which is zero: only a loop can say so
            out.append(Dim(1, 1, 1, 0, 0))
        return tuple(out), sram, dram


def copy_of(nest: Nest, sram: Linear, dram: Linear, lanes: int) -> Copy:
    """Take the loops within an element out of a nest that copies.

    Args:
        nest: the nest.
        sram, dram: offsets of what is moved in its two buffers, in numbers.
        lanes: numbers in an on-chip element.
    Raises:
        ScheduleError: no whole elements are moved.
    """
    loops = [v for v, _ in nest.loops]
    s, d = form(sram, loops), form(dram, loops)
    inside, what = lanes_of(nest, s, lanes), repr(nest.leaf)
    if any(s.steps[k] != d.steps[k] for k in inside):
        raise ScheduleError(f"{what} does not move whole elements of {lanes}")
    outside = [k for k in range(len(loops)) if k not in inside]
    return Copy(outside, inside, s.steps, s.divided(lanes, inside, what), d.divided(lanes, inside, what))


def lanes_of(nest: Nest, sram: Form, lanes: int) -> list[int]:
    """The loops of a nest that fill an on-chip element, outermost first.

    Raises:
        ScheduleError: they do not fill it.
    """
    inside = sorted((k for k, step in enumerate(sram.steps) if 0 < step < lanes), key=lambda k: -sram.steps[k])
    step = lanes
    for k in inside:
        if sram.steps[k] * nest.loops[k][1] != step:
            break
        step = sram.steps[k]
    if step != 1:
        raise ScheduleError(f"{nest.leaf!r} does not move whole elements of {lanes}")
    return inside
