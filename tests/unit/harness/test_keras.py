"""Keras as the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.errors import UnsupportedError, UsageError
from mlc.harness.keras import KerasReference
from mlc.harness.layers import compare_layers
from mlc.harness.reference import Tap, open_reference
from tests.unit.frontend.keras.oracle import keras, saved


def test_outputs_by_name_and_constants(tmp_path: Path) -> None:
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    path = saved(keras.Model([a, b], [keras.layers.Add(name="sum")([a, b]), keras.layers.ReLU(name="r")(a)]), tmp_path)
    x = np.array([[1, -2]], np.float32)
    made = open_reference("keras", "keras", path).run({"a": x, "b": x})
    np.testing.assert_array_equal(made["sum"], x * 2)
    np.testing.assert_array_equal(made["r"], [[1, 0]])
    np.testing.assert_array_equal(KerasReference(path, constants={"b": -x}).run({"a": x})["sum"], x * 0)
    with pytest.raises(UsageError, match="Keras needs input 'b'"):
        KerasReference(path).run({"a": x})
    assert KerasReference(path).tensor_names() == {"sum", "r"}


def test_results_of_layers_are_there_by_name(tmp_path: Path) -> None:
    """Of those that are called once; what is inside of others is not asked for."""
    layers = keras.layers
    x = keras.Input((4,), name="x")
    shared = layers.Dense(4, name="shared")
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="within")], name="inner")
    y = inner(layers.ReLU(name="rectified")(layers.Dense(4, name="first")(x)))
    model = keras.Model(x, layers.Concatenate(name="both")([y, shared(x), shared(shared(x))]))
    reference = KerasReference(saved(model, tmp_path))
    assert reference.tensor_names() == {"first", "rectified", "inner", "both"}
    feeds = {"x": np.array([[1, -2, 3, 0.5]], np.float32)}
    taps = [Tap(name, 300 << 20) for name in ("first", "rectified")] + [Tap("both", 4)]
    found = {name: array for batch in reference.intermediates(feeds, taps) for name, array in batch.items()}
    np.testing.assert_array_equal(found["rectified"], np.maximum(found["first"], 0))
    np.testing.assert_array_equal(found["both"], reference.run(feeds)["both"])


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_a_module_is_compared_layer_by_layer(tmp_path: Path, kind: str) -> None:
    layers = keras.layers
    chain = [
        layers.Conv2D(4, 3, padding="same", name="conv"), layers.BatchNormalization(name="norm"),
        layers.ReLU(name="rectified"), layers.Dropout(0.5, name="dropped"), layers.MaxPooling2D(name="pooled"),
        layers.Flatten(name="flat"), layers.Dense(5, activation="softmax", name="scores"),
    ]  # fmt: skip
    x = keras.Input((7, 5, 3), name="x")
    if kind == "sequential":
        model = keras.Sequential([x, *chain])
    else:
        y = x
        for layer in chain:
            y = layer(y)
        model = keras.Model(x, y)
    path = saved(model, tmp_path)
    package = mlc.compile(mlc.load(path))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 7, 5, 3)).astype(np.float32)}
    with package.load(1) as module:
        report = compare_layers(module, KerasReference(path), feeds)
    assert report.first_wrong is None
    # with axes in another order, or as Keras has them
    assert [layer.result.name for layer in report.layers] == ["rectified", "pooled", "flat", "scores"]
    assert report.skipped == 2


def test_a_step_that_differs_is_found(tmp_path: Path) -> None:
    layers = keras.layers
    x = keras.Input((6, 5, 3), name="x")
    model = keras.Model(x, layers.MaxPooling2D(name="pooled")(layers.Conv2D(4, 3, name="conv")(x)))
    path = saved(model, tmp_path)
    package = mlc.compile(mlc.load(path))
    model.get_layer("conv").bias.assign(np.array([0, 0, 0.5, 0], np.float32))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 6, 5, 3)).astype(np.float32)}
    with package.load(1) as module:
        report = compare_layers(module, KerasReference(saved(model, tmp_path)), feeds)
    assert report.first_wrong is not None
    assert report.first_wrong.result.name == "conv"


def test_what_keras_cannot_load_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"PK")
    with pytest.raises(UnsupportedError, match="Keras cannot run it"):
        KerasReference(tmp_path / "m.keras")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_file_is_known_by_its_content_and_not_its_name(tmp_path: Path, suffix: str) -> None:
    a = keras.Input((2,), name="a")
    path = saved(keras.Model(a, keras.layers.ReLU(name="r")(a)), tmp_path, suffix)
    other = path.rename(tmp_path / "m.bin")
    x = np.array([[1, -2]], np.float32)
    (made,) = KerasReference(other).run({"a": x}).values()
    np.testing.assert_array_equal(made, [[1, 0]])
