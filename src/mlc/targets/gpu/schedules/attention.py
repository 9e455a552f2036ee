"""Attention in one launch: a block makes some query rows of a head, whose scores stay in shared memory.

The scores are a product of queries and keys, of which the block's threads fetch some terms at a time; then each row's
greatest score is folded, exponentials are taken of what is left over it, and summed up; the product of these with the
values is divided by the sums when it is done. Nothing of a row's length goes through global memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.types import f32
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.ops.algorithms import Algorithm
from mlc.targets.gpu.cost import HIDING, MOST_BLOCKS, OVERHEAD, SHARED_RATE, Product
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.product import product_seconds
from mlc.targets.groups.attention import Stages, stages_of
from mlc.targets.groups.group import Group, inline_rest, is_single
from mlc.targets.groups.roles import Contraction, role_of
from mlc.targets.groups.template import Template, row_major

ROWS, UP, ACROSS, KEYS, DEPTHS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (8, 16, 32, 64), (1, 2, 4), (4, 8, 16, 32)

# Terms that a thread adds in a row. Left to itself, the compiler writes so many out that their operands fill all
# registers and spill: 255 and 160 bytes for 128 keys of BERT on sm_75 and sm_80, 65 registers with 4 terms.
AT_ONCE = 4


@dataclass(frozen=True)
class Heads:
    """Attention as the cost model knows it: ``heads`` times ``rows`` queries and ``keys`` keys.

    Args:
        depth: terms of a score.
        width: of a value.
    """

    heads: int
    rows: int
    keys: int
    depth: int
    width: int


@dataclass(frozen=True)
class Block:
    """What a block of threads makes.

    Args:
        rows: of queries.
        up, across: threads along rows, and along keys or columns.
        keys: that a thread has of each row at a time.
        depth: terms of keys that are fetched at a time.
    """

    rows: int
    up: int
    across: int
    keys: int
    depth: int

    @property
    def wide(self) -> int:
        """Keys that the block has at a time."""
        return self.across * self.keys

    def shared_bytes(self, a: Heads) -> int:
        """Scores and exponentials, shares of the two folds and their results, and a part of the keys."""
        folds = 2 * self.rows * (self.across + 1)
        return 4 * (2 * self.rows * a.keys + folds + self.wide * (self.depth + 1 + self.depth % 2))

    def refusal(self, a: Heads, target: Gpu) -> str:
        """Why a block cannot run, in a few words; empty where it can."""
        if self.rows % self.up:
            return f"{self.rows} rows are no multiple of {self.up}"
        if (threads := self.up * self.across) > target.max_threads:
            return f"{threads} threads of a block, {target.max_threads} are the most"
        if (wanted := self.shared_bytes(a)) > target.shared_bytes:
            return f"{wanted} bytes of shared memory, there are {target.shared_bytes}"
        own = self.rows // self.up
        held = own * max(self.keys, ceil(a.width / self.across)) + own + OVERHEAD
        return f"about {held} registers of a thread, there are {target.registers}" if held > target.registers else ""

    def seconds(self, a: Heads, target: Gpu) -> float:
        """What the launch is expected to take."""
        blocks = a.heads * ceil(a.rows / self.rows)
        threads = self.up * self.across
        together = max(1, min(target.threads // threads, target.shared_of_unit // self.shared_bytes(a), MOST_BLOCKS))
        per_unit = min(together, ceil(blocks / target.units))
        hidden = min(1.0, per_unit * threads / (HIDING * target.warp))
        own, columns = self.rows // self.up, ceil(a.width / self.across)
        each = 2 * ceil(blocks / target.units) * target.units * self.rows / (target.gflops * 1e9)
        scores = each * ceil(a.keys / self.wide) * self.wide * a.depth
        values = each * a.keys * columns * self.across
        loads = scores * (1 / own + 1 / self.keys) + values * (1 / own + 1 / columns)
        moved = blocks * 4 * (a.keys * (a.depth + a.width) + self.rows * (a.depth + a.width))
        traffic = moved / (target.gbytes * 1e9)
        rounds = scores * 2 / self.depth  # barriers, and addresses of what is fetched
        busy = max(scores + values, loads / SHARED_RATE) + rounds
        return max(busy / hidden, traffic) + target.launch_us * 1e-6


def blocks_of(a: Heads, target: Gpu) -> list[Block]:
    """Every block that the device can run."""
    found = dict.fromkeys(
        Block(min(r, a.rows), min(u, r, a.rows), min(x, a.keys), c, min(depth, a.depth))
        for r in ROWS
        for u in UP
        for x in ACROSS
        for c in KEYS
        for depth in DEPTHS
        if x * c <= max(ACROSS[0], a.keys)
    )
    return [b for b in found if not b.refusal(a, target)]


def attention_algorithms(queries: Sequence[int], values: Sequence[int], target: Gpu) -> tuple[Algorithm, ...]:
    """In one launch, or as two products around a softmax: the estimated faster one first.

    Args:
        queries: shape, ``[…, m, e]``.
        values: shape, ``[…, n, d]``.
        target: the device.
    """
    *batch, m, depth = queries
    n, width = values[-2:]
    a = Heads(prod(batch), m, n, depth, width)
    found = [b.seconds(a, target) for b in blocks_of(a, target)] if all((*queries, *values)) else []
    if not found:
        return (Algorithm.APART,)
    products = (Product(a.heads, m, n, depth, 4), Product(a.heads, m, width, n, 4))
    softmax = 2 * 4 * a.heads * m * n / (target.gbytes * 1e9) + target.launch_us * 1e-6
    apart = softmax + sum(product_seconds(p, f32, f32, target) for p in products)
    both = (Algorithm.FUSED, Algorithm.APART)
    return both if min(found) <= apart else both[::-1]


def schedule_attention(g: Group, target: Gpu) -> Schedule:
    """Both products and the softmax between them.

    Raises:
        ScheduleError: the configuration is refused.
    """
    stages = stages_of(g)
    assert stages is not None
    block = _ask(g, stages, target)
    s = Schedule(g.outputs)
    (out,) = g.outputs
    scores, masked, greatest, powers, total, sums = stages
    mean = role_of(s[scores].op)
    assert isinstance(mean, Contraction)
    keys = s.cache_read(mean.right, "shared", [scores])
    inline_rest(s, [masked, powers, keys])
    stage = s[out]
    *batch, i, d = stage.op.axes
    at, i = stage.split(i, block.rows)
    do, dx = stage.split(d, block.across)
    iy, ii = stage.split(i, block.rows // block.up)
    stage.reorder(*batch, at, do, iy, dx, ii)
    stage.bind(at, "blockIdx.x")
    if batch:
        stage.bind(stage.fuse(*batch), "blockIdx.y")
    stage.bind(iy, "threadIdx.y")
    stage.bind(dx, "threadIdx.x")
    _strided(stage, do)
    stage.unroll(ii)

    _scores(s, stages, keys, block, stage, at)
    _fold(s, greatest, block, stage, at)
    _inside(s[powers], stage, at, "shared")
    *_, row, column = s[powers].op.axes
    _spread(s[powers], row, column, block)
    _fold(s, total, block, stage, at)

    acc = s[sums]
    _inside(acc, stage, dx, "local")
    acc.reorder(*acc.op.reduce_axes, *acc.op.axes)
    acc.pragma(acc.op.reduce_axes[0], "unroll", AT_ONCE)
    for a in acc.op.axes:
        acc.unroll(a)
    return s


def _heads(stages: Stages, out: te.Tensor) -> Heads:
    assert stages.scores.op is not None
    *batch, m, n = stages.scores.shape
    return Heads(prod(batch), m, n, stages.scores.op.reduce_axes[0].hi + 1, out.shape[-1])


def _ask(g: Group, stages: Stages, target: Gpu) -> Block:
    """The block that the knobs say; what the cost model thinks best where they say nothing.

    Raises:
        ScheduleError: it cannot run.
    """
    assert stages.scores.op is not None
    *_, m, n = stages.scores.shape
    a = _heads(stages, g.outputs[0])
    best = min(blocks_of(a, target), key=lambda b: b.seconds(a, target))

    def ask(name: str, values: tuple[int, ...], default: int) -> int:
        return g.knobs.discrete(name, sorted({*values, default}), default=default)

    rows = min(ask("rows", ROWS, best.rows), m)
    block = Block(
        rows,
        min(ask("up", UP, best.up), rows),
        min(ask("across", ACROSS, best.across), n),
        ask("keys", KEYS, best.keys),
        min(ask("depth", DEPTHS, best.depth), a.depth),
    )
    why = block.refusal(a, target)
    g.knobs.require(not why, why)
    return block


def _scores(s: Schedule, stages: Stages, keys: te.Tensor, block: Block, host: Stage, at: Var) -> None:
    """The scores of a block's rows, into shared memory."""
    masked, scores = s[stages.masked], s[stages.scores]
    _inside(masked, host, at, "shared")
    *_, row, column = masked.op.axes
    iy, ii = masked.split(row, block.rows // block.up)
    jo, j = masked.split(column, block.wide)
    jj, jx = masked.split(j, block.across)
    masked.reorder(jo, jj, iy, jx, ii)
    masked.bind(iy, "threadIdx.y")
    masked.bind(jx, "threadIdx.x")
    _strided(masked, jj)
    masked.unroll(ii)
    _inside(scores, masked, jx, "local")
    ko, ki = scores.split(scores.op.reduce_axes[0], block.depth)
    scores.reorder(ko, ki, *scores.op.axes)
    scores.pragma(ki, "unroll", AT_ONCE)
    for a in scores.op.axes:
        scores.unroll(a)
    _fetch(s[keys], scores, ko, block)


def _strided(stage: Stage, axis: Var) -> None:
    """Elements of a thread that others' lie between: what is computed for them has only these, not all between them."""
    if axis.hi:
        stage.vthread(axis)


def _fetch(part: Stage, acc: Stage, step: Var, block: Block) -> None:
    """All threads of a block fetch some terms of its keys; the pitch of a key is odd, so that banks differ."""
    _inside(part, acc, step, "shared")
    part.storage_align(part.op.axes[-2], 2, 1)
    _, thread = part.split(part.fuse(*part.op.axes), block.up * block.across)
    for a, name in zip(part.split(thread, block.across), ("threadIdx.y", "threadIdx.x"), strict=True):
        part.bind(a, name)


def _spread(stage: Stage, row: Var, column: Var, block: Block) -> Var:
    """Rows by threads along y, columns by those along x; gives the innermost loop."""
    io, iy = stage.split(row, block.up)
    jo, jx = stage.split(column, block.across)
    stage.reorder(io, iy, jo, jx)
    stage.bind(iy, "threadIdx.y")
    stage.bind(jx, "threadIdx.x")
    return jx


def _fold(s: Schedule, t: te.Tensor, block: Block, host: Stage, at: Var) -> None:
    """Each row is folded by the threads along x, a share each, and one of them folds the shares."""
    share = s.rfactor(t, s[t].split(s[t].op.reduce_axes[0], block.across)[1])
    own = s.cache_write(share, "local")
    stage = s[share]
    _inside(stage, host, at, "shared")
    x, *_, row = stage.op.axes
    inner = _spread(stage, row, x, block)
    _inside(s[own], stage, inner, "local")
    _inside(s[t], host, at, "shared")
    s[t].bind(s[t].split(s[t].op.axes[-1], block.across)[1], "threadIdx.x")


def _inside(stage: Stage, host: Stage, axis: Var, scope: str) -> None:
    stage.compute_at(host, axis)
    stage.set_scope(scope)


def _fits(g: Group, target: Gpu) -> bool:
    stages = stages_of(g) if is_single(g) and target.shared_bytes else None
    if stages is None or stages.scores.op is None or g.outputs[0].shape != stages.sums.shape:
        return False
    product = role_of(stages.scores.op)
    return isinstance(product, Contraction) and product.transposed and _runs(stages, g.outputs[0], target)


def _runs(stages: Stages, out: te.Tensor, target: Gpu) -> bool:
    """Whether there is any block that the device can run."""
    return bool(blocks_of(_heads(stages, out), target))


ATTENTION: Template[Gpu] = Template("attention", _fits, row_major, schedule_attention)
