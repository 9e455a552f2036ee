"""How long a layer is expected to take under a choice: its steps on a clock of three hands.

One hand for the port, one for the matrix unit, one for stores: a step's loads follow each other on the port as soon as
there is room, its product begins when they and the product before it are done, a tile is stored when its last product
is. The timing simulator is the truth; this is for choosing among hundreds of schedules in a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlc.vdla.config import VdlaConfig
from mlc.vdla.schedules.conv import At, Choice, Threads, piece_of
from mlc.vdla.schedules.finish import Range
from mlc.vdla.schedules.shape import Shape

UOPS = 1024  # bytes of micro-ops that a layer begins with, about


def bandwidth(config: VdlaConfig) -> float:
    """Bytes that cross the port in a cycle."""
    return min(config.port_bytes_per_cycle, config.dram_bytes_per_cycle)


def roofline(shape: Shape, config: VdlaConfig) -> float:
    """Cycles that no schedule can stay below: those of all products, or of all compulsory bytes."""
    return max(shape.macs, shape.compulsory_bytes / bandwidth(config))


def sizes(shape: Shape, choice: Choice) -> tuple[int, int, int]:
    """Elements of input, tiles of weights and accumulators that the buffers of a choice take, each having one place.

    What is loaded or computed inside virtual threads takes one for each of them.
    """
    rows, columns, blocks, chunk = fitted(shape, choice)
    data = shape.inputs if choice.data_at is not At.CHUNK else chunk
    if choice.data_at is At.PART:
        high = choice.rows[1] - choice.rows[0]
        data *= shape.batch * shape.rows_read(high) * shape.columns_read(shape.columns)
    else:
        data *= shape.rows_read(rows) * shape.columns_read(columns)
    many = choice.blocks[1] - choice.blocks[0] if choice.tiles_at is At.PART else blocks
    tiles = many * shape.taps * (shape.inputs if choice.tiles_at is not At.CHUNK else chunk)
    sums, threads = rows * columns * blocks, threads_of(choice)
    data *= threads if in_threads(choice, choice.data_at, Threads.ROWS) else 1
    tiles *= threads if in_threads(choice, choice.tiles_at, Threads.BLOCKS) else 1
    data += threads * (sums if shape.residual else min(shape.passes, 1))
    tiles += shape.passes * (shape.groups * shape.outputs if choice.biases_once else threads * blocks)
    tiles += threads * shape.residual
    return data, tiles, threads * (sums + shape.vectors * blocks)


def rooms(shape: Shape, choice: Choice, config: VdlaConfig) -> tuple[int, int]:
    """Elements of input and tiles of weights that the product's operands go round in, beside those of what is added."""
    data, tiles, sums = sizes(shape, choice)
    blocks, threads = fitted(shape, choice)[2], threads_of(choice)
    found = []
    for depth, whole, added in (
        (config.inp_depth, data, sums if shape.residual else threads * min(shape.passes, 1)),
        (config.wgt_depth, tiles, threads * (shape.passes * blocks + min(shape.residual, 1))),
    ):
        beside = (n * added for n in (2, 1) if 2 * n * added <= depth and depth - n * added >= 2 * (whole - added))
        found.append(depth - next(beside, 0))
    return found[0], found[1]


def threads_of(choice: Choice) -> int:
    """How many virtual threads there are."""
    return 1 if choice.threads is Threads.NONE else 2


def in_threads(choice: Choice, at: At, axis: Threads) -> bool:
    """Whether every virtual thread loads an operand for itself, which moves with the given axis."""
    return choice.threads is not Threads.NONE and (at is At.CHUNK or (at is At.OWN and choice.threads is axis))


def slots(shape: Shape, choices: Sequence[Choice], config: VdlaConfig, *, ahead: bool = True) -> list[int]:
    """How many places the tiles of accumulators of every part take in turns.

    No more than asked for, than there are tiles, and than there is room beside the part before, whose results are still
    being stored.
    """
    found, begin = [], 0
    for choice in choices:
        rows, columns, blocks, _ = fitted(shape, choice)
        high, many = choice.rows[1] - choice.rows[0], choice.blocks[1] - choice.blocks[0]
        tiles = shape.batch * -(-high // rows) * -(-shape.columns // columns) * -(-many // blocks)
        size = sizes(shape, choice)[2]
        wanted = min(choice.slots, tiles) if ahead else 1
        room = (config.acc_depth - begin) // size
        if room < min(wanted, 2):
            begin, room = 0, config.acc_depth // size
        found.append(max(1, min(wanted, room)))
        begin += found[-1] * size
    return found


def refusal(shape: Shape, choice: Choice, config: VdlaConfig) -> str:
    """Why the buffers of a choice do not fit the memories; empty where they do."""
    rows, _, blocks, _ = fitted(shape, choice)
    if choice.threads is Threads.ROWS and rows == choice.rows[1] - choice.rows[0]:
        return "two threads have one tile of rows to share"
    if choice.threads is Threads.BLOCKS and blocks == choice.blocks[1] - choice.blocks[0]:
        return "two threads have one tile of blocks to share"
    data, tiles, sums = sizes(shape, choice)
    for what, count, depth in (
        ("elements of input", data, config.inp_depth),
        ("tiles of weights", tiles, config.wgt_depth),
        ("accumulators", sums, config.acc_depth),
    ):
        if count > depth:
            return f"{count} {what} do not fit, the memory holds {depth}"
    return ""


def fitted(shape: Shape, choice: Choice) -> tuple[int, int, int, int]:
    """The tile, no larger than what it cuts: rows, columns, blocks, input blocks."""
    high, many = choice.rows[1] - choice.rows[0], choice.blocks[1] - choice.blocks[0]
    rows, columns, blocks, chunk = choice.tile
    return min(rows, high), min(columns, shape.columns), min(blocks, many), min(chunk, shape.inputs)


@dataclass(slots=True, eq=False)
class _Piece:
    """What a range of an on-chip memory holds: input channels of a region, and when it was last used."""

    begin: int
    end: int
    region: tuple[int, ...]
    inputs: Range
    used: float = 0.0


@dataclass(slots=True)
class _Memory:
    """An on-chip memory; what comes goes round it."""

    depth: int
    next: int = 0
    held: list[_Piece] = field(default_factory=list)

    def room(self, depth: int) -> None:
        """Go round in so many elements from now on."""
        self.depth = depth
        self.held = [p for p in self.held if p.end <= depth]

    def find(self, region: tuple[int, ...], inputs: Range) -> list[_Piece]:
        """The neighbouring pieces that are some input channels of a region; none where they are not there."""
        for first in self.held:
            if first.region != region or first.inputs[0] != inputs[0]:
                continue
            found = [first]
            while found[-1].inputs[1] < inputs[1]:
                last = found[-1]
                more = (p for p in self.held if p.region == region and p.begin == last.end)
                piece = next((p for p in more if p.inputs[0] == last.inputs[1]), None)
                if piece is None:
                    break
                found.append(piece)
            if found[-1].inputs[1] == inputs[1]:
                return found
        return []

    def place(self, region: tuple[int, ...], inputs: Range, size: int) -> tuple[_Piece, float]:
        """Make room; the new piece, and when what was there was last used."""
        begin = self.next if self.next + size <= self.depth else 0
        self.next = begin + size
        gone = [p for p in self.held if p.begin < begin + size and begin < p.end]
        self.held = [p for p in self.held if p not in gone]
        piece = _Piece(begin, begin + size, region, inputs)
        self.held.append(piece)
        return piece, max((p.used for p in gone), default=0.0)


@dataclass(slots=True, eq=False)
class _Store:
    """A tile's results: when they are ready, cycles on the port, and when they are stored."""

    ready: float
    transfer: float
    done: float = 0.0


def cycles(shape: Shape, choices: Sequence[Choice], config: VdlaConfig, *, ahead: bool = True) -> float:
    """Expected cycles of a layer whose parts are computed one after the other.

    Args:
        ahead: whether loads and products run ahead as far as there is room; otherwise each operand has one place.
    """
    return _Clock(shape, config, ahead).run(choices)


class _Clock:
    def __init__(self, shape: Shape, config: VdlaConfig, ahead: bool) -> None:
        self.shape = shape
        self.ahead = ahead
        self.config = config
        self.rate = bandwidth(config)
        self.begin = config.dma_issue + config.dram_latency
        self.port = UOPS / self.rate
        self.matrix = float(self.begin)
        self.arrived = 0.0
        self.pending: list[_Store] = []  # results that wait for the port
        self.inp, self.wgt = _Memory(config.inp_depth), _Memory(config.wgt_depth)
        self.tiles: list[_Store] = []  # those of the part
        self.slots = 1  # how many of them have accumulators

    def run(self, choices: Sequence[Choice]) -> float:
        begin = 0
        for choice, count in zip(choices, slots(self.shape, choices, self.config, ahead=self.ahead), strict=True):
            data, weights, sums = sizes(self.shape, choice)
            if self.ahead:
                inp, wgt = rooms(self.shape, choice, self.config)
                self.inp.room(inp)
                self.wgt.room(wgt)
            else:
                self.inp.depth, self.wgt.depth = data, weights
            if begin + count * sums > self.config.acc_depth:
                begin = 0
                self.matrix = max(self.matrix, self._store_until(self.tiles[-1]))
            begin += count * sums
            self.tiles, self.slots = [], count * threads_of(choice)
            first = True
            for group in _groups(self.shape, choice):
                # the threads take turns at every chunk of input channels
                steps = [self._tile(choice, tile, t, first and not t) for t, tile in enumerate(group)]
                while steps:
                    steps = [s for s in steps if next(s, None) is not None]
                first = False
        self._store_until(None)
        return self.port + self.config.dram_latency

    def _load(self, memory: _Memory, region: tuple[int, ...], inputs: Range, size: int, nbytes: int) -> list[_Piece]:
        """Bring some input channels of a region: elements and bytes for each of them; ``self.arrived`` tells when."""
        self.arrived = 0.0
        found = memory.find(region, inputs)
        if found:
            return found
        count = inputs[1] - inputs[0]
        piece, ready = memory.place(region, inputs, size * count)
        transfer = count * nbytes / self.rate
        self.port = max(self.port, ready - self.begin)
        for result in list(self.pending):
            if result.ready <= self.port + self.begin:
                self._store_until(result)
        self.port += max(transfer, self.begin)
        self.arrived = self.port + self.begin
        return [piece]

    def _store_until(self, last: _Store | None) -> float:
        """Store all that waits up to a result, and it; when it is stored."""
        while self.pending and (last is None or last in self.pending):
            result = self.pending.pop(0)
            self.port = max(self.port, result.ready) + result.transfer
            result.done = self.port
        return 0.0 if last is None else last.done

    def _tile(self, choice: Choice, tile: tuple[Range, Range, Range], thread: int, first: bool) -> Iterator[int]:
        """Compute a tile; pauses after every chunk."""
        rows, columns, blocks = tile
        shape, config = self.shape, self.config
        chunk = min(choice.tile[3], shape.inputs)
        pixels, many = (rows[1] - rows[0]) * (columns[1] - columns[0]), blocks[1] - blocks[0]
        sums = pixels * many
        if len(self.tiles) >= self.slots:
            self.matrix = max(self.matrix, self._store_until(self.tiles[-self.slots]))
        if not config.ext_gemm_set:
            self.matrix += 1 + sums + config.gemm_fill
        for c in range(0, shape.inputs, chunk):
            part, whole = (c, min(c + chunk, shape.inputs)), (0, shape.inputs)
            data = self._data(choice, rows, columns, thread, part if choice.data_at is At.CHUNK else whole)
            there, before = self.arrived, self.port
            weights = self._weights(choice, blocks, thread, part if choice.tiles_at is At.CHUNK else whole)
            lead = choice.lead if first and c == 0 and choice.lead else many
            for k in range(0, many, lead):
                # the weights of a leading product come before those of the next
                alike = piece_of(choice) if choice.piece else many
                share = min(1.0, -(-(k + lead) // alike) * alike / many)
                some = min(self.arrived, before + self.begin + (self.port - before) * share)
                work = pixels * min(lead, many - k) * (part[1] - part[0]) * shape.taps
                self.matrix = max(self.matrix, there, some) + 1 + work + config.gemm_fill
            for piece in (*data, *weights):
                piece.used = self.matrix
            yield c
        if shape.passes:
            self.matrix += 1 + shape.passes * sums + config.gemm_fill
        if shape.residual:
            self._load(self.inp, (-1, *rows, *columns, *blocks), (0, 1), sums, sums * shape.blocks[0])
            self.matrix = max(self.matrix, self.arrived) + 1 + shape.residual * sums + config.gemm_fill
        nbytes = sums * shape.blocks[1] * (1 if shape.narrow else 4)
        result = _Store(self.matrix, nbytes / self.rate)
        self.pending.append(result)
        self.tiles.append(result)

    def _data(self, choice: Choice, rows: Range, columns: Range, thread: int, inputs: Range) -> list[_Piece]:
        shape = self.shape
        thread = thread if in_threads(choice, choice.data_at, Threads.ROWS) else 0
        if choice.data_at is At.PART:
            rows, columns = choice.rows, (0, shape.columns)
        high, wide = shape.rows_read(rows[1] - rows[0]), shape.columns_read(columns[1] - columns[0])
        read = min(high, shape.height) * min(wide, shape.width) * shape.blocks[0]
        return self._load(self.inp, (thread, *rows, *columns), inputs, high * wide, read)

    def _weights(self, choice: Choice, blocks: Range, thread: int, inputs: Range) -> list[_Piece]:
        shape = self.shape
        thread = thread if in_threads(choice, choice.tiles_at, Threads.BLOCKS) else 0
        if choice.tiles_at is At.PART:
            blocks = choice.blocks
        size = (blocks[1] - blocks[0]) * shape.taps
        return self._load(self.wgt, (thread, *blocks), inputs, size, size * shape.blocks[0] * shape.blocks[1])


def _groups(shape: Shape, choice: Choice) -> Iterator[list[tuple[Range, Range, Range]]]:
    """Rows, columns and blocks of every tile of a part, in order; those together that virtual threads interleave."""
    rows, columns, blocks, _ = fitted(shape, choice)
    wide = _ranges((0, shape.columns), columns)
    together = threads_of(choice)
    high = _grouped(_ranges(choice.rows, rows), together if choice.threads is Threads.ROWS else 1)
    many = _grouped(_ranges(choice.blocks, blocks), together if choice.threads is Threads.BLOCKS else 1)
    for _ in range(shape.batch):
        if choice.blocks_outer:
            yield from ([(h, w, o) for o in os for h in hs] for os in many for hs in high for w in wide)
        else:
            yield from ([(h, w, o) for h in hs for o in os] for hs in high for w in wide for os in many)


def _grouped(ranges: list[Range], count: int) -> list[list[Range]]:
    return [ranges[k : k + count] for k in range(0, len(ranges), count)]


def _ranges(whole: Range, step: int) -> list[Range]:
    return [(k, min(k + step, whole[1])) for k in range(whole[0], whole[1], step)]
