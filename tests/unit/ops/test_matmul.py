"""Matrix products and einsum against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, boolean, dtype_of, f32, f64, i8, i16, u8
from mlc.ops.matmul import parse_einsum
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node, stages


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@examples(50)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.tuples(*[st.sampled_from([0, 1, 2, 7, 13])] * 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_matmul_is_numpy_matmul(batch, ones, mkn, transpose_a, transpose_b, dropped):
    m, k, n = mkn
    batch_a = tuple(1 if ones[0] and d == 0 else x for d, x in enumerate(batch))
    batch_b = tuple(1 if ones[1] and d == 0 else x for d, x in enumerate(batch))[dropped:]
    a, b = normal((*batch_a, m, k)), normal((*batch_b, k, n), 1)
    got = evaluate(
        "matmul",
        a.swapaxes(-1, -2) if transpose_a else a,
        b.swapaxes(-1, -2) if transpose_b else b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    np.testing.assert_allclose(got, np.matmul(a, b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_floats_are_summed_in_f32(dtype):
    a, b = normal((3, 1000), dtype=dtype), normal((1000, 2), 1, dtype=dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(evaluate("matmul", a, b), exact.astype(np.float32).astype(dtype))


def test_integers_wrap_in_their_own_type_and_narrow_ones_give_i32():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**31, (3, 4)), rng.integers(0, 2**31, (4, 2))
    np.testing.assert_array_equal(evaluate("matmul", a, b), a @ b)
    a8, b8 = rng.integers(0, 256, (3, 40)).astype(np.uint8), rng.integers(-128, 128, (40, 2)).astype(np.int8)
    np.testing.assert_array_equal(evaluate("matmul", a8, b8), a8.astype(np.int32) @ b8.astype(np.int32))


def test_the_expression_of_a_matmul():
    (op,) = stages("matmul", TensorType((5, 2, 3), f32), TensorType((3, 4), f32))
    assert repr(op) == "matmul[b0:5, i:2, j:4] = sum(x0[b0, i, k] * x1[k, j] for k in (3))  # matmul"


@pytest.mark.parametrize(
    "a, b, message",
    [
        ((3,), (3, 4), "operands have rank 1 and 2"),
        ((2, 3), (4, 5), r"a is \(2, 3\) and b is \(4, 5\): 3 columns meet 4 rows"),
        ((2, 1, 3), (3, 3, 4), r"batch axes \(2,\) and \(3,\) do not broadcast"),
    ],
)
def test_matmul_refuses_shapes(a, b, message):
    with pytest.raises(VerifyError, match=message):
        one_node("matmul", TensorType(a, f32), TensorType(b, f32))


@pytest.mark.parametrize(
    "a, b, message",
    [(f32, f64, "f32 and f64"), (boolean, boolean, "bool"), (f32, i16, "f32 and i16"), (i8, f32, "i8 and f32")],
)
def test_matmul_refuses_types(a, b, message):
    with pytest.raises(VerifyError, match=message):
        one_node("matmul", TensorType((2, 3), a), TensorType((3, 4), b))


def test_matmul_refuses_one_operand():
    with pytest.raises(VerifyError, match="1 operands"):
        one_node("matmul", TensorType((2, 3), f32))


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 5)]),
        ("ij,jk", [(2, 3), (3, 5)]),
        ("b...i,b...j->...ij", [(2, 3, 4), (2, 3, 5)]),
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)]),
        ("...i,...i", [(2, 1, 4), (3, 4)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("ij->", [(4, 3)]),
        ("ij->ji", [(4, 3)]),
        (" i j , k -> k i j ", [(4, 3), (2,)]),
        ("bn,anm,bm->ba", [(2, 5), (3, 5, 7), (2, 7)]),
        ("i,i->i", [(1,), (4,)]),
        (",->", [(), ()]),
    ],
)
def test_einsum_is_numpy_einsum(equation, shapes):
    arrays = [normal(s, k) for k, s in enumerate(shapes)]
    got = evaluate("einsum", *arrays, equation=equation)
    np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


def test_labels_of_an_ellipsis_align_at_the_right():
    assert parse_einsum("...i,...i->...", [3, 2]) == ([("…1", "…0", "i"), ("…0", "i")], ("…1", "…0"))


def test_einsum_of_narrow_integers_is_i32():
    a, b, c = (np.full((3,), 100, np.int8) for _ in range(3))
    assert evaluate("einsum", a, b, c, equation="i,i,i->").item() == 3_000_000


@pytest.mark.parametrize(
    "equation, shapes, message",
    [
        ("ij,jk->ik", [(2, 3)], "has 2 operands, 1 are given"),
        ("ij->ik", [(2, 3)], "the result has an axis that no operand has"),
        ("ij->ii", [(2, 3)], "an axis occurs twice in the result"),
        ("i1->i", [(2, 3)], "cannot be read"),
        ("ijk->i", [(2, 3)], "'ijk' does not fit an operand of rank 2"),
        ("ijk...->i", [(2, 3)], "does not fit an operand of rank 2"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "axis j is 3 and 4"),
    ],
)
def test_einsum_refuses(equation, shapes, message):
    with pytest.raises(VerifyError, match=message):
        one_node("einsum", *[TensorType(s, f32) for s in shapes], equation=equation)


def test_einsum_refuses_no_operands_and_mixed_types():
    with pytest.raises(VerifyError, match="no operands"):
        one_node("einsum", equation="->")
    with pytest.raises(VerifyError, match="operands are f32 and u8"):
        one_node("einsum", TensorType((2,), f32), TensorType((2,), u8), equation="i,i->")


@pytest.mark.parametrize("name", ["f16", "bf16", "i8"])
def test_weights_in_a_smaller_type_are_widened(name):
    x, w = np.array([[0.1, -3.0]], np.float32), np.array([[2, 3], [-5, 7]])
    got = evaluate("matmul", x, w.astype(dtype_of(name).numpy))
    np.testing.assert_array_equal(got, x @ w.astype(np.float32))
    assert got.dtype == np.float32


def test_numbers_of_4_bits_come_in_pairs():
    x = normal((2, 3, 4))
    w = np.array([[-8, 7], [0, -1], [3, -5], [-2, 1]], np.int8)
    packed = (w[1::2] << 4 | w[::2] & 15).astype(np.int8)
    np.testing.assert_allclose(evaluate("matmul_nibbles", x, packed), x @ w.astype(np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "x, w, message",
    [
        ((2, 4), (3, 5), "4 columns meet 3 pairs of rows"),
        ((4,), (2, 5), "rank 1 and 2"),
        ((2, 4), (1, 2, 5), "2 and 3"),
    ],
)
def test_pairs_have_to_fit(x, w, message):
    with pytest.raises(VerifyError, match=message):
        evaluate("matmul_nibbles", normal(x), np.zeros(w, np.int8))


def test_wide_products_are_of_bf16():
    x, w = normal((2, 4)).astype(ml_dtypes.bfloat16), normal((4, 3)).astype(ml_dtypes.bfloat16)
    got = evaluate("matmul_wide", x, w)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x.astype(np.float32) @ w.astype(np.float32), rtol=1e-6, atol=1e-6)
    with pytest.raises(VerifyError, match="both must be bf16"):
        evaluate("matmul_wide", normal((2, 4)), w)


def test_sums_of_half_products_are_halves():
    x, w = (np.arange(np.prod(s)).reshape(s).astype(np.float16) % 7 for s in ((5, 4), (4, 3)))
    got = evaluate("matmul_half", x, w)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, x.astype(np.float32) @ w.astype(np.float32))
    with pytest.raises(VerifyError, match="both must be f16"):
        evaluate("matmul_half", normal((2, 4)), normal((4, 2)))
