"""Random Keras models: from both files and alive they are one graph, which gives what Keras gives, compiled, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.ir.interp import run_graph
from tests.e2e.random_models.keras import draw
from tests.unit.frontend.keras.oracle import expected, feeds, forms, saved


def check(seed: int, folder: Path, *, interpret: bool) -> None:
    model, said = draw(seed)
    batch = {"batch": 1 + seed % 2}
    made = forms(model, folder, dims=batch)
    graph = made["keras"].graph
    for other in ("h5", "live"):
        assert str(made[other].graph) == str(graph), said
        arrays = zip(graph.constants.values(), made[other].graph.constants.values(), strict=True)
        assert all(np.array_equal(a, b) for a, b in arrays), said
    given = feeds(made["keras"], seed)
    wanted = expected(model, given)
    found = {"interpreted": list(run_graph(graph, given).values())} if interpret else {}
    level = 0 if seed % 5 == 4 else 3
    compiled = mlc.compile(mlc.load(saved(model, folder), dims=batch), verify_passes=True, opt_level=level)
    with compiled.load(1) as module:
        found["compiled"] = list(module.run(given).values())
    for how, results in found.items():
        for k, (got, want) in enumerate(zip(results, wanted, strict=True)):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), said
            least = 1e-4 * max(float(np.abs(want).max(initial=0)), 1e-3)
            np.testing.assert_allclose(got, want, rtol=0, atol=least, err_msg=f"{said}; output {k}, {how}")


def test_a_few(tmp_path: Path) -> None:
    for seed in range(3):
        check(seed, tmp_path, interpret=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10, 230, 20))
def test_many(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        check(seed, tmp_path, interpret=seed % 4 == 0)
