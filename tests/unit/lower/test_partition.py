"""Loop partitioning: guards that a range of iterations decides disappear, others move in front of what ignores them."""

from __future__ import annotations

import numpy as np

from mlc.ir.expr import Expr, Load, all_of, cast, const, select, within
from mlc.ir.index import Var, as_index, dynamic
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Buffer, For, ForKind, ForRange, Function, If, Stmt, Store, seq, walk
from mlc.ir.types import f32, i64
from mlc.lower.partition import partition
from mlc.lower.verify import verify

X, OUT = Buffer("x", (8,), f32), Buffer("out", (10, 10), f32)
I, J = Var("i", 0, 9), Var("j", 0, 9)


def loop(var: Var, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, var.hi + 1, kind, body)


def check(s: Stmt) -> str:
    """The text after partitioning, once it is known to do the same."""
    results = []
    for body in (s, partition(s)):
        fn = Function("kernel", (X, OUT), 1, body)
        verify(fn, final=False)
        out = np.full((10, 10), 77, np.float32)
        run_function(fn, [np.arange(8, dtype=np.float32), out])
        results.append(out)
    np.testing.assert_array_equal(*results)
    return repr(body)


def store(value: Expr, *indices: object) -> Store:
    return Store(OUT, tuple(as_index(ix) for ix in indices), value)  # type: ignore[arg-type]


ONE = const(1.0, f32)


def test_guard_at_the_end_shortens_the_loop() -> None:
    assert check(loop(I, If(within(I, 0, 8), store(ONE, 0, I)))) == "for i in range(8):\n  out[0, i] = 1.0"


def test_guard_on_both_sides_leaves_the_middle() -> None:
    assert check(loop(I, If(within(I, 2, 7), store(ONE, 0, I)))) == "for i in range(5):\n  out[0, i + 2] = 1.0"


def test_other_side_of_a_guard_keeps_its_iterations() -> None:
    s = loop(I, If(within(I, 2, 9), store(ONE, 0, I), store(const(0.0, f32), 0, I)))
    assert check(s) == (
        "for i in range(2):\n  out[0, i] = 0.0\nfor i in range(7):\n  out[0, i + 2] = 1.0\nout[0, 9] = 0.0"
    )


def test_choices_between_lanes_become_constant_masks() -> None:
    lane, part = Var("lane", 0, 7), Var("part", 0, 1)
    place = as_index(part) * 8 + lane
    value = select(within(place - 1, 0, 8), Load(X, (place - 1,)), 0.0)
    wide = Buffer("wide", (16,), f32)
    s = loop(part, loop(lane, Store(wide, (place,), value), ForKind.VECTORIZED), ForKind.UNROLLED)
    assert repr(partition(s)) == repr(s)


def test_choices_are_decided_as_branches_are() -> None:
    value = select(within(as_index(I) - 1, 0, 8), Load(X, (as_index(I) - 1,)), -1.0)
    assert check(loop(I, store(value, 0, I))) == (
        "out[0, 0] = -1.0\nfor i in range(8):\n  out[0, i + 1] = x[i]\nout[0, 9] = -1.0"
    )


def test_falling_index_is_cut_at_the_right_end() -> None:
    value = select(within(7 - as_index(I), 0, 8), Load(X, (7 - as_index(I),)), -1.0)
    assert "for i in range(8):\n  out[0, i] = x[-i + 7]" in check(loop(I, store(value, 0, I)))


def test_windows_are_cut_on_both_axes() -> None:
    inside = all_of([within(as_index(I) + J - 1, 0, 8), within(J, 1, 9)])
    s = loop(I, loop(J, store(select(inside, Load(X, (as_index(I) + J - 1,)), 0.0), I, J)))
    text = check(s)
    assert "for i in range(10)" in text or "for i in range" in text


def test_lanes_of_a_register_are_selected_rather_than_cut() -> None:
    tile = Buffer("tile", (10,), f32, "register")
    value = select(within(as_index(J) - 1, 0, 8), Load(X, (as_index(J) - 1,)), 0.0)
    lanes = loop(J, Store(tile, (as_index(J),), value), ForKind.VECTORIZED)
    back = loop(I, Store(OUT, (as_index(0), as_index(I)), Load(tile, (as_index(I),))))
    text = check(Allocate(tile, seq([lanes, back])))
    assert "for j in vectorized(10):" in text


def test_guard_of_an_outer_loop_moves_in_front() -> None:
    text = check(loop(I, loop(J, If(within(as_index(I) % 3, 1, 3), store(ONE, I, J)))))
    assert text == "for i in range(10):\n  if 1 <= i%3:\n    for j in range(10):\n      out[i, j] = 1.0"


def test_loops_that_compute_tiles_are_not_doubled() -> None:
    tile = Buffer("tile", (10,), f32, "local")
    k = Var("k", 0, 2)
    fill = loop(k, If(within(as_index(I) % 3, 1, 3), Store(tile, (as_index(k),), ONE)))
    text = check(loop(I, loop(J, Allocate(tile, seq([fill, If(within(J, 0, 5), store(ONE, I, J))])))))
    assert "    if 1 <= i%3:\n      for k in range(3):\n        tile[k] = 1.0" in text


def test_parallel_loops_are_cut_but_not_hoisted_from() -> None:
    text = check(loop(I, If(within(I, 0, 8), loop(J, store(ONE, I, J))), ForKind.PARALLEL))
    assert text.startswith("for i in parallel(8):")


def test_kinds_survive_the_cut() -> None:
    body = If(within(I, 0, 8), store(ONE, 0, I))
    assert check(loop(I, body, ForKind.VECTORIZED)).startswith("for i in vectorized(8):")
    assert check(loop(I, body, ForKind.UNROLLED)).startswith("for i in unrolled(8):")


def test_guards_over_unrolled_loops_are_decided_for_each_of_them() -> None:
    """Which of three pixels a tap of a window adds to; the loop between them stays one for each tap."""
    tap, pixel = Var("tap", 0, 2), Var("pixel", 0, 2)
    body = If(within(as_index(tap) + pixel - 1, 0, 3), store(ONE, pixel, I))
    s = loop(tap, loop(I, loop(pixel, body, ForKind.UNROLLED)), ForKind.UNROLLED)
    assert check(s) == (
        "for i in range(10):\n  for pixel in unrolled(2):\n    out[pixel + 1, i] = 1.0\n"
        "for i in range(10):\n  for pixel in unrolled(3):\n    out[pixel, i] = 1.0\n"
        "for i in range(10):\n  for pixel in unrolled(2):\n    out[pixel, i] = 1.0"
    )


def test_rest_of_an_unrolled_row_of_vectors_is_one_ragged_vector() -> None:
    """Of four vectors two are whole, one is ragged and one is none: no guard is left that would keep lanes apart."""
    lane, part = Var("lane", 0, 3), Var("part", 0, 3)
    at = as_index(part) * 4 + lane
    row = Buffer("row", (16,), f32)
    body = If(within(at, 0, 10), Store(row, (at,), ONE))
    s = loop(part, loop(lane, body, ForKind.VECTORIZED), ForKind.UNROLLED)
    assert repr(partition(s)) == (
        "for part in unrolled(2):\n  for lane in vectorized(4):\n    row[lane + 4*part] = 1.0\n"
        "for lane in vectorized(2):\n  row[lane + 8] = 1.0"
    )


def test_ragged_tiles_have_registers_of_their_own() -> None:
    tile = Buffer("tile", (4,), f32, "register")
    row, k = Var("row", 0, 2), Var("k", 0, 3)
    at = as_index(row) * 4 + k
    fill = loop(k, If(within(at, 0, 10), Store(tile, (as_index(k),), ONE)))
    read = loop(k, If(within(at, 0, 10), store(Load(tile, (as_index(k),)), 0, at)))
    s = loop(row, Allocate(tile, seq([fill, read])))
    check(s)
    tiles = [x.buffer for x in walk(partition(s)) if isinstance(x, Allocate)]
    assert [t.name for t in tiles] == ["tile", "tile"]
    assert tiles[0] is not tiles[1]


def test_loops_without_guards_come_back_themselves() -> None:
    s = loop(I, store(ONE, 0, I))
    assert partition(s) is s


def test_guard_that_reads_memory_stays_behind_what_writes_it() -> None:
    """The condition looks at a value that the loop itself computes."""
    row = Buffer("row", (1,), i64, "local")
    write = Store(row, (as_index(0),), cast(Load(X, (as_index(3),)), i64))
    guard = within(dynamic(Load(row, (as_index(0),)), 0, 7), 3, 4)
    text = check(loop(I, Allocate(row, seq([write, If(guard, store(ONE, 0, I))]))))
    assert text.index("row[0] = ") < text.index("if 3 <= int(row[0]) < 4")


def test_guard_on_the_variable_of_a_run_time_loop_stays_inside_it() -> None:
    k = Var("k", 0, 9)
    inner = ForRange(k, const(0, i64), cast(Load(X, (as_index(4),)), i64), If(within(k, 1, 3), store(ONE, I, k)))
    text = check(loop(I, inner))
    assert text.index("for k") < text.index("if 1 <= k < 3")


def test_the_longer_part_is_cut_again_when_it_is_left_over() -> None:
    i = as_index(I)
    body = seq([If(within(i, 0, 2), store(ONE, i, 0)), If(within(i, 0, 9), store(ONE, i, 1))])
    assert check(loop(I, body)) == (
        "for i in range(2):\n  out[i, 0] = 1.0\n  out[i, 1] = 1.0\nfor i in range(7):\n  out[i + 2, 1] = 1.0"
    )


def test_ragged_tiles_are_cut_off_though_they_are_in_the_shorter_part() -> None:
    """Something else is done in the first tiles; the last one is a part of a tile, in the code of every term."""
    tile = Buffer("tile", (3,), f32, "register")
    row, k, term = Var("row", 0, 3), Var("k", 0, 2), Var("term", 0, 4)
    at = as_index(row) * 3 + k
    first = If(within(row, 0, 2), store(ONE, row, 9))
    fill = loop(k, If(within(at, 0, 10), Store(tile, (as_index(k),), ONE)), ForKind.UNROLLED)
    read = loop(k, If(within(at, 0, 10), store(Load(tile, (as_index(k),)), 9, at)), ForKind.UNROLLED)
    text = check(loop(row, Allocate(tile, seq([first, loop(term, fill), read]))))
    assert "if " not in text
    assert text.count("for row in range(") == 1  # the first two; of the third and the last there is one each
    assert text.count("for k in unrolled(3)") == 4
    assert "if " in check(loop(row, Allocate(tile, seq([first, fill, read]))))  # without terms there is no need


def test_operands_of_a_concat_are_copied_one_after_the_other() -> None:
    one, two, three = (const(v, f32) for v in (1.0, 2.0, 3.0))
    value = select(within(I, 0, 6), one, select(within(I, 6, 8), two, three))
    assert check(loop(I, store(value, I, 0))) == (
        "for i in range(6):\n  out[i, 0] = 1.0\n"
        "for i in range(2):\n  out[i + 6, 0] = 2.0\n"
        "for i in range(2):\n  out[i + 8, 0] = 3.0"
    )


def test_blocks_of_a_concat_are_told_by_tests_though_loops_are_fused() -> None:
    k, lane = Var("k", 0, 49), Var("lane", 0, 1)
    row = as_index(k) // 5
    channel = row * 2 + lane
    one, two, three = (const(v, f32) for v in (1.0, 2.0, 3.0))
    value = select(within(channel, 0, 12), one, select(within(channel, 12, 18), two, three))
    body = loop(lane, store(value, row, as_index(k) % 5 * 2 + lane), ForKind.VECTORIZED)
    text = check(loop(k, body, ForKind.PARALLEL))
    assert [line.strip() for line in text.splitlines() if "vectorized" not in line] == [
        "for k in parallel(50):",
        "if k < 30:",
        "for k in range(i64(k), i64(k + 1)):",
        "out[k//5, lane + 2*(k%5)] = 1.0",
        "else:",
        "if 30 <= k < 45:",
        "for k in range(i64(k - 30), i64(k - 29)):",
        "out[k//5 + 6, lane + 2*(k%5)] = 2.0",
        "else:",
        "for k in range(i64(k - 45), i64(k - 44)):",
        "out[9, lane + 2*k] = 3.0",
    ]


def test_few_heavy_iterations_stay_one_parallel_loop() -> None:
    """Cut in two, each half would wait for the other."""
    tile = Buffer("tile", (4,), f32, "local")
    row, k = Var("row", 0, 1), Var("k", 0, 4)
    at = as_index(row) * 5 + k
    body = Allocate(tile, loop(k, If(within(at, 0, 8), store(ONE, row, k))))
    assert check(loop(row, body, ForKind.PARALLEL)) == (
        "for row in parallel(2):\n"
        "  tile: f32[4] in local\n"
        "  if row < 1:\n"
        "    for k in range(5):\n"
        "      out[0, k] = 1.0\n"
        "  else:\n"
        "    for k in range(3):\n"
        "      out[1, k] = 1.0"
    )


def test_tiles_of_fused_loops_are_not_doubled() -> None:
    k, lane = Var("k", 0, 49), Var("lane", 0, 1)
    row = as_index(k) // 5
    tile = Buffer("tile", (1,), f32, "local")
    guard = within(row * 2 + lane, 0, 12)
    fill = Store(tile, (as_index(0),), select(guard, ONE, const(2.0, f32)))
    copy = store(Load(tile, (as_index(0),)), row, as_index(k) % 5 * 2 + lane)
    assert check(loop(k, loop(lane, Allocate(tile, seq([fill, copy]))))).startswith("for k in range(50):")


def test_iterations_that_fail_at_either_end_are_apart() -> None:
    tile, lane = Var("tile", 0, 1), Var("lane", 0, 4)
    place = as_index(tile) * 5 + lane
    s = loop(tile, loop(lane, store(select(within(place, 1, 9), ONE, 0.0), 0, place)))
    assert check(s) == (
        "out[0, 0] = 0.0\nfor lane in range(4):\n  out[0, lane + 1] = 1.0\n"
        "for lane in range(4):\n  out[0, lane + 5] = 1.0\nout[0, 9] = 0.0"
    )
