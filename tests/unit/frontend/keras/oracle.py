"""Keras as the oracle: models built, saved in both formats, imported in all three forms, and compared."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", next(filter(find_spec, ("torch", "jax", "tensorflow")), "torch"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("h5py", reason="h5py is not installed: pip install 'mlc[keras]'")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
except ImportError as error:
    pytest.skip(f"Keras cannot be imported: {error}", allow_module_level=True)

from mlc.frontend.base import ImportedModel
from mlc.frontend.keras import KerasFrontend
from mlc.frontend.keras.importer import import_keras
from mlc.frontend.keras.model import flatten
from mlc.ir.interp import run_graph

L = keras.layers
Arrays = list[np.ndarray]
Build = Callable[[], Any]


def seeded(model: Any, seed: int = 0) -> Any:
    """The model with random weights everywhere, those that start as zeros and ones included."""
    rng = np.random.default_rng(seed)
    arrays = []
    for v in model.weights:
        low = 0.5 if "variance" in v.name else -0.6
        values = rng.uniform(low, 0.9, v.shape)
        arrays.append(np.asarray(values if "float" in str(v.dtype) else np.ones(v.shape)).astype(str(v.dtype)))
    model.set_weights(arrays)
    return model


def saved(model: Any, folder: Path, suffix: str = ".keras") -> Path:
    path = folder / f"model{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(path)
    return path


def forms(model: Any, folder: Path, **options: Any) -> dict[str, ImportedModel]:
    """The model imported from ``.keras``, from ``.h5``, and alive."""
    return {
        "keras": import_keras(saved(model, folder), **options),
        "h5": import_keras(saved(model, folder, ".h5"), **options),
        "live": KerasFrontend().load(model, **options),
    }


def feeds(imported: ImportedModel, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {}
    for v in imported.graph.inputs:
        dtype = v.type.dtype.numpy
        values = rng.uniform(-2, 2, v.type.shape) if v.type.dtype.is_float else rng.integers(0, 5, v.type.shape)
        made[v.name] = np.asarray(values).astype(dtype)
    return made


def expected(model: Any, given: Mapping[str, np.ndarray]) -> Arrays:
    """What Keras computes, flat."""
    inputs = list(given.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in flatten(out)]


def check(model: Any, folder: Path, rtol: float = 1e-4, seed: int = 1, **options: Any) -> ImportedModel:
    """All forms give one graph, and it computes what Keras computes, within ``rtol`` of the greatest magnitude."""
    made = forms(model, folder, **options)
    texts = {form: str(m.graph) for form, m in made.items()}
    assert texts["h5"] == texts["keras"]
    assert texts["live"] == texts["keras"]
    imported = made["keras"]
    for other in ("h5", "live"):
        arrays = zip(imported.graph.constants.values(), made[other].graph.constants.values(), strict=True)
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in arrays)
    compare(model, imported, rtol, seed)
    return imported


def compare(model: Any, imported: ImportedModel, rtol: float = 1e-4, seed: int = 1) -> None:
    given = feeds(imported, seed)
    got, want = run_graph(imported.graph, given), expected(model, given)
    assert len(got) == len(want)
    for (name, a), b in zip(got.items(), want, strict=True):
        assert a.shape == b.shape, name
        scale = max(float(np.abs(b.astype(np.float64)).max(initial=0)), 1e-6)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=0, atol=rtol * scale, err_msg=name)


def chain(*layers: Any, shape: Sequence[int | None], dtype: str = "float32", batch: int | None = None) -> Any:
    """A sequential model with random weights."""
    return seeded(keras.Sequential([keras.Input(tuple(shape), dtype=dtype, batch_size=batch), *layers]))
