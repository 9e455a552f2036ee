"""The schedule of a layer without a product: tiles of pixels and blocks of channels.

The loops, over a result in which rows and columns are one (nothing looks at neighbours), unless tensors lie in another
order than usual::

    for n: for <pixels> and <blocks>, in either order
        load x, or: load x as input, GEMM with 2^k times the identity
        the same for the residual, on top of it where the matrix unit adds
        ALU, for what is left
        STORE the tile

Every byte is used once, so the port decides. What the ALU adds is loaded by the unit that computes, in turns; what the
matrix unit adds is loaded meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from mlc.errors import ScheduleError
from mlc.lower.knobs import Knobs, Value
from mlc.lower.schedule import Schedule
from mlc.vdla.config import VdlaConfig
from mlc.vdla.intrinsics import ACC
from mlc.vdla.layer import Elementwise
from mlc.vdla.layouts import Blocks, Extents
from mlc.vdla.schedules.conv import LayerPlan, Segment, Threads, add_product, order_buffers, tile_sizes, tile_steps
from mlc.vdla.schedules.finish import Epilogue, Finish, Lift, by_blocks, stored_blocks
from mlc.vdla.schedules.predict import bandwidth

SLOTS = (1, 2, 3, 4)
_ALIKE = 1.01  # predictions no further apart say nothing


@dataclass(frozen=True)
class Work:
    """What a layer takes, either way of adding.

    Args:
        batch, blocks, pixels: extents of the result.
        channels: of a block, (in, out).
        x: how the input comes among the accumulators.
        epilogue: what happens then.
    """

    batch: int
    blocks: int
    pixels: int
    channels: tuple[int, int]
    x: Lift
    epilogue: Epilogue

    @classmethod
    def of(cls, layer: Elementwise, config: VdlaConfig, matrix: bool) -> Work:
        """The work of a layer.

        Args:
            layer: what is asked for.
            config: the accelerator.
            matrix: whether the matrix unit adds what it can.
        Raises:
            ScheduleError: it needs an ALU.
        """
        n, c, h, w = layer.shape
        return cls(
            n, -(-c // config.block_out), h * w, (config.block_in, config.block_out),
            Lift.of(layer.lift, config, matrix=matrix), Epilogue.of(layer, config, matrix=matrix),
        )  # fmt: skip

    @property
    def lifts(self) -> list[Lift]:
        """How every tensor that is read comes among the accumulators."""
        return [self.x] if self.epilogue.residual is None else [self.x, self.epilogue.residual]

    def accumulators(self, blocks: int, pixels: int) -> int:
        """Accumulators of a tile: one a result, and one more for every further operand that is not added in place."""
        vectors = self.epilogue.vectors + (self.x.places == "vector")
        return (len(self.lifts) + min(1, self.epilogue.passes)) * blocks * pixels + vectors * blocks


@dataclass(frozen=True)
class Plan:
    """A schedule as its knobs describe it.

    Args:
        blocks, pixels: of a tile; none need divide what it cuts.
        matrix: whether the matrix unit adds what it can.
        blocks_outer: whether the loop over blocks of channels stands around that over pixels.
        slots: how many places tiles of accumulators take in turns, at most.
        threads: whether two virtual threads take turns at tiles of pixels ("rows") or of blocks.
    """

    blocks: int
    pixels: int
    matrix: bool = True
    blocks_outer: bool = True
    slots: int = 2
    threads: Threads = Threads.NONE

    @property
    def config(self) -> dict[str, Value]:
        """The knobs that say it."""
        return {
            "blocks": self.blocks, "pixels": self.pixels, "adder": "matrix" if self.matrix else "alu",
            "order": "blocks" if self.blocks_outer else "pixels", "slots": self.slots, "threads": str(self.threads),
        }  # fmt: skip


def plan_elementwise(layer: Elementwise, config: VdlaConfig, knobs: Knobs) -> LayerPlan:
    """A layer without a product, for :func:`~mlc.vdla.schedules.layers.plan_layer`."""
    plan = ask(layer, config, knobs)
    work = Work.of(layer, config, plan.matrix)
    blocks = config.block_in, config.block_out
    arrays = work.x.constants("x", blocks, by_blocks(layer.lift, layer, config.block_out))
    _, _, rows, columns = layer.shape
    whole = work.batch, work.blocks, rows, columns, config.block_out
    stored = {**stored_blocks(layer, whole), "x": Blocks.of(layer.x.type, whole)}
    if all(b.layout is None for b in stored.values()):
        whole, stored = (work.batch, work.blocks, work.pixels, 1, config.block_out), {}
    return LayerPlan([schedule(work, plan, config, whole, stored)], arrays | work.epilogue.constants(layer, blocks))


def ask(layer: Elementwise, config: VdlaConfig, knobs: Knobs) -> Plan:
    """The plan that knobs describe, as far as it fits: see :func:`fit`.

    Raises:
        ScheduleError: not even the smallest tiles fit the memories.
    """
    best = best_plan(layer, config)
    work = Work.of(layer, config, best.matrix)
    divided = [what for what, n in (("rows", work.pixels), ("blocks", work.blocks)) if n > 1]
    plan = Plan(
        knobs.discrete("blocks", tile_sizes(work.blocks), default=best.blocks),
        knobs.discrete("pixels", tile_sizes(work.pixels), default=best.pixels),
        knobs.category("adder", ways(config), default="matrix" if best.matrix else "alu") == "matrix",
        knobs.category("order", ("pixels", "blocks"), default="blocks" if best.blocks_outer else "pixels") == "blocks",
        knobs.discrete("slots", SLOTS, default=best.slots),
        Threads(knobs.category("threads", ("none", *divided), default=str(best.threads))),
    )
    return fit(Work.of(layer, config, plan.matrix), plan, config)


def fit(work: Work, plan: Plan, config: VdlaConfig) -> Plan:
    """The plan, or the nearest one that the memories have room for; sizes are what is asked for at most.

    Raises:
        ScheduleError: not even the smallest tiles fit.
    """
    while refusal(work, plan, config):
        if plan.threads is not Threads.NONE:
            plan = replace(plan, threads=Threads.NONE)
        elif plan.pixels > 1:
            plan = replace(plan, pixels=-(-plan.pixels // 2))
        elif plan.blocks > 1:
            plan = replace(plan, blocks=-(-plan.blocks // 2))
        elif plan.slots > 1:
            plan = replace(plan, slots=plan.slots - 1)
        else:
            raise ScheduleError("no tile of the layer fits the memories")
    return plan


def ways(config: VdlaConfig) -> tuple[str, ...]:
    """Which units can add."""
    return ("matrix", "alu") if config.ext_alu else ("matrix",)


def best_plan(layer: Elementwise, config: VdlaConfig) -> Plan:
    """What is expected to be fastest.

    Raises:
        ScheduleError: it needs an ALU, or not even the smallest tiles fit the memories.
    """
    found: list[tuple[float, Plan]] = []
    for slots, way in product((2, 1), ways(config)):
        if found and slots == 1:  # one place for tiles hides nothing
            break
        work = Work.of(layer, config, way == "matrix")
        plans = [p for p in _plans(work, way == "matrix", slots, config) if not refusal(work, p, config)]
        found += [(cycles(work, p, config), p) for p in plans]
    if not found:
        raise ScheduleError("no tile of the layer fits the memories")
    least = min(time for time, _ in found)
    # of those that take as long, the one with the fewest instructions
    return max((p for time, p in found if time <= _ALIKE * least), key=lambda p: p.blocks * p.pixels)


def _plans(work: Work, matrix: bool, slots: int, config: VdlaConfig) -> Iterator[Plan]:
    for blocks, pixels in product(tile_steps(work.blocks), tile_steps(work.pixels)):
        if slots * blocks * pixels <= config.acc_depth:
            yield Plan(blocks, pixels, matrix, slots=slots)


def fits(layer: Elementwise, config: VdlaConfig) -> bool:
    """Whether a layer has tiles that fit the memories."""
    ways_of = ((Work.of(layer, config, way == "matrix"), way == "matrix") for way in ways(config))
    return any(not refusal(work, Plan(1, 1, matrix, slots=1), config) for work, matrix in ways_of)


def refusal(work: Work, plan: Plan, config: VdlaConfig) -> str:
    """Why the buffers of a plan do not fit the memories; empty where they do."""
    blocks, pixels = min(plan.blocks, work.blocks), min(plan.pixels, work.pixels)
    if plan.threads is Threads.ROWS and pixels == work.pixels:
        return "two threads have one tile of pixels to share"
    if plan.threads is Threads.BLOCKS and blocks == work.blocks:
        return "two threads have one tile of blocks to share"
    threads = 1 if plan.threads is Threads.NONE else 2
    inputs = sum(1 for lift in work.lifts if lift.passes) * blocks * pixels + min(1, work.epilogue.passes)
    weights = sum(lift.passes for lift in work.lifts) + work.epilogue.passes * blocks
    for what, count, depth in (
        ("elements of input", threads * inputs, config.inp_depth),
        ("tiles of weights", threads * weights, config.wgt_depth),
        ("accumulators", threads * plan.slots * work.accumulators(blocks, pixels), config.acc_depth),
    ):
        if count > depth:
            return f"{count} {what} do not fit, the memory holds {depth}"
    return ""


def cycles(work: Work, plan: Plan, config: VdlaConfig) -> float:
    """Expected cycles: the port or the unit that computes, whichever takes longer, and what nothing hides at the ends.

    A transfer is done no sooner than the next one can begin; a tile cut short takes one for each of its blocks. The
    unit that computes loads after what it did before, and beside the store of the tile before: it hides little.
    """
    begin = config.dma_issue + config.dram_latency
    own = any(not lift.passes for lift in work.lifts)
    port = compute = ends = 0.0
    for blocks, many in _alike(work.blocks, plan.blocks):
        for pixels, high in _alike(work.pixels, plan.pixels):
            whole = pixels == min(plan.pixels, work.pixels)
            tile = _Tile.of(work, blocks * pixels, 1 if whole else blocks, config)
            port += work.batch * many * high * (tile.loads + tile.store)
            compute += work.batch * many * high * (tile.compute + (tile.loads + tile.store if own else 0))
            ends = max(ends, tile.loads + tile.store)
    return max(compute + (0 if own else ends), port) + 2 * begin


@dataclass(frozen=True)
class _Tile:
    """Cycles of one tile: its loads, its store, and what is computed."""

    loads: float
    store: float
    compute: float

    @classmethod
    def of(cls, work: Work, results: int, transfers: int, config: VdlaConfig) -> _Tile:
        rate, epilogue = bandwidth(config), work.epilogue
        begin = config.dma_issue + config.dram_latency
        load = max(transfers * begin, results * work.channels[1] / rate)
        store = max(transfers * begin, results * work.channels[1] * (1 if epilogue.shift is not None else 4) / rate)
        own = sum(1 for lift in work.lifts if not lift.passes)  # loads of the unit that computes
        single = sum(lift.cycles for lift in work.lifts) + epilogue.passes + (epilogue.most != epilogue.most_stored)
        double = max(0, own - 1) + epilogue.vectors + (work.x.places == "vector")
        compute = (single + 2 * double) * results + (single + double) * (1 + config.gemm_fill)
        return cls(len(work.lifts) * load, store, compute + (begin if own and compute else 0))


def _alike(extent: int, size: int) -> list[tuple[int, int]]:
    """Sizes of the tiles that cut an extent, and how many have each."""
    whole, rest = divmod(extent, size)
    return [(n, many) for n, many in ((size, whole), (rest, 1)) if n and many]


def schedule(work: Work, plan: Plan, config: VdlaConfig, whole: Extents, stored: Mapping[str, Blocks]) -> Segment:
    """Schedule a layer as a plan has it.

    Args:
        work: what the layer takes.
        plan: its tiles; of an image, whole rows where a tile has as many pixels as one.
        config: the accelerator.
        whole: extents of the layer's tensors.
        stored: where their blocks are, see :class:`~mlc.vdla.schedules.finish.Finish`.
    Raises:
        ScheduleError: the plan does not fit the loops.
    """
    _, _, rows, columns, _ = whole
    finish = Finish(work.epilogue, whole, (0, rows), (0, work.blocks), work.channels[0], stored=stored)
    result = finish.result(finish.lifted("x", work.x))
    s = Schedule([result])
    out = s[result]
    n, o, h, w, j = out.axes
    wide = min(plan.pixels, columns)
    high = min(plan.pixels // wide, rows)
    oo, oi = out.split(o, plan.blocks)
    ho, hi = out.split(h, high)
    pixels = [ho]
    if wide < columns:
        wo, w = out.split(w, wide)
        pixels.append(wo)
    outer = [n, oo, *pixels] if plan.blocks_outer else [n, *pixels, oo]
    if plan.threads is not Threads.NONE:
        axis = oo if plan.threads is Threads.BLOCKS else ho if high < rows else pixels[-1]
        more, thread = out.split(axis, 2)
        out.vthread(thread)
        outer = [more if v is axis else v for v in outer] + [thread]
    out.reorder(*outer, oi, hi, w, j)
    for added in finish.products:
        add_product(s, added, out, outer[-1], config)
    for t in finish.operands:
        s[t].set_scope(ACC)
        s[t].compute_at(out, outer[-1])
    order_buffers(s, finish)
    blocks = min(plan.blocks, work.blocks)
    tiles = work.batch * -(-work.blocks // blocks) * -(-rows // high) * -(-columns // wide)
    return Segment([*finish.params, result], s, {ACC: min(plan.slots, tiles)})
