"""The timing simulator: when every instruction starts and ends.

Three units take their instructions in order from command queues that one fetch unit fills; tokens order them among each
other; one memory server moves the bytes of all, in chunks, first come first served.

Only the memory makes the order of events matter. Everything else is a network of queues in which a time is the latest
of other times, whatever the order in which they are found out; so each unit runs ahead until it waits for bytes or for
another unit, and only then the memory serves the earliest request. No earlier one can still turn up: whoever waits,
waits for an answer to one of the requests that are known.

Which instruction gives a token and which one takes it follows from their order alone, and so does whose place in a
queue a token or a fetched instruction gets. That is worked out beforehand, for all at once; what remains to be done
event by event is to compare times.

Time is counted in whole ticks, so that no rounding decides who comes first: with B = p/q bytes a cycle, a cycle is p
ticks and a byte q.
Source: the accelerator's specification, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Instruction, Unit
from mlc.vdla.sim.work import QUEUES, Work, named

FETCH_CYCLES = 2
_NEVER = 1 << 200  # later than all ticks: what has not happened yet

Times = npt.NDArray[np.float64]


# Why a unit had nothing running: it waited for a token of one of the queues, or for the fetch unit.
REASONS = (*(name for name, _, _ in QUEUES), "fetch")
_FETCH = len(QUEUES)

# By unit, the queue that it takes tokens of its previous, and of its next unit from; -1 without such a unit.
_FROM_PREV, _FROM_NEXT = (
    [next((q for q, (_, p, c) in enumerate(QUEUES) if (p, c) == (u + step, u)), -1) for u in Unit] for step in (-1, 1)
)

_NOTHING, _STARVES = -1, -2


@dataclass(frozen=True, eq=False)
class Timeline:
    """When things happened, in cycles, one entry an instruction.

    Attributes:
        begin: it left its command queue.
        data: its first byte moved, or its computation began.
        end: what it wrote was visible.
        idle: how long its unit had nothing running before it began.
        reason: what made it begin when it did, an index of ``REASONS``; -1 where its own unit did.
        full: how long its tokens then waited for room in their queue. Only transfers that follow a transfer begin
            on its unit in that time.
        latency: how long its bytes were on their way while none of its unit's moved.
        port: how long it waited for the memory while others held it.
        moving: how long it held the memory.
        tokens: per queue, how many went through.
    """

    begin: Times
    data: Times
    end: Times
    idle: Times
    reason: npt.NDArray[np.int8]
    full: Times
    latency: Times
    port: Times
    moving: Times
    tokens: dict[str, int]

    @property
    def cycles(self) -> float:
        """Until the last instruction was done."""
        return float((self.end + self.full).max(initial=0))


def simulate(work: Work, config: VdlaConfig, instructions: Sequence[Instruction]) -> Timeline:
    """Runs a stream in time.

    Args:
        work: what each instruction asks for.
        config: the accelerator's speeds.
        instructions: the same stream, for messages.
    Raises:
        DeviceError: a deadlock; the message has every unit's next instruction and what it waits for.
    """
    count = len(work)
    ticks, links = _Ticks(work, config), _Links(work, config)
    acknowledge, port_time, chip_time = ticks.acknowledge.tolist(), ticks.port.tolist(), ticks.chip.tolist()
    nbytes, followed, leaves = work.nbytes.tolist(), links.followed.tolist(), links.leaves.tolist()
    room_prev, room_next = links.room_prev.tolist(), links.room_next.tolist()
    arbitration, fetch_cycles = config.arb_bytes, FETCH_CYCLES * ticks.cycle

    # When things happened; the last two entries of `begin` and `given` are what `_Links` says.
    begin, given = [*[_NEVER] * count, 0, _NEVER], [*[_NEVER] * 2 * count, -1, _NEVER]
    fetched, data, end = [_NEVER] * count, [_NEVER] * count, [0] * count
    idle, reason, full = [0] * count, [-1] * count, [0] * count
    on_the_way, in_line = [0] * count, [0] * count

    # Per unit: when its last data phase ends; when the last instruction ended, the last token was given, both had
    # happened.
    data_end, ended, gave, done = [0] * 3, [0] * 3, [0] * 3, [0] * 3
    # Per unit: the transfer that moves data, when it next asks for the memory, bytes it has moved; the transfer that
    # has only been announced, and when its data can come.
    moving, asks, moved, announced, arrives = [-1] * 3, [_NEVER] * 3, [0] * 3, [-1] * 3, [0] * 3
    # Per unit: tokens that found their queue full, as arguments of `push`; by the instruction that will make room, the
    # units that wait for it.
    blocked: list[list[tuple[int, int, int, int]]] = [[], [], []]
    rooms: dict[int, list[int]] = {}
    # Per unit: the token that it waits for, an entry of `given`, or _STARVES; and the units that may go on.
    lacks, awake = [_NOTHING] * 3, [2, 1, 0]
    # The fetch unit: instructions it has fetched, and the one that must leave its queue before the next.
    fetches, gate = 0, _NOTHING
    port_free = 0

    def issue(u: int) -> Iterator[None]:
        """Begins a unit's instructions, one after the other; pauses where something has to be found out first."""
        before = -1
        mine = np.flatnonzero(work.unit == u)
        columns = (links.chained, work.moves, ticks.length, links.pop_prev, links.pop_next)
        for i, chained, moves, length, prev, following in zip(
            mine.tolist(), *(column[mine].tolist() for column in columns), strict=True
        ):
            if chained:
                while data[before] == _NEVER:
                    yield
                time = data[before]
            else:
                while moving[u] >= 0 or blocked[u]:
                    yield
                time = done[u]
            why = -1
            if fetched[i] > time:
                if fetched[i] == _NEVER:
                    fetch()
                    while fetched[i] == _NEVER:
                        lacks[u] = _STARVES
                        yield
                    lacks[u] = _NOTHING
                if fetched[i] > time:
                    time, why = fetched[i], _FETCH
            if given[prev] >= time:
                while given[prev] == _NEVER:
                    lacks[u] = prev
                    yield
                if given[prev] >= time:
                    time, why = given[prev], _FROM_PREV[u]
            if given[following] >= time:
                while given[following] == _NEVER:
                    lacks[u] = following
                    yield
                if given[following] >= time:
                    time, why = given[following], _FROM_NEXT[u]
            begin[i], reason[i] = time, why
            if moving[u] < 0 and time > done[u]:
                idle[i] = time - done[u]
            if i in rooms:
                for other in rooms.pop(i):
                    unblock(other)
            if i == gate and _STARVES in lacks:
                fetch()
            if not moves:
                complete(u, i, time + length)
            elif moving[u] < 0:
                admit(u, i, time + length)
            else:
                announced[u], arrives[u] = i, time + length
            before = i
        while True:
            yield

    def fetch() -> None:
        """Fetches on, until a command queue is full. It is called when somebody wants an instruction."""
        nonlocal fetches, gate
        time = fetched[fetches - 1] if fetches else 0
        for i in range(fetches, count):
            time += fetch_cycles
            left = begin[leaves[i]]
            if left > time:
                if left == _NEVER:
                    break
                time = left
            fetched[i] = time
            fetches += 1
        gate = leaves[fetches] if fetches < count else _NOTHING
        awake.extend(u for u in range(3) if lacks[u] == _STARVES)

    def push(u: int, i: int, token: int, room: int, to: int) -> bool:
        """Gives a token once its queue has room; False when that is not known yet."""
        time = end[i]
        if begin[room] > time:
            if begin[room] == _NEVER:
                rooms.setdefault(room, []).append(u)
                return False
            time = begin[room]
        if gave[u] > time:
            time = gave[u]
        given[token] = gave[u] = time
        if time > end[i]:
            full[i] = time - end[i]
            if time > done[u]:
                done[u] = time
        if lacks[to] == token:
            awake.append(to)
        return True

    def complete(u: int, i: int, time: int) -> None:
        """An instruction has ended: its tokens go out, one after the other."""
        if time < ended[u]:
            time = ended[u]
        end[i] = ended[u] = time
        if time > done[u]:
            done[u] = time
        room = room_prev[i]
        if room >= 0 and (blocked[u] or not push(u, i, 2 * i, room, u - 1)):
            blocked[u].append((i, 2 * i, room, u - 1))
        room = room_next[i]
        if room >= 0 and (blocked[u] or not push(u, i, 2 * i + 1, room, u + 1)):
            blocked[u].append((i, 2 * i + 1, room, u + 1))

    def unblock(u: int) -> None:
        """A place became free in a queue: its pusher may go on."""
        while blocked[u] and push(u, *blocked[u][0]):
            del blocked[u][0]
        if not blocked[u]:
            awake.append(u)

    def admit(u: int, i: int, arrival: int) -> None:
        """A transfer comes to the front of its unit's DMA engine."""
        moving[u], moved[u] = i, 0
        time = data_end[u]
        if arrival > time:
            on_the_way[i] = arrival - (time if time > begin[i] else begin[i])
            time = arrival
        if nbytes[i]:
            asks[u] = time
        else:
            data[i] = time
            awake.append(u)
            finish_data(u, i, time)

    def finish_data(u: int, i: int, time: int) -> None:
        """The last byte has moved; the on-chip side may need longer."""
        if data[i] + chip_time[i] > time:
            time = data[i] + chip_time[i]
        data_end[u] = time
        moving[u] = following = announced[u]
        announced[u] = -1
        complete(u, i, time + acknowledge[i])
        if following >= 0:
            if begin[following] > done[u]:
                idle[following] = begin[following] - done[u]
            admit(u, following, arrives[u])
        else:
            awake.append(u)

    go_on = [issue(u).__next__ for u in range(3)]
    while True:
        while awake:
            go_on[awake.pop()]()
        ask = min(asks)
        if ask == _NEVER:
            break
        u = asks.index(ask)
        asks[u] = _NEVER
        i, before = moving[u], moved[u]
        total, size = port_time[i], nbytes[i]
        grant = ask
        if port_free > ask:
            grant = port_free
            in_line[i] += grant - ask
        if before == 0:
            origin = data[i] = grant
            if followed[i]:  # by a transfer that may be announced now
                awake.append(u)
                while awake:
                    go_on[awake.pop()]()
        else:
            origin = grant - total * before // size  # of a transfer that nobody interrupts
        # Chunk after chunk until another unit's request is the earliest, or as early: then the main loop decides.
        rival, after = min(asks), size
        if rival < origin + total:
            share = -((origin - rival) * size // total)  # bytes after which it is the rival's turn
            after = before + max(1, -((before - share) // arbitration)) * arbitration
        if after < size:
            moved[u] = after
            asks[u] = port_free = origin + total * after // size
        else:
            port_free = origin + total
            finish_data(u, i, port_free)
    if begin.count(_NEVER) > 1 or any(blocked):
        fetch()  # as far as it goes, whether or not anybody waited for it
        raise DeviceError(_deadlock(instructions, work, links, begin, given, blocked, fetches))
    begins, datas, ends, idles, fulls, latencies, ports, movings = (
        np.array(happened, np.float64) / ticks.cycle
        for happened in (begin[:count], data, end, idle, full, on_the_way, in_line, ticks.port)
    )
    return Timeline(
        begin=begins,
        data=np.where(work.moves, datas, begins),
        end=ends,
        idle=idles,
        reason=np.array(reason, np.int8),
        full=fulls,
        latency=latencies,
        port=ports,
        moving=movings,
        tokens={name: len(links.givers[q]) for q, (name, _, _) in enumerate(QUEUES)},
    )


class _Ticks:
    """How long things take, in ticks.

    Attributes:
        cycle: one.
        length: of a computation; of a transfer, from its begin to its data.
        acknowledge: from a transfer's last data to its end.
        port, chip: how long a transfer holds the memory, and the memory on chip.
    """

    def __init__(self, work: Work, config: VdlaConfig) -> None:
        rate = Fraction(str(config.bytes_per_cycle))
        cycle, byte = rate.numerator, rate.denominator
        issue, latency, gap = config.dma_issue * cycle, config.dram_latency * cycle, config.burst_gap * cycle
        # Where 64 bits may not hold what a column comes to, Python's integers do.
        columns = (work.cycles, work.nbytes, work.bursts, work.elements)
        most = max(int(column.max(initial=0)) for column in columns)
        kind: Any = np.int64 if most * (cycle + byte + gap) < 1 << 62 else np.object_
        cycles, nbytes, bursts, elements = (column.astype(kind) for column in columns)
        some = work.nbytes > 0
        self.cycle = cycle
        self.length = np.where(work.moves, np.where(some & ~work.stores, issue + latency, issue), cycles * cycle)
        self.acknowledge = np.where(some & work.stores, latency, 0)
        self.port = nbytes * byte + bursts * gap
        self.chip = elements * cycle


class _Links:
    """Which instructions wait for which, as far as their order says it.

    Attributes:
        chained: a transfer that may be announced while the one before it on its unit moves its data.
        followed: the next instruction on its unit is chained.
        leaves: the instruction whose place in its unit's command queue it gets.
        pop_prev, pop_next: the token that it takes; 2 * i is instruction i's token to its previous, 2 * i + 1 to its
            next unit.
        room_prev, room_next: the instruction that makes room for the token that it gives, -1 if it gives none.
        givers, takers: by queue, the instructions that give a token to it and take one.

    After n instructions, n stands for one that began before all, n + 1 for one that never does; 2 * n for a token that
    was always there, 2 * n + 1 for one that never is.
    """

    def __init__(self, work: Work, config: VdlaConfig) -> None:
        count = len(work)
        self.chained, self.followed = np.zeros((2, count), np.bool_)
        self.leaves = np.full(count, count)
        for unit in Unit:
            mine = np.flatnonzero(work.unit == unit)
            self.chained[mine[1:]] = work.moves[mine[1:]] & work.moves[mine[:-1]] & (config.dma_outstanding > 1)
            self.followed[mine[:-1]] = self.chained[mine[1:]]
            self.leaves[mine[config.cmd_queue_depth :]] = mine[: -config.cmd_queue_depth]
        self.pop_prev, self.pop_next = np.full((2, count), 2 * count)
        self.room_prev, self.room_next = np.full((2, count), -1)
        self.givers, self.takers = [], []
        for _, producer, consumer in QUEUES:
            if producer < consumer:
                gives, takes, pop, room, side = work.push_next, work.pop_prev, self.pop_prev, self.room_next, 1
            else:
                gives, takes, pop, room, side = work.push_prev, work.pop_next, self.pop_next, self.room_prev, 0
            givers = np.flatnonzero(gives & (work.unit == producer))
            takers = np.flatnonzero(takes & (work.unit == consumer))
            # The k-th token taken is the k-th given, and makes room for one as many later as the queue holds.
            pop[takers] = _shifted(2 * givers + side, 0, len(takers), 2 * count)
            room[givers] = _shifted(takers, config.dep_queue_depth, len(givers), count)
            self.givers.append(givers)
            self.takers.append(takers)


def _shifted(values: npt.NDArray[np.intp], by: int, length: int, always: int) -> npt.NDArray[np.intp]:
    """``by`` times ``always``, then the values, then ``always + 1``, cut off at a length."""
    result = np.full(length, always + 1)
    result[:by] = always
    result[by : by + len(values)] = values[: max(length - by, 0)]
    return result


def _deadlock(
    instructions: Sequence[Instruction],
    work: Work,
    links: _Links,
    begin: list[int],
    given: list[int],
    blocked: list[list[tuple[int, int, int, int]]],
    fetches: int,
) -> str:
    """Every unit's next instruction and what it waits for."""
    lines = []
    for unit in Unit:
        if blocked[unit]:
            i, _, _, to = blocked[unit][0]
            name = next(name for name, *ends in QUEUES if ends == [unit, to])
            lines.append(f"{unit.name}: instruction {i} ({named(instructions[i])}) cannot push: {name} is full")
            continue
        i = next((i for i in np.flatnonzero(work.unit == unit).tolist() if begin[i] == _NEVER), -1)
        if i < 0:
            lines.append(f"{unit.name}: all done")
            continue
        pops = ((_FROM_PREV[unit], links.pop_prev[i]), (_FROM_NEXT[unit], links.pop_next[i]))
        empty = [QUEUES[q][0] for q, token in pops if given[token] == _NEVER]
        what = f"waits for {' and '.join(empty)}" if empty else "waits for its unit"
        if i >= fetches:
            what = "is not fetched: a command queue before it is full"
        lines.append(f"{unit.name}: instruction {i} ({named(instructions[i])}) {what}")
    counts = []
    for q, (name, producer, consumer) in enumerate(QUEUES):
        pushed = sum(given[2 * i + (producer < consumer)] != _NEVER for i in links.givers[q].tolist())
        popped = sum(begin[i] != _NEVER for i in links.takers[q].tolist())
        counts.append(f"{name} {pushed} pushed {popped} popped")
    return "deadlock: " + "; ".join([*lines, f"tokens: {', '.join(counts)}"])
