from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UsageError
from mlc.frontend.common.shapes import Declared, check_constant_input, resolve_shapes
from mlc.frontend.limits import Limits
from mlc.ir.types import f32, i64, u8

IMAGE = Declared("data", f32, ("batch", 3, "size", "size"))
MASK = Declared("mask", i64, ("batch", None))


def resolve(*inputs, shapes=None, dims=None, **limits):
    found = resolve_shapes(inputs, shapes or {}, dims or {}, Limits(**limits))
    return {name: t.shape for name, t in found.items()}


def refuse(*inputs, match, error=UsageError, **given):
    with pytest.raises(error, match=match) as caught:
        resolve(*inputs, **given)
    return caught.value


def test_a_symbol_holds_for_all_inputs():
    assert resolve(IMAGE, dims={"batch": 2, "size": 8}) == {"data": (2, 3, 8, 8)}


def test_symbols_follow_from_the_shapes_of_other_inputs():
    assert resolve(IMAGE, Declared("m", f32, ("batch",)), shapes={"data": (2, 3, 8, 8)}) == {
        "data": (2, 3, 8, 8),
        "m": (2,),
    }


def test_unknown_ranks_and_extents_take_a_given_shape():
    assert resolve(Declared("x", f32, None), shapes={"x": [1, 2]}) == {"x": (1, 2)}
    assert resolve(MASK, shapes={"mask": (1, 7)}) == {"mask": (1, 7)}
    assert resolve(Declared("x", f32, (-1, 3)), shapes={"x": (4, 3)}) == {"x": (4, 3)}
    assert resolve(Declared("x", f32, (0, 3))) == {"x": (0, 3)}


def test_everything_left_open_is_named_with_the_flags_to_add():
    error = refuse(IMAGE, MASK, Declared("any", f32, None), match="shapes must be fixed at compile time")
    for words in (
        "input 'data': dimension 0 is 'batch'",
        "input 'data': dimension 2 is 'size'",
        "input 'mask': dimension 1 is unnamed",
        "input 'any': no shape at all",
    ):
        assert words in error.message
    for flag in ("--dim batch=1", "--dim size=1", "--shape mask=1,1", "--shape any=1,3,224,224"):
        assert flag in error.hint


def test_what_is_known_stands_in_the_example():
    error = refuse(IMAGE, MASK, match="dimension 1 is unnamed", dims={"batch": 5, "size": 8})
    assert "--shape mask=5,1" in error.hint
    assert "data" not in error.message


def test_names_must_exist():
    error = refuse(IMAGE, match="no input 'dat' to give a shape", shapes={"dat": (1,)})
    assert "'data' f32[batch,3,size,size]" in error.hint
    error = refuse(IMAGE, match="no dimension 'bach' in the model's inputs", dims={"bach": 1})
    assert "'batch', 'size'" in error.hint
    assert "none" in refuse(match="no dimension", dims={"a": 1}).hint


def test_contradictions_are_refused():
    refuse(IMAGE, match=r"the shape \[1, 3\] has rank 2", shapes={"data": (1, 3)})
    refuse(IMAGE, match="the given shape has 4 at position 1", shapes={"data": (1, 4, 8, 8)})
    refuse(IMAGE, match="dimension 'size' is given as 9 and as 8", shapes={"data": (1, 3, 8, 9)})
    refuse(IMAGE, match="dimension 'batch' is given as 2 and as 1", shapes={"data": (2, 3, 8, 8)}, dims={"batch": 1})
    refuse(Declared("x", f32, (0,)), match="the given shape has 2 at position 0", shapes={"x": (2,)})


def test_sizes_must_be_sizes():
    refuse(IMAGE, match="has an extent that is no size", shapes={"data": (-1, 3, 8, 8)})
    refuse(IMAGE, match="dimension 'batch' cannot be -1", dims={"batch": -1})
    error = refuse(Declared("x", f32, (-3, 4)), match="input 'x': dimension 0 is -3", error=ImportModelError)
    assert "--shape x=1,4" in error.hint
    refuse(Declared("x", f32, (1 << 40,)), match="the limit 'tensor_bytes'", error=ImportModelError)
    refuse(IMAGE, match="the limit 'tensor_bytes'", error=ImportModelError, dims={"batch": 1 << 40, "size": 8})


def test_constants_must_be_of_the_declared_type():
    array = np.zeros((1, 3, 8, 8), np.float32)
    assert check_constant_input(IMAGE, array).dtype == np.float32
    assert check_constant_input(MASK, np.zeros((2, 5), np.int64)).shape == (2, 5)
    for wrong in (array.astype(np.float64), array[0], np.zeros((1, 4, 8, 8), np.float32)):
        with pytest.raises(UsageError, match=r"input 'data' is f32\[batch,3,size,size\], the constant given for it is"):
            check_constant_input(IMAGE, wrong)


def test_plain_numbers_take_the_declared_type():
    assert check_constant_input(Declared("s", i64, (2,)), [1, 3]).dtype == np.int64
    assert check_constant_input(Declared("s", f32, ()), 0.1).dtype == np.float32
    for declared, wrong in (
        (Declared("s", i64, (1,)), [0.5]),
        (Declared("s", u8, ()), 256),
        (Declared("s", f32, ()), "x"),
    ):
        with pytest.raises(UsageError, match="the constant given for it is"):
            check_constant_input(declared, wrong)
