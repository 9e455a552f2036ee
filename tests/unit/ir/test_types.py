"""Element types and tensor types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.ir.layout import blocked
from mlc.ir.types import (
    ALL_DTYPES,
    DType,
    TensorType,
    bf16,
    boolean,
    dtype_of,
    f16,
    f32,
    i2,
    i4,
    i8,
    i64,
    u2,
    u4,
    u8,
    u64,
)


@pytest.mark.parametrize("dtype", ALL_DTYPES.values(), ids=str)
def test_element_type_is_found_by_either_name_and_by_numpy(dtype: DType) -> None:
    for spec in (dtype, dtype.name, dtype.numpy_name, dtype.numpy):
        assert dtype_of(spec) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", [t for t in ALL_DTYPES.values() if t.is_int], ids=str)
def test_range_of_integers_is_that_of_numpy(dtype: DType) -> None:
    info = ml_dtypes.iinfo(dtype.numpy)
    assert (dtype.min_value, dtype.max_value) == (info.min, info.max)


def test_range_of_other_types() -> None:
    assert (f16.min_value, f16.max_value) == (float("-inf"), float("inf"))
    assert (boolean.min_value, boolean.max_value) == (0, 1)


def test_element_types_smaller_than_a_byte_take_a_byte() -> None:
    assert [t.itemsize for t in (u2, u4, i2, i4, u8, boolean)] == [1] * 6
    assert [t.carrier for t in (u2, u4, i2, i4, boolean, f32)] == [u8, u8, i8, i8, boolean, f32]


def test_classes_of_types() -> None:
    assert f32.is_float
    assert not f32.is_int
    assert i8.is_int
    assert u64.is_int
    assert not boolean.is_int
    assert bf16.numpy == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("spec", ["f33", "complex64", np.dtype("datetime64[s]"), object()])
def test_unknown_element_type_is_refused(spec: object) -> None:
    with pytest.raises(UsageError, match="unknown element type") as caught:
        dtype_of(spec)  # type: ignore[arg-type]
    assert "known: f16, bf16" in caught.value.hint


def test_tensor_type_knows_its_sizes() -> None:
    t = TensorType((1, 20, 3), i64)
    assert (t.rank, t.size, t.nbytes, t.physical_shape) == (3, 60, 480, (1, 20, 3))
    assert str(t) == "i64[1,20,3]"


def test_layout_changes_what_is_stored_and_nothing_else() -> None:
    plain = TensorType((1, 20, 3), f32)
    t = plain.with_layout(blocked((1, 20, 3), 1, 16))
    assert (t.shape, t.size) == (plain.shape, plain.size)
    assert t.physical_shape == (1, 2, 3, 16)
    assert t.nbytes == 2 * 3 * 16 * 4
    assert str(t) == "f32[1,20,3]@pad(1, 0, 12).split(1, 16).reorder(0,1,3,2)"
    assert t.with_layout(None) == plain


def test_rank_zero_holds_one_element() -> None:
    assert TensorType((), f32).nbytes == 4
