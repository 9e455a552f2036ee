from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context, UnknownValueError, check_type
from mlc.frontend.limits import Limits
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32, i64


@pytest.fixture
def ctx():
    context = Context(Builder())
    context.begin("layer")
    return context


def test_operators_are_named_after_the_node(ctx):
    x = ctx.builder.input("x", TensorType((2,), f32))
    y = ctx.add("relu", [x])
    assert y.name == "layer/relu"
    assert ctx.add("relu", [y]).name == "layer/relu.1"
    assert ctx.builder.nodes[0].sources == ("layer",)
    ctx.begin("layer", "whole")
    ctx.add("relu", [x])
    assert ctx.builder.nodes[-1].sources == ("whole",)


def test_operators_on_constants_are_folded_at_once(ctx):
    two = ctx.constant(2, np.int64)
    four = ctx.add("mul", [two, two])
    assert ctx.builder.nodes == []
    assert ctx.const(four) == 4
    assert ctx.require_const(four, "it") == 4
    assert ctx.const(None) is None


def test_values_know_the_inputs_they_depend_on(ctx):
    a, b = (ctx.builder.input(name, TensorType((2,), i64)) for name in "ab")
    one = ctx.constant([1, 1], np.int64)
    y = ctx.add("add", [ctx.add("neg", [b]), one])
    assert ctx.depends_on(y) == ("b",)
    assert ctx.depends_on(ctx.add("mul", [y, a])) == ("a", "b")
    assert ctx.depends_on(one) == ()
    assert ctx.depends_on(None) == ()
    with pytest.raises(UnknownValueError, match="the shape depends on the model's inputs") as caught:
        ctx.require_const(y, "the shape")
    assert caught.value.inputs == ("b",)
    assert caught.value.hint == "give it a value at compile time: --const b=VALUE"


def test_a_missing_operand_is_not_known(ctx):
    with pytest.raises(UnknownValueError, match="depends") as caught:
        ctx.require_const(None, "it")
    assert "make it an initializer" in caught.value.hint


def test_constants_have_a_budget():
    limits = Limits(constant_bytes=64, constants_bytes=100)
    ctx = Context(Builder(), limits)
    with pytest.raises(ImportModelError, match="a constant made by the import: 72 bytes, the limit 'constant_bytes'"):
        ctx.constant(np.zeros(9))
    ctx.constant(np.zeros(8))
    with pytest.raises(ImportModelError, match="all constants made by the import: 128 bytes, the limit 'constants_"):
        ctx.check_constant((8,), 8)


def test_what_the_model_stores_is_not_charged():
    ctx = Context(Builder(), Limits(constant_bytes=64, constants_bytes=64))
    stored = np.zeros(100)
    ctx.note_stored(stored)
    ctx.note_stored(stored)
    for _ in range(3):
        ctx.constant(stored)
    ctx.constant(stored.copy())  # a repacked weight
    ctx.constant(stored.copy())
    with pytest.raises(ImportModelError, match="constants_bytes"):
        ctx.constant(stored.copy())


def test_results_and_operators_have_limits():
    ctx = Context(Builder(), Limits(operators=2, tensor_bytes=64))
    x = ctx.builder.input("x", TensorType((2,), f32))
    with pytest.raises(ImportModelError, match=r"the result \(f32\[200\]\): 800 bytes, the limit 'tensor_bytes' is 64"):
        ctx.add("tile", [x], repeats=(100,))
    ctx.add("relu", [x])
    with pytest.raises(ImportModelError, match="core operators so far: 3, the limit 'operators' is 2"):
        ctx.add("relu", [x])


def test_types_are_checked_in_python_integers():
    limits = Limits()
    check_type(TensorType((1 << 31, 1), f32), limits, "it")
    check_type(TensorType((), f32), limits, "it")
    for shape, match in (
        ((1 << 63, 1 << 63), "tensor_bytes"),
        ((0, 1 << 63), "tensor_bytes"),
        ((-1,), r"it: negative extent in shape \[-1\]"),
        ((1,) * 33, "it: rank: 33, the limit 'rank' is 32"),
    ):
        with pytest.raises(ImportModelError, match=match):
            check_type(TensorType(shape, f32), limits, "it")
