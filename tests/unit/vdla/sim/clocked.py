"""The timing rules once more, as a machine that is stepped cycle by cycle: slow, plain, and written independently.

All times must be whole cycles: a bandwidth that divides every element and every chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Instruction, Store, Unit
from mlc.vdla.sim.work import Work

Queue = tuple[Unit, Unit]
DEADLOCK = 1 << 16  # cycles after which nothing is expected any more


@dataclass
class Transfer:
    """One in a unit's DMA engine."""

    number: int
    arrives: int  # when its data can come, as far as the memory's latency is concerned
    left: int  # bytes to move
    asked: int | None = None
    data: int | None = None
    until: int | None = None  # the end of the chunk that is moving


@dataclass
class UnitState:
    """A unit: its command queue, what it does, and what it still has to give."""

    unit: Unit
    commands: deque[int] = field(default_factory=deque)
    busy: int | None = None  # the end of a computation
    running: int | None = None  # which
    engine: list[Transfer] = field(default_factory=list)  # at most two
    finishing: deque[tuple[int, int]] = field(default_factory=deque)  # transfers that end at a time
    tokens: deque[tuple[int, Queue]] = field(default_factory=deque)  # to be given, in order, with whose they are
    data_free: int = 0
    transferring: bool = False  # the last thing begun was a transfer


class Clocked:
    """Runs a stream; ``begin``, ``data`` and ``end`` are cycles, one an instruction."""

    def __init__(self, stream: Sequence[Instruction], work: Work, config: VdlaConfig) -> None:
        self.stream, self.work, self.config = stream, work, config
        self.units = [UnitState(unit) for unit in Unit]
        self.queues: dict[Queue, int] = {(a, b): 0 for a in Unit for b in Unit if abs(a - b) == 1}
        self.begin, self.data, self.end = ([-1] * len(stream) for _ in range(3))
        self.fetching = 0
        self.fetched_at = 2  # when the next instruction is there, if its queue has room
        self.port_free = 0

    def run(self) -> None:
        """Steps until all is done; stops without it in a deadlock."""
        now = 0
        while -1 in self.end and now < DEADLOCK:
            while self.something(now):
                pass
            self.serve(now)
            now += 1

    def something(self, now: int) -> bool:
        """Does what can be done in this cycle apart from the memory; False when that was nothing."""
        did = self.fetch(now)
        for state in self.units:
            did |= self.end_chunk(state, now) or self.finish(state, now) or self.give(state) or self.take(state, now)
        return did

    def fetch(self, now: int) -> bool:
        if self.fetching == len(self.stream) or now < self.fetched_at:
            return False
        commands = self.units[self.stream[self.fetching].unit].commands
        if len(commands) == self.config.cmd_queue_depth:
            return False
        commands.append(self.fetching)
        self.fetching += 1
        self.fetched_at = now + 2
        return True

    def end_chunk(self, state: UnitState, now: int) -> bool:
        """A chunk of the transfer in front has moved, or the transfer asks for its first."""
        if not state.engine:
            return False
        front = state.engine[0]
        i = front.number
        if front.data is None and front.asked is None and now >= max(front.arrives, state.data_free):
            if front.left:
                front.asked = now
            else:
                front.data = front.until = now
            return True
        if front.data is not None and not front.left and front.until is not None and now >= front.until:
            # The port is done; the memory on chip may need longer.
            last = max(front.until, front.data + self.work.elements[i])
            stores = isinstance(self.stream[i], Store) and self.work.nbytes[i] > 0
            state.finishing.append((last + (self.config.dram_latency if stores else 0), i))
            state.data_free = last
            self.data[i] = front.data
            del state.engine[0]
            return True
        if front.left and front.until is not None and now >= front.until:
            front.asked, front.until = now, None
            return True
        return False

    def finish(self, state: UnitState, now: int) -> bool:
        """Something ends: its tokens are to be given."""
        if state.busy is not None and now >= state.busy:
            assert state.running is not None
            i, state.busy, state.running = state.running, None, None
        elif state.finishing and now >= state.finishing[0][0]:
            _, i = state.finishing.popleft()
        else:
            return False
        self.end[i] = now
        x, unit = self.stream[i], state.unit
        state.tokens += [(i, (unit, Unit(unit - 1)))] if x.push_prev else []
        state.tokens += [(i, (unit, Unit(unit + 1)))] if x.push_next else []
        return True

    def give(self, state: UnitState) -> bool:
        if not state.tokens or self.queues[state.tokens[0][1]] == self.config.dep_queue_depth:
            return False
        self.queues[state.tokens.popleft()[1]] += 1
        return True

    def take(self, state: UnitState, now: int) -> bool:
        """A unit begins its next instruction, if it is free for it and has its tokens."""
        if not state.commands or state.busy is not None:
            return False
        i = state.commands[0]
        transfer = self.work.moves[i]
        # Tokens without room hold up all but a transfer after a transfer.
        if state.tokens and not (transfer and state.transferring and self.config.dma_outstanding > 1):
            return False
        if not transfer and (state.engine or state.finishing):
            return False
        if transfer and not self.free_for_transfer(state):
            return False
        x, unit = self.stream[i], state.unit
        wanted: list[Queue] = [(Unit(unit - 1), unit)] if x.pop_prev else []
        wanted += [(Unit(unit + 1), unit)] if x.pop_next else []
        if any(not self.queues[q] for q in wanted):
            return False
        for q in wanted:
            self.queues[q] -= 1
        state.commands.popleft()
        self.begin[i], state.transferring = now, transfer
        if transfer:
            loads = not isinstance(x, Store) and self.work.nbytes[i] > 0
            arrives = now + self.config.dma_issue + (self.config.dram_latency if loads else 0)
            state.engine.append(Transfer(i, arrives, self.work.nbytes[i]))
        else:
            self.data[i], state.busy, state.running = now, now + self.work.cycles[i], i
        return True

    def free_for_transfer(self, state: UnitState) -> bool:
        if self.config.dma_outstanding == 1:
            return not state.engine and not state.finishing
        return not state.engine or (len(state.engine) == 1 and state.engine[0].data is not None)

    def serve(self, now: int) -> None:
        """The memory takes the longest waiting request."""
        while now >= self.port_free:
            asking = [s for s in self.units if s.engine and s.engine[0].asked is not None]
            if not asking:
                return
            front = min(asking, key=lambda s: (s.engine[0].asked, s.unit)).engine[0]
            size = min(self.config.arb_bytes, front.left)
            cycles, rest = divmod(size, int(self.config.bytes_per_cycle))
            assert not rest
            front.left -= size
            front.asked, front.until = None, now + cycles
            front.data = now if front.data is None else front.data
            self.port_free = now + cycles
            while self.something(now):  # the next transfer may be announced at once
                pass
