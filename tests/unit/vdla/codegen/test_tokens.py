from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

from mlc.vdla.check import Kind, check, describe
from mlc.vdla.codegen.stream import Step, Touched, places
from mlc.vdla.codegen.tokens import insert_tokens
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Alu, Finish, Gemm, Load, Mem, Store, is_nop
from mlc.vdla.program import BufferSpec, Program
from tests.unit.vdla.streams import random_program, token_pairs, touched, without

FULL = PROFILES["full"]
FLAGS = ("pop_prev", "pop_next", "push_prev", "push_next")


def steps_of(program: Program) -> list[Step]:
    """A program's instructions without tokens, and what they touch."""
    steps = []
    for at, ((reads, writes), insn) in enumerate(zip(touched(program), program.instructions, strict=True)):
        if is_nop(insn):
            continue
        step = Step(copy.copy(insn), program.relocations.get(at, -1))
        for flag in FLAGS:
            setattr(step.insn, flag, False)
        if isinstance(insn, Gemm | Alu):
            every = {m: np.array([e for n, e in reads | writes if n == m]) for m in ("acc", "inp", "wgt")}
            written = places(np.array([e for n, e in writes if n == "acc"]))
            inp, wgt = (places(every[m]) if len(every[m]) else None for m in ("inp", "wgt"))
            step.touched = Touched(written, inp, wgt)
        steps.append(step)
    return steps


def tokened(program: Program, config: VdlaConfig) -> Program:
    written = {k: b.nbytes for k, b in enumerate(program.buffers) if b.kind in ("temp", "out")}
    steps = insert_tokens(steps_of(program), config, written)
    return dataclasses.replace(
        program,
        config=config,
        instructions=[s.insn for s in steps],
        relocations={k: s.buffer for k, s in enumerate(steps) if s.buffer >= 0},
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_random_streams_become_valid_with_no_token_too_many(profile: str) -> None:
    rng = np.random.default_rng(7)
    config = PROFILES[profile]
    for _ in range(12):
        program = tokened(random_program(rng, config, 40), config)
        found = check(program)
        assert not found, "\n".join(describe(program, v) for v in found)
        pairs = token_pairs(program)
        for k in rng.choice(len(pairs), min(3, len(pairs)), replace=False):
            push, push_flag, pop, pop_flag = pairs[k]
            assert check(without(program, (push, push_flag), (pop, pop_flag))), (push, pop)


def test_short_queues_never_overflow() -> None:
    rng = np.random.default_rng(3)
    for depth in (1, 2, 3):
        config = dataclasses.replace(FULL, dep_queue_depth=depth)
        for _ in range(10):
            program = tokened(random_program(rng, config, 40), config)
            assert not check(program)


def stored_then_loaded(buffer: str) -> Program:
    """An accumulator is stored, and the place where it went, or another one, is loaded into the input memory."""
    specs = [BufferSpec("x", "in", 256), BufferSpec("y", "out", 64), BufferSpec("u", "uop", 4)]
    stream = [
        Load(Mem.INP, 0, 0, 1, 4, 4),
        Load(Mem.ACC8, 0, 0, 1, 4, 4),
        Store(Mem.OUT, 0, 0, 1, 4, 4),
        Load(Mem.INP, 8, 0, 1, 4, 4),
        Finish(),
    ]
    first = 0 if buffer == "x" else 1
    return Program(FULL, stream, np.zeros(1, np.uint32), b"", specs, {0: 0, 1: 0, 2: 1, 3: first})


def test_what_one_layer_stores_and_the_next_loads_is_relayed() -> None:
    program = tokened(stored_then_loaded("y"), FULL)
    assert not check(program)
    (relay,) = [k for k, x in enumerate(program.instructions) if is_nop(x)]
    broken = without(program, (relay, "push_prev"), (relay + 1, "pop_next"))
    assert Kind.RAW in {v.kind for v in check(broken)}


def test_other_buffers_need_no_order() -> None:
    program = tokened(stored_then_loaded("x"), FULL)
    assert not check(program)
    assert not any(is_nop(x) for x in program.instructions)
