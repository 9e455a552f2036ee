"""Quantised operators of onnxruntime's transformer tools, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, normal

DOMAIN = "com.microsoft"


def whole(shape, seed, dtype=np.int8):
    """Random integers of 8 bits."""
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def scalar(value, dtype=np.float32):
    return np.array(value, dtype)


def trimmed(operands):
    while operands[-1] is None:
        operands.pop()
    return operands


@pytest.mark.parametrize(
    "data, weights, per_column",
    [(np.uint8, np.int8, True), (np.uint8, np.uint8, True), (np.uint8, np.int8, False), (np.int8, np.int8, False)],
)
def test_matmul_integer_to_float(data, weights, per_column):
    columns = 5
    scale = normal((columns,), 3) if per_column else scalar(0.02)
    zero = whole(columns, 4, weights) if per_column else scalar(3, weights)
    operands = [
        whole((2, 3, 7), 1, data), whole((7, columns), 2, weights), scalar(0.01), scale, scalar(9, data), zero,
        normal((columns,), 5),
    ]  # fmt: skip
    compare("MatMulIntegerToFloat", operands, domain=DOMAIN, constants=[1, 5])
    compare("MatMulIntegerToFloat", operands[:4], domain=DOMAIN, constants=[1])


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("with_zero, with_bias", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_dynamic_quantize_matmul(per_column, with_zero, with_bias):
    scale = np.abs(normal((5,), 3)) if per_column else scalar(0.02)
    zero = (np.zeros(5, np.int8) if per_column else scalar(3, np.int8)) if with_zero else None
    operands = trimmed([normal((2, 3, 7)), whole((7, 5), 2), scale, zero, normal((5,), 5) if with_bias else None])
    compare("DynamicQuantizeMatMul", operands, domain=DOMAIN, constants=[1, 3] if with_zero else [1])


@pytest.mark.parametrize("mask", [None, np.array([3, 2], np.int32), np.array([[1, 1, 0], [1, 0, 0]], np.int32)])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_qattention(mask, unidirectional):
    operands = trimmed([
        whole((2, 3, 8), 1, np.uint8), whole((8, 24), 2), normal((24,), 3), scalar(0.01), scalar(0.005), mask,
        scalar(128, np.uint8), scalar(0, np.int8),
    ])  # fmt: skip
    compare(
        "QAttention", operands, domain=DOMAIN, num_heads=2, unidirectional=unidirectional, constants=[1, 2, 3, 4, 6, 7],
        atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("with_mask", [False, True])
def test_qembed_layer_normalization(with_mask):
    rng = np.random.default_rng(0)
    tables = [whole(shape, k, np.uint8) for k, shape in enumerate([(11, 8), (6, 8), (2, 8), (8,), (8,)])]
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32) if with_mask else None
    scales, zeros = [scalar(0.01 * (k + 1)) for k in range(5)], [scalar(100 + k, np.uint8) for k in range(5)]
    tokens = rng.integers(0, 11, (2, 4)).astype(np.int32), rng.integers(0, 2, (2, 4)).astype(np.int32)
    compare(
        "QEmbedLayerNormalization", [*tokens, *tables, mask, *scales, *zeros], domain=DOMAIN, outputs=2, epsilon=1e-3,
        constants=[*range(2, 7), *range(8, 18)], atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns, block", [(32, 16), (37, 16), (64, 32), (20, 32)])
@pytest.mark.parametrize("with_zeros, with_bias", [(False, False), (True, True)])
def test_matmul_n_bits(bits, columns, block, with_zeros, with_bias):
    """Padding at the end of the last block holds anything."""
    rows, blocks = 5, -(-columns // block)
    operands = trimmed([
        normal((3, columns)),
        whole((rows, blocks, block * bits // 8), 1, np.uint8),
        np.abs(normal((rows, blocks), 2)) * 0.1,
        whole((rows, -(-blocks * bits // 8)), 3, np.uint8) if with_zeros else None,
        None,
        normal((rows,), 4) if with_bias else None,
    ])  # fmt: skip
    compare(
        "MatMulNBits", operands, domain=DOMAIN, K=columns, N=rows, bits=bits, block_size=block, atol=1e-3,
        constants=[k for k in (1, 2, 3) if k < len(operands) and operands[k] is not None],
    )  # fmt: skip


def test_matmul_n_bits_refuses():
    a, b, scales = normal((3, 32)), whole((5, 2, 8), 1, np.uint8), normal((5, 2))
    shape = {"domain": DOMAIN, "K": 32, "N": 5, "block_size": 16}
    with pytest.raises(UnsupportedError, match="B is not constant"):
        imported("MatMulNBits", [a, b, scales], **shape)
    with pytest.raises(ImportModelError, match="B has 80 elements of u8, 160 bytes are needed"):
        imported("MatMulNBits", [a, b, scales], constants=[1], bits=8, **shape)
    with pytest.raises(ImportModelError, match="weights of 3 bits in blocks of 16"):
        imported("MatMulNBits", [a, b, scales], constants=[1], bits=3, **shape)
    with pytest.raises(ImportModelError, match="9 scales, 10 are needed"):
        imported("MatMulNBits", [a, b, scales.reshape(-1)[:9]], constants=[1], **shape)
    with pytest.raises(UnsupportedError, match="zero points that are no integers"):
        imported("MatMulNBits", [a, b, scales, scales], constants=[1], **shape)
    with pytest.raises(UnsupportedError, match="g_idx"):
        imported("MatMulNBits", [a, b, scales, None, np.zeros(32, np.int32)], constants=[1], **shape)
