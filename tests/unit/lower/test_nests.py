"""Loops around instructions are run while compiling; buffers get their places."""

from __future__ import annotations

import pytest

from mlc.errors import CodegenError, ScheduleError
from mlc.ir.index import Var
from mlc.ir.loop import Allocate, Barrier, Buffer, Evaluate, For, ForKind, Seq, Stmt
from mlc.ir.types import f32
from mlc.lower.nests import addresses, nests


def loop(name: str, extent: int, body: Stmt) -> For:
    return For(Var(name, 0, extent - 1), extent, ForKind.SERIAL, body)


def is_instruction(s: Stmt) -> bool:
    return isinstance(s, Evaluate) and not s.name.startswith("pragma.")


def test_every_instruction_comes_with_the_iterations_around_it() -> None:
    buffer = Buffer("t", (4,), f32, "small")
    inner = loop("j", 2, Seq((Evaluate("pragma.fact", ()), Evaluate("work", ()))))
    body = loop("i", 2, Allocate(buffer, Seq((Evaluate("fill", ()), inner))))
    found = [(s.name, sorted((v.name, k) for v, k in env.items())) for s, env in nests(body, is_instruction)]  # type: ignore[attr-defined]
    assert found == [
        item for i in range(2)
        for item in [("fill", [("i", i)]), *(("work", [("i", i), ("j", j)]) for j in range(2))]
    ]  # fmt: skip


def test_what_is_no_instruction_is_refused() -> None:
    with pytest.raises(CodegenError, match="no instruction for\nbarrier"):
        list(nests(loop("i", 2, Barrier("all")), is_instruction))


def test_buffers_that_live_together_lie_side_by_side() -> None:
    a, b, c, other = (
        Buffer(n, (k,), f32, s) for n, k, s in (("a", 3, "m"), ("b", 4, "m"), ("c", 5, "m"), ("d", 6, "n"))
    )
    body = Allocate(a, Seq((Allocate(b, Allocate(other, Evaluate("x", ()))), Allocate(c, Evaluate("y", ())))))
    assert addresses(body, {"m": 8, "n": 6}) == {a: 0, b: 3, other: 0, c: 3}
    with pytest.raises(ScheduleError, match="m holds 7 elements, 8 are used at once"):
        addresses(body, {"m": 7, "n": 6})
    with pytest.raises(ScheduleError, match="buffer d is in n, the machine has m"):
        addresses(body, {"m": 8})
