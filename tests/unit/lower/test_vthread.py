"""Virtual threads: results stay, tokens order what units share, and units overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import LowerError, ScheduleError
from mlc.ir import te
from mlc.ir.expr import Load, binary, const, within
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Buffer, Evaluate, For, ForKind, ForRange, Function, If, Stmt, Store, seq, walk
from mlc.ir.types import f32, i32, i64
from mlc.lower import Schedule, lower
from mlc.lower.build import build
from mlc.lower.pipeline import nest_passes
from mlc.lower.tensorize import tensorize
from mlc.lower.verify import verify
from mlc.lower.vthread import Units, vthread
from tests.fuzz import examples
from tests.unit.lower.blocked import IN, SUMS, WEIGHTS, Blocked, convolution, product
from tests.unit.lower.streams import Step, duration, races, stream


def unit_of(s: Stmt) -> str | None:
    """Transfers in, arithmetic, and transfers out."""
    if isinstance(s, Evaluate):
        return "compute"
    assert isinstance(s, Store)
    return {IN: "load", WEIGHTS: "load", SUMS: "compute", "global": "store"}.get(s.buffer.scope)


UNITS = Units(unit_of, (("load", "compute"), ("compute", "store")))


def threaded(conv: Blocked, rows: int, threads: int, *, columns: bool = False, own_weights: bool = True) -> Schedule:
    """Tiles of rows, or blocks of output channels, dealt out to threads; each sums up over chunks of channels."""
    s = Schedule([conv.out])
    sums = s.cache_write(conv.out, SUMS)
    data = s.cache_read(conv.pad, IN, [sums])
    if conv.pad.op is not None:
        s[conv.pad].compute_inline()
    weights = s.cache_read(conv.weights, WEIGHTS, [sums])
    out, acc = s[conv.out], s[sums]
    o, y, x, b = out.axes
    tile, y = out.split(y, rows)
    if columns:
        o, thread = out.split(o, threads)
    else:
        tile, thread = out.split(tile, threads)
    out.reorder(o, tile, thread, y, x, b)
    out.vthread(thread)
    acc.compute_at(out, thread)
    o, y, x, b = acc.axes
    ko, r, q, ki = acc.reduce_axes
    acc.reorder(o, ko, r, q, y, x, b, ki)
    acc.tensorize(b, product(conv.data.shape[-1]))
    s[data].compute_at(acc, ko)
    if own_weights:
        s[weights].compute_at(acc, ko)
    else:
        s[weights].compute_at(out, out.leaves[0])
    return s


@given(data=st.data())
@examples(15)
def test_results_stay_and_units_do_not_race(data: st.DataObject) -> None:
    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    window = data.draw(st.sampled_from([1, 2]))
    conv = convolution(draw(1, 2), draw(1, 3), draw(2, 6), draw(2, 3), window, draw(1, 2), draw(0, 1), 2)
    options = {"columns": data.draw(st.booleans()), "own_weights": data.draw(st.booleans())}
    rows, threads = draw(1, 3), draw(1, 3)
    for units in (None, UNITS):
        schedule = threaded(conv, rows, threads, **options)
        fn = lower(schedule, conv.params, "conv", passes=nest_passes(units))
        conv.check(fn)
        if units is not None:
            assert races(stream(fn, unit_of)) == []


def steps_of(threads: int) -> list[Step]:
    conv = convolution(8, 1, 4, 4, block=2)
    return stream(lower(threaded(conv, 2, threads), conv.params, "conv", passes=nest_passes(UNITS)), unit_of)


def test_one_thread_is_serial_and_two_overlap() -> None:
    one, two = steps_of(1), steps_of(2)
    work = sum(s.push is None and s.pop is None for s in one)
    assert duration(one) == work
    assert sum(s.push is None and s.pop is None for s in two) == work
    assert duration(two) < 0.78 * work


def test_every_token_is_needed() -> None:
    """The checker notices when any token of a stream is dropped, with the one that it pairs with."""
    steps = steps_of(2)
    pushes = [k for k, s in enumerate(steps) if s.push is not None]
    noticed = 0
    for k in pushes:
        queue = steps[k].push
        nth = sum(s.push == queue for s in steps[:k])
        pop = [j for j, s in enumerate(steps) if s.pop == queue][nth]
        noticed += bool(races([s for j, s in enumerate(steps) if j not in (k, pop)]))
    assert noticed >= 0.5 * len(pushes)


def test_tokens_of_a_matrix_product(golden: Callable[[str], None]) -> None:
    conv = convolution(2, 1, 4, 2, block=2)
    golden(repr(lower(threaded(conv, 1, 2), conv.params, "product", passes=nest_passes(UNITS))))


def test_loops_are_shared_and_buffers_get_a_slot_a_thread() -> None:
    conv = convolution(2, 1, 4, 2, block=2)
    fn = build(threaded(conv, 1, 2, own_weights=False), conv.params, "f")
    fn = Function(fn.name, fn.params, fn.outputs, vthread(tensorize(fn.body)))
    verify(fn)
    conv.check(fn)
    shapes = {x.buffer.scope: x.buffer.shape for x in walk(fn.body) if type(x) is Allocate}
    assert shapes == {SUMS: (2, 1, 1, 2, 2), IN: (2, 1, 1, 2, 2), WEIGHTS: (1, 2, 1, 1, 2, 2)}
    assert sum(type(x) is For and x.var.name == "ko" for x in walk(fn.body)) == 1


def test_what_threads_share_is_computed_once() -> None:
    a = te.placeholder((6,), f32, "a")
    twice = te.compute((6,), lambda i: a[i] * 2.0, "twice")
    b = te.compute((4, 6), lambda i, j: twice[j] + 1.0, "b")
    s = Schedule([b])
    s[b].vthread(s[b].axes[0])
    s[twice].compute_at(s[b], s[b].axes[0])
    fn = lower(s, [a, b], "f")
    stores = [x for x in walk(fn.body) if type(x) is Store]
    assert [x.buffer.name for x in stores] == ["twice", "b", "b", "b", "b"]
    arrays = [np.arange(6, dtype=np.float32), np.zeros((4, 6), np.float32)]
    run_function(fn, arrays)
    np.testing.assert_array_equal(arrays[1], np.broadcast_to(arrays[0] * 2 + 1, (4, 6)))


def test_threads_overlap_across_the_tiles_of_loops_around_them() -> None:
    conv = convolution(2, 2, 8, 4, block=2)
    one, two = (
        duration(stream(lower(threaded(conv, 1, n), conv.params, "f", passes=nest_passes(UNITS)), unit_of))
        for n in (1, 2)
    )
    assert two < 0.85 * one


# -- any structure -----------------------------------------------------------------------------------------------------
CHAIN = ("a", "b", "c", "d")  # units, and the memories that they write; neighbours have queues
INPUT = Buffer("input", (2, 3, 2), i32)


def unit_by_memory(s: Stmt) -> str | None:
    """The last unit writes the results."""
    assert isinstance(s, Store)
    return CHAIN[-1] if s.buffer.scope == "global" else s.buffer.scope


LINKED = Units(unit_by_memory, tuple(pairwise(CHAIN)))


class Nests:
    """Random statements of a thread, on memories of its own."""

    def __init__(self, data: st.DataObject, thread: Var, outer: Var, result: Buffer) -> None:
        self.data = data
        self.thread, self.outer, self.result = thread, outer, result
        self.own = [Buffer(f"m{scope}", (2,), i32, scope) for scope in CHAIN[:-1]]
        self.count = 0

    def draw(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def var(self) -> Var:
        self.count += 1
        return Var(f"k{self.count}", 0, 1)

    def leaf(self, at: Sequence[Var]) -> Stmt:
        place, other = (as_index(self.draw(*at, 0, 1)) for _ in range(2))
        row = as_index(self.draw(self.thread, 0))
        value = Load(self.draw(*self.own), (other,)) * 3 + Load(INPUT, (as_index(self.outer), row, place))
        if self.draw(True, True, False):
            return Store(self.draw(*self.own), (place,), value)
        return Store(self.result, (as_index(self.outer), as_index(self.thread), place), value)

    def any(self, depth: int, at: tuple[Var, ...] = ()) -> Stmt:
        match self.draw("leaf", "seq", "loop", "if") if depth else "leaf":
            case "seq":
                return seq([self.any(depth - 1, at) for _ in range(self.draw(2, 3))])
            case "loop":
                k = self.var()
                return nest(k, self.any(depth - 1, (*at, k)))
            case "if":
                on = self.draw(*at, self.thread, self.outer)
                return If(within(on, 0, max(1, on.hi)), self.any(depth - 1, at))
            case _:
                return self.leaf(at)

    def body(self) -> Stmt:
        zero: list[Stmt] = [Store(b, (as_index(k),), const(0, i32)) for b in self.own for k in range(2)]
        whole = seq([*zero, self.any(3), self.any(3)])
        for b in self.own:
            whole = Allocate(b, whole)
        return whole


@given(data=st.data(), threads=st.integers(1, 3), inside=st.booleans(), units=st.sampled_from([None, LINKED]))
@examples(60)
def test_any_nest_stays_and_does_not_race(data: st.DataObject, threads: int, inside: bool, units: Units | None) -> None:
    thread, outer = Var("t", 0, threads - 1), Var("o", 0, 1)
    result = Buffer("result", (2, threads, 2), i32)
    body = Nests(data, thread, outer, result).body()
    loops = (outer, thread) if inside else (thread, outer)
    for var in reversed(loops):
        body = nest(var, body, ForKind.VTHREAD if var is thread else ForKind.SERIAL)
    fn = Function("f", (INPUT, result), 1, vthread(body, units))
    verify(fn)
    given_ = np.arange(12, dtype=np.int32).reshape(INPUT.shape)
    arrays = [np.full(result.shape, -1, np.int32) for _ in range(2)]
    run_function(Function("f", (INPUT, result), 1, body), [given_, arrays[0]])
    run_function(fn, [given_, arrays[1]])
    np.testing.assert_array_equal(*arrays)
    if units is not None:
        assert races(stream(fn, unit_by_memory)) == []


# -- by hand -----------------------------------------------------------------------------------------------------------
DATA, OUT = Buffer("data", (4, 2), f32), Buffer("out", (4, 2), f32)
TILE, SUM = Buffer("tile", (2,), f32, IN), Buffer("sum", (2,), f32, SUMS)
T, K, I = Var("t", 0, 1), Var("k", 0, 1), Var("i", 0, 1)
ROW = as_index(K) * 2 + T


def copy(to: Buffer, at: tuple[object, ...], source: Buffer, place: tuple[object, ...]) -> Store:
    ins, outs = (tuple(as_index(ix) for ix in x) for x in (place, at))  # type: ignore[arg-type]
    return Store(to, outs, Load(source, ins))


def nest(var: Var, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, var.hi + 1, kind, body)


def run(body: Stmt, units: Units | None = UNITS) -> Function:
    """Two threads of a copy, checked."""
    fn = Function("f", (DATA, OUT), 1, vthread(body, units))
    verify(fn)
    arrays = [np.arange(8, dtype=np.float32).reshape(4, 2), np.zeros((4, 2), np.float32)]
    run_function(fn, arrays)
    np.testing.assert_array_equal(arrays[0], arrays[1])
    if units is not None:
        assert races(stream(fn, unit_of)) == []
    return fn


LOAD = nest(I, copy(TILE, (I,), DATA, (ROW, I)))
SAVE = nest(I, copy(OUT, (ROW, I), TILE, (I,)))


def test_tokens_between_units_without_a_queue_pass_another() -> None:
    body = nest(K, nest(T, Allocate(TILE, seq([LOAD, SAVE])), ForKind.VTHREAD))
    text = repr(run(body))
    for there, back in (("load", "store"), ("store", "load")):
        assert f"push({there}, compute)" in text
        assert f"pop({there}, compute)\n    push(compute, {back})" in text
    assert "tile: f32[2,2] in unit.in" in text


def test_buffers_around_the_threads_are_theirs_together() -> None:
    wide = Buffer("tile", (2, 2), f32, IN)
    fill = nest(T, nest(I, copy(wide, (T, I), DATA, (ROW, I))), ForKind.VTHREAD)
    save = nest(T, nest(I, copy(OUT, (ROW, I), wide, (T, I))), ForKind.VTHREAD)
    assert "tile: f32[2,2] in unit.in" in repr(run(nest(K, Allocate(wide, seq([fill, save])))))


def test_threads_within_threads() -> None:
    body = nest(K, nest(T, Allocate(TILE, seq([LOAD, SAVE])), ForKind.VTHREAD), ForKind.VTHREAD)
    for units in (UNITS, None):
        text = repr(run(body, units))
        assert "tile: f32[2,2,2] in unit.in" in text
        assert "for k" not in text


def test_conditions_on_several_units_become_one_on_each() -> None:
    inner = If(within(ROW, 0, 4), If(within(ROW, 0, 3), Allocate(TILE, seq([LOAD, SAVE]))))
    rest = If(within(ROW, 3, 4), nest(I, copy(OUT, (ROW, I), DATA, (ROW, I))))
    body = nest(K, nest(T, seq([inner, rest]), ForKind.VTHREAD))
    for units in (UNITS, None):
        run(body, units)


def test_what_a_condition_on_the_thread_writes_is_its_own() -> None:
    row = (as_index(0), as_index(I))
    first = nest(I, Store(TILE, (as_index(I),), Load(DATA, row)))
    other = If(within(T, 1, 2), nest(I, Store(TILE, (as_index(I),), const(7.0, f32))))
    save = nest(I, copy(OUT, (T, I), TILE, (I,)))
    body = nest(T, Allocate(TILE, seq([first, other, save])), ForKind.VTHREAD)
    arrays = [np.arange(8, dtype=np.float32).reshape(4, 2), np.zeros((4, 2), np.float32)]
    run_function(Function("f", (DATA, OUT), 1, vthread(body)), arrays)
    np.testing.assert_array_equal(arrays[1][:2], [[0, 1], [7, 7]])


def test_facts_stay_in_front_of_what_they_are_about() -> None:
    load, save = (seq([Evaluate(f"pragma.{name}", (1,)), s]) for name, s in (("in", LOAD), ("out", SAVE)))
    text = repr(run(nest(K, nest(T, Allocate(TILE, seq([load, save])), ForKind.VTHREAD))))
    assert text.count("pragma.in(1)\n    for i in range(2):\n      tile[") == 2
    assert text.count("pragma.out(1)\n    for i in range(2):\n      out[") == 2


def test_run_time_loops_and_branches_of_one_thread() -> None:
    zero, two = const(0, i64), const(2, i64)
    body = nest(K, nest(T, Allocate(TILE, seq([ForRange(I, zero, two, LOAD.body), SAVE])), ForKind.VTHREAD))
    assert repr(run(body, None)).count("for i in range(0, 2)") == 1
    last = If(within(ROW, 3, 4), Allocate(TILE, seq([LOAD, SAVE])))
    first = If(within(ROW, 0, 3), Allocate(TILE, seq([LOAD, SAVE])))
    assert "tile: f32[2] in unit.in" in repr(run(nest(K, nest(T, seq([first, last]), ForKind.VTHREAD)), None))


@pytest.mark.parametrize(
    "body, message",
    [
        (copy(Buffer("odd", (2,), f32, "nowhere"), (0,), TILE, (0,)), r"vthread: no unit runs\nodd\[0\] = tile\[0\]"),
        (
            If(binary("gt", Load(DATA, (as_index(0), as_index(0))), 0.0), seq([LOAD, SAVE])),
            "vthread: a branch that only a run decides, or with two sides, spans units",
        ),
        (If(within(K, 0, 1), seq([LOAD, SAVE]), SAVE), "with two sides, spans units:\nif k < 1"),
        (
            ForRange(K, const(0, i64), const(2, i64), seq([LOAD, SAVE])),
            "vthread: these iterations are counted at run time, on several units",
        ),
    ],
)
def test_refusals(body: Stmt, message: str) -> None:
    with pytest.raises(LowerError, match=message):
        vthread(body, UNITS)


def test_units_that_are_not_connected() -> None:
    apart = Units(unit_of, (("load", "compute"),))
    with pytest.raises(LowerError, match="vthread: no queues lead from unit load to unit store"):
        vthread(seq([LOAD, SAVE]), apart)
    assert UNITS.route("store", "load") == ("store", "compute", "load")


def test_reduction_axes_are_no_threads() -> None:
    conv = convolution(2, 1, 2, 2)
    stage = Schedule([conv.out])[conv.out]
    with pytest.raises(ScheduleError, match="vthread: ko of stage out is a reduction axis"):
        stage.vthread(stage.reduce_axes[0])


def test_nothing_to_interleave() -> None:
    assert vthread(SAVE) is SAVE
    assert repr(vthread(seq([]), UNITS)) == "pass"
