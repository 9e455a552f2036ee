"""Micro-op kernels: which loops of a nest an instruction's counters run, what becomes micro-ops.

In: a nest around one matrix product or one elementwise operation, every address affine in its loops. Out: the fields of
one instruction and its micro-ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import prod

import numpy as np

from mlc.errors import ScheduleError
from mlc.vdla.codegen.stream import Kernel, Touched, mask_of, places
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.encode import pack_uop

# Cycles that the load of a micro-op costs an instruction: no transfer is faster than an element a cycle.
_UOP_CYCLES = 1.0


@dataclass(frozen=True)
class Axis:
    """A loop of a nest and how far each address moves with it, in elements.

    Args:
        extent: iterations, at least 2.
        dst: accumulators; 0 for a reduction.
        src: input elements, or accumulators of the second operand.
        wgt: weight elements.
    """

    extent: int
    dst: int
    src: int
    wgt: int = 0


@dataclass(frozen=True)
class Shape:
    """How a nest is divided, whatever its addresses begin at.

    Args:
        outer: the loop of ``iter_out``, one of extent 1 for none.
        inner: the loop of ``iter_in``.
        rest: loops unrolled into micro-ops, outermost first: reductions, then the others.
    """

    outer: Axis
    inner: Axis
    rest: tuple[Axis, ...]

    @property
    def uops(self) -> int:
        """How many micro-ops there are."""
        return prod(a.extent for a in self.rest)


@dataclass(slots=True, eq=False)
class Planned:
    """An instruction's loops with its micro-ops at their addresses."""

    shape: Shape
    kernel: Kernel
    touched: Touched


_ONE = Axis(1, 0, 0, 0)


def merge(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The same nest with loops made one wherever every address goes on evenly: ``14 x 14`` dense pixels become 196."""
    out = [a for a in axes if a.extent > 1]
    changed = True
    while changed:
        changed = False
        for a, b in permutations(out, 2):
            n = b.extent
            if (a.dst, a.src, a.wgt) == (n * b.dst, n * b.src, n * b.wgt) and bool(a.dst) == bool(b.dst):
                out[out.index(a)] = Axis(a.extent * n, b.dst, b.src, b.wgt)
                out.remove(b)
                changed = True
                break
    return tuple(out)


@lru_cache(maxsize=4096)
def divide(axes: tuple[Axis, ...], config: VdlaConfig, product: bool, starts: bool) -> Shape:
    """The division of a nest that costs the least cycles.

    A sum starts where a micro-op is marked and the outer counter is 0. So if sums are to start, the outer counter may
    run a reduction only, and the inner one anything else.

    Args:
        axes: merged loops.
        config: field widths, latency of the accumulator.
        product: whether it is a matrix product.
        starts: whether its sums may start in this instruction.
    """
    sources = config.inp_bits if product else config.dst_bits
    widths = (1 << config.dst_bits, 1 << sources, 1 << config.wgt_bits)
    fit = [a for a in axes if all(0 <= f < w for f, w in zip((a.dst, a.src, a.wgt), widths, strict=True))]
    best: tuple[tuple[bool, float], Shape] | None = None
    for outer in (_ONE, *fit):
        if starts and outer.dst:
            continue
        for inner in (_ONE, *fit):
            if inner is outer is not _ONE or (starts and inner is not _ONE and not inner.dst):
                continue
            rest = [a for a in axes if a is not outer and a is not inner]
            sums = [a for a in rest if not a.dst]
            free = sorted((a for a in rest if a.dst), key=lambda a: -a.dst)
            shape = Shape(outer, inner, (*sums, *free))
            cost = shape.uops > config.uop_depth, _excess(shape, config, product)
            if best is None or cost < best[0]:
                best = cost, shape
    assert best is not None
    return best[1]


@lru_cache(maxsize=4096)
def cut(axes: tuple[Axis, ...], config: VdlaConfig, starts: bool) -> int | None:
    """Which loop it is each of whose iterations is better a product of its own; ``None`` to leave the product whole.

    That may be a reduction without which far fewer micro-ops do. Where micro-ops do not fit even so, it is the longest.

    Args:
        axes: merged loops of a matrix product.
        config: the accelerator.
        starts: whether its sums may start in this instruction.
    """
    whole = divide(axes, config, True, starts)
    if whole.uops > config.uop_depth:
        return max(range(len(axes)), key=lambda k: axes[k].extent)
    best, found = 1 + config.gemm_fill + _excess(whole, config, True), None
    for k, a in enumerate(axes):
        if not a.dst:
            piece = divide((*axes[:k], *axes[k + 1 :]), config, True, starts)
            cycles = a.extent * (1 + config.gemm_fill + _excess(piece, config, True))
            if cycles < best:
                best, found = cycles, k
    return found


def _excess(shape: Shape, config: VdlaConfig, product: bool) -> float:
    """Cycles that an instruction takes for its micro-ops, and loses to accumulators that are not ready."""
    return _UOP_CYCLES * shape.uops + (_stalls(shape, config) if product else 0)


def _stalls(shape: Shape, config: VdlaConfig) -> int:
    """Cycles lost to accumulators that are used again before they are ready."""
    free = prod(a.extent for a in shape.rest if a.dst)
    sums = shape.uops // free

    def lost(distance: int) -> int:
        return max(0, config.acc_latency - distance)

    outer, inner = shape.outer, shape.inner
    total = lost(free) * (sums - 1) * free * inner.extent * outer.extent
    if inner.extent > 1 and not inner.dst:
        total += lost(free) * (inner.extent - 1) * free * outer.extent
    elif outer.extent > 1 and not outer.dst:
        total += lost(free * (inner.extent if sums == 1 else 1)) * (outer.extent - 1) * free * inner.extent
    return total


def _grid(axes: Sequence[Axis], which: str) -> np.ndarray:
    """Offsets of every iteration, the last loop fastest, int64 ``[product of extents]``."""
    total = np.zeros(1, np.int64)
    for a in axes:
        total = (total[:, None] + np.arange(a.extent) * getattr(a, which)).reshape(-1)
    return total


class Kernels:
    """Plans instructions, each distinct one once; equal micro-ops are one kernel.

    Args:
        config: widths and depths.
    """

    def __init__(self, config: VdlaConfig) -> None:
        self.config = config
        self._planned: dict[tuple[Shape, int, int, int, bool], Planned] = {}
        self._kernels: dict[bytes, Kernel] = {}
        self._written: dict[tuple[tuple[tuple[int, int], ...], int], int] = {}

    def product(self, axes: tuple[Axis, ...], dst: int, src: int, wgt: int, starts: bool) -> Planned:
        """A GEMM over a nest that begins at the given elements.

        Args:
            axes: merged loops.
            dst, src, wgt: the elements.
            starts: whether its sums start here, so that micro-ops are marked.
        Raises:
            ScheduleError: it needs more micro-ops than there is memory for, or leaves a memory.
        """
        marked = divide(axes, self.config, True, self.config.ext_gemm_set)
        if starts or not self.config.ext_gemm_set or (marked, dst, src, wgt, True) in self._planned:
            return self._plan(marked, dst, src, wgt, True)
        # what starts no sum can do with fewer micro-ops, but then shares none with what does
        free = divide(axes, self.config, True, False)
        return self._plan(free if 2 * free.uops <= marked.uops else marked, dst, src, wgt, True)

    def elementwise(self, axes: tuple[Axis, ...], dst: int, src: int) -> Planned:
        """An ALU instruction, or a GEMM that clears, over a nest that begins at the given accumulators.

        Raises:
            ScheduleError: as for products.
        """
        return self._plan(divide(axes, self.config, False, False), dst, src, 0, False)

    def written(self, axes: tuple[Axis, ...], dst: int) -> int:
        """The accumulators of a nest, as bits."""
        key = tuple((a.extent, a.dst) for a in axes if a.dst), dst
        found = self._written.get(key)
        if found is None:
            found = self._written[key] = mask_of(places(dst + _grid(axes, "dst")))
        return found

    def clear(self, accumulators: np.ndarray) -> Planned:
        """A GEMM that clears arbitrary accumulators, int64 ``[n]``, ascending."""
        begins = np.flatnonzero(np.diff(accumulators, prepend=-2) != 1)
        lengths = np.diff(np.append(begins, len(accumulators)))
        if len(set(lengths.tolist())) == 1 and lengths[0] > 1:
            shape = Shape(_ONE, Axis(int(lengths[0]), 1, 0), (Axis(len(begins), 1, 0),))
            dst = accumulators[begins]
        else:
            shape = Shape(_ONE, _ONE, (Axis(len(accumulators), 1, 0),))
            dst = accumulators
        kernel = self._kernel(dst, np.zeros_like(dst), np.zeros_like(dst), np.zeros_like(dst))
        written = places(accumulators)
        return Planned(shape, kernel, Touched(written, mask=mask_of(written)))

    def _plan(self, shape: Shape, dst: int, src: int, wgt: int, product: bool) -> Planned:
        key = (shape, dst, src, wgt, product)
        found = self._planned.get(key)
        if found is None:
            found = self._planned[key] = self._make(shape, dst, src, wgt, product)
        return found

    def _make(self, shape: Shape, dst: int, src: int, wgt: int, product: bool) -> Planned:
        config = self.config
        if shape.uops > config.uop_depth:
            raise ScheduleError(
                f"an instruction needs {shape.uops} micro-ops, the memory holds {config.uop_depth}; use smaller tiles"
            )
        at = {name: base + _grid(shape.rest, name) for name, base in (("dst", dst), ("src", src), ("wgt", wgt))}
        every = (shape.outer, shape.inner, *shape.rest)
        touched = {name: base + _grid(every, name) for name, base in (("dst", dst), ("src", src), ("wgt", wgt))}
        depths = {
            "dst": config.acc_depth,
            "src": config.inp_depth if product else config.acc_depth,
            "wgt": config.wgt_depth,
        }
        for name, indices in touched.items():
            if indices.min() < 0 or indices.max() >= depths[name]:
                raise ScheduleError(f"an instruction reaches {name} {indices.max()} of {depths[name]}")
        begins = np.ones(1, bool)
        for a in shape.rest:
            one = np.arange(a.extent) == 0 if not a.dst else np.ones(a.extent, bool)
            begins = (begins[:, None] & one).reshape(-1)
        marked = product and config.ext_gemm_set and not shape.outer.dst and (shape.inner.dst or shape.inner is _ONE)
        first = begins & bool(marked)
        kernel = self._kernel(at["dst"], at["src"], at["wgt"], first)
        written, sources = places(touched["dst"]), places(touched["src"])
        facts = Touched(written, mask=mask_of(written))
        if product:
            facts.inp, facts.wgt = sources, places(touched["wgt"])
        else:
            facts.reads = mask_of(sources)
        return Planned(shape, kernel, facts)

    def _kernel(self, dst: np.ndarray, src: np.ndarray, wgt: np.ndarray, first: np.ndarray) -> Kernel:
        words = pack_uop(dst, src, wgt, first, self.config)
        return self._kernels.setdefault(words.tobytes(), Kernel(words))


@lru_cache(maxsize=2)
def kernels_of(config: VdlaConfig) -> Kernels:
    """Those of an accelerator, which programs share: most instructions of one are in the next one tried, too."""
    return Kernels(config)
