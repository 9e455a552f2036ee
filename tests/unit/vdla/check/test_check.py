"""Valid streams pass, and no broken one does: whatever is broken is reported with both instructions."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ProgramError
from mlc.vdla.check import Kind, Violation, check, describe
from mlc.vdla.config import PROFILES
from mlc.vdla.isa import Load, Store
from mlc.vdla.program import Program
from tests.fuzz import examples
from tests.unit.vdla.streams import (
    Slots,
    pipelined_program,
    random_program,
    token_pairs,
    touched,
    with_tokens,
    with_tokens_of,
    without,
)

seeds = st.integers(0, 1 << 32)
profiles = st.sampled_from(list(PROFILES.values()))
RACES = {Kind.RAW, Kind.WAR}


def pipelined(seed: int = 0, slots: Slots | None = None) -> Program:
    return pipelined_program(np.random.default_rng(seed), PROFILES["full"], slots)


def assert_named(program: Program, violation: Violation) -> None:
    """The report shows both instructions, the earlier one first."""
    assert violation.first is not None
    assert violation.first < violation.second
    first, second = describe(program, violation).splitlines()[1:]
    assert first.startswith(f"  {violation.first:04} ")
    assert second.startswith(f"  {violation.second:04} ")


@examples(100)
@given(seeds, profiles, st.data())
def test_random_streams_are_valid_and_need_every_token_pair(seed, profile, data) -> None:
    program = random_program(np.random.default_rng(seed), profile)
    assert check(program) == []
    pushing, push, popping, pop = data.draw(st.sampled_from(token_pairs(program)))
    broken = without(program, (pushing, push), (popping, pop))
    found = check(broken)
    assert found
    assert found[0].kind in RACES | {Kind.UNFINISHED}
    assert_named(broken, found[0])


def unordered_conflicts(program: Program) -> set[tuple[int, int]]:
    """Pairs of instructions that conflict and that neither units' orders nor tokens order, by trying all of them."""
    before: list[set[int]] = []
    answers = {popping: [] for _, _, popping, _ in token_pairs(program)}
    for pushing, _, popping, _ in token_pairs(program):
        answers[popping].append(pushing)
    found = set()
    everything = list(touched(program))
    for at, x in enumerate(program.instructions):
        earlier = [i for i in range(at) if program.instructions[i].unit is x.unit] + answers.get(at, [])
        before.append(set(earlier).union(*(before[i] for i in earlier)))
        reads, writes = everything[at]
        for i in set(range(at)) - before[at]:
            other_reads, other_writes = everything[i]
            if writes & (other_reads | other_writes) or reads & other_writes:
                found.add((i, at))
    return found


@examples(100)
@given(seeds, profiles, st.data())
def test_races_are_those_that_trying_all_pairs_finds(seed, profile, data) -> None:
    program = random_program(np.random.default_rng(seed), profile, length=20)
    for _ in range(data.draw(st.integers(0, 4))):
        if pairs := token_pairs(program):
            pushing, push, popping, pop = data.draw(st.sampled_from(pairs))
            program = without(program, (pushing, push), (popping, pop))
    expected = unordered_conflicts(program)
    found = {(v.first, v.second) for v in check(program, limit=1000) if v.kind in RACES}
    assert found <= expected
    assert {second for _, second in found} == {second for _, second in expected}


@examples(60)
@given(seeds, profiles, st.data())
def test_one_end_of_a_token_is_missed(seed, profile, data) -> None:
    program = random_program(np.random.default_rng(seed), profile)
    pushing, push, popping, pop = data.draw(st.sampled_from(token_pairs(program)))
    unpushed = check(without(program, (pushing, push)))
    assert Kind.UNDERFLOW in {violation.kind for violation in unpushed}
    unpopped = check(without(program, (popping, pop)))
    assert Kind.LEFTOVER in {violation.kind for violation in unpopped}
    assert not RACES & {violation.kind for violation in unpushed + unpopped}


def test_two_layers_in_slots_are_valid_and_need_every_token_pair() -> None:
    program = with_tokens(pipelined())
    assert check(program) == []
    for pushing, push, popping, pop in token_pairs(program):
        broken = without(program, (pushing, push), (popping, pop))
        assert_named(broken, check(broken)[0])


def test_a_dependency_between_layers_through_dram_is_needed() -> None:
    """Every tile has a slot of its own, so that nothing but DRAM orders the second layer after the first."""
    apart = tuple(range(0, 96, 8))
    program = with_tokens(pipelined(slots=Slots(apart, apart)))
    stored = {popping: pushing for pushing, push, popping, _ in token_pairs(program) if is_store(program, pushing)}
    relayed = [
        (stored[nop], nop, load) for nop, _, load, pop in token_pairs(program) if nop in stored and pop == "pop_next"
    ]
    assert relayed
    for store, nop, load in relayed:
        assert program.buffers[program.relocations[load]].name == "t"
        broken = without(program, (store, "push_prev"), (nop, "pop_next"))
        found = check(broken)[0]
        assert (found.kind, found.first, found.second) == (Kind.RAW, store, load)
        assert "of buffer 't' before ST has written it" in found.what
        assert_named(broken, found)


def is_store(program: Program, at: int) -> bool:
    return isinstance(program.instructions[at], Store)


@pytest.mark.parametrize(
    "slots, expected",
    [
        (Slots(inp=(0, 7)), "LD may overwrite inp[7] before CMP has read it"),
        (Slots(acc=(0, 7)), "CMP may overwrite acc[7] before ST has read it"),
        (Slots(inp=(0, 0)), "LD may overwrite inp[0] before CMP has read it"),
    ],
)
def test_slots_that_overlap_are_found(slots: Slots, expected: str) -> None:
    broken = with_tokens_of(with_tokens(pipelined()), pipelined(slots=slots))
    found = check(broken)
    assert expected in {violation.what for violation in found}
    assert_named(broken, found[0])


@pytest.mark.parametrize("tile", [tile for tile in range(12) if tile != 6])
def test_a_tile_in_the_other_slot_is_found(tile: int) -> None:
    """The second layer's first tile waits for all of the first layer, so it would only compute something else."""
    program = with_tokens(pipelined())
    loads = [x for x in program.instructions if isinstance(x, Load) and x.mem.name == "INP" and x.x_size]
    loads[tile].sram_base = 8 - loads[tile].sram_base
    found = check(program)
    assert found
    assert {violation.kind for violation in found} <= RACES | {Kind.UNINIT}
    if tile:  # before the second tile is loaded, the first one's other slot holds nothing
        assert_named(program, found[0])


def test_a_pop_before_its_push_is_found() -> None:
    program = with_tokens(pipelined())
    pushing, _, popping, _ = token_pairs(program)[0]
    moved = copy.deepcopy(program)
    stream = moved.instructions
    stream[pushing], stream[popping] = stream[popping], stream[pushing]
    moved.relocations = {{pushing: popping, popping: pushing}.get(i, i): b for i, b in program.relocations.items()}
    found = check(moved)
    assert found[0] == Violation(Kind.INVERSION, pushing, popping, "token 0 of ld->cmp is popped before it is pushed")
    assert_named(moved, found[0])


def test_a_queue_that_may_fill_up_is_found() -> None:
    program = with_tokens(pipelined())
    deepest = next(depth for depth in range(1, 9) if not check(with_depth(program, depth)))
    assert deepest > 1
    found = check(with_depth(program, deepest - 1))
    assert {violation.kind for violation in found} == {Kind.OVERFLOW}
    assert f"; the queue holds {deepest - 1}" in found[0].what
    assert_named(program, found[0])


def with_depth(program: Program, depth: int) -> Program:
    return Program(
        replace(program.config, dep_queue_depth=depth),
        program.instructions,
        program.uops,
        program.constants,
        program.buffers,
        program.relocations,
    )


def test_reports_stop_at_the_limit() -> None:
    program = without(pipelined())
    assert len(check(program, limit=10)) == 10
    assert len(check(program, limit=1000)) > 20


def test_an_illegal_program_is_refused_before_it_is_checked() -> None:
    program = with_tokens(pipelined())
    program.instructions[1].push_prev = True
    with pytest.raises(ProgramError, match="LD has no previous unit"):
        check(program)


def test_a_violation_reads_as_one_line() -> None:
    assert str(Violation(Kind.RAW, 3, 7, "x")) == "RAW: instructions 3 and 7: x"
    assert str(Violation(Kind.UNINIT, None, 7, "x")) == "UNINIT: instruction 7: x"
