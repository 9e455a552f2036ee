"""The timing simulator: when every instruction starts and ends.

Three units take their instructions in order from command queues that one fetch unit fills; tokens order them among each
other; one memory server moves the bytes of all, in chunks, first come first served.

Only the memory makes the order of events matter. Everything else is a network of queues in which a time is the latest
of other times, whatever the order in which they are found out; so each unit runs ahead until it waits for bytes or for
another unit, and only then the memory serves the earliest request. No earlier one can still turn up: whoever waits,
waits for an answer to one of the requests that are known.

Each part below has its own state and does one thing; they share ``Happened``, the times that are known so far, and
``Waiting``, the units that have come to a stop. What waits for what was worked out beforehand (``order.py``); what
remains to be done event by event is to compare times.

Time is counted in whole ticks, so that no rounding decides who comes first: with B = p/q bytes a cycle, a cycle is p
ticks and a byte q.
Source: the accelerator's specification, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Instruction, Unit
from mlc.vdla.sim.order import Links, Ticks
from mlc.vdla.sim.timeline import Timeline
from mlc.vdla.sim.work import QUEUES, Work, named

FETCH_CYCLES = 2
_NEVER = 1 << 200  # later than all ticks: what has not happened yet
_NOTHING, _STARVES = -1, -2

_FETCH = len(QUEUES)  # the reason after those of the queues

# By unit, the queue that it takes tokens of its previous, and of its next unit from; -1 without such a unit.
_FROM_PREV, _FROM_NEXT = (
    [next((q for q, (_, p, c) in enumerate(QUEUES) if (p, c) == (u + step, u)), -1) for u in Unit] for step in (-1, 1)
)


def simulate(work: Work, config: VdlaConfig, instructions: Sequence[Instruction]) -> Timeline:
    """Runs a stream in time.

    Args:
        work: what each instruction asks for.
        config: the accelerator's speeds.
        instructions: the same stream, for messages.
    Raises:
        DeviceError: a deadlock; the message has every unit's next instruction and what it waits for.
    """
    ticks, links = Ticks(work, config), Links(work, config)
    happened, waiting = Happened(len(work)), Waiting()
    fetch = Fetch(happened, waiting, links, FETCH_CYCLES * ticks.cycle)
    tokens = Tokens(happened, waiting, links)
    transfers = Transfers(happened, waiting, tokens, work, ticks)
    issue = Issue(happened, waiting, fetch, tokens, transfers, work, ticks, links)
    serve(transfers, issue, config.arb_bytes, links)
    if happened.begin.count(_NEVER) > 1 or any(tokens.blocked):
        fetch.advance()  # as far as it goes, whether or not anybody waited for it
        raise DeviceError(_deadlock(instructions, work, links, happened, tokens, fetch))
    return happened.timeline(work, ticks, links)


class Happened:
    """When things happened, in ticks, one entry an instruction; ``_NEVER`` is what has not happened yet.

    Attributes:
        begin: it left its command queue. The last two entries, and those of ``given``, are what ``Links`` says.
        given: its token to the previous unit went out (at 2 i), that to the next one (at 2 i + 1).
        fetched: it came into its command queue.
        data: its first byte moved.
        end: what it wrote was visible.
        idle, reason, full: see ``Timeline``.
        on_the_way, in_line: ``latency`` and ``port`` there.
        done: by unit, when its last instruction had ended and its last token was given.
    """

    __slots__ = ("begin", "data", "done", "end", "fetched", "full", "given", "idle", "in_line", "on_the_way", "reason")

    def __init__(self, count: int) -> None:
        self.begin, self.given = [*[_NEVER] * count, 0, _NEVER], [*[_NEVER] * 2 * count, -1, _NEVER]
        self.fetched, self.data, self.end = [_NEVER] * count, [_NEVER] * count, [0] * count
        self.idle, self.reason, self.full = [0] * count, [-1] * count, [0] * count
        self.on_the_way, self.in_line = [0] * count, [0] * count
        self.done = [0] * 3

    def timeline(self, work: Work, ticks: Ticks, links: Links) -> Timeline:
        """The same in cycles, once all has happened."""
        begins, datas, ends, idles, fulls, latencies, ports, movings = (
            np.array(column, np.float64) / ticks.cycle
            for column in (
                self.begin[:-2], self.data, self.end, self.idle, self.full, self.on_the_way, self.in_line, ticks.port
            )
        )  # fmt: skip
        return Timeline(
            begin=begins,
            data=np.where(work.moves, datas, begins),
            end=ends,
            idle=idles,
            reason=np.array(self.reason, np.int8),
            full=fulls,
            latency=latencies,
            port=ports,
            moving=movings,
            tokens={name: len(links.givers[q]) for q, (name, _, _) in enumerate(QUEUES)},
        )


class Waiting:
    """Units that have come to a stop.

    Attributes:
        lacks: by unit, the token that it waits for, an entry of ``Happened.given``; or ``_STARVES``, for instructions.
        awake: units that may go on.
    """

    __slots__ = ("awake", "lacks")

    def __init__(self) -> None:
        self.lacks, self.awake = [_NOTHING] * 3, [2, 1, 0]


class Fetch:
    """The fetch unit: one instruction after the other, blocked by a full command queue.

    Attributes:
        count: instructions that it has fetched.
        gate: the instruction that must leave its queue before the next one comes.
    """

    __slots__ = ("count", "cycles", "gate", "happened", "leaves", "waiting")

    def __init__(self, happened: Happened, waiting: Waiting, links: Links, cycles: int) -> None:
        self.happened, self.waiting = happened, waiting
        self.leaves, self.cycles = links.leaves.tolist(), cycles
        self.count, self.gate = 0, _NOTHING

    def advance(self) -> None:
        """Fetches on, until a command queue is full. It is called when somebody wants an instruction."""
        fetched, begin, leaves, cycles = self.happened.fetched, self.happened.begin, self.leaves, self.cycles
        count = self.count
        time = fetched[count - 1] if count else 0
        for i in range(count, len(leaves)):
            time += cycles
            left = begin[leaves[i]]
            if left > time:
                if left == _NEVER:
                    break
                time = left
            fetched[i] = time
            count += 1
        self.count = count
        self.gate = leaves[count] if count < len(leaves) else _NOTHING
        self.waiting.awake.extend(u for u in range(3) if self.waiting.lacks[u] == _STARVES)


class Tokens:
    """Ends of instructions, and the tokens that they give.

    Attributes:
        ended, gave: by unit, when its last instruction ended, and when its last token was given.
        blocked: by unit, tokens that found their queue full, as arguments of ``_push``.
        rooms: by the instruction that will make room in a queue, the units that wait for it.

    The others are lists of ``Happened``, ``Waiting`` and ``Links``: most of a simulation's time goes by here.
    """

    __slots__ = (
        "awake", "begin", "blocked", "done", "end", "ended", "full", "gave", "given", "lacks", "room_next", "room_prev",
        "rooms",
    )  # fmt: skip

    def __init__(self, happened: Happened, waiting: Waiting, links: Links) -> None:
        self.begin, self.end, self.given = happened.begin, happened.end, happened.given
        self.full, self.done = happened.full, happened.done
        self.lacks, self.awake = waiting.lacks, waiting.awake
        self.room_prev, self.room_next = links.room_prev.tolist(), links.room_next.tolist()
        self.ended, self.gave = [0] * 3, [0] * 3
        self.blocked: list[list[tuple[int, int, int, int]]] = [[], [], []]
        self.rooms: dict[int, list[int]] = {}

    def complete(self, u: int, i: int, time: int) -> None:
        """An instruction has ended: its tokens go out, one after the other."""
        if time < self.ended[u]:
            time = self.ended[u]
        self.end[i] = self.ended[u] = time
        if time > self.done[u]:
            self.done[u] = time
        room = self.room_prev[i]
        if room >= 0 and (self.blocked[u] or not self._push(u, i, 2 * i, room, u - 1)):
            self.blocked[u].append((i, 2 * i, room, u - 1))
        room = self.room_next[i]
        if room >= 0 and (self.blocked[u] or not self._push(u, i, 2 * i + 1, room, u + 1)):
            self.blocked[u].append((i, 2 * i + 1, room, u + 1))

    def left(self, i: int) -> None:
        """An instruction has left its queue, which makes room for tokens: their pushers may go on."""
        for u in self.rooms.pop(i):
            blocked = self.blocked[u]
            while blocked and self._push(u, *blocked[0]):
                del blocked[0]
            if not blocked:
                self.awake.append(u)

    def _push(self, u: int, i: int, token: int, room: int, to: int) -> bool:
        """Gives a token once its queue has room; False when that is not known yet."""
        end = time = self.end[i]
        begin = self.begin[room]
        if begin > time:
            if begin == _NEVER:
                self.rooms.setdefault(room, []).append(u)
                return False
            time = begin
        gave = self.gave
        if gave[u] > time:
            time = gave[u]
        self.given[token] = gave[u] = time
        if time > end:
            self.full[i] = time - end
            if time > self.done[u]:
                self.done[u] = time
        if self.lacks[to] == token:
            self.awake.append(to)
        return True


class Transfers:
    """The DMA engines, one a unit: a transfer moves its data, another may be announced meanwhile.

    Attributes:
        moving, asks, moved: by unit, the transfer that moves data, when it next asks for the memory, bytes so far.
        announced, arrives: by unit, the transfer that has only been announced, and when its data can come.
        data_end: by unit, when its last data phase ended.
        nbytes, port: by instruction, what it moves and how long that holds the memory.
    """

    __slots__ = (
        "acknowledge", "announced", "arrives", "asks", "awake", "begin", "chip", "complete", "data", "data_end",
        "happened", "moved", "moving", "nbytes", "port",
    )  # fmt: skip

    def __init__(self, happened: Happened, waiting: Waiting, tokens: Tokens, work: Work, ticks: Ticks) -> None:
        self.happened, self.awake, self.complete = happened, waiting.awake, tokens.complete
        self.begin, self.data = happened.begin, happened.data
        self.nbytes, self.port = work.nbytes.tolist(), ticks.port.tolist()
        self.acknowledge, self.chip = ticks.acknowledge.tolist(), ticks.chip.tolist()
        self.moving, self.asks, self.moved, self.announced = [-1] * 3, [_NEVER] * 3, [0] * 3, [-1] * 3
        self.arrives, self.data_end = [0] * 3, [0] * 3

    def admit(self, u: int, i: int, arrival: int) -> None:
        """A transfer comes to the front of its unit's engine."""
        self.moving[u], self.moved[u] = i, 0
        time = self.data_end[u]
        if arrival > time:
            begin = self.begin[i]
            self.happened.on_the_way[i] = arrival - (time if time > begin else begin)
            time = arrival
        if self.nbytes[i]:
            self.asks[u] = time
        else:
            self.data[i] = time
            self.awake.append(u)
            self.finish(u, i, time)

    def finish(self, u: int, i: int, time: int) -> None:
        """The last byte has moved; the on-chip side may need longer."""
        on_chip = self.data[i] + self.chip[i]
        if on_chip > time:
            time = on_chip
        self.data_end[u] = time
        self.moving[u] = following = self.announced[u]
        self.announced[u] = -1
        self.complete(u, i, time + self.acknowledge[i])
        if following >= 0:
            begin, done = self.begin[following], self.happened.done[u]
            if begin > done:
                self.happened.idle[following] = begin - done
            self.admit(u, following, self.arrives[u])
        else:
            self.awake.append(u)


class Issue:
    """The units, each beginning its instructions one after the other as far as times are known.

    Attributes:
        go_on: by unit, a call that lets it go on until it comes to a stop.
    """

    def __init__(
        self,
        happened: Happened,
        waiting: Waiting,
        fetch: Fetch,
        tokens: Tokens,
        transfers: Transfers,
        work: Work,
        ticks: Ticks,
        links: Links,
    ) -> None:
        self.happened, self.waiting = happened, waiting
        self.fetch, self.tokens, self.transfers = fetch, tokens, transfers
        columns = (links.chained, work.moves, ticks.length, links.pop_prev, links.pop_next)
        self.go_on = []
        for u in Unit:
            mine = np.flatnonzero(work.unit == u)
            rows = zip(mine.tolist(), *(column[mine].tolist() for column in columns), strict=True)
            self.go_on.append(self._unit(int(u), rows).__next__)

    def _unit(self, u: int, rows: Iterator[tuple[int, bool, bool, int, int, int]]) -> Iterator[None]:
        """One unit; it pauses where something has to be found out first."""
        happened, fetch, tokens, transfers = self.happened, self.fetch, self.tokens, self.transfers
        begin, given, data, fetched = happened.begin, happened.given, happened.data, happened.fetched
        reason, done, lacks = happened.reason, happened.done, self.waiting.lacks
        moving, blocked, rooms = transfers.moving, tokens.blocked[u], tokens.rooms
        complete, admit, from_prev, from_next = tokens.complete, transfers.admit, _FROM_PREV[u], _FROM_NEXT[u]
        before = -1
        for i, chained, moves, length, prev, following in rows:
            if chained:
                while data[before] == _NEVER:
                    yield
                time = data[before]
            else:
                while moving[u] >= 0 or blocked:
                    yield
                time = done[u]
            why = -1
            if fetched[i] > time:
                if fetched[i] == _NEVER:
                    fetch.advance()
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
                    time, why = given[prev], from_prev
            if given[following] >= time:
                while given[following] == _NEVER:
                    lacks[u] = following
                    yield
                if given[following] >= time:
                    time, why = given[following], from_next
            begin[i], reason[i] = time, why
            if moving[u] < 0 and time > done[u]:
                happened.idle[i] = time - done[u]
            if i in rooms:
                tokens.left(i)
            if i == fetch.gate and _STARVES in lacks:
                fetch.advance()
            if not moves:
                complete(u, i, time + length)
            elif moving[u] < 0:
                admit(u, i, time + length)
            else:
                transfers.announced[u], transfers.arrives[u] = i, time + length
            before = i
        while True:
            yield


def serve(transfers: Transfers, issue: Issue, arbitration: int, links: Links) -> None:
    """The memory: of the engines' requests the earliest is served, a chunk or more, until there is none left.

    Args:
        transfers: the engines.
        issue: goes on whenever something new is known.
        arbitration: bytes of a chunk, after which another unit may get its turn.
        links: says which transfers another one waits behind.
    """
    asks, moving, moved = transfers.asks, transfers.moving, transfers.moved
    nbytes, port, followed = transfers.nbytes, transfers.port, links.followed.tolist()
    data, in_line, awake, go_on = transfers.data, transfers.happened.in_line, transfers.awake, issue.go_on
    free = 0
    while True:
        while awake:
            go_on[awake.pop()]()
        ask = min(asks)
        if ask == _NEVER:
            return
        u = asks.index(ask)
        asks[u] = _NEVER
        i, before = moving[u], moved[u]
        total, size = port[i], nbytes[i]
        grant = ask
        if free > ask:
            grant = free
            in_line[i] += grant - ask
        if before == 0:
            origin = data[i] = grant
            if followed[i]:  # by a transfer that may be announced now
                awake.append(u)
                while awake:
                    go_on[awake.pop()]()
        else:
            origin = grant - total * before // size  # of a transfer that nobody interrupts
        # Chunk after chunk until another unit's request is the earliest, or as early: then the next round decides.
        rival, after = min(asks), size
        if rival < origin + total:
            share = -((origin - rival) * size // total)  # bytes after which it is the rival's turn
            after = before + max(1, -((before - share) // arbitration)) * arbitration
        if after < size:
            moved[u] = after
            asks[u] = free = origin + total * after // size
        else:
            free = origin + total
            transfers.finish(u, i, free)


def _deadlock(
    instructions: Sequence[Instruction], work: Work, links: Links, happened: Happened, tokens: Tokens, fetch: Fetch
) -> str:
    """Every unit's next instruction and what it waits for."""
    begin, given = happened.begin, happened.given
    lines = []
    for unit in Unit:
        if tokens.blocked[unit]:
            i, _, _, to = tokens.blocked[unit][0]
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
        if i >= fetch.count:
            what = "is not fetched: a command queue before it is full"
        lines.append(f"{unit.name}: instruction {i} ({named(instructions[i])}) {what}")
    counts = []
    for q, (name, producer, consumer) in enumerate(QUEUES):
        pushed = sum(given[2 * i + (producer < consumer)] != _NEVER for i in links.givers[q].tolist())
        popped = sum(begin[i] != _NEVER for i in links.takers[q].tolist())
        counts.append(f"{name} {pushed} pushed {popped} popped")
    return "deadlock: " + "; ".join([*lines, f"tokens: {', '.join(counts)}"])
