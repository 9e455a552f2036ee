"""Which register buffers become SSA values."""

from __future__ import annotations

from mlc.ir.expr import Load, const
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Allocate, Buffer, Evaluate, For, ForKind, Stmt, Store, seq
from mlc.ir.types import f32
from mlc.targets.llvm.registers import Accesses, Slots, slot_key

TILE = Buffer("tile", (4, 16), f32, "register")
OUT = Buffer("out", (64,), f32)
I, LANE = Var("i", 0, 3), Var("l", 0, 15)
ONE = const(1.0, f32)


def write(row: object, column: object, lane: Var | None = None) -> Store:
    return Store(TILE, (as_index(row), as_index(column)), ONE, lane)  # type: ignore[arg-type]


def read(row: object, column: object, lane: Var | None = None) -> Store:
    at = as_index(lane) if lane is not None else as_index(0)
    return Store(OUT, (at,), Load(TILE, (as_index(row), as_index(column))), lane)  # type: ignore[arg-type]


def slots_of(body: Stmt) -> Slots:
    return Slots(Accesses(body))


def held(*stmts: Stmt, scope: str = "register") -> bool:
    """Whether the tile is in registers when these statements use it."""
    TILE.scope = scope
    try:
        return id(TILE) in slots_of(Allocate(TILE, seq(stmts))).buffers
    finally:
        TILE.scope = "register"


def test_constant_places_are_registers() -> None:
    assert held(write(1, LANE, LANE), read(1, LANE, LANE))
    assert held(write(1, 3), read(1, 3))
    assert held(For(I, 4, ForKind.SERIAL, write(0, LANE, LANE)))


def test_only_the_register_scope_is_considered() -> None:
    assert not held(write(1, 3), scope="local")


def test_places_that_vary_are_memory() -> None:
    assert not held(For(I, 4, ForKind.SERIAL, write(I, LANE, LANE)))


def test_lanes_must_be_neighbours() -> None:
    assert not held(write(LANE, 0, LANE))


def test_accesses_that_overlap_must_be_alike() -> None:
    assert held(write(0, LANE, LANE), write(1, 3))
    assert not held(write(0, LANE, LANE), write(0, 3))
    half = Var("h", 0, 7)
    assert held(write(0, half, half), write(0, as_index(half) + 8, half))
    assert not held(write(0, half, half), write(0, as_index(half) + 4, half))


def test_loads_stay_inside_one_store() -> None:
    half = Var("h", 0, 7)
    assert held(write(0, LANE, LANE), read(0, 3), read(0, as_index(half) + 4, half))
    assert not held(write(0, half, half), write(0, as_index(half) + 8, half), read(0, as_index(half) + 4, half))
    slots = slots_of(Allocate(TILE, seq([write(1, LANE, LANE), read(1, 3)])))
    row = (id(TILE), tuple(range(16, 32)), 16)
    assert slots.part(TILE, (as_index(1), as_index(3)), None) == (row, (3,), 0)
    assert slots.part(TILE, (as_index(1), as_index(half) + 4), half) == (row, tuple(range(4, 12)), 8)


def test_other_threads_cannot_see_registers() -> None:
    parallel = For(I, 4, ForKind.PARALLEL, write(0, 0))
    assert not held(write(0, 0), parallel)
    assert not held(parallel)


def test_outlined_loops_cannot_see_registers() -> None:
    mark = Evaluate("pragma.outline", (True,))
    loop = For(I, 4, ForKind.SERIAL, seq([mark, write(0, 0)]))
    assert not held(write(0, 0), loop)
    assert not held(For(Var("j", 0, 3), 4, ForKind.PARALLEL, loop))
    inner = For(I, 4, ForKind.SERIAL, seq([mark, Allocate(TILE, seq([write(0, 0), read(0, 0)]))]))
    assert id(TILE) in slots_of(inner).buffers


def test_registers_inside_a_thread_are_its_own() -> None:
    body = For(I, 4, ForKind.PARALLEL, Allocate(TILE, seq([write(0, 0), read(0, 0)])))
    assert id(TILE) in slots_of(body).buffers


def test_parallel_loops_inside_a_thread_are_ordinary_loops() -> None:
    inner = Allocate(TILE, For(Var("j", 0, 3), 4, ForKind.PARALLEL, write(0, 0)))
    assert id(TILE) in slots_of(For(I, 4, ForKind.PARALLEL, inner)).buffers


def test_what_a_statement_assigns_and_outlives_it() -> None:
    inner = Buffer("inner", (1,), f32, "register")
    body = seq([write(1, 3), Allocate(inner, Store(inner, (as_index(0),), ONE)), write(0, LANE, LANE), write(1, 3)])
    slots = slots_of(Allocate(TILE, body))
    assert slots.written(body) == [(id(TILE), (19,), 0), (id(TILE), tuple(range(16)), 16)]


def test_offsets_are_row_major() -> None:
    places = Accesses(seq([]))
    assert str(places.offset(TILE, (as_index(I), as_index(LANE)))) == "16*i + l"
    lanes = places.offset(TILE, (as_index(2), as_index(LANE)))
    assert slot_key(lanes, LANE) == (tuple(range(32, 48)), 16)
    assert slot_key(lanes, None) is None


def test_rows_of_a_block_are_apart() -> None:
    """Lanes of what an intrinsic stores count elements by several variables, the last of them fastest."""
    pair, row, column = (Var(name, 0, 1) for name in "prc")
    at = Accesses(seq([])).offset(TILE, (as_index(row) + 1, 2 * as_index(pair) + column))
    block = (16, 17, 32, 33, 18, 19, 34, 35)
    assert slot_key(at, (pair, row, column)) == (block, 8)
    assert slot_key(at, (pair, row)) is None
    assert slot_key(at, row) is None


def test_equal_indices_into_other_buffers_are_other_places() -> None:
    """A reduction with several results stores all of them at the same indices."""
    places, at, wide = Accesses(seq([])), (as_index(1), as_index(2)), Buffer("wide", (4, 32), f32)
    assert [places.offset(b, at).const for b in (TILE, wide, TILE)] == [18, 34, 18]
