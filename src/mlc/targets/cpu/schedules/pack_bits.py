"""Bits of bytes in words (:func:`mlc.ops.bits.pack_bits`), where neighbours along the channels lie side by side.

Blocks of ``v`` channels of some pixels are neighbours in memory: one comparison tells of all their bytes which have a
bit set, and ``v`` bits of its result are a piece of each pixel's word. Pieces are shifted into words in registers::

    piece[n, b, p] = sum((x[n, v*b + t, p] >> bit & 1) << t for t in v)
    words[n, k, p] = piece[n, 2*k, p] | piece[n, 2*k + 1, p] << v …

What makes bytes of floats before they are packed is computed here, a few pixels at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mlc.ir import te
from mlc.ir.expr import Expr, binary, cast, loads, same, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.intrinsic import Kind, Operand
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import DType, i8, u8
from mlc.lower.schedule import Schedule
from mlc.ops.bits import PAIR, WORD, bits_of_word
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import PARALLEL_FROM
from mlc.targets.cpu.schedules.reduction import REDUCTION
from mlc.targets.groups.group import Group, inline_rest, is_single, size_of
from mlc.targets.groups.template import Template
from mlc.targets.llvm.intrinsic import Address, VectorIntrinsic, VectorSink

PARALLEL_BYTES_FROM = 1 << 19  # bytes below which waking a second thread costs more than it gives
_CHOICES = [(b,) for b in range(8)] + [(b, b + 1) for b in range(7)]


def packed_bits(op: te.Compute) -> tuple[int, ...] | None:
    """Which bits a reduction packs along the channels, if it does nothing else."""
    if op.combiner is not te.SUM or len(op.axes) < 3 or len(op.reduce_axes) != 1 or len(op.bodies) != 1:
        return None
    (t,), read = op.reduce_axes, loads(op.bodies[0])
    if not read or t.hi + 1 != WORD or read[0].dtype not in (u8, i8):
        return None
    place = as_index(op.axes[1]) * WORD + as_index(t)
    if read[0].indices != (as_index(op.axes[0]), place, *(as_index(a) for a in op.axes[2:])):
        return None
    inside = within(place, 0, read[0].source.shape[1])
    dtype = op.outputs[0].dtype
    for bits in _CHOICES:
        if same(op.bodies[0], select(inside, bits_of_word(read[0], bits, t, dtype), 0)):
            return bits
    return None


@lru_cache
def gather_bits(pixels: int, channels: int, bit: int, octet: DType, dtype: DType) -> VectorIntrinsic:
    """One bit of neighbouring bytes, those of each pixel in an element of its own."""
    t = te.reduce_axis(channels, "t")
    x = te.placeholder((pixels, channels), octet, "x")
    y = te.compute((pixels,), lambda j: te.sum_of(_bit(x[j, t], bit, as_index(t), dtype), t), "y")
    count, words = pixels * channels, f"<{pixels} x i{dtype.bits}>"

    def write(sink: VectorSink, total: str, at: Sequence[Address]) -> str:
        octets = sink.read(at[0], f"<{count} x i8>")
        held = sink.pure(f"and <{count} x i8> {octets}, splat (i8 {1 << bit})")
        found = sink.pure(f"icmp ne <{count} x i8> {held}, zeroinitializer")
        pieces = sink.pure(f"bitcast <{count} x i1> {found} to <{pixels} x i{channels}>")
        return sink.pure(f"or {words} {total}, {sink.pure(f'zext <{pixels} x i{channels}> {pieces} to {words}')}")

    return VectorIntrinsic(
        f"gather_bits.{bit}.{pixels}x{channels}", y, {y: Operand("register")}, (Kind.RESET, Kind.UPDATE), write
    )


def _bit(byte: Expr, bit: int, at: Linear, dtype: DType) -> Expr:
    one = binary("and", binary("shr", byte, bit) if bit else byte, 1)
    return binary("shl", cast(one, dtype), at)


def _schedule(g: Group, target: Cpu) -> Schedule:
    """Pieces by that instruction, if the data lie in blocks of channels that fill words, and pixels in vectors."""
    (out,) = g.outputs
    assert out.op is not None
    data = loads(out.op.bodies[0])[0].source
    layout = _layout_of(g, data, target)
    pixels = 0 if layout is None else _pixels(layout.physical_shape[-2], target.lanes_of(out.dtype), target)
    if layout is None or pixels < 2:
        return REDUCTION.schedule(g, target)
    bits = packed_bits(out.op)
    assert bits is not None
    words, pieces = _in_pieces(out.op, data, bits, target.lanes)
    p = Group(g.inputs, (words,), None, {t: at for t, at in g.layouts.items() if t is not out}, g.knobs)
    rank = len(out.shape) - 2
    flat = {t: Layout(t.shape).fuse(2, rank) for t in (words, *pieces)} if len(layout.physical_shape) == 4 else {}
    same_shape = [op.outputs[0] for op in p.computes if op.outputs[0].shape == data.shape]
    like = {t: layout for t in same_shape}
    like |= {t: _flat(at, rank) for t, at in g.layouts.items() if t.shape == data.shape and flat}
    p, new = p.applied({**like, **flat})
    s = Schedule(p.outputs)
    made = [new[data]] if data.op is not None else []
    inline_rest(s, made)
    stage = s[p.outputs[0]]
    *outer, last = stage.op.axes
    rows, lane = stage.split(last, pixels)
    at = stage.fuse(*outer, rows)
    if size_of(data.shape) >= (PARALLEL_FROM if data.op is not None else PARALLEL_BYTES_FROM):
        stage.parallel(at)
    stage.vectorize(lane)
    for t, bit in zip(pieces, bits, strict=True):
        piece = s[new[t]]
        piece.set_scope("register")
        piece.compute_at(stage, at)
        *_, block, pixel = _by_extent(piece.op.axes)
        piece.unroll(block)
        piece.tensorize(pixel, gather_bits(pixels, target.lanes, bit, data.dtype, out.dtype))
    for t in made:
        source = s[t]
        source.compute_at(stage, at)
        *_, channel = source.op.axes
        source.vectorize(channel)
    return s


def _by_extent(axes: tuple[Var, ...]) -> list[Var]:
    """Axes of ``[n, b, …, p]`` with ``b`` next to the last."""
    return [axes[0], *axes[2:-1], axes[1], axes[-1]]


def _flat(layout: Layout, rank: int) -> Layout:
    return layout.core.fuse(2, rank)


def _layout_of(g: Group, data: te.Tensor, target: Cpu) -> Layout | None:
    """Blocks of channels of the data, pixels as one axis where they are; ``None`` where they do not lie so."""
    sources = [data] if data.op is None else [t for t in g.inputs if t.shape == data.shape]
    found = [g.layouts.get(t) for t in sources]
    whole = data.shape[1] % (PAIR * WORD) == 0 and target.lanes <= WORD
    blocks = blocked(data.shape, 1, target.lanes) if whole else None
    if blocks is None or not found or any(at is None or at.core != blocks for at in found):
        return None
    margins = any(at is not None and at.has_margins for at in found)
    return blocks if margins else _flat(blocks, len(data.shape) - 2)


def _pixels(row: int, lanes: int, target: Cpu) -> int:
    """Pixels of a vector, which divide a row; where registers have masks, any number of lanes is a vector."""
    masks = target.vector_bits > 256
    return max(n for n in (range(1, lanes + 1) if masks else (1, 2, 4, 8)) if n <= lanes and row % n == 0)


def _in_pieces(op: te.Compute, data: te.Tensor, bits: tuple[int, ...], block: int) -> tuple[te.Tensor, list[te.Tensor]]:
    """Words put together of pieces, and the pieces of every bit."""
    (words,) = op.outputs
    parts = WORD // block

    def piece_of(bit: int) -> te.Tensor:
        t = te.reduce_axis(block, "t")

        def element(n: Linear, b: Linear, *at: Linear) -> te.Reduction:
            return te.sum_of(_bit(data[(n, b * block + as_index(t), *at)], bit, as_index(t), words.dtype), t)

        shape = (data.shape[0], data.shape[1] // block, *data.shape[2:])
        return te.compute(shape, element, f"bit{bit}", tag="pack_bits")

    pieces = [piece_of(bit) for bit in bits]

    def word(n: Linear, k: Linear, *at: Linear) -> Expr:
        total: Expr | None = None
        for i, piece in enumerate(pieces):
            for q in range(parts):
                part = piece[(n, k * parts + q, *at)]
                put = binary("shl", part, WORD * i + block * q) if i or q else part
                total = put if total is None else binary("or", total, put)
        assert total is not None
        return total

    return te.compute(words.shape, word, words.name, tag="pack_bits"), pieces


def _fits(g: Group, target: Cpu) -> bool:
    found = g.reductions
    if len(found) != 1 or not is_single(g) or g.outputs[0].op is not found[0]:
        return False
    return packed_bits(found[0]) is not None


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    return REDUCTION.layouts(g, site, target)


PACKED_BITS = Template("packed bits", _fits, _layouts, _schedule)
