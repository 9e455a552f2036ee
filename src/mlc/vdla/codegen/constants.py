"""Constants in the order in which they are loaded, so that each load of them is one run of DRAM.

What a nest loads is an expression of constants: elements of an array in another order, with zeros where it has none. It
is evaluated here, so nothing is asked of how the array lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from mlc.ir.expr import Expr, loads
from mlc.ir.index import Var
from mlc.ir.interp.te import Evaluator
from mlc.vdla.codegen.copies import lanes_of
from mlc.vdla.codegen.dma import Block, Dim, blocks
from mlc.vdla.codegen.nest import Env, Form, Nest

_FIRST = 1 << 62  # name of a constant's element; below are those of what lies in DRAM


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """What one iteration of a nest that loads leaves on the chip.

    Attributes:
        sram: where it begins, in elements.
        offsets: elements from there, ascending, int64 ``[n]``.
        names: what stands for the contents of each, the same for the same bytes, int64 ``[n]``.
        blocks: its transfers.
        dram: element of DRAM where it begins; for constants, see ``values``.
        values: for constants, the elements to be stored somewhere, ``[n, lanes]``.
    """

    sram: int
    offsets: np.ndarray
    names: np.ndarray
    blocks: tuple[Block, ...]
    dram: int = 0
    values: np.ndarray | None = None


class Constants:
    """Repacked constants; what is loaded twice is stored once.

    Attributes:
        parts: by the buffer that each replaces, what it holds so far.
    """

    def __init__(self) -> None:
        self.parts: dict[int, list[np.ndarray]] = {}
        self._sizes: dict[int, int] = {}
        self._known: dict[tuple[int, bytes], int] = {}

    def contents(self, buffer: int) -> bytes:
        """The bytes of a packed buffer."""
        return b"".join(p.tobytes() for p in self.parts.get(buffer, ()))

    def store(self, buffer: int, values: np.ndarray) -> int:
        """Store elements, ``[n, lanes]``, where a buffer does not hold them yet; the first one's place."""
        key = buffer, values.tobytes()
        if key not in self._known:
            self._known[key] = self._sizes.get(buffer, 0)
            self._sizes[buffer] = self._known[key] + len(values)
            self.parts.setdefault(buffer, []).append(values)
        return self._known[key]


_names: dict[bytes, int] = {}
_numbers = count(_FIRST)


def names_of(values: np.ndarray) -> np.ndarray:
    """A number for the contents of each of ``[n, lanes]`` elements, the same in every program, int64 ``[n]``."""
    return np.array([_names.setdefault(v.tobytes(), next(_numbers)) for v in values], np.int64)


class ConstantNest:
    """A nest that loads constants.

    Args:
        nest: the loops around one store.
        value: what is stored.
        array: the constant that it reads.
        sram: offset on the chip in numbers, over the nest's loops.
        lanes: numbers in an on-chip element.
    Raises:
        ScheduleError: it does not fill whole elements.
    """

    def __init__(self, nest: Nest, value: Expr, array: np.ndarray, sram: Form, lanes: int) -> None:
        self.nest, self.value = nest, value
        (source,) = {ld.source for ld in loads(value)}
        self.arrays = {id(source): array.reshape(source.shape)}
        self.inside = lanes_of(nest, sram, lanes)
        self.sram, self.lanes = sram.divided(lanes, self.inside, repr(nest.leaf)), lanes
        self._found: dict[tuple[object, ...], Loaded] = {}

    def load(self, env: Env, at: Sequence[tuple[int, int]], split: int) -> Loaded:
        """What one iteration around the nest loads.

        Args:
            env: variables around the nest.
            at: the iterations of each loop that count; all of those within an element.
            split: how many of the outermost loops are transfers of their own, see ``dma.blocks``.
        """
        key = (split, *at, *env.values())
        if key not in self._found:
            self._found[key] = self._load(env, at, split)
        return self._found[key]

    def _load(self, env: Env, at: Sequence[tuple[int, int]], split: int) -> Loaded:
        loops = [v for v, _ in self.nest.loops]
        grid: dict[Var, object] = dict(env)
        for k, (v, (b, e)) in enumerate(zip(loops, at, strict=True)):
            grid[v] = np.arange(b, e).reshape([-1 if d == k else 1 for d in range(len(loops))])
        values = np.broadcast_to(Evaluator(grid, self.arrays, None).eval(self.value), [e - b for b, e in at])
        outside = [k for k in range(len(loops)) if k not in self.inside]
        steps = dict(zip(outside, self.sram.steps, strict=True))
        moving = [k for k in outside if at[k][1] - at[k][0] > 1]
        ordered = [*moving[:split], *sorted(moving[split:], key=lambda k: -steps[k])]
        single = [k for k in outside if k not in moving]
        values = values.transpose([*single, *ordered, *self.inside]).reshape(-1, self.lanes)
        offsets, step, packed = np.zeros(1, np.int64), 1, []
        for k in ordered:
            offsets = (offsets[:, None] + np.arange(at[k][1] - at[k][0]) * steps[k]).reshape(-1)
        for k in reversed(ordered):
            extent = at[k][1] - at[k][0]
            packed.append(Dim(extent, steps[k], step, 0, extent))
            step *= extent
        order = np.argsort(offsets, kind="stable")
        begin = self.sram.at(env) + sum(at[k][0] * steps[k] for k in outside)
        transfers = blocks(tuple(reversed(packed)), split)
        return Loaded(begin, offsets[order], names_of(values)[order], transfers, values=values)
