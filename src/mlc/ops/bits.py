"""Products of numbers of one or two bits: bits of 32 neighbours in a word, multiplied by logic and counted.

A tensor of small unsigned numbers lies in *words*: the bits of one position (a *plane*) of 32 neighbours along an axis
are a word of 32 bits, and where numbers have two planes, an element of u64 holds both, the lower one in its low half.
Sums of products become counts of set bits (Umuroglu et al., FINN, arXiv:1612.07119; TVM, §6.2)::

    sum(x * w) = sum(2**(i + j) * popcount(x_i & w_j) for planes i of x, j of w)

Words come in pairs, the rest filled with zeros, so that sums take whole pairs. Weights are one of three kinds
(:class:`Weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, Load, binary, call, cast, select, within
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.types import DType, TensorType, i8, i32, u8, u32, u64
from mlc.ops._broadcast import check_count
from mlc.ops.common import check, normal_axis
from mlc.ops.registry import operator
from mlc.ops.window import SPACE, check_window, output_extents, padded, reach, taps, window_index

WORD = 32  # neighbours of a word
PAIR = 2  # words that sums take at once
PLANES = {u32: 1, u64: 2}  # of an element of words


class Weights(StrEnum):
    """What planes ``w_j`` of weights stand for, and what is summed up for a product.

    ``unsigned``: ``sum(2**j * w_j)``, by ``x & w``. ``signed``: the same, its last plane negative (two's complement).
    ``bipolar``: ``sum(2**j * (2 * w_j - 1))``, so -1 and 1, or -3, -1, 1 and 3; by ``x ^ w``, which counts
    ``popcount(w) - sum(x * w)`` for each plane of ``x``: who wants the product subtracts from a constant.
    """

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    BIPOLAR = "bipolar"


def words_of(extent: int) -> int:
    """Words that so many neighbours take, in pairs.

    >>> words_of(1), words_of(64), words_of(65)
    (2, 2, 4)
    """
    return PAIR * -(-extent // (PAIR * WORD))


def pack_constant(numbers: np.ndarray, axis: int, planes: int) -> np.ndarray:
    """Unsigned numbers as :data:`pack_bits` packs them, their lowest planes.

    Args:
        numbers: integers from 0 to ``2**planes - 1``.
        axis: along which neighbours share a word.
        planes: 1 or 2.
    """
    last = np.moveaxis(numbers.astype(np.uint8), axis, -1)
    beyond = words_of(last.shape[-1]) * WORD - last.shape[-1]
    last = np.pad(last, [*[(0, 0)] * (last.ndim - 1), (0, beyond)])
    words = np.zeros((*last.shape[:-1], last.shape[-1] // WORD), np.uint64)
    for i in range(planes):
        bits = np.packbits(last >> i & 1, axis=-1, bitorder="little")
        words |= np.ascontiguousarray(bits).view("<u4").astype(np.uint64) << np.uint64(WORD * i)
    return np.moveaxis(words.astype(np.uint32 if planes == 1 else np.uint64), -1, axis)


def bit_product(x: Expr, w: Expr, weights: Weights) -> Expr:
    """What a word of data and one of weights add to a sum, in i32."""
    op = "xor" if weights is Weights.BIPOLAR else "and"
    total: Expr | None = None
    last = PLANES[w.dtype] - 1
    for i in range(PLANES[x.dtype]):
        for j in range(last + 1):
            count = cast(call("popcount", binary(op, _plane(x, i), _plane(w, j))), i32)
            count = binary("shl", count, i + j) if i + j else count
            if total is None:
                total = -count if weights is Weights.SIGNED and j == last else count
            else:
                total = total - count if weights is Weights.SIGNED and j == last else total + count
    assert total is not None
    return total


def _plane(e: Expr, number: int) -> Expr:
    return cast(binary("shr", e, WORD * number), u32) if number else cast(e, u32)


def words_type(planes: int) -> DType:
    """Of elements of so many planes."""
    return next(t for t, n in PLANES.items() if n == planes)


def _pack_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("pack_bits", types, 1)
    x, bits = types[0], attrs["bits"]
    check(x.dtype in (u8, i8), "pack_bits", f"x is {x.dtype}, bytes are needed")
    check(1 <= len(bits) <= 2, "pack_bits", f"{len(bits)} bits of a number, words hold 1 or 2")
    check(all(0 <= b < 8 for b in bits), "pack_bits", f"bits {tuple(bits)} of a byte")
    axis = normal_axis("pack_bits", attrs["axis"], x.rank)
    shape = (*x.shape[:axis], words_of(x.shape[axis]), *x.shape[axis + 1 :])
    return [TensorType(shape, words_type(len(bits)))]


@operator("pack_bits", FusionKind.REDUCTION, _pack_type, axis=1, bits=(0,))
def pack_bits(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``out[…, k, …] = sum((x[…, 32*k + t, …] >> bits[i] & 1) << (32*i + t) for t in 32, i)``.

    One or two bits of bytes; u32 or u64 along ``axis``, in pairs of words. Zeros where there are no bytes.
    """
    (x,) = inputs
    axis, bits = attrs["axis"] % x.rank, attrs["bits"]
    dtype = words_type(len(bits))
    t = te.reduce_axis(WORD, "t")

    def element(*at: Linear) -> te.Reduction:
        place = at[axis] * WORD + as_index(t)
        byte = x[(*at[:axis], place, *at[axis + 1 :])]
        return te.sum_of(select(within(place, 0, x.shape[axis]), bits_of_word(byte, bits, t, dtype), 0), t)

    shape = (*x.shape[:axis], words_of(x.shape[axis]), *x.shape[axis + 1 :])
    return [te.compute(shape, element, "words", tag="pack_bits", attrs={"axis": axis, "bits": tuple(bits)})]


def bits_of_word(byte: Load, bits: Sequence[int], t: Var, dtype: DType) -> Expr:
    """What the number at position ``t`` of a word puts into it."""
    total: Expr | None = None
    for i, bit in enumerate(bits):
        one = binary("and", binary("shr", byte, bit) if bit else byte, 1)
        put = binary("shl", cast(one, dtype), as_index(t) + WORD * i)
        total = put if total is None else binary("or", total, put)
    assert total is not None
    return total


def _check_words(op: str, x: TensorType, w: TensorType, attrs: Attrs) -> None:
    for name, t in (("x", x), ("w", w)):
        check(t.dtype in PLANES, op, f"{name} is {t.dtype}, words are u32 or u64")
    check(attrs["weights"] in list(Weights), op, f"weights={attrs['weights']!r}, there are {', '.join(Weights)}")


def _conv_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    op = "conv_bits"
    check_count(op, types, 2)
    x, w = types
    _check_words(op, x, w, attrs)
    check(3 <= x.rank <= 5, op, f"x has rank {x.rank}, 3 to 5 are supported")
    check(w.rank == x.rank, op, f"x has rank {x.rank} but w has rank {w.rank}")
    window = w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"]
    check_window(op, x.rank - 2, *window)
    check(x.shape[1] == w.shape[1], op, f"x has {x.shape[1]} words of channels, w takes {w.shape[1]}")
    check(x.shape[1] % PAIR == 0, op, f"{x.shape[1]} words of channels, they come in pairs")
    return [TensorType((x.shape[0], w.shape[0], *output_extents(op, x.shape[2:], *window)), i32)]


@operator("conv_bits", FusionKind.COMPLEX, _conv_type, strides=..., pads=..., dilations=..., weights=...)
def conv_bits(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``out[n, o, h, w] = sum(f(pad[n, c, h*stride + r*dilation, …], w[o, c, r, s]) for c, r, s)``, f a bit product.

    Operands: ``x[n, c, …]`` and ``w[o, c, taps…]``, words along the channels. Around ``x`` are zeros, which count
    nothing, or what is there without them (``bipolar``).
    """
    x, w = inputs
    strides, dilations, pads = attrs["strides"], attrs["dilations"], attrs["pads"]
    rank, kernel, weights = x.rank - 2, w.shape[2:], Weights(attrs["weights"])
    space = output_extents("conv_bits", x.shape[2:], kernel, strides, pads, dilations)
    data = padded(x, pads[:rank], reach(space, kernel, strides, dilations), 0)
    c = te.reduce_axis(w.shape[1], "c")
    over = taps(kernel)

    def element(n: Linear, o: Linear, *at: Linear) -> te.Reduction:
        pixel = data[(n, c, *window_index(at, over, strides, dilations))]
        return te.sum_of(bit_product(pixel, w[(o, c, *over)], weights), (c, *over))

    shape, names = (x.shape[0], w.shape[0], *space), ("n", "o", *SPACE[rank])
    facts = {"strides": tuple(strides), "dilations": tuple(dilations)}
    return [te.compute(shape, element, "conv", axis_names=names, tag="conv_bits", attrs=facts)]


def _matmul_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    op = "matmul_bits"
    check_count(op, types, 2)
    x, w = types
    _check_words(op, x, w, attrs)
    check(x.rank == w.rank == 2, op, f"operands have rank {x.rank} and {w.rank}, both must be matrices")
    check(x.shape[1] == w.shape[1], op, f"rows of {x.shape[1]} words meet rows of {w.shape[1]}")
    check(x.shape[1] % PAIR == 0, op, f"rows of {x.shape[1]} words, they come in pairs")
    return [TensorType((x.shape[0], w.shape[0]), i32)]


@operator("matmul_bits", FusionKind.COMPLEX, _matmul_type, weights=...)
def matmul_bits(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``out[i, j] = sum(f(x[i, k], w[j, k]) for k)``, f a bit product. Operands: words along the last axis."""
    x, w = inputs
    k = te.reduce_axis(x.shape[1], "k")

    def element(i: Linear, j: Linear) -> te.Reduction:
        return te.sum_of(bit_product(x[i, k], w[j, k], Weights(attrs["weights"])), k)

    return [te.compute((x.shape[0], w.shape[0]), element, "matmul", axis_names=("i", "j"), tag="matmul_bits")]
