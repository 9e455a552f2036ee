from __future__ import annotations

from collections.abc import Mapping

import pytest

from mlc.errors import ScheduleError
from mlc.ir.index import Var
from mlc.ir.loop import NOTHING, Allocate, Buffer, For, ForKind, Function, Stmt
from mlc.ir.types import i8
from mlc.vdla.codegen.facts import Facts
from mlc.vdla.codegen.memory import Memory
from mlc.vdla.codegen.placement import Placement, place_buffers
from mlc.vdla.config import PROFILES
from mlc.vdla.intrinsics import INP, scopes

SCOPES = scopes(PROFILES["full"])


def buffer(name: str, size: int) -> Buffer:
    return Buffer(name, (size, 16), i8, INP)


def loop(n: int, body: Stmt) -> Stmt:
    return For(Var("v", 0, n - 1), n, ForKind.SERIAL, body)


def placed(body: Stmt, slots: Mapping[str, int], last: bool = True) -> Placement:
    fn = Function("f", (), 0, body)
    memories = {s.name: Memory(s.name, s.depth) for s in SCOPES.values()}
    return place_buffers(fn, Facts(fn), SCOPES, memories, slots, last=last)


TILE, ONE, OTHER = buffer("tile", 300), buffer("one", 1), buffer("other", 400)


def test_nested_buffers_with_slots_lie_behind_one_another() -> None:
    found = placed(Allocate(TILE, loop(2, Allocate(ONE, NOTHING))), {INP: 2})
    assert found.places == {TILE: (0, 300), ONE: (600, 601)}


def test_slots_that_do_not_fit() -> None:
    with pytest.raises(ScheduleError, match=r"vdla.inp take 2100 elements, it has 2048"):
        placed(Allocate(TILE, NOTHING), {INP: 7})


def test_one_buffer_goes_round_the_whole_memory() -> None:
    found = placed(loop(4, Allocate(TILE, NOTHING)), {})
    assert not found.places
    assert not found.within


def test_small_buffers_stand_at_an_end() -> None:
    body = loop(2, Allocate(OTHER, Allocate(ONE, loop(8, Allocate(TILE, NOTHING)))))
    found = placed(body, {})
    assert found.within == {TILE: (0, 2048 - 802)}
    assert found.places == {OTHER: (1246, 1646), ONE: (2046, 2047)}
    found = placed(body, {}, last=False)
    assert found.within == {TILE: (802, 2048)}
    assert found.places == {OTHER: (0, 400), ONE: (800, 801)}


def test_places_are_single_where_two_would_leave_too_little() -> None:
    large = buffer("large", 700)
    found = placed(loop(2, Allocate(large, loop(8, Allocate(TILE, NOTHING)))), {})
    assert found.places == {large: (1348,)}


def test_what_leaves_too_little_goes_round_like_the_rest() -> None:
    huge = buffer("huge", 1600)
    found = placed(loop(2, Allocate(huge, loop(80, Allocate(TILE, NOTHING)))), {})
    assert not found.places
    assert not found.within
