"""Which schedule a layer gets: what the knobs say, and without them what is expected to be fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nsmallest

from mlc.errors import ScheduleError
from mlc.lower.knobs import Knobs, Value
from mlc.vdla.config import VdlaConfig
from mlc.vdla.fold import folded
from mlc.vdla.intrinsics import ACC, INP, WGT
from mlc.vdla.layer import Convolution
from mlc.vdla.schedules.conv import At, Choice, LayerPlan, Threads, schedule_part, tile_sizes, tile_steps
from mlc.vdla.schedules.finish import Epilogue, stored_blocks
from mlc.vdla.schedules.predict import bandwidth, cycles, fitted, refusal, rooms, slots
from mlc.vdla.schedules.product import Sums
from mlc.vdla.schedules.shape import Shape

LOOKED_AT = 24  # choices whose steps are followed, of those that the bound puts first
PLACES = ((At.CHUNK, At.CHUNK), (At.OWN, At.CHUNK), (At.CHUNK, At.OWN), (At.OWN, At.OWN), (At.OWN, At.PART))
LEADS = (0, 1, 2, 4, 8)
SLOTS = (1, 2, 3, 4, 6, 8)
TAILS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Plan:
    """A layer's schedule as its knobs describe it.

    A layer may be computed in parts that differ in their order. Its first part, the head, goes through the input
    channels in its outermost loop, so that products begin with the first operands that arrive; what follows finds one
    of the operands on the chip.

    Args:
        tile: rows, columns, blocks of output channels, blocks of input channels of the main part.
        blocks_outer: whether the main part's loops over blocks of channels stand around those over pixels.
        data_at, tiles_at: where the main part loads its operands.
        head: whether the head is some rows or some blocks of output channels; "none" for no head.
        head_size: how many.
        tail: how many of the last blocks are computed one by one, so that little is left to store at the end.
        lead: into products of how many blocks the first one is cut; 0 leaves it whole.
        slots: how many places tiles of accumulators take in turns, at most; every one costs micro-ops.
        buffers: ``ring``: as far ahead as there is room; ``single``: one place for each operand, nothing runs ahead.
        threads: what two virtual threads share.
        structural: whether tokens follow from the structure of loops and threads, as published; a layer is one part
            then, with one place for each operand of a thread.
    """

    tile: tuple[int, int, int, int]
    blocks_outer: bool = False
    data_at: At = At.CHUNK
    tiles_at: At = At.CHUNK
    head: str = "none"
    head_size: int = 1
    tail: int = 0
    lead: int = 0
    slots: int = 2
    buffers: str = "ring"
    threads: Threads = Threads.NONE
    structural: bool = False

    @property
    def config(self) -> dict[str, Value]:
        """The knobs that say it."""
        rows, columns, blocks, inputs = self.tile
        return {
            "rows": rows, "columns": columns, "blocks": blocks, "inputs": inputs,
            "order": "blocks" if self.blocks_outer else "pixels", "data": str(self.data_at),
            "weights": str(self.tiles_at), "head": self.head, "head_size": self.head_size, "tail": self.tail,
            "lead": self.lead, "slots": self.slots, "buffers": self.buffers, "threads": str(self.threads),
            "tokens": "structure" if self.structural else "conflicts",
        }  # fmt: skip

    def choices(self, shape: Shape) -> list[Choice]:
        """The parts, in order; of a convolution in groups, those of its first group.

        Raises:
            ScheduleError: head and tail leave nothing over.
        """
        rows, blocks = (0, shape.rows), (0, shape.outputs)
        parts: list[Choice] = []
        if self.head != "none":
            limit = shape.rows if self.head == "rows" else shape.outputs
            if self.head_size >= limit:
                raise ScheduleError(f"configuration refused: a head of {self.head_size} of {limit} {self.head}")
            first = replace(
                Choice(rows, blocks, (shape.rows, shape.columns, shape.outputs, 1)),
                data_at=At.CHUNK, tiles_at=At.CHUNK, inputs_outer=True, piece=self.lead, lead=self.lead,
                biases_once=shape.biases_once,
            )  # fmt: skip
            if self.head == "rows":
                parts.append(replace(first, rows=(0, self.head_size)))
                rows = self.head_size, shape.rows
            else:
                parts.append(replace(first, blocks=(0, self.head_size)))
                blocks = self.head_size, shape.outputs
        end = blocks[1] - self.tail
        if end <= blocks[0]:
            raise ScheduleError(f"configuration refused: a tail of {self.tail} blocks leaves nothing before it")
        main = Choice(
            rows, (blocks[0], end), self.tile, self.blocks_outer, self.data_at, self.tiles_at,
            inputs_outer=self.head == "rows", piece=0 if parts else self.lead, lead=0 if parts else self.lead,
            slots=self.slots, threads=self.threads, biases_once=shape.biases_once,
        )  # fmt: skip
        parts.append(main)
        if self.tail:
            high, wide, _, deep = self.tile
            last = replace(main, blocks=(end, blocks[1]), tile=(high, wide, 1, deep), piece=0, lead=0)
            parts.append(replace(last, threads=Threads.NONE))
        return parts


def plan_convolution(layer: Convolution, config: VdlaConfig, knobs: Knobs) -> LayerPlan:
    """A product, for :func:`~mlc.vdla.schedules.layers.plan_layer`."""
    layer = folded(layer, config)
    sums, epilogue = Sums.of(layer, config), Epilogue.of(layer, config)
    shape = Shape.of(layer, config, sums)
    plan = ask(shape, config, knobs, stores_alone=epilogue.stored_as_it_is)
    ahead = plan.buffers == "ring"
    one_group = plan.choices(shape)
    starts = range(0, shape.groups * shape.outputs, shape.outputs)
    choices = [replace(c, blocks=(c.blocks[0] + k, c.blocks[1] + k)) for k in starts for c in one_group]
    places = {} if ahead else {INP: 1, WGT: 1}
    stored = stored_blocks(layer, sums.result.shape, layer.spread)
    segments = [
        schedule_part(sums, epilogue, choice, config, {**places, ACC: count}, stored)
        for choice, count in zip(choices, slots(shape, choices, config, ahead=ahead), strict=True)
    ]
    arrays = {"w": layer.weights, **epilogue.constants(layer, shape.blocks)}
    return LayerPlan(segments, arrays, plan.structural)


def ask(shape: Shape, config: VdlaConfig, knobs: Knobs, *, stores_alone: bool = True) -> Plan:
    """The plan that knobs describe, as far as it fits: see :func:`fit`.

    Args:
        shape: of the layer.
        config: the accelerator.
        knobs: are asked.
        stores_alone: whether the ALU does nothing between sums and stores; tokens by structure want that.
    Raises:
        ScheduleError: not even the smallest tiles fit the memories.
    """
    best = best_plan(shape, config)
    high, wide, many, deep = best.tile
    tile = (
        knobs.discrete("rows", tile_sizes(shape.rows), default=high),
        knobs.discrete("columns", tile_sizes(shape.columns), default=wide),
        knobs.discrete("blocks", tile_sizes(shape.outputs), default=many),
        knobs.discrete("inputs", tile_sizes(shape.inputs), default=deep),
    )
    places = [str(at) for at in At]
    # what there is one of cannot be divided
    divided = [what for what, n in (("rows", shape.rows), ("blocks", shape.outputs)) if n > 1]
    return fit(
        shape,
        Plan(
            tile,
            knobs.category("order", ("pixels", "blocks"), default="blocks" if best.blocks_outer else "pixels")
            == "blocks",
            At(knobs.category("data", places, default=str(best.data_at))),
            At(knobs.category("weights", places, default=str(best.tiles_at))),
            knobs.category("head", ("none", *divided), default=best.head),
            knobs.discrete("head_size", range(1, max(2, shape.rows, shape.outputs)), default=best.head_size),
            knobs.discrete("tail", [n for n in TAILS if n < shape.outputs], default=best.tail),
            knobs.discrete("lead", [n for n in LEADS if n < shape.outputs], default=best.lead),
            knobs.discrete("slots", SLOTS, default=best.slots),
            knobs.category("buffers", ("ring", "single"), default=best.buffers),
            Threads(knobs.category("threads", ("none", *divided), default=str(best.threads))),
            stores_alone and knobs.category("tokens", ("conflicts", "structure"), default="conflicts") == "structure",
        ),
        config,
    )


def fit(shape: Shape, plan: Plan, config: VdlaConfig) -> Plan:
    """The plan, or the nearest one that the layer and the memories have room for.

    Sizes are what is asked for at most. In turn, until all fits: a head and a tail leave something between them,
    operands are loaded more often, chunks of input channels get smaller, then tiles, and threads and head are given up.

    Raises:
        ScheduleError: not even the smallest tiles fit.
    """
    if plan.structural:
        plan = replace(plan, head="none", tail=0, lead=0, slots=1, buffers="single")
    limit = {"rows": shape.rows, "blocks": shape.outputs}.get(plan.head, 0)
    if plan.head != "none":
        plan = replace(plan, head_size=min(plan.head_size, limit - 1)) if limit > 1 else replace(plan, head="none")
    between = shape.outputs - (plan.head_size if plan.head == "blocks" else 0)
    plan = replace(plan, tail=min(plan.tail, between - 1))
    for changed in _narrowed(plan):
        if not any(refusal(shape, choice, config) for choice in changed.choices(shape)):
            return changed
    raise ScheduleError("no tile of the layer fits the memories")


def _narrowed(plan: Plan) -> Iterator[Plan]:
    """The plan, and plans that need less and less."""
    ways = [plan]
    if plan.threads is not Threads.NONE:
        ways.append(replace(plan, threads=Threads.NONE))
    if plan.head != "none":
        ways.append(replace(ways[-1], head="none"))
    for way in ways:
        yield way
        for data, tiles in ((At.OWN, way.tiles_at), (way.data_at, At.OWN), (At.OWN, At.OWN), (At.CHUNK, At.CHUNK)):
            less = replace(
                way, data_at=max(way.data_at, data, key=_OFTEN), tiles_at=max(way.tiles_at, tiles, key=_OFTEN)
            )
            yield less
        if way.head != "none":
            continue  # a head's tile is the layer's
        high, wide, many, deep = way.tile
        less = replace(way, data_at=At.CHUNK, tiles_at=At.CHUNK)
        while high * wide * many * deep > 1:
            if deep > 1:
                deep = -(-deep // 2)
            elif high >= many and high > 1:
                high = -(-high // 2)
            elif many > 1:
                many = -(-many // 2)
            else:
                wide = -(-wide // 2)
            yield replace(less, tile=(high, wide, many, deep))


_OFTEN = (At.PART, At.OWN, At.CHUNK).index


@lru_cache(maxsize=256)
def best_plan(shape: Shape, config: VdlaConfig) -> Plan:
    """What is expected to be fastest.

    Raises:
        ScheduleError: not even the smallest tiles fit the memories.
    """
    return likely_plans(shape, config)[0]


def likely_plans(
    shape: Shape, config: VdlaConfig, *, ahead: bool = True, threads: Threads = Threads.NONE
) -> list[Plan]:
    """Plans that may be the fastest, the most likely one first.

    Args:
        ahead: whether loads may run ahead of products; otherwise operands have one place each.
        threads: what two virtual threads share; each has places of its own.
    Raises:
        ScheduleError: not even the smallest tiles fit the memories.
    """
    every = (replace(plan, threads=threads) for plan in _plans(shape, config, ahead))
    bounded = [(b, plan) for plan in every if (b := _bound(shape, plan, config)) is not None]
    if not bounded:
        raise ScheduleError("no tile of the layer fits the memories")
    plans = [plan for _, plan in nsmallest(LOOKED_AT, bounded, key=lambda b: b[0])]
    if ahead and threads is Threads.NONE:
        plans += [p for p in _heads(shape, config) if not any(refusal(shape, c, config) for c in p.choices(shape))]
    times = [cycles(shape, plan.choices(shape), config, ahead=ahead) for plan in plans]
    return [plans[k] for k in sorted(range(len(plans)), key=lambda k: times[k])]


def _plans(shape: Shape, config: VdlaConfig, ahead: bool) -> Iterator[Plan]:
    """Every plan of one part that may be worth looking at."""
    columns = [shape.columns] if shape.rows_read(1) * shape.columns_read(shape.columns) <= config.inp_depth else []
    for wide in columns or tile_steps(shape.columns):
        for high in tile_steps(shape.rows):
            for many in tile_steps(shape.outputs):
                if high * wide * many > config.acc_depth:
                    break
                for deep in tile_steps(shape.inputs):
                    for blocks_outer in (False, True):
                        plan = Plan((high, wide, many, deep), blocks_outer, buffers="ring" if ahead else "single")
                        # what goes round the memories finds what is there, wherever it is loaded
                        yield from (replace(plan, data_at=d, tiles_at=t) for d, t in (PLACES[:1] if ahead else PLACES))


def _bound(shape: Shape, plan: Plan, config: VdlaConfig) -> float | None:
    """Cycles that a plan of one part takes at least; nothing where it does not fit."""
    (choice,) = plan.choices(shape)
    if refusal(shape, choice, config):
        return None
    high, wide, many, deep = fitted(shape, choice)
    pixel_tiles = -(-shape.rows // high) * -(-shape.columns // wide)
    block_tiles = -(-shape.outputs // many)
    products = pixel_tiles * block_tiles * -(-shape.inputs // deep)
    matrix: float = shape.macs + products * (1 + config.gemm_fill)
    if not config.ext_gemm_set:
        matrix += shape.macs / (shape.inputs * shape.taps)
    inp = shape.rows_read(high) * shape.columns_read(wide) * shape.inputs
    wgt = many * shape.inputs * shape.taps
    data, weights = _times_loaded(choice, pixel_tiles, block_tiles, deep == shape.inputs)
    if plan.buffers == "ring":
        around = pixel_tiles if choice.blocks_outer else 1
        inputs_room, weights_room = rooms(shape, choice, config)
        data = 1 if around * inp <= inputs_room else data
        around = 1 if choice.blocks_outer else block_tiles
        weights = 1 if around * wgt <= weights_room else weights
    block_in, block_out = shape.blocks
    size = 1 if shape.narrow else 4
    moved = (
        data * pixel_tiles * inp * block_in
        + weights * shape.outputs * shape.inputs * shape.taps * block_in * block_out
        + shape.rows * shape.columns * shape.outputs * block_out * size
    )
    first = (inp * block_in + wgt * block_in * block_out) * deep / shape.inputs
    last = high * wide * many * block_out * size
    rate = bandwidth(config)
    overlaps = plan.buffers == "ring" or plan.threads is not Threads.NONE
    if not overlaps:
        return shape.batch * (matrix + moved / rate)
    return shape.batch * max(matrix + (first + last) / rate, moved / rate)


def _times_loaded(choice: Choice, pixel_tiles: int, block_tiles: int, whole: bool) -> tuple[int, int]:
    """How often input and weights are loaded where each has one place; ``whole``: in one chunk of input channels."""
    data = weights = 1
    kept = whole or choice.data_at is At.OWN
    if choice.data_at is not At.PART and (choice.blocks_outer or not kept):
        data = block_tiles if pixel_tiles > 1 or not kept else 1
        if choice.threads is Threads.BLOCKS and choice.data_at is At.OWN:
            data = -(-data // 2)
    kept = whole or choice.tiles_at is At.OWN
    if choice.tiles_at is not At.PART and (not choice.blocks_outer or not kept):
        weights = pixel_tiles if block_tiles > 1 or not kept else 1
        if choice.threads is Threads.ROWS and choice.tiles_at is At.OWN:
            weights = -(-weights // 2)
    return data, weights


def _heads(shape: Shape, config: VdlaConfig) -> Iterator[Plan]:
    """Plans with a head, where the operand that it leaves behind fits its memory whole."""
    lead = 2
    if shape.batch > 1:
        return
    if shape.inputs * shape.outputs * shape.taps <= config.wgt_depth:
        for size in range(1, min(shape.rows, 8)):
            for high in range(1, min(shape.rows - size, 8) + 1):
                for many in tile_steps(shape.outputs)[:8]:
                    tile = (high, shape.columns, many, shape.inputs)
                    yield Plan(tile, False, At.OWN, At.PART, "rows", size, 0, lead, 4)
    if shape.inputs * shape.rows_read(shape.rows) * shape.columns_read(shape.columns) <= config.inp_depth:
        for size in tile_steps(shape.outputs)[:-1]:
            for many in (1, 2, 4):
                for tail in (0, 1, 2):
                    if size + tail < shape.outputs:
                        tile = (shape.rows, shape.columns, many, shape.inputs)
                        yield Plan(tile, False, At.OWN, At.OWN, "blocks", size, tail, lead, 6)
