"""How long the GEMMs of a stream wait for their own sums.

A step that adds to an accumulator starts no sooner than ``acc_latency`` cycles after the last step that wrote it; one
that only writes (ZERO, the first product of SET) never waits.

Compiled kernels are ordered so that they do not wait. That is found out for all kernels of a stream at once; only those
that may use an accumulator again too early are walked step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.fields import uop_layout

Ints = npt.NDArray[np.int64]

# Accumulators written within the latency, as (index, cycles since), sorted.
_Recent = tuple[tuple[int, int], ...]


# Latencies up to which kernels are looked at in pairs of steps; the number of pairs grows with their square.
_PAIRED = 16


class Loops(NamedTuple):
    """The loops of a GEMM that adds, around its micro-ops.

    ``starts`` says that micro-ops marked ``first`` start sums in the first outer iteration (SET).
    """

    starts: bool
    iter_out: int
    iter_in: int
    dst_out: int
    dst_in: int


def stalls_of(loops: Sequence[Loops], uops: Sequence[npt.NDArray[np.uint32]], config: VdlaConfig) -> Ints:
    """The cycles that every kernel waits.

    Args:
        loops: of the kernels.
        uops: of each the micro-ops, none or more.
        config: the accelerator.
    Returns:
        int64[kernels].
    """
    stalls = np.zeros(len(loops), np.int64)
    if not loops:
        return stalls
    words = np.concatenate(uops)
    dst_slot, _, _, first_slot = uop_layout(config)
    dst = (words >> dst_slot.low).astype(np.int64) & ((1 << dst_slot.width) - 1)
    ends = np.cumsum([len(each) for each in uops])
    known: dict[tuple[object, ...], int] = {}
    for number in np.flatnonzero(_may_stall(np.array(loops, np.int64), dst, ends, config.acc_latency)).tolist():
        part = slice(ends[number] - len(uops[number]), ends[number])
        # Kernels that differ only in where their accumulators lie wait alike.
        indices = dst[part] - dst[part].min()
        first = words[part] >> first_slot.low if loops[number].starts else np.zeros_like(words[part])
        key = (*loops[number][1:], indices.tobytes(), first.tobytes())
        if key not in known:
            known[key] = _walked(loops[number], indices.tolist(), first.tolist(), config.acc_latency)
        stalls[number] = known[key]
    return stalls


def _may_stall(loops: Ints, dst: Ints, ends: Ints, latency: int) -> npt.NDArray[np.bool_]:
    """Which kernels may write an accumulator in two steps less than the latency apart.

    Args:
        loops: int64[kernels, 5], rows of ``Loops``.
        dst: the accumulators of all micro-ops, kernel after kernel.
        ends: where each kernel's end there.
        latency: of the accumulator.
    """
    _, iter_out, iter_in, dst_out, dst_in = loops.T
    begins = np.append(0, ends[:-1])
    sizes = ends - begins
    steps = iter_in * sizes  # of one outer iteration
    found = np.zeros(len(loops), np.bool_)
    busy = (iter_out > 0) & (steps > 0)
    if latency > _PAIRED:
        return np.asarray(busy)
    # In one pass over the micro-ops.
    kernel = np.repeat(np.arange(len(loops)), sizes)
    for apart in range(1, min(latency, len(dst))):
        again = (dst[apart:] == dst[:-apart]) & (kernel[apart:] == kernel[:-apart])
        found[kernel[apart:][again]] = True

    def written(kernels: Ints, step: Ints) -> Ints:
        """The accumulators that steps of the kernels' first outer iteration write."""
        iteration, uop = np.divmod(step, sizes[kernels])
        return np.asarray(dst[begins[kernels] + uop] + iteration * dst_in[kernels])

    # From one inner iteration into those after it, or from one outer iteration into the next. Where outer iterations
    # are so short that it may be into the one after that, the kernel is looked at step by step.
    found |= (iter_out > 1) & (steps < latency)
    for back in range(1, latency):
        for ahead in range(latency - back):
            at = np.flatnonzero(busy & ~found & (sizes >= back) & (sizes + ahead < steps))
            found[at] = written(at, sizes[at] - back) == written(at, sizes[at] + ahead)
            at = np.flatnonzero(busy & ~found & (iter_out > 1))
            found[at] = written(at, steps[at] - back) == written(at, np.full(len(at), ahead)) + dst_out[at]
    return np.asarray(found & busy)


def _walked(loops: Loops, indices: list[int], starts: list[int], latency: int) -> int:
    """The stalls of a kernel, step by step, but for iterations of the inner loop that are alike.

    Args:
        loops: around the micro-ops.
        indices: accumulators of the micro-ops.
        starts: whether they start sums.
        latency: of the accumulator.
    """
    known: dict[tuple[bool, _Recent], tuple[int, _Recent]] = {}
    total = 0
    recent: _Recent = ()
    for i in range(loops.iter_out):
        j = 0
        while j < loops.iter_in:
            entering = recent
            outer = i == 0
            if (outer, entering) not in known:
                known[outer, entering] = _inner_stalls(indices, starts if outer else None, entering, latency)
            stalls, leaving = known[outer, entering]
            recent = _moved(leaving, loops.dst_in)
            # From here on every pass is like this one.
            passes = loops.iter_in - j if recent == entering else 1
            total += passes * stalls
            j += passes
        if i + 1 < loops.iter_out:
            # Back from one step beyond the inner loop to the start of the next outer one.
            recent = _moved(recent, loops.dst_out - loops.iter_in * loops.dst_in)
    return total


def _moved(recent: _Recent, by: int) -> _Recent:
    """Seen from a loop iteration whose accumulators are ``by`` further on."""
    return tuple((index - by, age) for index, age in recent)


def _inner_stalls(dst: list[int], starts: list[int] | None, recent: _Recent, latency: int) -> tuple[int, _Recent]:
    """One pass over the micro-ops: the cycles it waits, and what it leaves behind."""
    written = {index: -age for index, age in recent}
    now = 0  # the cycle in which the next step could begin
    for number, index in enumerate(dst):
        if index in written and not (starts and starts[number]):
            now = max(now, written[index] + latency)
        written[index] = now
        now += 1
    left = sorted((index, now - when) for index, when in written.items() if now - when < latency)
    return now - len(dst), tuple(left)
