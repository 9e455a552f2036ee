"""Learning rates as expressions of the step's number, against the same formulas in Python's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mlc
from mlc.api.training import wrapped
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import DType, TensorType, f32, f64, i64
from mlc.ops import get
from mlc.training.losses import LOSSES
from mlc.training.optimizers import optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import NUMBER, training_step
from tests.unit.training.test_step import network

BETAS = (0.9, 0.999)
CASES = [
    Schedule(0.3),
    Schedule(0.3, warmup=7),
    Schedule(1e-3, "cosine", steps=50),
    Schedule(1e-3, "cosine", warmup=9, steps=50),
    Schedule(0.3, "cosine", warmup=60, steps=50),
]


def rates(schedule: Schedule, betas: tuple[float, float] | None, dtype: DType) -> Graph:
    g = Builder("rates")
    number = g.input("n", TensorType((1,), i64))
    return g.finish([schedule.add(g, number, betas, dtype)], ["rates"])


def expected(s: Schedule, betas: tuple[float, float] | None, step: int) -> tuple[float, float, float]:
    """As it was computed before each step."""
    rate = s.lr
    if step <= s.warmup:
        rate = s.lr * step / s.warmup
    elif s.kind == "cosine":
        rate = s.lr * 0.5 * (1.0 + math.cos(math.pi * (step - s.warmup) / max(1, s.steps - s.warmup)))
    first, second = (1.0, 1.0) if betas is None else (1.0 / (1.0 - beta**step) for beta in betas)
    return rate, first, second


@pytest.mark.parametrize("schedule", CASES, ids=str)
@pytest.mark.parametrize("betas", [None, BETAS], ids=["plain", "moments"])
def test_compiled_rates_are_those_of_python(schedule: Schedule, betas: tuple[float, float] | None) -> None:
    graph = rates(schedule, betas, f32)
    with mlc.compile(wrapped(graph), threads=1).load(1) as module:
        for step in [*range(1, 52), 1000, 10**6]:
            want = np.array(expected(schedule, betas, step), np.float32)
            feeds = {"n": np.array([step])}
            np.testing.assert_allclose(module.run(feeds)["rates"], want, rtol=1.2e-7, atol=1e-18, err_msg=str(step))
            np.testing.assert_allclose(run_graph(graph, feeds)["rates"], want, rtol=1.2e-7, atol=1e-18)


def test_rates_of_double_precision_lose_nothing() -> None:
    schedule = CASES[3]
    found = run_graph(rates(schedule, BETAS, f64), {"n": np.array([31])})["rates"]
    np.testing.assert_allclose(found, expected(schedule, BETAS, 31), rtol=1e-13)


def test_kernels_do_not_depend_on_how_fast_is_learned_and_rates_are_computed_once() -> None:
    texts = set()
    for lr, steps in ((0.1, 20), (0.003, 900)):
        schedule = Schedule(lr, "cosine", warmup=5, steps=steps)
        step = training_step(network(), LOSSES["cross_entropy"], optimizer("adam"), schedule)
        package = mlc.compile(wrapped(step.graph, step.updates), threads=1)
        reading = [s for s in package.manifest.steps if "rates" in s.kernel]
        assert len(reading) == 1
        assert "adam" not in reading[0].kernel
        texts.add(package.members["src/kernels.txt"])
    assert len(texts) == 1


def test_names_of_a_step_are_no_names_of_a_model() -> None:
    g = Builder("taken")
    x, number = g.input("target", TensorType((3, 4), f32)), g.input("step", TensorType((3, 4), f32))
    w = g.constant(np.ones((4, 2), np.float32), "loss.w")
    (y,) = g.add(get("matmul"), [*g.add(get("add"), [x, number]), w])
    step = training_step(g.finish([y], ["loss"]), LOSSES["mse"], optimizer("sgd"), Schedule(0.1))
    assert len({v.name for v in step.graph.inputs}) == 5
    assert len(set(step.loss.output_names)) == 2
    assert NUMBER in {v.name for v in step.graph.inputs}
