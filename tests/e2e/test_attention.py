"""Attention as one kernel, for vectors of several widths, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import mlc
from tests.e2e.compiled import assert_same, compiled, load, network, reference
from tests.e2e.test_recurrent import TARGETS

# batch, heads, queries, keys, their length, that of values, mask, operator that scales
CASES = {
    "whole tiles": (1, 2, 48, 64, 32, 32, None, "Mul"),
    "mask of every key": (2, 3, 7, 7, 32, 32, (2, 1, 1, 7), "Mul"),
    "prime length": (1, 2, 197, 197, 64, 64, None, "Div"),
    "one query": (1, 2, 1, 33, 80, 80, (1, 1, 1, 33), "Mul"),
    "one of each": (1, 2, 1, 1, 64, 64, None, ""),
    "cross attention": (2, 1, 50, 19, 64, 48, (50, 19), "Mul"),
    "mask of every score": (1, 4, 35, 66, 16, 24, (1, 4, 35, 66), "Div"),
    "far more keys": (1, 1, 40, 900, 8, 8, None, "Mul"),
}


def attention(name):
    batch, heads, m, n, e, d, mask, scale = CASES[name]
    rng = np.random.default_rng(0)

    def array(*shape):
        return rng.normal(size=shape).astype(np.float32)

    feeds = {"q": array(batch, heads, m, e), "k": array(batch, heads, n, e), "v": array(batch, heads, n, d)}
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s0"]),
    ]
    stored = {}
    if scale:
        stored["scale"] = np.array(e**-0.5 if scale == "Mul" else e**0.5, np.float32)
        nodes.append(helper.make_node(scale, [f"s{len(nodes) - 2}", "scale"], [f"s{len(nodes) - 1}"]))
    if mask is not None:
        feeds["mask"] = array(*mask)
        nodes.append(helper.make_node("Add", [f"s{len(nodes) - 2}", "mask"], [f"s{len(nodes) - 1}"]))
    nodes.append(helper.make_node("Softmax", [f"s{len(nodes) - 2}"], ["p"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["p", "v"], ["y"]))
    return network(nodes, feeds, ["y"], stored), feeds


@pytest.mark.sweep(8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_onnxruntime(name, target):
    model, feeds = attention(name)
    assert_same(compiled(model, feeds, target=target, threads=2), reference(model, feeds), tolerance=1e-5)


def test_it_is_one_kernel_unless_results_have_to_be_exact():
    model, _ = attention("whole tiles")
    steps = [len(mlc.compile(load(model), fast_math=on).manifest.steps) for on in (True, False)]
    assert steps[0] == 1
    assert steps[1] > 1


def test_scores_that_do_not_fit_are_not_kept():
    model, _ = attention("far more keys")
    long = mlc.compile(load(model), target="x86 -mcpu=haswell")
    assert len(long.manifest.steps) == 1
    feeds = {name: np.zeros((1, 1, n, 8), np.float32) for name, n in (("q", 40), ("k", 20000), ("v", 20000))}
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    longer = mlc.compile(load(network(nodes, feeds, ["y"])), target="x86 -mcpu=haswell")
    assert len(longer.manifest.steps) > 1
