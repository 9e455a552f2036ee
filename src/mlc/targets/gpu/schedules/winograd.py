"""Winograd's convolutions: three launches, of which the middle one is a batched product.

A thread transforms a tile of a channel, in registers, and writes its points; the product of every point is made as any
other (:mod:`mlc.targets.gpu.schedules.product`), by Tensor Cores where those take its type; a thread transforms a tile
of an output channel back, with what follows the convolution. Between the launches tiles lie next to each other, so that
neighbouring threads, whose tiles are neighbours, read and write neighbouring words.

Source: Lavin and Gray, arXiv:1509.09308, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt, prod

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.ops.algorithms import Algorithm
from mlc.ops.winograd import KERNEL, output_space, tile_counts
from mlc.targets.gpu.cost import Product
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.parts import best_parts
from mlc.targets.gpu.schedules.product import launch_product, product_seconds
from mlc.targets.gpu.schedules.spread import vector_of
from mlc.targets.gpu.stream_cost import ACCESS, BLOCKS, INDEXING, Launch, fastest
from mlc.targets.groups.group import Group, border_of, inline_rest, is_single
from mlc.targets.groups.template import Template, row_major
from mlc.targets.groups.winograd import only, stages_of

WORTH_TRANSFORMS = 0.9  # part of the time of a direct convolution that Winograd's may take at most


def winograd_algorithms(x: TensorType, w: TensorType, pads: Sequence[int], target: Gpu) -> tuple[Algorithm, ...]:
    """Algorithms of a convolution with 3×3 taps and stride 1, the estimated fastest first.

    Tiles of six are not among them, whose error is twice that of tiles of four.

    Args:
        x: the input, ``[n, c, (d,) h, w]``.
        w: the weights, ``[o, c, (k,) 3, 3]``.
        pads: zeros around the input, all begins before all ends.
        target: the device.
    """
    filters, channels, *taps = w.shape
    images, space = x.shape[0], output_space(x.shape[2:], taps, pads)
    if not all((*x.shape, *space)):
        return (Algorithm.DIRECT,)
    slices, window = prod(space[:-2]), prod(taps[:-2])
    direct = Product(images, filters, prod(space), channels * prod(taps), x.dtype.itemsize)
    _, whole = best_parts(direct, channels, target, lambda p: product_seconds(p, x.dtype, w.dtype, target))
    found = {Algorithm.DIRECT: WORTH_TRANSFORMS * whole}
    for algorithm in (Algorithm.WINOGRAD_2, Algorithm.WINOGRAD_4):
        m = algorithm.tile
        points = (m + KERNEL - 1) ** 2
        tiles = prod(tile_counts(space, m))
        batch, columns = (points * images * slices, tiles) if len(taps) == 3 else (points, images * tiles)
        middle = Product(batch, filters, columns, window * channels, x.dtype.itemsize)
        taken = images * tiles * channels * (slices + window - 1)
        made = images * tiles * filters * slices
        ends = sum(
            _transform_seconds(count, points, outside, target)
            for count, outside in ((taken, x.nbytes), (made, images * filters * prod(space) * x.dtype.itemsize))
        )
        found[algorithm] = ends + product_seconds(middle, x.dtype, w.dtype, target)
    return tuple(sorted(found, key=lambda a: found[a]))


def _transform_seconds(tiles: int, points: int, outside: int, target: Gpu) -> float:
    """Of a launch that makes or takes the points of tiles, and some bytes of a tensor."""
    traffic = (4 * tiles * points + outside) / (target.gbytes * 1e9)
    arithmetic = 4 * tiles * points * isqrt(points) / (target.gflops * 1e9)  # both ways, by small matrices
    return max(traffic, arithmetic) + target.launch_us * 1e-6


def schedule_winograd(g: Group, target: Gpu) -> Schedule:
    """Input transform, product and output transform with what follows the convolution.

    Raises:
        ScheduleError: the configuration is refused.
    """
    stages = stages_of(g)
    assert stages is not None
    m = stages.tile
    last = len(stages.products.shape) - 2
    turned = {t: Layout(t.shape).reorder(*range(last), last + 1, last) for t in stages[:4]}
    p, new = g.applied(turned)
    points, columns = new[stages.points], new[stages.columns]
    launch = launch_product(p, target)
    s, products = launch.schedule, launch.kept[-1]
    (rows,) = (op.outputs[0] for op in launch.group.computes if products in op.inputs and op.combiner is None)
    assert columns.op is not None
    data = only(columns.op.inputs)
    assert data is not None
    patch = data if border_of(data) is not None else s.cache_read(data, "local", [columns])
    sums = s.cache_read(products, "local", [rows])
    inline_rest(s, [*launch.kept, points, columns, patch, sums, rows])
    out = s.outputs[0]
    tiles = points.size // prod(points.shape[:2])
    made = out.size // prod(out.shape[-2:]) * ceil(out.shape[-2] / m) * ceil(out.shape[-1] / m)
    block = _ask_block(g.knobs, "inputs", Transform(tiles, points.shape[0], [data, points]), target)
    _inputs(s[points], s[columns], s[patch], block)
    block = _ask_block(g.knobs, "outputs", Transform(made, points.shape[0], [products, out]), target)
    _outputs(s[out], s[rows], s[sums], m, block, target)
    return s


@dataclass(frozen=True)
class Transform:
    """A launch whose threads transform a tile each.

    Args:
        count: of tiles.
        points: of a tile, along either side.
        tensors: that are read and written.
    """

    count: int
    points: int
    tensors: Sequence[te.Tensor]

    def launch(self, block: int) -> Launch:
        """Blocks of so many threads; a tile is loaded at once, and held as it was and half transformed."""
        each = self.points**2
        nbytes = sum(t.size * t.dtype.itemsize for t in self.tensors)
        instructions = INDEXING + each * (2 * ACCESS + self.points)  # both ways; half of the matrices' entries are 0
        return Launch(ceil(self.count / block), block, nbytes, 1, instructions, 2 * each)


def _ask_block(knobs: Knobs, name: str, work: Transform, target: Gpu) -> int:
    """Threads of a block of a transform; few, since each needs many registers."""
    sizes = [b for b in BLOCKS if b <= min(256, target.max_threads)]
    usual = fastest(((b, work.launch(b)) for b in sizes), target)
    return knobs.discrete(f"{name}.block", sizes, default=usual)


def _spread(stage: Stage, over: Sequence[Var], inner: Sequence[Var], block: int) -> Var:
    """A thread each of some loops, with others inside; gives the loop of a block's threads."""
    stage.reorder(*over, *inner)
    bx, tx = stage.split(stage.fuse(*over), block)
    stage.bind(bx, "blockIdx.x")
    stage.bind(tx, "threadIdx.x")
    for a in inner:
        stage.unroll(a)
    return tx


def _inside(stage: Stage, host: Stage, at: Var) -> None:
    """A part of a stage in a thread's registers."""
    stage.set_scope("local")
    stage.compute_at(host, at)
    for a in stage.op.axes:
        stage.unroll(a)


def _inputs(points: Stage, columns: Stage, patch: Stage, block: int) -> None:
    """A thread a tile of a channel."""
    e, f, *tiles = points.op.axes
    tx = _spread(points, tiles, (e, f), block)
    for stage in (columns, patch):
        _inside(stage, points, tx)


def _outputs(out: Stage, rows: Stage, sums: Stage, m: int, block: int, target: Gpu) -> None:
    """A thread a tile of an output channel, with vectors of neighbours where memory has them."""
    *lead, h, w = out.op.axes
    wide = vector_of(out, target) % m == 0
    th, i = out.split(h, m)
    tw, j = out.split(w, m)
    tx = _spread(out, (*lead, th, tw), (i, j), block) if not wide else _spread(out, (*lead, th, tw), (i,), block)
    if wide:
        out.vectorize(j)
    for stage in (rows, sums):
        _inside(stage, out, tx)


def _fits(g: Group, target: Gpu) -> bool:
    """Whether nothing follows that changes the shape."""
    stages = stages_of(g) if is_single(g) else None
    return stages is not None and g.outputs[0].shape == stages.tiles.shape and stages.products.dtype.is_float


WINOGRAD: Template[Gpu] = Template("Winograd convolution", _fits, row_major, schedule_winograd)
