"""Kernels over grids of threads, and what may be wrong with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Load, loads, replace_loads, within
from mlc.ir.index import Var
from mlc.ir.interp import run_function, run_tensors
from mlc.ir.loop import (
    THREAD_AXES,
    Barrier,
    Buffer,
    Commit,
    For,
    Function,
    If,
    Shuffle,
    Stmt,
    Store,
    Wait,
    rebuild,
    seq,
    walk,
)
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.pipeline import GRID_PASSES
from mlc.lower.stage import Stage
from mlc.lower.threads import launches


@dataclass(frozen=True)
class Grid:
    """A scheduled computation: its schedule, and its parameters, of which the last is the result."""

    schedule: Schedule
    params: list[te.Tensor]

    def kernel(self) -> Function:
        return lower(self.schedule, self.params, "kernel", passes=GRID_PASSES)

    def arrays(self) -> list[np.ndarray]:
        """Random inputs, and a result that nobody has written yet."""
        rng = np.random.default_rng(0)
        ins = [rng.standard_normal(t.shape).astype(np.float32) for t in self.params[:-1]]
        return [*ins, np.full(self.params[-1].shape, np.nan, np.float32)]


def run(fn: Function, arrays: list[np.ndarray]) -> np.ndarray:
    """What a kernel makes of some arrays."""
    own = [a.copy() for a in arrays]
    run_function(fn, own)
    return own[-1]


def cooperate(stage: Stage, y: int, x: int) -> None:
    """A stage that all threads of a block compute together."""
    _, inner = stage.split(stage.fuse(*stage.axes), y * x)
    ty, tx = stage.split(inner, x)
    stage.bind(ty, "threadIdx.y")
    stage.bind(tx, "threadIdx.x")


def product(
    m: int = 10,
    n: int = 6,
    k: int = 7,
    *,
    rows: tuple[int, int] = (4, 2),
    columns: tuple[int, int] = (4, 2),
    depth: int = 4,
    vector: bool = False,
    versions: int = 1,
    asynchronous: bool = False,
) -> Grid:
    """A matrix product: a block makes a tile, a thread a part of it, operands lie in shared memory by turns.

    Args:
        m, n, k: rows, columns, and terms.
        rows, columns: of a block's tile, and of a thread's.
        depth: terms that are in shared memory at a time.
        vector: whether a thread stores its columns as a vector.
        versions: of the operands' parts in shared memory, in turns.
        asynchronous: whether these are copied asynchronously.
    """
    m, n = max(m, rows[0]), max(n, columns[0])  # all threads take part
    a, b = te.placeholder((m, k), f32, "a"), te.placeholder((k, n), f32, "b")
    r = te.reduce_axis(k, "r")
    c = te.compute((m, n), lambda i, j: te.sum_of(a[i, r] * b[r, j], r), "c")
    s = Schedule([c])
    sums = s.cache_write(c, "local")
    held = [s.cache_read(t, "shared", [sums]) for t in (a, b)]
    out, acc = s[c], s[sums]
    by, i = out.split(out.axes[0], rows[0])
    bx, j = out.split(out.axes[1], columns[0])
    ty, i = out.split(i, rows[1])
    tx, j = out.split(j, columns[1])
    out.reorder(by, bx, ty, tx, i, j)
    for axis, thread in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        out.bind(axis, thread)
    if vector:
        out.vectorize(j)
    acc.compute_at(out, tx)
    ko, ki = acc.split(acc.reduce_axes[0], depth)
    acc.reorder(ko, ki, *acc.axes)
    for t in held:
        s[t].compute_at(acc, ko)
        cooperate(s[t], rows[0] // rows[1], columns[0] // columns[1])
        if versions > 1:
            s[t].double_buffer(versions, asynchronous=asynchronous)
    return Grid(s, [a, b, c])


def sums(rows: int = 3, length: int = 11, threads: int = 4) -> Grid:
    """Sums of rows: a block a row, whose threads have a share each; the first one adds the shares up."""
    x, r = te.placeholder((rows, length), f32, "x"), te.reduce_axis(length, "r")
    y = te.compute((rows,), lambda i: te.sum_of(x[i, r], r), "y")
    s = Schedule([y])
    share = s.rfactor(y, s[y].split(s[y].reduce_axes[0], threads)[1])
    s[y].bind(s[y].axes[0], "blockIdx.x")
    s[share].compute_at(s[y], s[y].axes[0])
    s[share].set_scope("shared")
    s[share].bind(s[share].axes[0], "threadIdx.x")
    return Grid(s, [x, y])


def exchanged(rows: int = 3, length: int = 11, threads: int = 4, tall: int = 2) -> Grid:
    """Sums of rows: a warp's threads, or some of them, have a share each, and exchange what they have of it."""
    x, r = te.placeholder((rows, length), f32, "x"), te.reduce_axis(length, "r")
    y = te.compute((rows,), lambda i: te.sum_of(x[i, r], r), "y")
    s = Schedule([y])
    sums = s.cache_write(y, "local")
    share = s.rfactor(sums, s[sums].split(s[sums].reduce_axes[0], threads)[1])
    bx, ty = s[y].split(s[y].axes[0], tall)
    s[y].bind(bx, "blockIdx.x")
    s[y].bind(ty, "threadIdx.y")
    s[sums].compute_at(s[y], ty)
    (lane,) = s[sums].reduce_axes
    s[sums].bind(lane, "threadIdx.x")
    s[share].compute_at(s[sums], lane)
    return Grid(s, [x, y])


def stencil(rows: int = 3, length: int = 10, tile: int = 4) -> Grid:
    """Neighbours along a row, which a block's threads compute for each other."""
    x = te.placeholder((rows, length + 2), f32, "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, "y")
    z = te.compute((rows, length), lambda i, j: y[i, j] * y[i, j + 2], "z")
    s = Schedule([z])
    i, j = s[z].axes
    bx, tx = s[z].split(j, tile)
    s[z].bind(i, "blockIdx.y")
    s[z].bind(bx, "blockIdx.x")
    s[z].bind(tx, "threadIdx.x")
    s[y].compute_at(s[z], tx)
    s[y].set_scope("shared")
    s[y].bind(s[y].split(s[y].axes[1], tile)[1], "threadIdx.x")
    return Grid(s, [x, z])


def turned(rows: int = 5, columns: int = 6, threads: int = 4) -> Grid:
    """A transposition, element by element, with a ragged end."""
    x = te.placeholder((columns, rows), f32, "x")
    y = te.compute((rows, columns), lambda i, j: x[j, i], "y")
    s = Schedule([y])
    bx, tx = s[y].split(s[y].fuse(*s[y].axes), threads)
    s[y].bind(bx, "blockIdx.x")
    s[y].bind(tx, "threadIdx.x")
    return Grid(s, [x, y])


GRIDS: dict[str, Callable[[], Grid]] = {
    "product": product,
    "vectors": lambda: product(8, 8, 5, vector=True),
    "turns": lambda: product(versions=2, depth=2),
    "copies": lambda: product(k=5, depth=2, versions=2, asynchronous=True),
    "copies_ahead": lambda: product(8, 4, 5, depth=1, versions=3, asynchronous=True),
    "sums": sums,
    "exchanged": exchanged,
    "stencil": stencil,
    "turned": turned,
}


def expected(grid: Grid, arrays: list[np.ndarray]) -> np.ndarray:
    """What the tensor expressions say."""
    (out,) = run_tensors(grid.schedule.outputs, dict(zip(grid.params, arrays[:-1], strict=False)))
    return out


# -- faults ---------------------------------------------------------------------------------------------------------
def edited(fn: Function, old: Stmt, new: Stmt) -> Function:
    """A kernel with one statement replaced."""

    def swap(s: Stmt) -> Stmt:
        return new if s is old else rebuild(s, swap)

    return Function(fn.name, fn.params, fn.outputs, swap(fn.body), fn.attrs)


def mutations(fn: Function) -> Iterator[tuple[str, Function]]:
    """Kernels with one thing changed: a barrier or a wait less, or not for all threads, as for an exchange; an index
    moved by one."""
    for launch in launches(fn.body):
        yield from _mutations(fn, launch)


def _mutations(fn: Function, launch: Stmt) -> Iterator[tuple[str, Function]]:
    threads = [s.var for s in walk(launch) if isinstance(s, For) and s.thread in THREAD_AXES]
    for k, s in enumerate(walk(launch)):
        if isinstance(s, Barrier):
            yield f"barrier {k} removed", edited(fn, s, seq([]))
            for v in threads:
                yield f"barrier {k} for some of {v}", edited(fn, s, If(within(v, 0, v.hi), s))
        if isinstance(s, Shuffle):
            further = Shuffle(s.buffer, s.indices, s.source, s.at, 64 * s.flip)
            yield f"exchange {k} with others", edited(fn, s, further)
            for v in threads:
                yield f"exchange {k} for some of {v}", edited(fn, s, If(within(v, 0, v.hi), s))
        if isinstance(s, Wait):
            yield f"wait {k} removed", edited(fn, s, seq([]))
            yield f"wait {k} for one group less", edited(fn, s, Wait(s.groups + 1))
        if isinstance(s, Commit):
            yield f"commit {k} removed", edited(fn, s, seq([]))
        if isinstance(s, Store):
            for d in range(len(s.indices)):
                for by in (-1, 1):
                    yield f"store {k} moved by {by} along {d}", edited(fn, s, moved(s, d, by))
                    for b in dict.fromkeys(ld.source for ld in loads(s.value)):
                        if d < len(b.shape):
                            yield f"load of {b.name} in {k} moved by {by} along {d}", edited(fn, s, read(s, b, d, by))
            for v in threads:
                yield f"{k} without {v}", edited(fn, s, without(s, v))


def moved(s: Store, d: int, by: int) -> Store:
    """A store one element further."""
    return Store(
        s.buffer, tuple(ix + by if k == d else ix for k, ix in enumerate(s.indices)), s.value, s.lane, s.asynchronous
    )


def read(s: Store, b: Buffer, d: int, by: int) -> Store:
    """A store whose value reads a buffer one element further."""

    def swap(ld: Load) -> Load:
        if ld.source is not b:
            return ld
        return Load(b, tuple(ix + by if k == d else ix for k, ix in enumerate(ld.indices)))

    return Store(s.buffer, s.indices, replace_loads(s.value, swap), s.lane, s.asynchronous)


def without(s: Store, v: Var) -> Store:
    """A store whose place does not depend on a thread's number."""
    return Store(s.buffer, tuple(ix.without(v) for ix in s.indices), s.value, s.lane, s.asynchronous)
