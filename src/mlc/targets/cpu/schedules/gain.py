"""What a product of quantised numbers gains over the same in floats, by the cost model."""

from __future__ import annotations

from mlc.ir.graph import Node
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.ops.bits import PAIR, Weights, words_of, words_type
from mlc.ops.winograd import fits
from mlc.targets.cpu.cost import Product, best_tile
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_tile import conv_product, conv_tile
from mlc.targets.cpu.schedules.conv_work import may_have_blocks
from mlc.targets.cpu.schedules.winograd import WORTH_TRANSFORMS, winograd_cycles
from mlc.targets.groups.group import size_of

REQUANTISED = 4  # cycles that a vector of sums takes to become bytes (measured on Zen 4: 3.7)
STORED = 1  # that a vector of floats takes to be stored
PACKED = 4  # multiply-adds that it takes to pack the bits of as many bytes as a vector has lanes
# speed of windows of bytes beside those of floats where every tap takes a multiplication and an addition of a vector of
# words (measured on Zen 4 as a Haswell, in MobileNet-v1: 0.53 to 1.05)
WINDOWS = 0.7


def bytes_gain_of(node: Node, target: Cpu) -> float:
    """How many times as fast a convolution or a matrix product of integers is as it would be in floats.

    Windows, which slide over each channel by itself, are not products: where an instruction sums up taps they gain by
    what they read, at least as much.

    Args:
        node: a ``conv`` or ``matmul`` whose operands are what the processor multiplies, as it is compiled.
        target: the processor.
    """
    x, w, y = (v.type for v in (*node.inputs, *node.outputs))
    dot = target.dot_of(x.dtype, w.dtype)
    convolves = node.op is get("conv")
    if convolves and w.shape[1] == 1 and node.attrs["groups"] == x.shape[1] > 1:
        return WINDOWS if target.word_dot is not None and target.taps_dot is None else target.bytes_gain
    groups = node.attrs["groups"] if convolves else 1
    channels, filters = w.shape[1] if convolves else 0, y.shape[1] // groups if convolves else 0
    if dot is None or (convolves and not may_have_blocks(groups, channels, filters, target, dot)):
        return 1.0

    def cycles(terms: int) -> float:
        if convolves:
            taps = w.shape[2:]
            single = size_of(taps) == 1
            data = (x.shape[0] * groups, -(-channels // terms), *x.shape[2:])
            made = (y.shape[0] * groups, filters, *y.shape[2:])
            product = conv_product(data, made, taps, single, target, whole=groups == 1, terms=terms)
            return product.cycles(conv_tile(product, target), target)
        columns = -(-y.shape[-1] // target.lanes)
        product = Product(size_of(y.shape[:-1]), columns, -(-x.shape[-1] // terms), terms=terms)
        return product.cycles(best_tile(product, target), target)

    vectors = y.size / target.lanes
    floats = cycles(1) * target.fma_operations + STORED * vectors
    return floats / (cycles(dot.terms) * dot.operations + REQUANTISED * vectors)


def bits_gain_of(node: Node, of_x: int, of_w: int, target: Cpu) -> float:
    """How many times as fast a product of bytes is by logic and counts; 0 where there is no instruction for it.

    Args:
        node: a ``conv`` without groups, or a ``matmul``.
        of_x, of_w: planes of data and of weights.
        target: the processor.
    """
    x, w, y = (v.type for v in (*node.inputs, *node.outputs))
    dot = target.dot_of(words_type(of_x), words_type(of_w), Weights.BIPOLAR)
    convolves = node.op is get("conv")
    channels = x.shape[1 if convolves else -1]
    if dot is None or (convolves and not may_have_blocks(1, channels, w.shape[0], target, dot)):
        return 0.0
    octets = target.word_dot or target.narrow_dot or target.dot
    faster = 1.0  # bytes by Winograd's algorithm, which is exact in words
    if convolves and target.word_dot is not None and fits(node):
        cycles = winograd_cycles(x.shape, w.shape, node.attrs["pads"], target, target.word_dot, target.word_dot)
        faster = max(1.0, cycles[Algorithm.DIRECT] / WORTH_TRANSFORMS / min(cycles.values()))
    tiles = size_of(y.shape) // (y.shape[1] if convolves else y.shape[-1])
    tiles *= size_of(w.shape[2:]) * -(-(w.shape[0] if convolves else y.shape[-1]) // target.lanes)
    by_bytes = channels if octets is None else octets.padded(channels) // octets.terms * octets.operations
    by_bits = words_of(channels) // PAIR * dot.operations
    return tiles * by_bytes / faster / (tiles * by_bits + PACKED * size_of(x.shape) / target.lanes)
