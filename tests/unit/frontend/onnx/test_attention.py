"""Attention and rotary embeddings of the standard domain, against the reference implementation that ships with ONNX."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from mlc.errors import ImportModelError
from tests.fuzz import examples
from tests.unit.frontend.onnx.single import imported, normal, one_node_model, operators_of, ours


def check(op, operands, **options):
    """Compare all outputs with the reference implementation."""
    reference = ReferenceEvaluator(onnx.load_model_from_string(one_node_model(op, operands, **options)))
    stored = options.get("constants", ())
    feeds = {f"x{k}": a for k, a in enumerate(operands) if a is not None and k not in stored}
    expected = reference.run(None, feeds)
    got = ours(op, operands, **options)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@st.composite
def attentions(draw):
    batch, groups, repeats = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys, size, value_size = (draw(st.integers(1, 4)) for _ in range(4))
    heads, flat = groups * repeats, draw(st.booleans())
    past = draw(st.sampled_from([0, 0, 2]))
    padded = past == 0 and draw(st.booleans())
    total = keys + past
    if flat:
        q = normal((batch, queries, heads * size), 1)
        k, v = normal((batch, keys, groups * size), 2), normal((batch, keys, groups * value_size), 3)
    else:
        q = normal((batch, heads, queries, size), 1)
        k, v = normal((batch, groups, keys, size), 2), normal((batch, groups, keys, value_size), 3)
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    mask_shape = (*draw(st.sampled_from([(), (heads,), (batch, heads), (batch, 1)])), queries, total)
    mask = None
    if kind == "bool":
        mask = np.random.default_rng(4).random(mask_shape) < 0.6
    elif kind == "float":
        mask = normal(mask_shape, 4)
    operands = [q, k, v, mask]
    if past:
        operands += [normal((batch, groups, past, size), 5), normal((batch, groups, past, value_size), 6)]
    elif padded:
        operands += [None, None, np.random.default_rng(7).integers(1, keys + 1, batch)]
    attrs = {
        "q_num_heads": heads if flat else None,
        "kv_num_heads": groups if flat else None,
        "is_causal": draw(st.integers(0, 1)),
        "softcap": draw(st.sampled_from([None, 1.5])),
        "scale": draw(st.sampled_from([None, 0.3])),
        "qk_matmul_output_mode": draw(st.sampled_from([1, 2, 3])),
        "left_window_size": draw(st.sampled_from([None, 0, 1])),
        "right_window_size": draw(st.sampled_from([None, 0, 1])),
    }
    return operands, attrs


@examples(40)
@given(attentions())
def test_attention(case):
    operands, attrs = case
    check("Attention", operands, opset=25, outputs=4, **attrs)


def test_raw_products_are_the_fourth_output_by_default():
    q, k, v = (normal((1, 2, 3, 4), s) for s in (1, 2, 3))
    products = ours("Attention", [q, k, v], opset=23, outputs=4, softcap=1.0)[3]
    np.testing.assert_allclose(products, q @ k.swapaxes(2, 3) / 2, rtol=1e-5)


def test_heads_that_share_keys_do_not_repeat_them():
    q, k = normal((1, 8, 3, 4)), normal((1, 2, 5, 4))
    graph = imported("Attention", [q, k, k], opset=23)
    products = [n for n in graph.nodes if n.op.name == "matmul"]
    assert [n.inputs[1].type.shape for n in products] == [(1, 2, 5, 4)] * 2
    assert "where" not in operators_of(graph)


def test_softmax_may_have_another_precision():
    q = normal((1, 1, 2, 4), dtype=np.float16)
    graph = imported("Attention", [q, q, q], opset=23, softmax_precision=1)
    (softmax,) = [n for n in graph.nodes if n.op.name == "softmax"]
    assert softmax.outputs[0].type.dtype.name == "f32"
    assert graph.outputs[0].type.dtype.name == "f16"


X4, X3 = (1, 2, 3, 4), (1, 3, 8)


@pytest.mark.parametrize(
    "operands, attrs, message",
    [
        ([X4, X4, X3], {}, "ranks 4, 4 and 3"),
        ([X3, X3, X3], {"q_num_heads": 3, "kv_num_heads": 2}, "Q has 8 channels for 3 heads"),
        ([X4, (1, 3, 3, 4), (1, 3, 3, 4)], {}, "2 heads of queries for 3 heads of keys"),
        ([X4, (1, 2, 3, 5), X4], {}, "do not fit together"),
        ([X4, X4, X4, None, X4], {}, "past_key and past_value come together"),
        ([X4, X4, X4], {"qk_matmul_output_mode": 4}, "it may be 0 to 3"),
        ([X4, X4, X4], {"softmax_precision": 7}, "softmax_precision is 7"),
        ([X4, X4, X4, (5, 1, 3, 3)], {}, "a mask makes"),
    ],
)
def test_contradictory_attention_is_refused(operands, attrs, message):
    with pytest.raises(ImportModelError, match=message):
        imported("Attention", [None if s is None else normal(s) for s in operands], opset=24, **attrs)


def test_two_caches_are_refused():
    x = normal(X4)
    with pytest.raises(ImportModelError, match="kept in one place only"):
        imported("Attention", [x, x, x, None, x, x, np.array([3])], opset=24)


@examples(30)
@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_rotary_embedding(flat, interleaved, partial, with_positions):
    batch, heads, length, size = 2, 3, 4, 8
    turning = 6 if partial else size
    x = normal((batch, length, heads * size) if flat else (batch, heads, length, size))
    rows = (10, turning // 2) if with_positions else (batch, length, turning // 2)
    operands = [x, normal(rows, 1), normal(rows, 2)]
    if with_positions:
        operands.append(np.random.default_rng(3).integers(0, 10, (batch, length)))
    check(
        "RotaryEmbedding", operands, opset=23, interleaved=int(interleaved),
        num_heads=heads if flat else None, rotary_embedding_dim=turning if partial else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "x, table, attrs, message",
    [
        ((2, 3), (2, 3, 4), {}, "X has rank 2, 3 or 4"),
        ((1, 2, 3, 4), (1, 3, 2), {"rotary_embedding_dim": 6}, "6 of 4 channels"),
        ((1, 2, 3, 4), (1, 3, 2), {"rotary_embedding_dim": 3}, "3 of 4 channels"),
        ((1, 2, 3, 4), (1, 3, 3), {}, r"cos_cache gives \(1, 3, 3\), \(1, 3, 2\) is needed"),
    ],
)
def test_contradictory_rotary_embedding_is_refused(x, table, attrs, message):
    with pytest.raises(ImportModelError, match=message):
        imported("RotaryEmbedding", [normal(x), normal(table), normal(table)], opset=23, **attrs)
