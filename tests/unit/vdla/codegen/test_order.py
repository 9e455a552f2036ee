"""Streams in another order: what conflicts keeps its order, and loads do not wait for what they do not need."""

from __future__ import annotations

import numpy as np

from mlc.vdla.codegen.conflicts import Conflicts
from mlc.vdla.codegen.order import in_order_of_begin
from mlc.vdla.codegen.stream import Kernel, Step, Touched
from mlc.vdla.codegen.tokens import insert_tokens
from mlc.vdla.config import PROFILES
from mlc.vdla.isa.instruction import Finish, Gemm, GemmMode, Load, Mem, Store, Unit, is_nop

FULL = PROFILES["full"]
WRITTEN = {1: 1 << 16, 2: 1 << 16}


def load(sram: int, count: int, buffer: int, dram: int = 0, mem: Mem = Mem.INP) -> Step:
    return Step(Load(mem, sram, dram, 1, count, count), buffer)


def product(acc: int, inp: int, count: int, wgt: int = 0) -> Step:
    touched = Touched(slice(acc, acc + count), slice(inp, inp + count), slice(wgt, wgt + 1))
    insn = Gemm(GemmMode.SET, 0, 0, 1, count, 0, 1, 0, 1, 0, 0)
    return Step(insn, -1, Kernel(np.zeros(1, np.uint32)), touched)


def store(acc: int, count: int, buffer: int, dram: int = 0) -> Step:
    return Step(Store(Mem.OUT, acc, dram, 1, count, count), buffer)


def two_layers(tiles: int, size: int) -> list[Step]:
    """A layer of tiles and the next one, which reads what the first has stored, in the order of writing."""
    steps = [load(0, 1, 3, mem=Mem.WGT)]
    for layer, (source, target) in enumerate(((0, 1), (1, 2))):
        for k in range(tiles):
            place = (layer * tiles + k) % 4 * size
            steps += [
                load(place, size, source, k * size),
                product(place, place, size),
                store(place, size, target, k * size),
            ]
    return [*steps, Step(Finish())]


def conflicts(steps: list[Step]) -> set[tuple[int, int]]:
    """Pairs of steps that touch the same and must keep their order."""
    tracker, found = Conflicts(FULL, WRITTEN), set()
    units: tuple[list[Step], ...] = ([], [], [])
    for s in steps:
        need = tracker.newest(s) or [-1, -1, -1]
        found |= {(id(units[u][n]), id(s)) for u, n in enumerate(need) if n >= 0}
        found |= {(id(units[Unit.LD][n]), id(s)) for n in tracker.loads(s)}
        tracker.record(s)
        units[s.insn.unit].append(s)
    return found


def test_what_conflicts_keeps_its_order() -> None:
    steps = two_layers(6, 64)
    done = [s for s in in_order_of_begin(steps, FULL, WRITTEN) if s.after < 0]
    assert sorted(map(id, done)) == sorted(map(id, steps))
    assert done[-1] is steps[-1]
    at = {id(s): k for k, s in enumerate(done)}
    assert all(at[a] < at[b] for a, b in conflicts(steps))
    for unit in (Unit.CMP, Unit.ST):
        assert [s for s in done if s.insn.unit is unit] == [s for s in steps if s.insn.unit is unit]


def test_a_load_of_the_next_layer_does_not_stand_behind_the_last_products() -> None:
    steps = two_layers(6, 256)
    done = in_order_of_begin(steps, FULL, WRITTEN)
    products = [k for k, s in enumerate(done) if isinstance(s.insn, Gemm)]
    first = next(k for k, s in enumerate(done) if isinstance(s.insn, Load) and s.buffer == 1)
    assert first < products[5]


def test_loads_that_wait_let_others_pass() -> None:
    steps = two_layers(2, 512)
    late = load(8, 4, 3, 8, Mem.WGT)
    steps[-1:-1] = [late, product(0, 0, 8, wgt=8)]
    done = in_order_of_begin(steps, FULL, WRITTEN)
    assert done.index(late) < next(k for k, s in enumerate(done) if isinstance(s.insn, Load) and s.buffer == 1)


def test_before_a_long_product_loads_are_told_of_stores() -> None:
    first = [load(0, 64, 0), product(0, 0, 64), store(0, 64, 1)]
    loads = [load(64 + 256 * k, 256, 0, 64 + 256 * k) for k in range(6)]
    long = [product(64 + 256 * k, 64 + 256 * k, 256) for k in range(6)]
    long[3].kernel = Kernel(np.zeros(16, np.uint32))
    second = [load(1600, 64, 1), product(1600, 1600, 64)]
    steps = [*first, *(s for pair in zip(loads, long, strict=True) for s in pair), *second, Step(Finish())]
    done = in_order_of_begin(steps, FULL, WRITTEN)
    (relay,) = [s for s in done if s.after >= 0]
    assert relay.after == 0
    assert done.index(first[2]) < done.index(relay) < done.index(long[3])
    tokened = insert_tokens(done, FULL, WRITTEN)
    assert relay.insn.pop_next
    assert relay.insn.push_prev
    assert sum(is_nop(s.insn) for s in tokened) == 1
    assert done.index(second[0]) < done.index(long[4])


def micro_ops(first: int, count: int) -> Step:
    return Step(Load(Mem.UOP, first, 0, 1, count, count), 3)


def test_micro_ops_are_loaded_while_products_wait() -> None:
    later = micro_ops(8, 16)
    steps = [micro_ops(0, 8), load(0, 1024, 0), product(0, 0, 1024), later, product(0, 0, 8), Step(Finish())]
    done = in_order_of_begin(steps, FULL, WRITTEN)
    assert done.index(later) < done.index(steps[2])


def test_micro_ops_that_overwrite_others_wait_for_their_turn() -> None:
    steps = [micro_ops(0, 8), load(0, 1024, 0), product(0, 0, 1024), micro_ops(0, 16), product(0, 0, 8), Step(Finish())]
    done = in_order_of_begin(steps, FULL, WRITTEN)
    assert done.index(steps[3]) > done.index(steps[2])
