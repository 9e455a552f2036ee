"""What a GEMM or ALU instruction touches, worked out once and kept.

The instructions of a stream repeat: the same micro-ops, extents and factors come back for every tile. Each distinct
combination is expanded into a *plan*, the index arrays with which numpy and BLAS execute all its steps at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Alu, Gemm, GemmMode, unpack_uop
from mlc.vdla.sim.scalar import outside

Index = npt.NDArray[np.int64]

# Beyond this many steps (20 ms of the default accelerator) an instruction is not expanded.
MOST_STEPS = 1 << 22


@dataclass(frozen=True, eq=False)
class Product:
    """Part of a GEMM whose accumulators are rows times columns of one matrix product.

    Attributes:
        dst: [P, O], the accumulators; no two equal.
        src: [P, R], the inputs that each row sums over.
        wgt: [R, O], the weights of each column.
        fresh: the sums replace what the accumulators held.
    """

    dst: Index
    src: Index
    wgt: Index
    fresh: bool


@dataclass(frozen=True, eq=False)
class GemmPlan:
    """A whole GEMM: first ``zeroed`` accumulators are cleared, then every product is added.

    ``reach`` has the greatest index into accumulators, inputs and weights.
    """

    zeroed: Index
    products: tuple[Product, ...]
    reach: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class AluPlan:
    """A whole ALU instruction as (dst, src) runs, each executable at once, in this order."""

    runs: tuple[tuple[Index, Index], ...]


class Planned(Protocol):
    """What is common to GEMM and ALU: the loops."""

    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int


def steps_of(instruction: Planned) -> int:
    """Steps that a GEMM or ALU instruction takes."""
    return instruction.iter_out * instruction.iter_in * max(instruction.uop_end - instruction.uop_bgn, 0)


def plan_gemm(instruction: Gemm, dst: Index, src: Index, wgt: Index, first: Index) -> GemmPlan:
    """Expands a GEMM.

    Args:
        instruction: its extents, factors and mode.
        dst, src, wgt, first: fields of the micro-ops between its begin and end, one or more; indices may be relative.
    Raises:
        DeviceError: more than ``MOST_STEPS`` steps.
    """
    x = instruction
    uops = len(dst)
    dst = _indices(dst, x, x.dst_out, x.dst_in)
    if not len(dst):
        return GemmPlan(dst, (), (0, 0, 0))
    if x.mode is GemmMode.ZERO:
        return GemmPlan(np.unique(dst), (), (int(dst.max()), 0, 0))
    src = _indices(src, x, x.src_out, x.src_in)
    wgt = _indices(wgt, x, x.wgt_out, x.wgt_in)
    reach = (int(dst.max()), int(src.max()), int(wgt.max()))
    starts = np.zeros(len(dst), bool)
    if x.mode is GemmMode.SET:
        starts[: x.iter_in * uops] = np.tile(first.astype(bool), x.iter_in)
    # By accumulator, each one's products in the order in which they happen.
    order = np.argsort(dst.astype(np.uint16), kind="stable")
    dst, src, wgt, starts = dst[order], src[order], wgt[order], starts[order]
    heads = np.concatenate(([0], np.flatnonzero(dst[1:] != dst[:-1]) + 1))
    ends = np.append(heads[1:], len(dst))
    # A sum that starts anew forgets the products before it.
    last_start = np.maximum.reduceat(np.where(starts, np.arange(len(dst)), -1), heads)
    fresh = last_start >= 0
    heads = np.where(fresh, last_start, heads)
    counts = ends - heads
    # Accumulators with as many products, and the same beginning, are looked at together.
    products: list[Product] = []
    kinds = 2 * counts + fresh
    for kind in np.unique(kinds):
        chosen = heads[kinds == kind]
        at = chosen[:, None] + np.arange(kind // 2)
        products += _factor(dst[chosen], src[at], wgt[at], bool(kind % 2))
    return GemmPlan(np.empty(0, np.int64), tuple(products), reach)


def plan_alu(instruction: Alu, uops: npt.NDArray[np.uint32], config: VdlaConfig) -> AluPlan:
    """Expands an ALU instruction.

    A run ends where a step needs what the run itself writes: a repeated destination, or a source written before.

    Args:
        instruction: its extents and factors.
        uops: the micro-ops between its begin and end.
        config: for the accumulator's depth.
    Raises:
        DeviceError: an index outside the accumulator, or more than ``MOST_STEPS`` steps.
    """
    x = instruction
    dst, src, _, _ = unpack_uop(uops, config)
    dst = _indices(dst, x, x.dst_out, x.dst_in)
    src = dst if x.use_imm else _indices(src, x, x.src_out, x.src_in)
    for found in (dst, src):
        if len(found) and (last := int(found.max())) >= config.acc_depth:
            raise outside("acc", int(found.min()), last, config.acc_depth)
    if not len(dst):
        return AluPlan(())
    # The step that last wrote each accumulator, -1 at first: a run reaches as far as nothing looks back into it.
    if len(np.unique(dst)) == len(dst) and (x.use_imm or not _reads_written(dst, src)):
        return AluPlan(((dst, src),))
    runs = []
    written: set[int] = set()
    begin = 0
    for step, (d, s) in enumerate(zip(dst.tolist(), src.tolist(), strict=True)):
        if d in written or s in written:
            runs.append((dst[begin:step], src[begin:step]))
            written.clear()
            begin = step
        written.add(d)
    runs.append((dst[begin:], src[begin:]))
    return AluPlan(tuple(runs))


def _reads_written(dst: Index, src: Index) -> bool:
    """Whether any step reads what an earlier one wrote; every destination occurs once."""
    when = np.full(int(max(dst.max(), src.max())) + 1, len(dst))
    when[dst] = np.arange(len(dst))
    return bool(np.any(when[src] < np.arange(len(src))))


def _indices(start: Index, x: Planned, outer: int, inner: int) -> Index:
    """The index of every step in one memory, in the order in which they happen."""
    if steps_of(x) > MOST_STEPS:
        raise DeviceError(f"{steps_of(x)} steps in one instruction; the simulator takes at most {MOST_STEPS}")
    i = np.arange(x.iter_out).reshape(-1, 1, 1) * outer
    j = np.arange(x.iter_in).reshape(-1, 1) * inner
    found: Index = (i + j + start).reshape(-1)
    return found


def _factor(dst: Index, src: Index, wgt: Index, fresh: bool) -> list[Product]:
    """Accumulators with R products each, as few matrix products as their equal lists allow.

    Accumulators with equal lists of weights are a column, those with equal lists of inputs a row; columns that have the
    same rows become one product.
    """
    rows, columns = _labels(src), _labels(wgt)
    order = np.lexsort((rows, columns))
    cuts = np.flatnonzero(np.diff(columns[order])) + 1
    alike: defaultdict[bytes, list[Index]] = defaultdict(list)
    for members in np.split(order, cuts):
        alike[rows[members].tobytes()].append(members)
    found = []
    for group in alike.values():
        members = np.stack(group, axis=1)  # [P, O]
        found.append(Product(dst[members], src[members[:, 0]], np.ascontiguousarray(wgt[members[0]].T), fresh))
    return found


def _labels(lists: Index) -> Index:
    """A number for each row, equal exactly where the rows are."""
    if lists.shape[1] == 1:
        return lists[:, 0]
    # Sums with fixed odd factors tell rows apart, as good as always; where they do not, bytes do.
    sums = lists.astype(np.uint64) @ (_MIX ** np.arange(1, lists.shape[1] + 1, dtype=np.uint64))
    _, first, labels = np.unique(sums, return_index=True, return_inverse=True)
    if not np.array_equal(lists[first[labels]], lists):
        rows = np.ascontiguousarray(lists).view(np.dtype((np.void, lists.itemsize * lists.shape[1])))
        labels = np.unique(rows[:, 0], return_inverse=True)[1]
    return labels


# An odd number whose bits are about evenly spread: 2**64 over the golden ratio.
_MIX = np.uint64(0x9E3779B97F4A7C15)
