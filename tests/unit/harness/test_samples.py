from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.harness.samples import split_samples
from mlc.runtime import TensorSpec

IMAGE, TOKENS = TensorSpec("image", "f32", (1, 3, 4, 4)), TensorSpec("tokens", "i64", (2, 5))


@pytest.mark.parametrize("shape", [(6, 3, 4, 4), (6, 1, 3, 4, 4)])
def test_samples_lie_along_the_first_axis(shape: tuple[int, ...]) -> None:
    images = np.arange(6 * 48, dtype=np.float64).reshape(shape)
    found = split_samples([IMAGE], {"image": images})
    assert len(found) == 6
    assert all(s["image"].dtype == np.float32 and s["image"].shape == (1, 3, 4, 4) for s in found)
    np.testing.assert_array_equal(found[4]["image"].reshape(-1), images.reshape(6, -1)[4])


def test_batches_follow_one_another() -> None:
    tokens = np.arange(30).reshape(6, 5)
    found = split_samples([TOKENS, IMAGE], {"tokens": tokens, "image": np.zeros((3, 3, 4, 4), np.float32)})
    assert [s["tokens"].tolist() for s in found] == [tokens[k : k + 2].tolist() for k in (0, 2, 4)]


def test_a_scalar_input_takes_a_list_of_numbers() -> None:
    found = split_samples([TensorSpec("x", "f32", ())], {"x": np.ones(3, np.float32)})
    assert [s["x"].shape for s in found] == [(), (), ()]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "no samples for the input 'image'"),
        ({"image": np.zeros((1, 3, 4, 4), "f4"), "mask": np.zeros(1)}, "samples are given for 'mask', which is not"),
        ({"image": np.zeros((1, 3, 4, 5), "f4")}, r"are f32\[1,3,4,5\], which are no f32\[1,3,4,4\]"),
        ({"image": np.zeros((0, 3, 4, 4), "f4")}, r"are f32\[0,3,4,4\], which are no"),
        ({"image": np.zeros((2, 3, 4, 4), "i4")}, "the samples for 'image' are int32, the input is f32"),
    ],
)
def test_unfit_samples_are_refused(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_samples([IMAGE], arrays)


def test_odd_batches_and_counts_are_refused() -> None:
    with pytest.raises(UsageError, match="which are no i64") as error:
        split_samples([TOKENS], {"tokens": np.zeros((3, 5), np.int64)})
    assert "batches of 2" in error.value.hint
    arrays = {"tokens": np.zeros((4, 5), np.int64), "image": np.zeros((1, 3, 4, 4), np.float32)}
    with pytest.raises(UsageError, match="different numbers of samples: 2 for 'tokens', 1 for 'image'"):
        split_samples([TOKENS, IMAGE], arrays)
