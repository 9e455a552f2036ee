"""The timing simulator: when every instruction starts and ends, event by event.

Three units take their instructions in order from command queues that one fetch unit fills; tokens order them among each
other; one memory server moves the bytes of all, in chunks, first come first served. The next event is always the
earliest: a unit's next instruction starting, or the next chunk of a transfer asking for the memory.

Time is counted in whole ticks, so that no rounding decides who comes first: with B = p/q bytes a cycle, a cycle is p
ticks and a byte q.
Source: the accelerator's specification, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Instruction, Unit
from mlc.vdla.sim.work import QUEUES, Work, named

FETCH_CYCLES = 2
_NEVER = 1 << 62
_UNITS = len(Unit)

Times = npt.NDArray[np.float64]


# Why a unit had nothing running: it waited for a token of one of the queues, or for the fetch unit.
REASONS = (*(name for name, _, _ in QUEUES), "fetch")


@dataclass(frozen=True, eq=False)
class Timeline:
    """When things happened, in cycles, one entry an instruction.

    Attributes:
        begin: it left its command queue.
        data: its first byte moved, or its computation began.
        end: what it wrote was visible.
        idle: how long its unit had nothing running before it began.
        reason: what it waited for then, an index of ``REASONS``; -1 where it did not wait.
        full: how long its unit then waited to give its tokens, because a queue was full.
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
    rate = Fraction(str(config.bytes_per_cycle))
    cycle, byte = rate.numerator, rate.denominator
    issue, latency = config.dma_issue * cycle, config.dram_latency * cycle
    gap, arbitration = config.burst_gap * cycle, config.arb_bytes
    overlaps = config.dma_outstanding > 1
    places, capacity = config.cmd_queue_depth, config.dep_queue_depth
    count = len(work)
    unit_of, moves, stores, nbytes = work.unit, work.moves, work.stores, work.nbytes
    pops_of, pushes_of = work.pops, work.pushes
    duration = [c * cycle for c in work.cycles]
    port_time = [b * byte + bursts * gap for b, bursts in zip(nbytes, work.bursts, strict=True)]
    chip_time = [e * cycle for e in work.elements]
    order: list[list[int]] = [[], [], []]
    for number, unit in enumerate(unit_of):
        order[unit].append(number)

    begin, data, end = [0] * count, [0] * count, [0] * count
    # Per unit: position of its next instruction; when that may start as far as the unit itself is concerned, and as far
    # as everything is; when all before is done; when its last data phase ends.
    head, ready, start_at, done, data_end = [0] * 3, [0] * 3, [_NEVER] * 3, [0] * 3, [0] * 3
    # Per unit: the transfer that moves data, when it next asks for the memory, bytes it has moved; the transfer that
    # has only been announced, and when its data can come.
    moving, asks, moved, announced, arrives = [-1] * 3, [_NEVER] * 3, [0] * 3, [-1] * 3, [0] * 3
    # Per unit: tokens that found their queue full, as (queue, time, instruction).
    blocked: list[list[tuple[int, int, int]]] = [[], [], []]
    starts: list[list[int]] = [[], [], []]
    pushed: list[list[int]] = [[] for _ in QUEUES]
    popped: list[list[int]] = [[] for _ in QUEUES]
    producer = [int(p) for _, p, _ in QUEUES]
    consumer = [int(c) for _, _, c in QUEUES]
    fetched = [0] * count
    fetch_count, fetch_time, fetch_of = 0, 0, [0] * 3
    idle, reason, full = [0] * count, [-1] * count, [0] * count
    on_the_way, in_line, held, port_free = [0] * count, [0] * count, [0] * count, 0

    def candidate(u: int) -> None:
        """Works out when the next instruction of a unit can start, if that is known yet."""
        start_at[u] = _NEVER
        if head[u] == len(order[u]) or blocked[u]:
            return
        time, i = ready[u], order[u][head[u]]
        if time == _NEVER or i >= fetch_count:
            return
        if fetched[i] > time:
            time = fetched[i]
        for q in pops_of[i]:
            tokens, k = pushed[q], len(popped[q])
            if k >= len(tokens):
                return
            if tokens[k] > time:
                time = tokens[k]
        start_at[u] = time

    def fetch() -> None:
        """Fetches on, until a command queue is full."""
        nonlocal fetch_count, fetch_time
        before = fetch_count
        while fetch_count < count:
            u = unit_of[fetch_count]
            time, left = fetch_time + FETCH_CYCLES * cycle, fetch_of[u] - places
            if left >= 0:
                if left >= len(starts[u]):
                    break
                time = max(time, starts[u][left])
            fetched[fetch_count] = fetch_time = time
            fetch_count += 1
            fetch_of[u] += 1
        if fetch_count > before:
            for u in range(_UNITS):
                if start_at[u] == _NEVER:
                    candidate(u)

    def push(u: int, q: int, time: int, i: int) -> bool:
        """Gives a token once its queue has room; False when that is not known yet."""
        k = len(pushed[q])
        if k >= capacity:
            if k - capacity >= len(popped[q]):
                return False
            time = max(time, popped[q][k - capacity])
            full[i] = max(full[i], time - end[i])
            done[u] = max(done[u], time)
        pushed[q].append(time)
        if start_at[consumer[q]] == _NEVER:
            candidate(consumer[q])
        return True

    def complete(u: int, i: int, time: int) -> None:
        """An instruction has ended: its tokens go out, and the unit may go on."""
        end[i] = done[u] = max(time, done[u])
        time = end[i]
        for q in pushes_of[i]:
            if blocked[u] or not push(u, q, time, i):
                blocked[u].append((q, time, i))
        if moving[u] < 0 and announced[u] < 0 and ready[u] == _NEVER:
            ready[u] = done[u]

    def unblock(q: int) -> None:
        """A place became free in a queue: its pusher may go on."""
        u = producer[q]
        if not blocked[u] or blocked[u][0][0] != q:
            return
        while blocked[u] and push(u, *blocked[u][0]):
            del blocked[u][0]
        if not blocked[u]:
            if ready[u] != _NEVER:
                ready[u] = max(ready[u], done[u])
            candidate(u)

    def begin_data(u: int, i: int, time: int) -> None:
        """The data phase of a transfer begins: the next transfer may be announced."""
        data[i] = time
        if overlaps and head[u] < len(order[u]) and moves[order[u][head[u]]]:
            ready[u] = time
            candidate(u)

    def admit(u: int, i: int, arrival: int) -> None:
        """A transfer comes to the front of its unit's DMA engine."""
        time = max(arrival, data_end[u])
        on_the_way[i] = max(0, arrival - max(begin[i], data_end[u]))
        if nbytes[i]:
            moving[u], moved[u], asks[u] = i, 0, time
        else:
            begin_data(u, i, time)
            finish_data(u, i, time + chip_time[i])

    def finish_data(u: int, i: int, time: int) -> None:
        """The last byte has moved, and the last element is written."""
        data_end[u] = time
        moving[u], asks[u] = -1, _NEVER
        following, announced[u] = announced[u], -1
        if following >= 0:
            # Before the tokens go out, so that the unit does not look idle.
            moving[u] = following
        complete(u, i, time + latency if stores[i] and nbytes[i] else time)
        if following >= 0:
            admit(u, following, arrives[u])
        elif start_at[u] == _NEVER:
            candidate(u)

    def start(u: int) -> None:
        """A unit takes its next instruction."""
        time, i = start_at[u], order[u][head[u]]
        head[u] += 1
        begin[i] = time
        starts[u].append(time)
        if moving[u] < 0 and time > done[u]:
            idle[i], reason[i] = time - done[u], reason_of(i, time)
        for q in pops_of[i]:
            popped[q].append(time)
        ready[u] = start_at[u] = _NEVER
        if moves[i]:
            arrival = time + issue + (latency if nbytes[i] and not stores[i] else 0)
            if moving[u] < 0:
                admit(u, i, arrival)
            else:
                announced[u], arrives[u] = i, arrival
        else:
            data[i] = time
            complete(u, i, time + duration[i])
            candidate(u)
        for q in pops_of[i]:
            unblock(q)
        fetch()

    def reason_of(i: int, time: int) -> int:
        """What an instruction waited for last."""
        for q in pops_of[i]:
            if pushed[q][len(popped[q])] == time:
                return q
        return len(QUEUES)

    fetch()
    while True:
        soonest, ask = min(start_at), min(asks)
        if soonest <= ask:
            if soonest == _NEVER:
                break
            start(start_at.index(soonest))
            continue
        u = asks.index(ask)
        i = moving[u]
        grant = port_free if port_free > ask else ask
        in_line[i] += grant - ask
        total, size = port_time[i], nbytes[i]
        before = moved[u]
        after = min(before + arbitration, size)
        port_free = grant + total * after // size - total * before // size
        held[i] += port_free - grant
        moved[u] = after
        asks[u] = port_free
        if before == 0:
            begin_data(u, i, grant)
        if after == size:
            finish_data(u, i, max(port_free, data[i] + chip_time[i]))
    if any(head[u] < len(order[u]) or blocked[u] for u in range(_UNITS)):
        raise DeviceError(_deadlock(instructions, order, head, blocked, fetch_count, pops_of, pushed, popped))
    begins, datas, ends, idles, fulls, latencies, ports, movings = (
        np.array(ticks, np.float64) / cycle for ticks in (begin, data, end, idle, full, on_the_way, in_line, held)
    )
    return Timeline(
        begin=begins,
        data=datas,
        end=ends,
        idle=idles,
        reason=np.array(reason, np.int8),
        full=fulls,
        latency=latencies,
        port=ports,
        moving=movings,
        tokens={name: len(times) for (name, _, _), times in zip(QUEUES, pushed, strict=True)},
    )


def _deadlock(
    instructions: Sequence[Instruction],
    order: list[list[int]],
    head: list[int],
    blocked: list[list[tuple[int, int, int]]],
    fetch_count: int,
    pops_of: list[tuple[int, ...]],
    pushed: list[list[int]],
    popped: list[list[int]],
) -> str:
    """Every unit's next instruction and what it waits for."""
    lines = []
    for unit in Unit:
        if blocked[unit]:
            q, _, i = blocked[unit][0]
            name = QUEUES[q][0]
            lines.append(f"{unit.name}: instruction {i} ({named(instructions[i])}) cannot push: {name} is full")
            continue
        if head[unit] == len(order[unit]):
            lines.append(f"{unit.name}: all done")
            continue
        i = order[unit][head[unit]]
        empty = [QUEUES[q][0] for q in pops_of[i] if len(popped[q]) >= len(pushed[q])]
        what = f"waits for {' and '.join(empty)}" if empty else "waits for its unit"
        if i >= fetch_count:
            what = "is not fetched: a command queue before it is full"
        lines.append(f"{unit.name}: instruction {i} ({named(instructions[i])}) {what}")
    tokens = ", ".join(
        f"{name} {len(given)} pushed {len(taken)} popped"
        for (name, _, _), given, taken in zip(QUEUES, pushed, popped, strict=True)
    )
    return "deadlock: " + "; ".join([*lines, f"tokens: {tokens}"])
