"""Operators that draw: their distributions, what a node's seed means, and that nothing is drawn when compiling."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlc
from mlc.errors import ImportModelError
from tests.unit.ops.test_random import kolmogorov, normal_cdf

F32, F16, F64, I64, BOOL = (getattr(TensorProto, n) for n in ("FLOAT", "FLOAT16", "DOUBLE", "INT64", "BOOL"))
N = 20_000


def model_of(nodes: list[Any], inputs: dict[str, list[int]], outputs: dict[str, int], **initial: np.ndarray) -> Any:
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(name, F32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in initial.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def load(tmp_path: Path, model: Any) -> mlc.Model:
    onnx.save(model, tmp_path / "m.onnx")
    return mlc.load(tmp_path / "m.onnx")


def one(op: str, dtype: int = F32, **attrs: Any) -> Any:
    return model_of([helper.make_node(op, [], ["y"], shape=[N], dtype=dtype, **attrs)], {}, {"y": dtype})


@pytest.mark.parametrize("dtype", [F32, F64, F16])
def test_normal_numbers_have_mean_and_scale(tmp_path: Path, dtype: int) -> None:
    model = load(tmp_path, one("RandomNormal", dtype, mean=3.0, scale=0.5))
    with mlc.compile(model).load(1) as module:
        y = module.run({}, seed=11)["y"]
    assert y.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    z = np.sort((y.astype(np.float64) - 3) / 0.5)
    assert kolmogorov(normal_cdf(z)) < (1.95 if dtype != F16 else 2.5)
    assert np.isfinite(z).all()


def test_uniform_numbers_fill_their_range(tmp_path: Path) -> None:
    model = load(tmp_path, one("RandomUniform", low=-2.0, high=6.0))
    with mlc.compile(model).load(1) as module:
        y = module.run({}, seed=11)["y"].astype(np.float64)
    assert y.min() >= -2
    assert y.max() < 6
    assert kolmogorov(np.sort((y + 2) / 8)) < 1.95


def test_like_takes_shape_and_type(tmp_path: Path) -> None:
    nodes = [helper.make_node(f"Random{k}Like", ["x"], [k.lower()]) for k in ("Normal", "Uniform")]
    model = load(tmp_path, model_of(nodes, {"x": [30, 50]}, {"normal": F32, "uniform": F32}))
    with mlc.compile(model).load(1) as module:
        drawn = module.run({"x": np.zeros((30, 50), np.float32)}, seed=1)
    assert [a.shape for a in drawn.values()] == [(30, 50)] * 2
    assert abs(np.corrcoef(drawn["normal"].ravel(), drawn["uniform"].ravel())[0, 1]) < 4 / 1500**0.5


def test_bernoulli_follows_each_probability(tmp_path: Path) -> None:
    model = load(
        tmp_path, model_of([helper.make_node("Bernoulli", ["x"], ["y"], dtype=I64)], {"x": [N, 4]}, {"y": I64})
    )
    p = np.tile(np.array([0, 0.1, 0.7, 1], np.float32), (N, 1))
    with mlc.compile(model).load(1) as module:
        y = module.run({"x": p}, seed=2)["y"]
    assert y.dtype == np.int64
    np.testing.assert_allclose(y.mean(axis=0), p[0], atol=4 * 0.5 / N**0.5)
    assert y[:, 0].max() == 0
    assert y[:, 3].min() == 1


def test_multinomial_follows_unnormalised_logarithms(tmp_path: Path) -> None:
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=N, dtype=I64)
    model = load(tmp_path, model_of([node], {"x": [2, 4]}, {"y": I64}))
    weights = np.array([[1, 2, 3, 4], [5, 0, 0, 5]], np.float64)
    with np.errstate(divide="ignore"), mlc.compile(model).load(1) as module:
        y = module.run({"x": np.log(weights).astype(np.float32) + 3}, seed=4)["y"]
    assert y.shape == (2, N)
    for row, w in zip(y, weights, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / N, w / w.sum(), atol=4 * 0.5 / N**0.5)


def test_dropout_in_training_keeps_the_mean(tmp_path: Path) -> None:
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"])
    initial = {"ratio": np.float32(0.25), "training": np.array(True)}
    model = load(tmp_path, model_of([node], {"x": [N]}, {"y": F32, "mask": BOOL}, **initial))
    x = np.random.default_rng(1).standard_normal(N, np.float32) + 5
    with mlc.compile(model).load(1) as module:
        first, second = (module.run({"x": x}, seed=s) for s in (1, 2))
    y, mask = first["y"], first["mask"]
    np.testing.assert_array_equal(y, np.where(mask, x * np.float32(4 / 3), 0).astype(np.float32))
    assert abs(mask.mean() - 0.75) < 4 * 0.5 / N**0.5
    assert 0.5 < (mask == second["mask"]).mean() < 0.75


def test_dropout_of_everything_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])
    initial = {"ratio": np.float32(1), "training": np.array(True)}
    with pytest.raises(ImportModelError, match="a ratio of 1"):
        load(tmp_path, model_of([node], {"x": [N]}, {"y": F32}, **initial))


def test_a_node_s_seed_holds_in_every_run(tmp_path: Path) -> None:
    names = ["free", "five", "again", "six"]
    seeds: list[dict[str, float]] = [{}, {"seed": 5.0}, {"seed": 5.0}, {"seed": 6.0}]
    nodes = [helper.make_node("RandomNormal", [], [n], shape=[N], **s) for n, s in zip(names, seeds, strict=True)]
    model = load(tmp_path, model_of(nodes, {}, dict.fromkeys(names, F32)))
    with mlc.compile(model).load(1) as module:
        first, second = (module.run({}, seed=s) for s in (1, 2))
    for name in names:
        assert np.array_equal(first[name], second[name]) == (name != "free")
    for a, b in itertools.pairwise(names):
        assert abs(np.corrcoef(first[a], first[b])[0, 1]) < 4 / N**0.5


def test_a_loop_draws_anew_in_each_iteration(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("RandomUniform", [], ["drawn"], shape=[N], seed=3.0),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", I64, []), helper.make_tensor_value_info("go", BOOL, [])],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("drawn", F32, [N])],
    )
    node = helper.make_node("Loop", ["trips", ""], ["y"], body=body)
    model = load(tmp_path, model_of([node], {}, {"y": F32}, trips=np.int64(3)))
    with mlc.compile(model).load(1) as module:
        y = module.run({})["y"]
    assert y.shape == (3, N)
    assert np.abs(np.corrcoef(y) - np.eye(3)).max() < 4 / N**0.5


def test_the_seed_is_no_input_of_the_model_and_survives_saving(tmp_path: Path) -> None:
    add = [helper.make_node("RandomNormalLike", ["seed"], ["r"]), helper.make_node("Add", ["seed", "r"], ["y"])]
    model = load(tmp_path, model_of(add, {"seed": [9]}, {"y": F32}))
    assert [t.name for t in model.inputs] == ["seed"]
    model.save(tmp_path / "m.mlc")
    saved = mlc.load(tmp_path / "m.mlc")
    assert [t.name for t in saved.inputs] == ["seed"]
    x = np.ones(9, np.float32)
    with mlc.compile(model).load(1) as a, mlc.compile(saved).load(1) as b:
        assert a.input_names == ("seed",)
        np.testing.assert_array_equal(a.run({"seed": x}, seed=8)["y"], b.run({"seed": x}, seed=8)["y"])


def test_a_draw_that_nothing_uses_needs_no_seed(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Relu", ["x"], ["y"])]
    model = load(tmp_path, model_of(nodes, {"x": [9]}, {"y": F32}))
    assert [v.name for v in model.graph.inputs] == ["x"]


@pytest.mark.parametrize("seed", [{}, {"seed": 3.0}])
def test_a_scan_draws_anew_in_each_iteration(tmp_path: Path, seed: dict[str, float]) -> None:
    values = [helper.make_tensor_value_info(name, F32, [N]) for name in ("state", "x", "after", "drawn")]
    body = helper.make_graph(
        [
            helper.make_node("RandomUniformLike", ["x"], ["drawn"], **seed),
            helper.make_node("Add", ["state", "drawn"], ["after"]),
        ],
        "body",
        values[:2],
        values[2:],
    )
    node = helper.make_node("Scan", ["start", "xs"], ["last", "y"], body=body, num_scan_inputs=1)
    model = load(tmp_path, model_of([node], {"start": [N], "xs": [4, N]}, {"last": F32, "y": F32}))
    with mlc.compile(model).load(1) as module:
        found = module.run({"start": np.zeros(N, np.float32), "xs": np.zeros((4, N), np.float32)})
    assert np.abs(np.corrcoef(found["y"]) - np.eye(4)).max() < 4 / N**0.5
    np.testing.assert_allclose(found["last"], found["y"].sum(axis=0), rtol=1e-5)
