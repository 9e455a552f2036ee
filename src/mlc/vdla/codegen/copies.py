"""Nests that copy, over whole elements: the loops within an element apart from those between elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        dram: elements of DRAM, or numbers where the buffer is a constant.
        offsets: in DRAM of the numbers of one element, int64 ``[lanes]``.
    """

    loops: list[int]
    lanes: list[int]
    lane_steps: tuple[int, ...]
    sram: Form
    dram: Form
    offsets: np.ndarray

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
        return tuple(out), sram, dram


def copy_of(nest: Nest, sram: Linear, dram: Linear, lanes: int, array: np.ndarray | None) -> Copy:
    """Take the loops within an element out of a nest that copies.

    Args:
        nest: the nest.
        sram, dram: offsets of what is moved in its two buffers, in numbers.
        lanes: numbers in an on-chip element.
        array: the buffer in DRAM, where it is a constant: its elements need not lie together.
    Raises:
        ScheduleError: no whole elements are moved.
    """
    loops = [v for v, _ in nest.loops]
    s, d = form(sram, loops), form(dram, loops)
    inside = sorted((k for k, step in enumerate(s.steps) if 0 < step < lanes), key=lambda k: -s.steps[k])
    step = lanes
    for k in inside:
        if s.steps[k] * nest.loops[k][1] != step:
            raise ScheduleError(f"{nest.leaf!r} does not move whole elements of {lanes}")
        step = s.steps[k]
    if step != 1:
        raise ScheduleError(f"{nest.leaf!r} does not move whole elements of {lanes}")
    offsets = np.zeros(1, np.int64)
    for k in inside:
        offsets = (offsets[:, None] + np.arange(nest.loops[k][1]) * d.steps[k]).reshape(-1)
    outside = [k for k in range(len(loops)) if k not in inside]
    what = repr(nest.leaf)
    chip = divided(Form(s.fixed, tuple(s.steps[k] for k in outside)), lanes, what)
    far = Form(d.fixed, tuple(d.steps[k] for k in outside))
    if array is None:
        if (offsets != np.arange(lanes)).any():
            raise ScheduleError(f"{what} does not move whole elements of {lanes}")
        far = divided(far, lanes, what)
    return Copy(outside, inside, s.steps, chip, far, offsets)


def divided(f: Form, lanes: int, what: str) -> Form:
    """An offset in numbers as one in elements.

    Raises:
        ScheduleError: it does not always begin an element.
    """
    if not f.fixed.multiple_of(lanes) or any(s % lanes for s in f.steps):
        raise ScheduleError(f"{what} does not begin at elements of {lanes}")
    return Form(f.fixed // lanes, tuple(s // lanes for s in f.steps))
