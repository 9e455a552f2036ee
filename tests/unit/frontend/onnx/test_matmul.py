"""Matrix products against onnxruntime; what they become."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ImportModelError
from tests.fuzz import examples
from tests.unit.frontend.onnx.single import compare, imported, normal, operators_of, ours


@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((3,), (2, 3, 4)),
        ((5, 3), (3,)),
        ((2, 5, 3), (3,)),
        ((5, 3), (3, 4)),
        ((2, 5, 3), (3, 4)),
        ((2, 1, 5, 3), (4, 3, 4)),
        ((5, 3), (2, 3, 4)),
        ((1, 5, 3), (3, 1)),
    ],
)
def test_matmul_of_any_ranks(a, b):
    compare("MatMul", [normal(a), normal(b, 1)])


def test_many_rows_times_one_matrix_are_one_product():
    graph = imported("MatMul", [normal((2, 5, 3)), normal((3, 4))], constants=(1,))
    assert operators_of(graph) == ["reshape", "matmul", "reshape"]
    assert graph.nodes[1].inputs[0].type.shape == (10, 3)
    assert operators_of(imported("MatMul", [normal((1, 5, 3)), normal((3, 4))])) == ["matmul"]


def test_matmul_refuses_scalars_and_misfits():
    with pytest.raises(ImportModelError, match="A has rank 0"):
        imported("MatMul", [normal(()), normal((3, 4))])
    with pytest.raises(ImportModelError, match="3 columns meet 4 rows"):
        imported("MatMul", [normal((2, 3)), normal((4, 4))])


@examples(50)
@given(
    st.booleans(), st.booleans(), st.sampled_from([1.0, 0.5, 0.0]), st.sampled_from([1.0, -2.0, 0.0]),
    st.sampled_from([None, (), (4,), (1,), (5, 1), (1, 4), (5, 4)]), st.sampled_from([(), (1,), (0,), (0, 1), (1, 2)]),
)  # fmt: skip
def test_gemm(trans_a, trans_b, alpha, beta, c, constants):
    a, b = normal((3, 5) if trans_a else (5, 3)), normal((4, 3) if trans_b else (3, 4), 1)
    operands = [a, b] if c is None else [a, b, normal(c, 2)]
    constants = [k for k in constants if k < len(operands)]
    compare("Gemm", operands, transA=int(trans_a), transB=int(trans_b), alpha=alpha, beta=beta, constants=constants)


def test_gemm_folds_its_factors_into_constants():
    operands = [normal((5, 3)), normal((4, 3)), normal((4,))]
    graph = imported("Gemm", operands, transB=1, alpha=0.5, beta=2.0, constants=(1, 2))
    assert operators_of(graph) == ["matmul", "add"]
    assert graph.nodes[0].attrs["transpose_b"]
    assert graph.constants[graph.nodes[0].inputs[1]].shape == (4, 3)


def test_gemm_of_integers():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (3, 4)).astype(np.int32), rng.integers(-9, 9, (4, 2)).astype(np.int32)
    (got,) = ours("Gemm", [a, b], alpha=2.0)
    np.testing.assert_array_equal(got, 2 * (a @ b))
    with pytest.raises(ImportModelError, match=r"integers multiplied by 0\.5"):
        imported("Gemm", [a, b], alpha=0.5)


@pytest.mark.parametrize(
    "shapes, message",
    [
        ([(2, 5, 3), (3, 4)], "A has rank 3, 2 is needed"),
        ([(5, 3), (4,)], "B has rank 1, 2 is needed"),
        ([(5, 3), (3, 4), (2, 5, 4)], r"C has shape \(2, 5, 4\), the product \(5, 4\)"),
    ],
)
def test_gemm_refuses(shapes, message):
    with pytest.raises(ImportModelError, match=message):
        imported("Gemm", [normal(s) for s in shapes])


@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("trans_a, trans_b", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_fused_matmul(alpha, trans_a, trans_b, batch):
    a = normal((*batch, 3, 5) if trans_a else (*batch, 5, 3))
    b = normal((*batch, 4, 3) if trans_b else (*batch, 3, 4), 1)
    compare("FusedMatMul", [a, b], domain="com.microsoft", transA=trans_a, transB=trans_b, alpha=alpha)


def test_fused_matmul_with_batch_axes_in_the_middle():
    a, b = normal((5, 2, 3)), normal((4, 2, 3), 1)
    compare("FusedMatMul", [a, b], domain="com.microsoft", transBatchA=1, transBatchB=1, transB=1)


EINSUMS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "ij,kj->ik": [(2, 3), (4, 3)],
    "ji,jk->ik": [(3, 2), (3, 4)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "bhij,bhjd->bhid": [(2, 3, 4, 6), (2, 3, 6, 5)],
    "bshd,bthd->bhst": [(2, 3, 4, 5), (2, 6, 4, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)],
    "bsd,dhe->bhse": [(2, 3, 4), (4, 5, 6)],
    "i,j->ij": [(3,), (4,)],
    "bi,bi->b": [(3, 4), (3, 4)],
    "bi,bi->bi": [(3, 4), (3, 4)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    "ijk,jl->i": [(2, 3, 4), (3, 5)],
    "ij->ji": [(2, 3)],
    "ij->j": [(2, 3)],
    "ij->": [(2, 3)],
    "ii->i": [(3, 3)],
    "ij,jk": [(2, 3), (3, 4)],
}


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(equation):
    operands = [normal(s, k) for k, s in enumerate(EINSUMS[equation])]
    compare("Einsum", operands, equation=equation)


@pytest.mark.parametrize(
    "equation, operators",
    [
        ("ij,jk->ik", ["matmul"]),
        ("ij,kj->ik", ["matmul"]),
        ("bhid,bhjd->bhij", ["matmul"]),
        ("bhij,bhjd->bhid", ["matmul"]),
        ("ij->ji", ["transpose"]),
        ("ii->i", ["einsum"]),
        ("ijk,jl->i", ["reduce_sum", "reduce_sum", "reshape", "matmul", "reshape"]),
    ],
)
def test_einsum_becomes_a_matrix_product_where_it_is_one(equation, operators):
    graph = imported("Einsum", [normal(s) for s in EINSUMS[equation]], equation=equation)
    assert operators_of(graph) == operators


def test_einsum_repeats_axes_of_extent_one():
    a, b = normal((1, 3)), normal((4, 3), 1)
    (got,) = ours("Einsum", [a, b], equation="ij,ij->i")
    np.testing.assert_allclose(got, (a * b).sum(1), rtol=1e-5)


def test_einsum_of_narrow_integers_keeps_their_type():
    a = np.full((2, 3), 50, np.int32).astype(np.int16)
    (got,) = ours("Einsum", [a, a.T.copy()], equation="ij,jk->ik")
    np.testing.assert_array_equal(got, a @ a.T)


def test_einsum_refuses_an_equation_that_does_not_fit():
    with pytest.raises(ImportModelError, match="'ijk' does not fit an operand of rank 2"):
        imported("Einsum", [normal((2, 3))], equation="ijk->i")


@pytest.mark.parametrize(
    "a, b", [((1, 16, 6, 0), (0, 1)), ((2, 3, 4, 0), (0,)), ((2, 0, 4, 3), (3, 5)), ((4, 0), (2, 0, 5))]
)
def test_empty_dimensions(a, b):
    """A sum over nothing is zero, of the full shape."""
    compare("MatMul", [np.ones(a, np.float32), np.ones(b, np.float32)], opset=13)
