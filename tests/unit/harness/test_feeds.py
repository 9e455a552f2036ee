"""Inputs made up from a seed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.harness.feeds import Fill, Span, as_input, integer_limits, make_feeds
from mlc.runtime.dtypes import ELEMENTS, numpy_dtype
from mlc.runtime.tensor_spec import TensorSpec

SPECS = [TensorSpec(name, name, (50, 40)) for name in ELEMENTS]


def test_random_values_are_valid_for_every_element_type() -> None:
    feeds = make_feeds(SPECS, Fill.RANDOM, 0)
    for spec in SPECS:
        array = feeds[spec.name]
        assert (array.shape, array.dtype) == (spec.shape, numpy_dtype(spec.dtype))
        if spec.dtype in ("i16", "u16", "i32", "u32", "i64", "u64"):
            assert set(np.unique(array)) == {0, 1}
        elif spec.dtype[0] in "iu":
            assert (array.min(), array.max()) == integer_limits(spec.dtype)
        elif spec.dtype != "bool":
            assert abs(float(array.astype(np.float64).mean())) < 0.1


def test_an_input_depends_on_the_seed_and_its_own_name() -> None:
    alone = make_feeds([TensorSpec("b", "f32", (9,))], Fill.RANDOM, 1)["b"]
    both = make_feeds([TensorSpec("a", "f32", (9,)), TensorSpec("b", "f32", (9,))], Fill.RANDOM, 1)
    np.testing.assert_array_equal(both["b"], alone)
    assert not np.array_equal(both["a"], both["b"])
    assert not np.array_equal(make_feeds([TensorSpec("b", "f32", (9,))], Fill.RANDOM, 2)["b"], alone)


@pytest.mark.parametrize("fill, value", [(Fill.ZEROS, 0), (Fill.ONES, 1)])
def test_constant_fills(fill: Fill, value: int) -> None:
    for array in make_feeds(SPECS, fill, 0).values():
        assert (array == value).all()


def test_spans_for_all_and_for_one() -> None:
    specs = [TensorSpec("ids", "i64", (1000,)), TensorSpec("x", "f32", (1000,)), TensorSpec("mask", "bool", (9,))]
    feeds = make_feeds(specs, Fill.RANDOM, 0, Span(3, 5), {"x": Span(-1, 0)})
    assert set(np.unique(feeds["ids"])) == {3, 4, 5}
    assert -1 <= feeds["x"].min() < feeds["x"].max() <= 0
    assert feeds["mask"].dtype == bool


@pytest.mark.parametrize("span", [Span(0, 256), Span(-1, 5), Span(0, 0.5)])
def test_a_span_must_fit_the_element_type(span: Span) -> None:
    with pytest.raises(UsageError, match=r"input 'x': .* is not a range of u8") as raised:
        make_feeds([TensorSpec("x", "u8", (3,))], Fill.RANDOM, 0, span)
    assert raised.value.hint == "give whole numbers from 0 to 255, as in --range x=0:9"


def test_a_span_must_be_for_an_input() -> None:
    with pytest.raises(UsageError, match="a range is given for 'z', which is not an input"):
        make_feeds([TensorSpec("x", "f32", (3,))], Fill.RANDOM, 0, None, {"z": Span(0, 1)})


def test_float32_stands_for_bfloat16_only() -> None:
    x = np.ones(3, np.float32)
    assert as_input(TensorSpec("x", "bf16", (3,)), x).dtype == ml_dtypes.bfloat16
    assert as_input(TensorSpec("x", "f16", (3,)), x) is x


@pytest.mark.parametrize("name", ["i2", "i4", "u2", "u4"])
def test_bytes_stand_for_integers_of_less_than_one(name: str) -> None:
    least, most = integer_limits(name)
    x = np.array([least, 0, most], np.int8 if name[0] == "i" else np.uint8)
    found = as_input(TensorSpec("x", name, (3,)), x)
    assert found.dtype == numpy_dtype(name)
    assert found.tolist() == [least, 0, most]
    assert as_input(TensorSpec("x", name, (3,)), found) is found
    x[1] = most + 1
    with pytest.raises(UsageError, match=f"input 'x': values from {least} to {most + 1} are no {name}") as raised:
        as_input(TensorSpec("x", name, (3,)), x)
    assert raised.value.hint == f"it holds whole numbers from {least} to {most}"
