"""Trees and n-grams: random ones, against onnxruntime (ONNX's reference implements less of both)."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.interp import run_graph


def model_of(node, x, *imports):
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*i) for i in imports], ir_version=10)


def interpreted(model, x):
    return run_graph(import_onnx(model.SerializeToString()).graph, {"x": x})["y"]


def same_as_onnxruntime(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    got = interpreted(model, x)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)


# -- trees ----------------------------------------------------------------------------------------------------------
def forest(trees=3, depth=4, features=5, targets=3, modes=(0, 1, 2, 3, 4, 5), seed=0, **attrs):
    """Full trees of a depth: attributes of a node."""
    rng = np.random.default_rng(seed)
    kinds, yes, no, yes_leaf, no_leaf, roots, leaves = [], [], [], [], [], [], 0
    for _ in range(trees):
        first = len(kinds)
        roots.append(first)
        inner = 2**depth - 1
        for k in range(inner):
            kinds.append(int(rng.choice(modes)))
            last = 2 * k + 1 >= inner
            yes.append(leaves + 2 * (k - inner // 2) if last else first + 2 * k + 1)
            no.append(leaves + 2 * (k - inner // 2) + 1 if last else first + 2 * k + 2)
            yes_leaf.append(int(last))
            no_leaf.append(int(last))
        leaves += 2**depth
    members = []
    for kind in kinds:
        if kind == 6:
            members += [*rng.integers(-2, 3, rng.integers(1, 4)), np.nan]
    given = {
        "nodes_modes": numpy_helper.from_array(np.array(kinds, np.uint8)),
        "nodes_splits": numpy_helper.from_array(rng.integers(-2, 3, len(kinds)).astype(np.float32)),
        "nodes_featureids": rng.integers(0, features, len(kinds)).tolist(),
        "nodes_truenodeids": yes, "nodes_falsenodeids": no, "nodes_trueleafs": yes_leaf, "nodes_falseleafs": no_leaf,
        "tree_roots": roots, "n_targets": targets,
        "leaf_targetids": rng.integers(0, targets, leaves).tolist(),
        "leaf_weights": numpy_helper.from_array(rng.standard_normal(leaves).astype(np.float32)),
    }  # fmt: skip
    if members:
        given["membership_values"] = numpy_helper.from_array(np.array(members, np.float32))
    return helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **(given | attrs))


X = np.random.default_rng(1).integers(-3, 4, (7, 5)).astype(np.float32)


@pytest.mark.parametrize(
    "tree",
    [
        forest(),
        forest(modes=(0,), depth=6),
        forest(modes=(0, 6, 4), seed=2),
        forest(trees=1, depth=1, targets=1),
        forest(aggregate_function=2, seed=3),
        forest(aggregate_function=3, seed=4),
    ],
)
def test_trees(tree):
    same_as_onnxruntime(model_of(tree, X, ("ai.onnx.ml", 5)), X)


def test_scores_are_transformed():
    """By the numbers of ONNX's definition; onnxruntime takes one for the other."""
    plain, soft, logistic = (interpreted(model_of(forest(post_transform=k), X, ("ai.onnx.ml", 5)), X) for k in range(3))
    powers = np.exp(plain - plain.max(axis=1, keepdims=True))
    np.testing.assert_allclose(soft, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(logistic, 1 / (1 + np.exp(-plain)), rtol=1e-5)


def test_an_empty_set_has_no_members():
    given = [a for a in forest(trees=1, depth=1, targets=1, modes=(6,)).attribute if a.name == "leaf_weights"]
    empty = numpy_helper.from_array(np.array([np.nan], np.float32))
    tree = forest(trees=1, depth=1, targets=1, modes=(6,), membership_values=empty)
    got = interpreted(model_of(tree, X, ("ai.onnx.ml", 5)), X)
    np.testing.assert_array_equal(got, np.full((7, 1), numpy_helper.to_array(given[0].t)[1]))


def test_the_average_is_over_all_trees():
    one, mean = (interpreted(model_of(forest(aggregate_function=a), X, ("ai.onnx.ml", 5)), X) for a in (1, 0))
    np.testing.assert_allclose(mean, one / 3, rtol=1e-6)


def test_missing_values_follow_the_branch_that_is_said():
    x = np.array([[np.nan] * 5], np.float32)
    got = []
    for tracks in (0, 1):
        tree = forest(trees=1, depth=1, targets=1, modes=(0,), nodes_missing_value_tracks_true=[tracks])
        got.append(interpreted(model_of(tree, x, ("ai.onnx.ml", 5)), x).item())
    weights = numpy_helper.to_array(next(a.t for a in tree.attribute if a.name == "leaf_weights"))
    assert got == [float(weights[1]), float(weights[0])]


@pytest.mark.parametrize(
    "attrs, error, words",
    [
        ({"post_transform": 4}, UnsupportedError, "post_transform 4 is not supported"),
        ({"aggregate_function": 7}, ImportModelError, "there is no aggregate_function 7"),
        ({"n_targets": 1}, ImportModelError, "a leaf has a target beyond the 1 there are"),
        ({"tree_roots": [99]}, ImportModelError, "a branch leads to no node, or a tree begins at none"),
        ({"nodes_featureids": [0]}, ImportModelError, "attributes of nodes, or of leaves, differ in length"),
        ({"nodes_featureids": [5, 0, 0]}, ImportModelError, "asks for a feature beyond the 5 of X"),
        ({"nodes_truenodeids": [0, 0, 2]}, ImportModelError, "leads back to where it came from"),
        ({"nodes_modes": numpy_helper.from_array(np.array([0, 6, 0], np.uint8))}, ImportModelError, "too few sets"),
        ({"nodes_modes": numpy_helper.from_array(np.array([0, 9, 0], np.uint8))}, ImportModelError, "no comparison 9"),
    ],
)
def test_trees_that_make_no_sense_are_refused(attrs, error, words):
    with pytest.raises(error, match=words):
        interpreted(model_of(forest(trees=1, depth=2, **attrs), X, ("ai.onnx.ml", 5)), X)


# -- n-grams --------------------------------------------------------------------------------------------------------
def counts(**attrs):
    given = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 2, "ngram_counts": [0, 3, 7],
        "ngram_indexes": [0, 1, 2, 3, 4, 5], "pool_int64s": [2, 0, 1, 0, 1, 1, 1, 2, 2, 0],
    }  # fmt: skip
    return helper.make_node("TfIdfVectorizer", ["x"], ["y"], **(given | attrs))


WORDS = np.random.default_rng(0).integers(0, 3, (4, 9))
WEIGHTS = [0.5, 2.0, 3.0, 1.5, 4.0, 0.25]


@pytest.mark.parametrize(
    "x", [WORDS, WORDS[0], WORDS.astype(np.int32), WORDS[:, :2]], ids=["rows", "row", "i32", "short"]
)
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"min_gram_length": 2, "max_gram_length": 2},
        {"ngram_indexes": [5, 0, 7, 2, 1, 3]},
        {"max_skip_count": 0},
        {"mode": "IDF", "weights": WEIGHTS},
        {"mode": "TFIDF", "weights": WEIGHTS},
    ],
)
def test_n_grams(x, attrs):
    same_as_onnxruntime(model_of(counts(**attrs), x, ("", 21)), x)


@pytest.mark.parametrize(
    "attrs, error, words",
    [
        ({"mode": "BM25"}, ImportModelError, "mode 'BM25': TF, IDF or TFIDF is needed"),
        ({"ngram_counts": [0, 8, 7]}, ImportModelError, r"n-grams begin at \[0, 8, 7\] of 10 items"),
        ({"ngram_counts": [0, 3, 6]}, ImportModelError, "3 items cannot be n-grams of 2|4 items cannot be"),
        ({"ngram_indexes": [0, 1, 2, 3, 4, 4]}, ImportModelError, "6 places, not all different, for 6 n-grams"),
        (
            {"mode": "IDF", "weights": WEIGHTS, "ngram_indexes": [1, 0, 2, 3, 4, 5]},
            UnsupportedError,
            "in another order than their results",
        ),
    ],
)
def test_pools_that_make_no_sense_are_refused(attrs, error, words):
    with pytest.raises(error, match=words):
        interpreted(model_of(counts(**attrs), WORDS, ("", 21)), WORDS)
