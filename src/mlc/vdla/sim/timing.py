"""The timing simulator: when every instruction starts and ends.

Three units take their instructions in order from command queues that one fetch unit fills; tokens order them among each
other; one memory server moves the bytes of all, in chunks, first come first served.

Only the memory makes the order of events matter. Everything else is a network of queues in which a time is the latest
of other times, whatever the order in which they are found out; so each unit runs ahead until it waits for bytes or for
another unit, and only then the memory serves the earliest request. No earlier one can still turn up: whoever waits,
waits for an answer to one of the requests that are known.

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
_FETCH = len(QUEUES)


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
    # From a transfer's begin to its data, and from its last data to its end.
    announce = [issue + (latency if b and not out else 0) for b, out in zip(nbytes, stores, strict=True)]
    acknowledge = [latency if b and out else 0 for b, out in zip(nbytes, stores, strict=True)]
    port_time = [b * byte + bursts * gap for b, bursts in zip(nbytes, work.bursts, strict=True)]
    chip_time = [e * cycle for e in work.elements]
    order: list[list[int]] = [[], [], []]
    # Transfers that may be announced while the one before them on their unit moves its data.
    chained = [False] * count
    for number, unit in enumerate(unit_of):
        chained[number] = overlaps and moves[number] and bool(order[unit]) and moves[order[unit][-1]]
        order[unit].append(number)

    begin, data, end = [0] * count, [0] * count, [0] * count
    idle, reason, full = [0] * count, [-1] * count, [0] * count
    on_the_way, in_line, held = [0] * count, [0] * count, [0] * count

    # Per unit: position of its next instruction; when the unit is ready for it; when the last instruction ended, the
    # last token was given, both had happened; when its last data phase ends; when each of its instructions began.
    head, ready, data_end = [0] * 3, [0] * 3, [0] * 3
    ended, given, done = [0] * 3, [0] * 3, [0] * 3
    starts: list[list[int]] = [[], [], []]
    # Per unit: the transfer that moves data, when it next asks for the memory, bytes it has moved; the transfer that
    # has only been announced, and when its data can come.
    moving, asks, moved, announced, arrives = [-1] * 3, [_NEVER] * 3, [0] * 3, [-1] * 3, [0] * 3
    # Per unit: tokens that found their queue full, as (queue, time, instruction).
    blocked: list[list[tuple[int, int, int]]] = [[], [], []]
    # Per unit: the queue whose token it waits for, or _FETCH; and the units that may go on.
    lacks, awake = [-1] * 3, [2, 1, 0]
    pushed: list[list[int]] = [[] for _ in QUEUES]
    popped: list[list[int]] = [[] for _ in QUEUES]
    producer = [int(p) for _, p, _ in QUEUES]
    consumer = [int(c) for _, _, c in QUEUES]
    # The fetch unit: times of what is fetched, instructions of every unit, and the unit whose queue it waits for.
    fetched: list[int] = []
    fetch_of, fetch_waits = [0] * 3, -1
    fetch_cycles = FETCH_CYCLES * cycle
    port_free = 0

    def advance(u: int) -> None:
        """Lets a unit begin as many instructions as it can."""
        mine, begins = order[u], starts[u]
        while ready[u] != _NEVER and head[u] < len(mine):
            i = mine[head[u]]
            if blocked[u] and not chained[i]:
                return
            if i >= len(fetched):
                lacks[u] = _FETCH
                return
            time, why = ready[u], -1
            if fetched[i] > time:
                time, why = fetched[i], _FETCH
            for q in pops_of[i]:
                tokens, k = pushed[q], len(popped[q])
                if k >= len(tokens):
                    lacks[u] = q
                    return
                if tokens[k] >= time:
                    time, why = tokens[k], q
            lacks[u] = -1
            head[u] += 1
            begin[i] = time
            begins.append(time)
            reason[i] = why
            if moving[u] < 0:
                idle[i] = time - done[u] if time > done[u] else 0
            ready[u] = _NEVER
            for q in pops_of[i]:
                popped[q].append(time)
                if blocked[producer[q]]:
                    unblock(q)
            if fetch_waits == u:
                fetch()
            if not moves[i]:
                data[i] = time
                complete(u, i, time + duration[i])
            elif moving[u] < 0:
                admit(u, i, time + announce[i])
            else:
                announced[u], arrives[u] = i, time + announce[i]

    def fetch() -> None:
        """Fetches on, until a command queue is full."""
        nonlocal fetch_waits
        time = fetched[-1] if fetched else 0
        fetch_waits = -1
        for i in range(len(fetched), count):
            u = unit_of[i]
            time += fetch_cycles
            leaving = fetch_of[u] - places  # the one whose place it takes
            if leaving >= 0:
                if leaving >= len(starts[u]):
                    fetch_waits = u
                    return
                if starts[u][leaving] > time:
                    time = starts[u][leaving]
            fetched.append(time)
            fetch_of[u] += 1
            if lacks[u] == _FETCH:
                awake.append(u)

    def push(u: int, q: int, time: int, i: int) -> bool:
        """Gives a token once its queue has room; False when that is not known yet."""
        tokens = pushed[q]
        k = len(tokens) - capacity
        if k >= 0:
            if k >= len(popped[q]):
                return False
            if popped[q][k] > time:
                time = popped[q][k]
        if given[u] > time:
            time = given[u]
        given[u] = time
        tokens.append(time)
        if time > end[i]:
            full[i] = time - end[i]
            done[u] = max(done[u], time)
        if lacks[consumer[q]] == q:
            awake.append(consumer[q])
        return True

    def complete(u: int, i: int, time: int) -> None:
        """An instruction has ended: its tokens go out, and the unit may go on."""
        if time < ended[u]:
            time = ended[u]
        end[i] = ended[u] = time
        if time > done[u]:
            done[u] = time
        for q in pushes_of[i]:
            if blocked[u] or not push(u, q, time, i):
                blocked[u].append((q, time, i))
        if moving[u] < 0 and ready[u] == _NEVER:
            ready[u] = done[u]

    def unblock(q: int) -> None:
        """A place became free in a queue: its pusher may go on."""
        u = producer[q]
        while blocked[u] and push(u, *blocked[u][0]):
            del blocked[u][0]
        if not blocked[u] and head[u] < len(order[u]):
            if ready[u] != _NEVER and not chained[order[u][head[u]]]:
                ready[u] = done[u]
            awake.append(u)

    def admit(u: int, i: int, arrival: int) -> None:
        """A transfer comes to the front of its unit's DMA engine."""
        on_the_way[i] = max(0, arrival - max(begin[i], data_end[u]))
        moving[u], moved[u] = i, 0
        time = max(arrival, data_end[u])
        if nbytes[i]:
            asks[u] = time
        else:
            begin_data(u, i, time)
            finish_data(u, i, time)

    def begin_data(u: int, i: int, time: int) -> None:
        """The data phase of a transfer begins: the next transfer may be announced."""
        data[i] = time
        if head[u] < len(order[u]) and chained[order[u][head[u]]]:
            ready[u] = time
            awake.append(u)

    def finish_data(u: int, i: int, time: int) -> None:
        """The last byte has moved; the on-chip side may need longer."""
        data_end[u] = time = max(time, data[i] + chip_time[i])
        following, announced[u] = announced[u], -1
        moving[u] = following
        complete(u, i, time + acknowledge[i])
        if following >= 0:
            if begin[following] > done[u]:
                idle[following] = begin[following] - done[u]
            admit(u, following, arrives[u])
        else:
            awake.append(u)

    fetch()
    while True:
        while awake:
            advance(awake.pop())
        ask = min(asks)
        if ask == _NEVER:
            break
        u = asks.index(ask)
        asks[u] = _NEVER
        i, before = moving[u], moved[u]
        total, size = port_time[i], nbytes[i]
        grant = port_free if port_free > ask else ask
        if before == 0:
            begin_data(u, i, grant)
            while awake:
                advance(awake.pop())
        # Chunk after chunk until another unit's request is the earliest, or as early: then the main loop decides.
        rival = min(asks)
        in_line[i] += grant - ask
        so_far = total * before // size
        share = -((grant - so_far - rival) * size // total)  # bytes after which it is the rival's turn
        after = before + max(1, -((before - share) // arbitration)) * arbitration
        if after >= size:
            port_free = grant + total - so_far
            held[i] = total
            finish_data(u, i, port_free)
        else:
            moved[u], asks[u] = after, grant + total * after // size - so_far
            port_free = asks[u]
    if any(head[u] < len(order[u]) or blocked[u] for u in range(_UNITS)):
        raise DeviceError(_deadlock(instructions, order, head, blocked, len(fetched), pops_of, pushed, popped))
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
