"""Keras as the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlc.errors import UnsupportedError, UsageError
from mlc.harness.keras import KerasReference
from mlc.harness.reference import open_reference
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
    with pytest.raises(UnsupportedError, match="between layers"):
        KerasReference(path).tensor_names()


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
