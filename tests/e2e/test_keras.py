"""Keras models through the whole house, against Keras: trained ones of the shared folder, and keras.applications."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import mlc
from benchmarks.applications import APPLICATIONS, build
from mlc.harness.keras import KerasReference
from tests.unit.frontend.keras.oracle import expected, forms

MODELS = Path(os.environ.get("MLC_SHARED_MODELS", Path(__file__).parents[3] / "shared" / "models"))
FILES = sorted(MODELS.glob("*.h5"))


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.skipif(not FILES, reason="the folder of shared models is not there")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_trained_models(path: Path) -> None:
    model, reference = mlc.load(path), KerasReference(path)
    (spec,) = model.inputs
    rows = np.random.default_rng(3).standard_normal((20, *spec.shape)).astype(np.float32)
    (wanted,) = reference.run({spec.name: rows.reshape(-1, *spec.shape[1:])}).values()  # at once: takes a tenth
    with mlc.compile(model).load(1) as module:
        for x, want in zip(rows, np.split(wanted, len(rows)), strict=True):
            (got,) = module.run({spec.name: x}).values()
            close(got, want)
            assert got.argmax() == want.argmax()


@pytest.mark.slow
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications(name: str, tmp_path: Path) -> None:
    """Both files and the live model give one graph, whose compiled form computes what Keras does.

    What a batch normalisation divides by is drawn, too, or its folding would not be seen.
    """
    model = build(name)
    made = forms(model, tmp_path)
    assert len({str(m.graph) for m in made.values()}) == 1
    (x,) = made["keras"].graph.inputs
    feeds = {x.name: np.random.default_rng(1).uniform(0, 255, x.type.shape).astype(np.float32)}
    (want,) = expected(model, feeds)
    for suffix in (".keras", ".h5"):
        with mlc.compile(mlc.load(tmp_path / f"model{suffix}")).load(1) as module:
            (got,) = module.run(feeds).values()
        close(got, want)
