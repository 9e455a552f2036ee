"""Values of options: read wholly, or refused with the form that is meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc.cli import values
from mlc.errors import UsageError
from mlc.harness.feeds import Span


@pytest.mark.parametrize(
    "read, text, expected",
    [
        (values.shape, "data=1,3,224,224", ("data", (1, 3, 224, 224))),
        (values.shape, "data:1,3", ("data", (1, 3))),
        (values.shape, "input:0=1, 3", ("input:0", (1, 3))),
        (values.shape, "a=b=[2]", ("a=b", (2,))),
        (values.shape, "scalar=", ("scalar", ())),
        (values.shape, "empty=0,4", ("empty", (0, 4))),
        (values.tvmc_shapes, "input-1:[1,3,224,224]", [("input-1", (1, 3, 224, 224))]),
        (values.tvmc_shapes, "a/b/c:[1,2] x:0:[3],y : []", [("a/b/c", (1, 2)), ("x:0", (3,)), ("y", ())]),
        (values.dim, "batch=1", ("batch", 1)),
        (values.constant, "k=3", ("k", 3)),
        (values.constant, "a/b=[1, 2.5]", ("a/b", [1, 2.5])),
        (values.constant, "flag=true", ("flag", True)),
        (values.span, "0:255", (None, Span(0, 255))),
        (values.span, "ids=-1:1.5", ("ids", Span(-1, 1.5))),
        (values.named_file, "dir=1/in.npz", (None, "dir=1/in.npz")),
        (values.named_file, "x=a.npy", ("x", "a.npy")),
        (values.size, "1500000", 1500000),
        (values.size, "512M", 512 << 20),
        (values.size, "1.5GiB", 3 << 29),
        (values.size, "9007199254740993", 9007199254740993),
    ],
)
def test_understood(read: Callable[[str], Any], text: str, expected: Any) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "read, text, message",
    [
        (values.shape, "1,3,224", "--shape 1,3,224: cannot be understood"),
        (values.shape, "=1,3", "--shape =1,3: cannot be understood"),
        (values.shape, "x=1,n", "--shape x=1,n: 'n' is no extent"),
        (values.shape, "x=1,,2", "--shape x=1,,2: '' is no extent"),
        (values.shape, "x=-1", "--shape x=-1: '-1' is no extent"),
        (values.shape, "x=٣", "is no extent"),
        (values.shape, "x=99999999999999999999", "is no extent"),
        (values.tvmc_shapes, "x:[1,3,n,n] y:[1,2]", "--input-shapes x:[1,3,n,n]: 'n' is no extent"),
        (values.tvmc_shapes, "x:[1,2] junk", "--input-shapes: 'junk' cannot be understood"),
        (values.tvmc_shapes, "x:[1,2] y:(1)", "--input-shapes: 'y:(1)' cannot be understood"),
        (values.tvmc_shapes, " ", "--input-shapes: no shape is given"),
        (values.dim, "batch", "--dim batch: cannot be understood"),
        (values.dim, "batch=one", "--dim batch=one: 'one' is no extent"),
        (values.constant, "k", "--const k: cannot be understood"),
        (values.constant, "k=abc", "--const k=abc: 'abc' is no value"),
        (values.constant, 'k="abc"', "is no value"),
        (values.constant, "k=NaN", "--const k=NaN: 'NaN' is no value"),
        pytest.param(values.constant, "k=" + "[" * 100_000, "is no value", id="deep"),
        (values.constant, "k=none.npy", "none.npy: there is no such file"),
        (values.span, "5", "--range 5: '5' is no range"),
        (values.span, "x=5:1", "--range x=5:1: '5:1' is no range"),
        (values.span, "nan:1", "is no range"),
        (values.span, "0:inf", "is no range"),
        (values.named_file, "a.npy", "--inputs a.npy: cannot be understood"),
        (values.named_file, "x=a.bin", "--inputs x=a.bin: cannot be understood"),
        (values.size, "much", "the size: 'much' is no size"),
        (values.size, "-1", "is no size"),
        (values.size, "9" * 40, "is no size"),
    ],
)
def test_refused_with_the_form_that_is_meant(read: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        read(text)
    assert raised.value.hint


def test_a_constant_may_be_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", np.arange(3))
    name, array = values.constant(f"k={tmp_path}/k.npy")
    assert name == "k"
    np.testing.assert_array_equal(array, np.arange(3))


def test_limits_are_changed_by_name() -> None:
    limits = values.limits(["nodes=5", "file_bytes=4G"])
    assert (limits.nodes, limits.file_bytes) == (5, 4 << 30)
    with pytest.raises(UsageError, match="--limit node=5: there is no limit 'node'") as raised:
        values.limits(["node=5"])
    assert raised.value.hint == "did you mean nodes?"


def test_a_name_given_twice_is_refused() -> None:
    assert values.merged("--dim", [("a", 1), ("b", 2)]) == {"a": 1, "b": 2}
    with pytest.raises(UsageError, match="--dim: 'a' is given twice"):
        values.merged("--dim", [("a", 1), ("a", 2)])


def test_words_by_commas_and_by_repetition() -> None:
    assert values.comma_separated(("a, b", "c", "")) == ("a", "b", "c")
