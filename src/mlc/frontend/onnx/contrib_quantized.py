"""Quantised operators that onnxruntime's transformer tools write into models (domain ``com.microsoft``).

Weights are integers of 8 bits, or of fewer in blocks; activations are quantised as they come, or before. What they
mean is in onnxruntime's ``docs/ContribOperators.md``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, need_rank, reshape, slice_axis
from mlc.frontend.onnx.contrib import DOMAIN, embed_layer_norm, operands, self_attention
from mlc.frontend.onnx.matmul import product
from mlc.frontend.onnx.quantized import dynamic_quantized, quantised_product
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32


def _plus(ctx: Context, y: Value, bias: Value | None) -> Value:
    return y if bias is None else ctx.add("add", [y, bias])


@converter("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = operands(inputs, 7, 4)
    return [_plus(ctx, quantised_product(ctx, (a, a_scale, a_zero), (b, b_scale, b_zero)), bias)]


@converter("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    a, b, b_scale, b_zero, bias = operands(inputs, 5, 3)
    return [_plus(ctx, quantised_product(ctx, dynamic_quantized(ctx, a), (b, b_scale, b_zero)), bias)]


@converter("QAttention", domain=DOMAIN, limits="without rotary embedding")
def qattention(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Self-attention whose projections are one product of integers; the rest is as in ``Attention``."""
    x, weights, bias, x_scale, w_scale, mask, x_zero, w_zero, past = operands(inputs, 9, 5)
    if need_rank(x, "input", 3, 3) and weights.type.rank != 2:
        raise ImportModelError(f"weights have rank {weights.type.rank}, 2 is needed")
    projected = quantised_product(ctx, (x, x_scale, x_zero), (weights, w_scale, w_zero))
    return self_attention(ctx, node, _plus(ctx, projected, bias), mask, past)


@converter("QEmbedLayerNormalization", domain=DOMAIN)
def qembed_layer_norm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    """``EmbedLayerNormalization`` with tables, factor and offset in 8 bits."""
    ids, segments, *tables = operands(inputs, 18, 2)
    numbers, mask, scales, zeros = tables[:5], tables[5], tables[6:11], tables[11:16]
    plain = [
        None if q is None else _number(ctx, q, scale, zero)
        for q, scale, zero in zip(numbers, scales, zeros, strict=True)
    ]
    y, lengths, _ = embed_layer_norm(ctx, node, [ids, segments, *plain, mask])
    return [y, lengths]


def _number(ctx: Context, q: Value, scale: Value | None, zero: Value | None) -> Value:
    if scale is None or zero is None:
        raise ImportModelError("a table without a scale or zero point")
    return ctx.add("dequantize", [q, reshape(ctx, scale, ()), reshape(ctx, zero, ())])


@converter("MatMulNBits", domain=DOMAIN, limits="constant weights; integer zero points; columns in their order")
def matmul_n_bits(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """``A`` times the transpose of ``B``, each block of whose rows has a scale, and numbers of 2, 4 or 8 bits."""
    a, b, scales, zeros, order, bias = operands(inputs, 6, 3)
    bits, block = node.attr("bits", 4), node.attr("block_size", 0)
    columns, rows = node.attr("K", 0), node.attr("N", 0)
    if order is not None:
        raise UnsupportedError("columns in another order (g_idx) are not supported")
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1) or columns < 1 or rows < 1:
        raise ImportModelError(f"weights of {bits} bits in blocks of {block}, {rows} rows of {columns}")
    blocks = -(-columns // block)
    q = _unpacked(ctx, b, "B", rows * blocks, block, bits).reshape(rows, blocks, block)
    if zeros is None:
        z = np.full((rows, blocks, 1), 1 << (bits - 1), np.uint8)
    elif zeros.type.dtype.is_float:
        raise UnsupportedError("zero points that are no integers are not supported")
    else:
        z = _unpacked(ctx, zeros, "zero_points", rows, blocks, bits).reshape(rows, blocks, 1)
    if scales.type.size != rows * blocks:
        raise ImportModelError(f"{scales.type.size} scales, {rows * blocks} are needed")
    by_block = reshape(ctx, cast(ctx, scales, f32), (rows, blocks, 1))
    numbers = ctx.add("dequantize", [ctx.constant(q, np.uint8), by_block, ctx.constant(z, np.uint8)])
    weights = slice_axis(ctx, reshape(ctx, numbers, (rows, blocks * block)), 1, 0, columns)
    return [_plus(ctx, product(ctx, a, cast(ctx, weights, a.type.dtype), transpose_b=True), bias)]


def _unpacked(ctx: Context, packed: Value, what: str, count: int, length: int, bits: int) -> np.ndarray:
    """``count`` vectors of ``length`` small numbers, u8, out of bytes in which the first lies lowest.

    Raises:
        ImportModelError: there are more or fewer bytes.
        UnsupportedError: they are not constant.
    """
    data = ctx.const(packed)
    if data is None:
        raise UnsupportedError(f"{what} is not constant")
    width = -(-length * bits // 8)
    if data.size != count * width or data.dtype != np.uint8:
        raise ImportModelError(
            f"{what} has {data.size} elements of {packed.type.dtype}, {count * width} bytes are needed"
        )
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (data.reshape(count, width, 1) >> shifts) & np.uint8((1 << bits) - 1)
    return np.ascontiguousarray(numbers.reshape(count, -1)[:, :length])
