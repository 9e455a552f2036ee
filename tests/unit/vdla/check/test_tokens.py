"""Pairing of pushes and pops, clocks, and the end of a stream."""

from __future__ import annotations

from mlc.vdla.check.tokens import clocks, finish, match
from mlc.vdla.check.violation import Kind
from mlc.vdla.isa import Finish, Instruction, Load, Mem, Store, Unit, nop


def at(unit: Unit, *flags: str) -> Instruction:
    """A transfer of nothing with token flags."""
    x = nop(unit)
    for flag in flags:
        setattr(x, flag, True)
    return x


LD, CMP, ST = Unit


def test_a_chain_of_tokens_orders_across_units() -> None:
    stream = [
        at(LD, "push_next"),
        at(LD),
        at(CMP, "pop_prev", "push_next"),
        at(ST, "pop_prev", "push_prev"),
        Finish(pop_next=True),
    ]
    assert clocks(stream) == [(0, 0, 0), (1, 0, 0), (1, 0, 0), (1, 3, 0), (1, 3, 4)]
    assert match(stream, 4) == []
    assert [str(v) for v in finish(stream, clocks(stream))] == [
        "UNFINISHED: instructions 1 and 4: FINISH does not wait for the last instruction of LD"
    ]


def test_the_kth_push_answers_the_kth_pop() -> None:
    stream = [at(LD, "push_next"), at(LD, "push_next"), at(CMP, "pop_prev"), at(CMP, "pop_prev")]
    assert [clock[LD] for clock in clocks(stream)] == [0, 1, 1, 2]


def test_pushes_and_pops_that_do_not_pair() -> None:
    stream = [at(CMP, "pop_prev"), at(LD, "push_next"), at(CMP, "pop_prev"), at(CMP, "push_next")]
    assert [str(v) for v in match(stream, 4)] == [
        "INVERSION: instructions 0 and 1: token 0 of ld->cmp is popped before it is pushed",
        "UNDERFLOW: instructions 1 and 2: pop 1 of ld->cmp finds only 1 tokens",
        "LEFTOVER: instruction 3: token 0 of cmp->st is never popped",
    ]
    assert [str(v) for v in match([at(ST, "pop_prev")], 4)] == [
        "UNDERFLOW: instruction 0: pop 0 of cmp->st finds only 0 tokens"
    ]


def test_a_push_needs_room_that_an_earlier_pop_made() -> None:
    def stream(*order: str) -> list[Instruction]:
        return [at(LD, "push_next") if c == "+" else at(CMP, "pop_prev") for c in order]

    assert match(stream(*"++--"), 2) == []
    assert match(stream(*"++-+--"), 2) == []
    assert [str(v) for v in match(stream(*"+++---"), 2)] == [
        "OVERFLOW: instructions 2 and 3: push 2 of ld->cmp needs room that only a later pop makes; the queue holds 2"
    ]


def test_a_stream_ends_once_and_with_finish() -> None:
    load = Load(Mem.INP, 0, 0, 1, 1, 1)
    for stream, message in [
        ([], "UNFINISHED: instruction 0: the stream has no FINISH"),
        ([load], "UNFINISHED: instruction 0: the stream has no FINISH"),
        ([Finish(), Finish()], "UNFINISHED: instructions 0 and 1: the stream goes on after FINISH"),
        (
            [Store(Mem.ACC, 0, 0, 0, 0, 0), Finish()],
            "UNFINISHED: instructions 0 and 1: FINISH does not wait for the last instruction of ST",
        ),
    ]:
        assert [str(v) for v in finish(stream, clocks(stream))] == [message]
    assert all(v.kind is Kind.UNFINISHED for v in finish([load], clocks([load])))
