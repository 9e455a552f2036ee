"""Products of bits against integer arithmetic on the numbers that the bits stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f32, u8, u32, u64
from mlc.ops import get
from mlc.ops.bits import WORD, Weights, pack_constant, words_of
from tests.e2e.integers import conv
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate

WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def value_of(bits: np.ndarray, planes: int, kind: Weights) -> np.ndarray:
    """What planes of weights stand for."""
    wide = bits.astype(np.int64)
    if kind is Weights.BIPOLAR:
        return 2 * wide - (2**planes - 1)
    return wide - (wide >> (planes - 1) << planes) if kind is Weights.SIGNED else wide


def product_of(counts: np.ndarray, bits: np.ndarray, of_x: int, kind: Weights) -> np.ndarray:
    """Sums of products from what an operator gives, channels second."""
    if kind is not Weights.BIPOLAR:
        return counts
    most = (2**of_x - 1) * bits.reshape(len(bits), -1).sum(axis=1)
    return most.reshape(-1, *(1,) * (counts.ndim - 2)) - counts


@examples(25)
@given(
    channels=st.integers(1, 80),
    filters=st.integers(1, 4),
    side=st.integers(3, 6),
    of_x=st.integers(1, 2),
    of_w=st.integers(1, 2),
    kind=st.sampled_from(Weights),
    pad=st.integers(0, 2),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    seed=st.integers(0, 999),
)
def test_convolution(
    channels: int, filters: int, side: int, of_x: int, of_w: int, kind: Weights, pad: int, stride: int, dilation: int,
    seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    window = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, dilation if side > 4 else 1)}
    x = rng.integers(0, 2**of_x, (1, channels, side, side + 1)).astype(np.uint8)
    bits = rng.integers(0, 2**of_w, (filters, channels, 3, 2))
    words = evaluate("pack_bits", x, axis=1, bits=tuple(range(of_x)))
    np.testing.assert_array_equal(words, pack_constant(x, 1, of_x))
    counts = evaluate("conv_bits", words, pack_constant(bits, 1, of_w), **window, weights=kind.value)
    wanted = conv(x, value_of(bits, of_w, kind), {**window, "groups": 1})
    np.testing.assert_array_equal(product_of(counts, bits, of_x, kind), wanted)


@pytest.mark.parametrize("kind", Weights)
@pytest.mark.parametrize("of_w", [1, 2])
def test_matrix_product(kind: Weights, of_w: int, rng: np.random.Generator) -> None:
    x, bits = rng.integers(0, 4, (5, 67)).astype(np.uint8), rng.integers(0, 2**of_w, (9, 67))
    words = evaluate("pack_bits", x, axis=1, bits=(0, 1))
    counts = evaluate("matmul_bits", words, pack_constant(bits, 1, of_w), weights=kind.value)
    wanted = x.astype(np.int64) @ value_of(bits, of_w, kind).T
    np.testing.assert_array_equal(product_of(counts, bits, 2, kind), wanted)


def test_words_hold_the_bits_that_are_asked_for() -> None:
    x = np.zeros((1, 40), np.uint8)
    x[0, [0, 33]] = 0b110
    assert evaluate("pack_bits", x, axis=1, bits=(0,)).tolist() == [[0, 0]]
    assert evaluate("pack_bits", x, axis=-1, bits=(2,)).tolist() == [[1, 2]]
    assert evaluate("pack_bits", x, axis=1, bits=(1, 0)).tolist() == [[1, 2]]
    assert evaluate("pack_bits", x, axis=1, bits=(1, 2)).tolist() == [[1 + (1 << WORD), 2 + (2 << WORD)]]


def test_words_come_in_pairs() -> None:
    assert [words_of(n) for n in (1, 32, 33, 64, 65, 128)] == [2, 2, 2, 2, 4, 4]


X, W = TensorType((1, 2, 4, 4), u64), TensorType((8, 2, 1, 1), u32)
MATRIX, COLUMNS = TensorType((4, 2), u32), TensorType((8, 2), u64)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("pack_bits", [TensorType((1, 8), f32)], {"axis": 1, "bits": (0,)}, "x is f32, bytes are needed"),
        (
            "pack_bits",
            [TensorType((1, 8), u8)],
            {"axis": 1, "bits": (0, 1, 2)},
            "3 bits of a number, words hold 1 or 2",
        ),
        ("pack_bits", [TensorType((1, 8), u8)], {"axis": 1, "bits": (8,)}, r"bits \(8,\) of a byte"),
        ("pack_bits", [TensorType((1, 8), u8)], {"axis": 2, "bits": (0,)}, "axis 2 of a tensor of rank 2"),
        ("conv_bits", [TensorType((1, 2, 4, 4), f32), W], {}, "x is f32, words are u32 or u64"),
        ("conv_bits", [X, W], {"weights": "odd"}, "weights='odd', there are unsigned, signed, bipolar"),
        ("conv_bits", [X, TensorType((8, 4, 1, 1), u32)], {}, "x has 2 words of channels, w takes 4"),
        ("conv_bits", [X, TensorType((8, 2, 1), u32)], {}, "x has rank 4 but w has rank 3"),
        ("conv_bits", [TensorType((1, 3, 4, 4), u32), TensorType((8, 3, 1, 1), u32)], {}, "they come in pairs"),
        ("matmul_bits", [MATRIX, TensorType((8, 4), u32)], {}, "rows of 2 words meet rows of 4"),
        ("matmul_bits", [X, COLUMNS], {}, "operands have rank 4 and 2, both must be matrices"),
        ("matmul_bits", [TensorType((4, 3), u32), TensorType((8, 3), u32)], {}, "they come in pairs"),
    ],
)
def test_what_makes_no_sense_is_refused(op: str, types: list[TensorType], attrs: dict, message: str) -> None:
    more = {} if op == "pack_bits" else {"weights": "bipolar", **(WINDOW if op == "conv_bits" else {})}
    with pytest.raises(VerifyError, match=message):
        get(op).infer(types, {**more, **attrs})
