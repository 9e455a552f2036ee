"""Which push answers which pop, and what must therefore have happened before what.

Every queue has one producer and one consumer, and both run in order; so the k-th push always pairs with the k-th pop,
however the units interleave. *Happened before* is then the order on each unit together with these pairs. For every
instruction a vector clock has, for each unit, the latest instruction that is known to be done.

Source: Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System" (1978); Mattern, "Virtual Time and
Global States of Distributed Systems" (1989), for vector clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from mlc.vdla.check.violation import Kind, Violation
from mlc.vdla.isa import Finish, Instruction, Unit

Clock = tuple[int, int, int]  # for each unit: 1 + index of its latest instruction known to be done, 0 for none
Queue = tuple[Unit, Unit]  # producer, consumer

QUEUES: tuple[Queue, ...] = (
    (Unit.LD, Unit.CMP),
    (Unit.CMP, Unit.LD),
    (Unit.CMP, Unit.ST),
    (Unit.ST, Unit.CMP),
)


def queue_name(queue: Queue) -> str:
    """A queue as the reports call it, like ``ld->cmp``."""
    return f"{queue[0].name.lower()}->{queue[1].name.lower()}"


def pops(instruction: Instruction) -> tuple[Queue, ...]:
    """The queues that an instruction takes a token from."""
    return _POPS[instruction.unit, instruction.pop_prev, instruction.pop_next]


def pushes(instruction: Instruction) -> tuple[Queue, ...]:
    """The queues that an instruction puts a token into."""
    return _PUSHES[instruction.unit, instruction.push_prev, instruction.push_next]


def _neighbours() -> Iterator[tuple[tuple[Unit, bool, bool], tuple[Unit, ...]]]:
    """For every unit and its flags toward the previous and the next one: those that the flags name."""
    for unit, prev, following in product(Unit, (False, True), (False, True)):
        wanted = {unit - 1: prev, unit + 1: following}
        yield (unit, prev, following), tuple(other for other in Unit if wanted.get(other))


_POPS = {key: tuple((other, key[0]) for other in others) for key, others in _neighbours()}
_PUSHES = {key: tuple((key[0], other) for other in others) for key, others in _neighbours()}


def match(stream: Sequence[Instruction], depth: int) -> list[Violation]:
    """The faults of pairing: UNDERFLOW, LEFTOVER, INVERSION, OVERFLOW.

    Args:
        stream: legal instructions.
        depth: tokens that a queue holds.
    """
    pushed: dict[Queue, list[int]] = {queue: [] for queue in QUEUES}
    popped: dict[Queue, list[int]] = {queue: [] for queue in QUEUES}
    for at, instruction in enumerate(stream):
        for queue in pops(instruction):
            popped[queue].append(at)
        for queue in pushes(instruction):
            pushed[queue].append(at)
    found = []
    for queue in QUEUES:
        found += _match_queue(queue_name(queue), pushed[queue], popped[queue], depth, len(stream) - 1)
    return found


def _match_queue(name: str, pushed: list[int], popped: list[int], depth: int, last: int) -> list[Violation]:
    """The faults of one queue, given where in the stream its pushes and pops are."""
    found = []
    pairs = min(len(pushed), len(popped))
    for k in range(pairs):
        if pushed[k] > popped[k]:
            what = f"token {k} of {name} is popped before it is pushed"
            found.append(Violation(Kind.INVERSION, popped[k], pushed[k], what))
    for k in range(pairs, len(popped)):
        what = f"pop {k} of {name} finds only {len(pushed)} tokens"
        found.append(
            Violation(Kind.UNDERFLOW, pushed[-1] if pushed and pushed[-1] < popped[k] else None, popped[k], what)
        )
    for k in range(pairs, len(pushed)):
        first = pushed[k] if pushed[k] < last else None
        found.append(Violation(Kind.LEFTOVER, first, last, f"token {k} of {name} is never popped"))
    for k in range(depth, len(pushed)):
        if k - depth < len(popped) and popped[k - depth] > pushed[k]:
            what = f"push {k} of {name} needs room that only a later pop makes; the queue holds {depth}"
            found.append(Violation(Kind.OVERFLOW, pushed[k], popped[k - depth], what))
    return found


def clocks(stream: Sequence[Instruction]) -> list[Clock]:
    """What is known to be done when each instruction starts, the earlier ones of its own unit included.

    A pop without a push before it in the stream teaches nothing.
    """
    known: list[Clock] = [(0, 0, 0)] * len(Unit)
    sent: dict[Queue, list[Clock]] = {queue: [] for queue in QUEUES}
    taken = dict.fromkeys(QUEUES, 0)
    result = []
    for at, instruction in enumerate(stream):
        unit = instruction.unit
        now = known[unit]
        for queue in pops(instruction):
            tokens, k = sent[queue], taken[queue]
            taken[queue] = k + 1
            if k < len(tokens):
                now = (max(now[0], tokens[k][0]), max(now[1], tokens[k][1]), max(now[2], tokens[k][2]))
        result.append(now)
        known[unit] = now = (*now[:unit], at + 1, *now[unit + 1 :])  # type: ignore[assignment]
        for queue in pushes(instruction):
            sent[queue].append(now)
    return result


def finish(stream: Sequence[Instruction], known: Sequence[Clock]) -> list[Violation]:
    """The faults of the end: FINISH is the last instruction, there is one, and it waits for all units.

    Args:
        stream: legal instructions.
        known: their clocks.
    """
    ends = [at for at, instruction in enumerate(stream) if isinstance(instruction, Finish)]
    if not ends:
        return [Violation(Kind.UNFINISHED, None, max(len(stream) - 1, 0), "the stream has no FINISH")]
    end = ends[0]
    found = []
    if end + 1 < len(stream):
        found.append(Violation(Kind.UNFINISHED, end, end + 1, "the stream goes on after FINISH"))
    for unit in (Unit.LD, Unit.ST):
        last = max((at for at in range(end) if stream[at].unit is unit), default=-1)
        if last >= known[end][unit]:
            what = f"FINISH does not wait for the last instruction of {unit.name}"
            found.append(Violation(Kind.UNFINISHED, last, end, what))
    return found
