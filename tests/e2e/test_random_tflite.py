"""Random TensorFlow Lite models: interpreted and compiled, they give what LiteRT's reference kernels give.

Integers bit for bit, whatever is fused; floats within 1e-4 of the greatest magnitude.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.ir.interp import run_graph
from tests.e2e.random_models.tflite import draw
from tests.unit.frontend.tflite.writer import litert

pytest.importorskip("ai_edge_litert", reason="LiteRT, the reference")

KINDS = ("float32", "int8", "uint8", "int16")


def check(seed: int, kind: str, folder: Path, *, interpret: bool) -> None:
    drawn = draw(seed, kind)
    path = folder / "m.tflite"
    path.write_bytes(drawn.data)
    wanted = litert(drawn.data, drawn.feeds)
    model = mlc.load(path)
    found = {"interpreted": list(run_graph(model.graph, drawn.feeds).values())} if interpret else {}
    with mlc.compile(model, verify_passes=True, opt_level=0 if seed % 5 == 4 else 3).load(1) as module:
        found["compiled"] = list(module.run(drawn.feeds).values())
    for how, results in found.items():
        for k, (got, want) in enumerate(zip(results, wanted, strict=True)):
            said = f"{kind} {seed}, output {k}, {how}: {drawn.operators}"
            assert (got.shape, got.dtype) == (want.shape, want.dtype), said
            if kind == "float32":
                least = 1e-4 * max(float(np.abs(want).max(initial=0)), 1e-3)
                np.testing.assert_allclose(got, want, rtol=0, atol=least, err_msg=said)
            else:
                np.testing.assert_array_equal(got, want, err_msg=said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_few(kind: str, tmp_path: Path) -> None:
    for seed in range(3):
        check(seed, kind, tmp_path, interpret=seed == 0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10, 410, 50))
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind: str, first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        check(seed, kind, tmp_path, interpret=seed % 10 == 0)
