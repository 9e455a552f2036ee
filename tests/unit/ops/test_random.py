"""Random numbers: their distribution, their independence, and that machine and interpreter draw alike."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest

import mlc
from mlc.api import Model
from mlc.errors import UsageError, VerifyError
from mlc.frontend.base import ModelSource
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, u64
from mlc.ops import get
from mlc.ops.random import seed_of
from tests.unit.ops.oracle import evaluate


def graph_of(shape: tuple[int, ...], dtype: str = "f32", streams: int = 1) -> Graph:
    g = Builder("random")
    key = g.input("seed", TensorType((), u64))
    drawn = [g.add(get("uniform"), [key], {"shape": shape, "stream": k, "dtype": dtype})[0] for k in range(streams)]
    return g.finish(drawn, [f"y{k}" for k in range(streams)])


def draw(graph: Graph, seed: int) -> list[np.ndarray]:
    return list(run_graph(graph, {"seed": np.array(seed, np.uint64)}).values())


def package_of(graph: Graph) -> mlc.Package:
    return mlc.compile(Model(graph, ModelSource("test", "", "random", "", "0" * 64, (), ()), "test"))


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.array([(1 + erf(v / sqrt(2))) / 2 for v in x])


def kolmogorov(sorted_cdf: np.ndarray) -> float:
    """The largest distance from a distribution, times the root of the number of samples: below 1.95 in 99.9 %."""
    n = len(sorted_cdf)
    below, above = sorted_cdf - np.arange(n) / n, np.arange(1, n + 1) / n - sorted_cdf
    return float(max(np.abs(below).max(), np.abs(above).max())) * sqrt(n)


@pytest.mark.parametrize("dtype, step", [("f32", 2**-24), ("f64", 2**-53), ("f16", 2**-11), ("bf16", 2**-8)])
def test_machine_and_interpreter_draw_the_same_multiples_below_1(dtype: str, step: float) -> None:
    expected = evaluate("uniform", np.array(1 << 40 | 7, np.uint64), shape=(7, 33, 5), stream=0, dtype=dtype)
    with package_of(graph_of((7, 33, 5), dtype)).load(2) as module:
        got = module.run({}, seed=1 << 40 | 7)["y0"]
    np.testing.assert_array_equal(got, expected)
    wide = got.astype(np.float64)
    assert wide.min() >= 0
    assert wide.max() < 1
    np.testing.assert_array_equal(wide / step, np.round(wide / step))


def test_numbers_are_uniform() -> None:
    (drawn,) = draw(graph_of((200, 500)), 3)
    assert kolmogorov(np.sort(drawn.reshape(-1).astype(np.float64))) < 1.95
    counts = np.bincount((drawn.reshape(-1) * 256).astype(int), minlength=256)
    chi2 = float(((counts - 100_000 / 256) ** 2 / (100_000 / 256)).sum())
    assert abs(chi2 - 255) < 4 * sqrt(2 * 255)


def test_elements_streams_and_seeds_are_independent() -> None:
    a, b = (x.reshape(-1).astype(np.float64) for x in draw(graph_of((100_000,), streams=2), 3))
    (c,) = (x.reshape(-1).astype(np.float64) for x in draw(graph_of((100_000,)), 4))
    limit = 4 / sqrt(100_000)
    for x, y in ((a, b), (a, c), (b, c), (a[:-1], a[1:]), (a[:-16], a[16:]), (a[:50_000], a[50_000:])):
        assert abs(np.corrcoef(x, y)[0, 1]) < limit * sqrt(100_000 / len(x))


def test_a_seed_decides_whatever_the_number_of_threads() -> None:
    package = package_of(graph_of((300, 41)))
    with package.load(1) as one, package.load(2) as two:
        first = one.run({}, seed=5)["y0"]
        np.testing.assert_array_equal(first, one.run({}, seed=5)["y0"])
        np.testing.assert_array_equal(first, two.run({}, seed=5)["y0"])
        assert (first != one.run({}, seed=6)["y0"]).mean() > 0.99
        assert (one.run({})["y0"] != one.run({})["y0"]).mean() > 0.99
        assert one.draws
        assert one.input_names == ()


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, True, "1"])
def test_a_seed_that_is_none_is_refused(seed: object) -> None:
    with package_of(graph_of((3,))).load(1) as module, pytest.raises(UsageError, match="the seed must be"):
        module.run({}, seed=seed)  # type: ignore[arg-type]


def test_wrong_calls_are_refused() -> None:
    infer = get("uniform").infer
    good = {"shape": (3,), "stream": 0, "dtype": "f32"}
    key = TensorType((), u64)
    for bad in ({"dtype": "i32"}, {"stream": -1}, {"stream": 1 << 31}, {"shape": (1 << 17, 1 << 16)}):
        with pytest.raises(VerifyError):
            infer([key], {**good, **bad})
    with pytest.raises(VerifyError):
        infer([TensorType((1,), u64)], good)


def test_only_a_graph_that_draws_has_a_seed() -> None:
    graph = graph_of((3,))
    assert seed_of(graph) is graph.inputs[0]
    g = Builder("plain")
    x = g.input("seed", TensorType((), u64))
    assert seed_of(g.finish([x], ["y"])) is None
