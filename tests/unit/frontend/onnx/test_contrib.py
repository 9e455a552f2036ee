"""Operators of onnxruntime's transformer optimiser, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, normal, ours

DOMAIN = "com.microsoft"


@pytest.mark.parametrize(
    "op, inputs", [("Gelu", 1), ("BiasGelu", 2), ("FastGelu", 1), ("FastGelu", 2), ("QuickGelu", 1)]
)
def test_activations(op, inputs):
    # onnxruntime's tanh and erf are approximations
    compare(op, [normal((2, 3, 8)), normal((8,), 1)][:inputs], domain=DOMAIN, atol=1e-4)


def test_quick_gelu_with_another_factor():
    compare("QuickGelu", [normal((2, 8))], domain=DOMAIN, alpha=0.5)


@pytest.mark.parametrize("with_beta, with_bias", [(False, False), (True, False), (True, True), (False, True)])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
def test_skip_layer_normalization(with_beta, with_bias, skip):
    operands = [normal((2, 3, 8)), normal(skip, 1), normal((8,), 2), normal((8,), 3) if with_beta else None]
    if with_bias:
        operands.append(normal((8,), 4))
    while operands[-1] is None:
        operands.pop()
    compare("SkipLayerNormalization", operands, domain=DOMAIN, outputs=["y", "", "", "sum"], epsilon=1e-3)


def test_skip_layer_normalization_gives_statistics():
    x, skip, gamma = normal((2, 3, 8)), normal((2, 3, 8), 1), normal((8,), 2)
    _, mean, deviation = ours("SkipLayerNormalization", [x, skip, gamma], domain=DOMAIN, outputs=3, epsilon=1e-3)
    total = x + skip
    np.testing.assert_allclose(mean, total.mean(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(deviation, 1 / np.sqrt(total.var(-1, keepdims=True) + 1e-3), rtol=1e-4)


@pytest.mark.parametrize("with_bias", [False, True])
def test_skip_simplified_layer_normalization(with_bias):
    operands = [normal((2, 3, 8)), normal((2, 3, 8), 1), normal((8,), 2), *([normal((8,), 3)] if with_bias else [])]
    compare("SkipSimplifiedLayerNormalization", operands, domain=DOMAIN, outputs=["y", "", "", "sum"], epsilon=1e-3)


@pytest.mark.parametrize("with_segments, with_mask, with_positions", [(1, 1, 0), (0, 0, 0), (1, 1, 1), (1, 0, 0)])
def test_embed_layer_normalization(with_segments, with_mask, with_positions):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 11, (2, 4)).astype(np.int32)
    operands = [
        ids,
        rng.integers(0, 2, (2, 4)).astype(np.int32) if with_segments else None,
        normal((11, 8), 1), normal((6, 8), 2), normal((2, 8), 3) if with_segments else None,
        normal((8,), 4), normal((8,), 5),
        np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32) if with_mask else None,
    ]  # fmt: skip
    if with_positions:
        operands.append(rng.integers(0, 6, (2, 4)).astype(np.int32))
    while operands[-1] is None:
        operands.pop()
    compare(
        "EmbedLayerNormalization", operands, domain=DOMAIN, outputs=3, epsilon=1e-3, constants=(2, 3, 5, 6),
        mask_index_type=None if with_mask else 0,
    )  # fmt: skip


def test_embed_layer_normalization_refuses():
    ids = np.zeros((2, 4), np.int32)
    with pytest.raises(ImportModelError, match="input 'word_embedding' is missing"):
        imported("EmbedLayerNormalization", [ids], domain=DOMAIN)
    table, vector = normal((6, 8)), normal((8,))
    with pytest.raises(ImportModelError, match="input_ids has rank 1"):
        imported("EmbedLayerNormalization", [ids[0], None, table, table, None, vector, vector], domain=DOMAIN)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([2]), np.array([[0, 1, 2, 3], [4, 5, 6, 7]])])
def test_rotary_embedding(flat, interleaved, positions):
    x = normal((2, 4, 24) if flat else (2, 3, 4, 8))
    operands = [x, positions, normal((10, 4), 1), normal((10, 4), 2)]
    compare("RotaryEmbedding", operands, domain=DOMAIN, interleaved=interleaved)


def test_rotary_embedding_refuses_a_scale():
    operands = [normal((2, 3, 4, 8)), np.array([0]), normal((10, 4)), normal((10, 4))]
    with pytest.raises(UnsupportedError, match=r"scale 2\.0"):
        imported("RotaryEmbedding", operands, domain=DOMAIN, scale=2.0)


B, S, N, H = 2, 4, 2, 3
MASKS = {
    "none": None,
    "lengths": np.array([2, 4], np.int32),
    "ends and starts": np.array([3, 4, 1, 0], np.int32),
    "keys": np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32),
    "pairs": np.random.default_rng(0).integers(0, 2, (B, S, S)).astype(np.int32) | np.eye(S, dtype=np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask, unidirectional):
    operands = [normal((B, S, 5)), normal((5, 3 * N * H), 1), normal((3 * N * H,), 2), MASKS[mask]]
    if operands[3] is None:
        operands.pop()
    compare("Attention", operands, domain=DOMAIN, num_heads=N, unidirectional=unidirectional, constants=(1, 2))


def test_attention_with_past():
    operands = [normal((B, S, 5)), normal((5, 3 * N * H), 1), normal((3 * N * H,), 2), None, normal((2, B, N, 3, H), 3)]
    compare("Attention", operands, domain=DOMAIN, num_heads=N, outputs=2, unidirectional=1, constants=(1, 2))


def test_attention_with_a_mask_and_a_bias():
    extra = normal((B, N, S, S), 4)
    operands = [normal((B, S, 5)), normal((5, 3 * N * H), 1), normal((3 * N * H,), 2), MASKS["keys"], None, extra]
    compare("Attention", operands, domain=DOMAIN, num_heads=N, constants=(1, 2))


def test_attention_with_values_of_another_size_and_scale():
    operands = [normal((B, S, 5)), normal((5, 16), 1), normal((16,), 2)]
    compare("Attention", operands, domain=DOMAIN, num_heads=N, qkv_hidden_sizes=[6, 6, 4], scale=0.4, constants=(1, 2))


def test_a_mask_of_all_positions_is_cut_to_those_there_are():
    operands = [normal((B, S, 5)), normal((5, 3 * N * H), 1), normal((3 * N * H,), 2)]
    causal = np.tri(6, dtype=np.int32)[None].repeat(B, 0)
    options = {"domain": DOMAIN, "num_heads": N}
    (cut,) = ours("Attention", [*operands, causal[:, :S, :S].copy()], **options)
    np.testing.assert_array_equal(ours("Attention", [*operands, causal[:, None]], **options)[0], cut)


def test_attention_refuses():
    operands = [normal((B, S, 5)), normal((5, 18)), normal((18,))]
    with pytest.raises(UnsupportedError, match="rotary embedding inside Attention"):
        imported("Attention", operands, domain=DOMAIN, num_heads=N, do_rotary=1)
    with pytest.raises(UnsupportedError, match=r"an attention mask of shape \(8,\)"):
        imported("Attention", [*operands, np.zeros(3 * B + 2, np.int32)], domain=DOMAIN, num_heads=N)
    with pytest.raises(ImportModelError, match="weights have rank 1"):
        imported("Attention", [operands[0], normal((5,))], domain=DOMAIN, num_heads=N)
    with pytest.raises(ImportModelError, match="1 inputs, 2 are needed"):
        imported("Attention", operands[:1], domain=DOMAIN, num_heads=N)


@pytest.mark.parametrize("mask", ["none", "lengths", "keys"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(mask, with_bias, unidirectional):
    q, k, v = (normal((B, S, N * H), s) for s in (1, 2, 3))
    operands = [q, k, v, normal((3 * N * H,), 4) if with_bias else None, MASKS[mask]]
    while operands[-1] is None:
        operands.pop()
    compare("MultiHeadAttention", operands, domain=DOMAIN, num_heads=N, unidirectional=unidirectional)


def test_multi_head_attention_with_past_and_bias():
    q, k, v = (normal((B, S, N * H), s) for s in (1, 2, 3))
    past = [normal((B, N, 2, H), 4), normal((B, N, 2, H), 5)]
    operands = [q, k, v, None, None, normal((1, N, S, S + 2), 6), *past]
    compare("MultiHeadAttention", operands, domain=DOMAIN, num_heads=N, outputs=3)


def test_multi_head_attention_over_given_keys():
    q, k, v = normal((B, S, N * H)), normal((B, N, 5, H), 1), normal((B, N, 5, H), 2)
    compare("MultiHeadAttention", [q, k, v], domain=DOMAIN, num_heads=N)


def test_packed_operands_are_unpacked():
    q, k, v = (normal((B, S, N, H), s) for s in (1, 2, 3))
    plain = ours("MultiHeadAttention", [t.reshape(B, S, -1) for t in (q, k, v)], domain=DOMAIN, num_heads=N)
    packed = ours("MultiHeadAttention", [np.stack([q, k, v], 3)], domain=DOMAIN, num_heads=N)
    np.testing.assert_allclose(packed[0], plain[0], rtol=1e-5)
    pair = ours("MultiHeadAttention", [q.reshape(B, S, -1), np.stack([k, v], 3)], domain=DOMAIN, num_heads=N)
    np.testing.assert_allclose(pair[0], plain[0], rtol=1e-5)


def test_multi_head_attention_refuses():
    x = normal((B, S, N * H))
    with pytest.raises(ImportModelError, match="keys are missing"):
        imported("MultiHeadAttention", [x], domain=DOMAIN, num_heads=N)
    with pytest.raises(ImportModelError, match="values are missing"):
        imported("MultiHeadAttention", [x, x], domain=DOMAIN, num_heads=N)
    with pytest.raises(UnsupportedError, match="a shared cache"):
        imported("MultiHeadAttention", [x, x, x, *[None] * 5, np.zeros(1, np.int32)], domain=DOMAIN, num_heads=N)
