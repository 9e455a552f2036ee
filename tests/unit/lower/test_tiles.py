"""Whole and ragged register tiles of an axis that threads share are told by a test, and results stay the same."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.ir.expr import IndexValue, Load, binary, cast, const, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, If, Prefetch, Stmt, Store, seq, walk
from mlc.ir.types import f32, i64
from mlc.lower.partition import partition
from mlc.lower.tiles import tell_tiles
from mlc.lower.verify import verify
from tests.fuzz import examples

OUT = Buffer("out", (4, 80), f32)


def check(s: Stmt) -> str:
    """The text after partitioning, once it is known to do the same; that of the test alone, too."""
    results = []
    for body in (s, tell_tiles(s), partition(s)):
        fn = Function("kernel", (OUT,), 1, body)
        verify(fn, final=False)
        out = np.full(OUT.shape, 77, np.float32)
        run_function(fn, [out])
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    return repr(body)


def nest(
    tasks: Var, tiles: Var, number: Linear, pixels: int, count: int, row: Linear | int = 0, *, rest: bool = False
) -> Stmt:
    """Tasks × tiles × ``pixels`` of a register tile, as far as there are ``count``; with ``rest``, zeros behind."""
    tile = Buffer("tile", (pixels,), f32, "register")
    i, j = Var("i", 0, pixels - 1), Var("j", 0, pixels - 1)
    first = number * pixels
    fill = If(within(first + i, 0, count), Store(tile, (as_index(i),), cast(IndexValue(first + i, i64), f32)))
    write = Store(OUT, (as_index(row), first + j), Load(tile, (as_index(j),)))
    zero = Store(OUT, (as_index(row), first + j), const(0.0, f32))
    copy = If(within(first + j, 0, count), write, zero if rest else None)
    ahead = Prefetch(OUT, (as_index(0), as_index(0)), 1)
    loops = [For(v, v.hi + 1, ForKind.UNROLLED, s) for v, s in ((i, fill), (j, copy))]
    body: Stmt = Allocate(tile, seq([loops[0], ahead, loops[1]]))
    for v, kind in ((tiles, ForKind.SERIAL), (tasks, ForKind.PARALLEL)):
        body = For(v, v.hi + 1, kind, body)
    return body


TASK, TILE = Var("task", 0, 3), Var("t", 0, 4)
NUMBER = as_index(TASK) * 5 + TILE


def test_whole_tiles_and_the_ragged_one_are_there_once() -> None:
    assert check(nest(TASK, TILE, NUMBER, 4, 70)) == (
        "for task in parallel(4):\n"
        "  for t in range(5):\n"
        "    if 5*task + t < 17:\n"
        "      tile: f32[4] in register\n"
        "      for i in unrolled(4):\n"
        "        tile[i] = f32(i64(20*task + 4*t + i))\n"
        "      prefetch(out[0, 0], level=1)\n"
        "      for j in unrolled(4):\n"
        "        out[0, 20*task + 4*t + j] = tile[j]\n"
        "    else:\n"
        "      if 5*task + t < 18:\n"
        "        tile: f32[4] in register\n"
        "        for i in unrolled(2):\n"
        "          tile[i] = f32(i64(20*task + 4*t + i))\n"
        "        prefetch(out[0, 0], level=1)\n"
        "        for j in unrolled(2):\n"
        "          out[0, 20*task + 4*t + j] = tile[j]"
    )


def test_the_last_tile_needs_no_test_of_its_own() -> None:
    text = check(nest(TASK, TILE, NUMBER, 4, 78))
    assert text.count("if ") == 1
    assert text.count("in register") == 2


def test_tiles_that_are_all_whole_are_there_once() -> None:
    text = check(nest(TASK, TILE, NUMBER, 4, 68))
    assert "    if 5*task + t < 17:\n" in text
    assert text.count("if ") == text.count("in register") == 1


def test_tasks_may_count_other_blocks_as_well() -> None:
    """Of a fused loop, the inner one goes along another axis."""
    task = Var("task", 0, 11)
    text = check(nest(task, TILE, as_index(task) // 3 * 5 + TILE, 4, 70, as_index(task) % 3))
    assert "for task in parallel(12):\n  for t in range(5):\n    if 5*(task//3) + t < 17:\n" in text
    assert text.count("in register") == 2


def panels(count: int, *, sums: bool) -> Stmt:
    """Tasks that are rows × panels of four channels, as far as there are ``count``; with ``sums``, of some terms."""
    tile, task = Buffer("tile", (4,), f32, "register"), Var("task", 0, 11)
    i, j, term = Var("i", 0, 3), Var("j", 0, 3), Var("term", 0, 4)
    first = as_index(task) % 3 * 4
    value = cast(IndexValue(first + i, i64), f32)
    add = Store(tile, (as_index(i),), binary("add", Load(tile, (as_index(i),)), value))
    begin = For(i, 4, ForKind.UNROLLED, Store(tile, (as_index(i),), value))
    fill: Stmt = For(i, 4, ForKind.UNROLLED, If(within(first + i, 0, count), add))
    write = Store(OUT, (as_index(task) // 3, first + j), Load(tile, (as_index(j),)))
    copy = For(j, 4, ForKind.UNROLLED, If(within(first + j, 0, count), write))
    inside = For(term, 5, ForKind.SERIAL, fill) if sums else fill
    return For(task, 12, ForKind.PARALLEL, Allocate(tile, seq([begin, inside, copy])))


def test_a_part_of_what_threads_share_is_told_where_terms_would_be_guarded() -> None:
    """The loop over rows and panels, fused, cannot be cut."""
    text = check(panels(10, sums=True))
    assert text.startswith("for task in parallel(12):\n  if task%3 < 2:\n    tile: f32[4] in register\n")
    assert text.count("if ") == 1
    assert text.count("in register") == 2


def test_a_tile_without_terms_is_there_once() -> None:
    assert check(panels(10, sums=False)).count("in register") == 1


def test_what_is_done_behind_the_last_tile_stays() -> None:
    s = nest(TASK, TILE, NUMBER, 4, 60, rest=True)
    assert tell_tiles(s) is s
    assert check(s).count("= 0.0") > 0


def test_several_ragged_tiles_are_not_told() -> None:
    """A tile of five pixels every two: two of them may be ragged."""
    tile, i = Buffer("tile", (1,), f32, "register"), Var("i", 0, 4)
    first = NUMBER * 2
    write = If(within(first + i, 0, 30), Store(OUT, (as_index(0), first + i), const(1.0, f32)))
    s: Stmt = Allocate(tile, For(i, 5, ForKind.SERIAL, write))
    s = For(TASK, 4, ForKind.PARALLEL, For(TILE, 5, ForKind.SERIAL, s))
    assert tell_tiles(s) is s
    check(s)


def test_tiles_of_one_task_are_cut_as_before() -> None:
    """No loop that threads share goes along their axis: a range of iterations is whole."""
    tile = nest(TASK, TILE, as_index(TILE), 4, 18, as_index(TASK))
    assert tell_tiles(tile) is tile
    assert "    for t in range(4):\n" not in check(tile)
    assert "  for t in range(4):\n" in check(tile)


@given(
    blocks=st.integers(1, 4),
    tasks=st.integers(2, 4),
    tiles=st.integers(2, 5),
    pixels=st.integers(1, 4),
    missing=st.integers(0, 30),
    other=st.integers(0, 3),
    rest=st.booleans(),
)
@examples(150)
def test_random_axes_keep_their_meaning(
    blocks: int, tasks: int, tiles: int, pixels: int, missing: int, other: int, rest: bool
) -> None:
    """Any number of pixels, choices within values, and guards of other axes, which stay."""
    task, t = Var("task", 0, tasks * blocks - 1), Var("t", 0, tiles - 1)
    number = as_index(task) // blocks * tiles + t
    count = tasks * tiles * pixels - missing
    assume(count > 0)
    s = nest(task, t, number, pixels, count, as_index(task) % blocks, rest=rest)
    assert isinstance(s, For)
    if other:
        row = as_index(task) % blocks
        value = select(within(row + t, 0, other), const(1.0, f32), const(2.0, f32))
        k = Var("k", 0, pixels - 1)
        more = Load(OUT, (row, number * pixels + k))
        again = If(within(number * pixels + k, 0, count), Store(OUT, more.indices, binary("add", more, value)))
        tile = Buffer("tile", (1,), f32, "register")
        second: Stmt = Allocate(tile, For(k, pixels, ForKind.UNROLLED, again))
        for v, kind in ((t, ForKind.SERIAL), (task, ForKind.PARALLEL)):
            second = For(v, v.hi + 1, kind, second)
        s = seq([s, second])
    check(s)
    if not rest and not other:
        assert sum(isinstance(x, Allocate) for x in walk(partition(s))) <= 2
