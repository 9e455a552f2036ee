"""Every rule of the arithmetic family: what it does, that it changes no bit, and when it keeps its hands off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir.graph import Graph
from mlc.ir.interp import run_graph
from mlc.ir.interp.scalar import convert
from mlc.ir.types import ALL_DTYPES, dtype_of
from mlc.rewrite.rules import arithmetic
from mlc.rewrite.rules.arithmetic import passes_through
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in arithmetic.RULES}
Build = Callable[[Net], Graph]


def net(build: Build) -> Graph:
    return build(Net())


# rule, graph, operators afterwards
FIRES: list[tuple[str, Build, list[str]]] = [
    ("identity", lambda n: n(n.identity(n.x(3))), []),
    ("constant_right", lambda n: n(n.mul(n.c([2, 3, 4]), n.x(3))), ["mul"]),
    ("times_one", lambda n: n(n.mul(n.x(2, 3), n.c(np.ones(3)))), []),
    ("times_one", lambda n: n(n.mul(n.x(3, dtype="i32"), n.c(1, "int32"))), []),
    ("over_one", lambda n: n(n.div(n.x(3), n.c(1.0))), []),
    ("plus_zero", lambda n: n(n.add(n.x(3, dtype="i8"), n.c(0, "int8"))), []),
    ("plus_zero", lambda n: n(n.sub(n.x(3), n.c([0.0]))), []),
    ("plus_zero", lambda n: n(n.add(n.x(3), n.c([-0.0]))), []),
    ("small_power", lambda n: n(n.pow(n.x(3), n.c(1.0))), []),
    ("small_power", lambda n: n(n.pow(n.x(3), n.c([2.0]))), ["mul"]),
    ("small_power", lambda n: n(n.pow(n.x(3), n.c(3.0))), ["mul", "mul"]),
    ("small_power", lambda n: n(n.pow(n.x(3, dtype="i32"), n.c(3, "int32"))), ["mul", "mul"]),
    ("over_power_of_two", lambda n: n(n.div(n.x(3), n.c([0.25, -8, 2]))), ["mul"]),
    ("over_power_of_two", lambda n: n(n.div(n.x(3, dtype="f16"), n.c(4, "float16"))), ["mul"]),
    ("integer_chain", lambda n: n(n.add(n.add(n.x(3, dtype="i8"), n.c(100, "int8")), n.c(100, "int8"))), ["add"]),
    (
        "integer_chain",
        lambda n: n(n.mul(n.mul(n.x(3, dtype="i64"), n.c(7, "int64")), n.c([1, 2, 3], "int64"))),
        ["mul"],
    ),
    ("involution", lambda n: n(n.neg(n.neg(n.x(3)))), []),
    ("involution", lambda n: n(n.not_(n.not_(n.x(3, dtype="bool")))), []),
    ("involution", lambda n: n(n.bitwise_not(n.bitwise_not(n.x(3, dtype="u8")))), []),
    ("idempotent", lambda n: n(n.relu(n.relu(n.x(3)))), ["relu"]),
    ("idempotent", lambda n: n(n.floor(n.floor(n.x(3)))), ["floor"]),
    ("relu_of_positive", lambda n: n(n.relu(n.sigmoid(n.x(3)))), ["sigmoid"]),
    ("clip_chain", lambda n: n(n.clip(n.clip(n.x(9), lo=-1.0, hi=2.0), lo=0.0, hi=5.0)), ["clip"]),
    ("clip_chain", lambda n: n(n.clip(n.relu(n.x(9)), lo=None, hi=1.5)), ["clip"]),
    ("clip_chain", lambda n: n(n.relu(n.clip(n.x(9, dtype="i32"), lo=-2, hi=3))), ["clip"]),
    ("clip_nothing", lambda n: n(n.clip(n.x(9))), []),
    ("clip_nothing", lambda n: n(n.clip(n.x(9), lo=0.0)), ["relu"]),
    ("cast_nothing", lambda n: n(n.cast(n.x(3), to="f32")), []),
    ("cast_chain", lambda n: n(n.cast(n.cast(n.x(3, dtype="i8"), to="i32"), to="f32")), ["cast"]),
    ("where_constant", lambda n: n(n.where(n.c([True, True], "bool"), n.x(2), n.x(2, name="y"))), []),
    ("where_constant", lambda n: n(n.where(n.c(False, "bool"), n.x(2), n.x(2, name="y"))), []),
    ("broadcast_operand", lambda n: n(n.add(n.broadcast_to(n.x(3), shape=(2, 3)), n.x(2, 3, name="y"))), ["add"]),
    ("broadcast_operand", lambda n: n(n.prelu(n.x(2, 3), n.broadcast_to(n.x(1, name="y"), shape=(2, 3)))), ["prelu"]),
]


@pytest.mark.parametrize("name, build, expected", FIRES, ids=[f"{k}-{case[0]}" for k, case in enumerate(FIRES)])
def test_rule_fires_and_changes_no_bit(name: str, build: Build, expected: list[str]) -> None:
    before = net(build)
    after = apply_rule(RULES[name], before)
    assert after is not before
    assert op_names(after) == expected
    assert_same(before, after)


KEEPS_OFF: list[tuple[str, Build]] = [
    ("constant_right", lambda n: n(n.sub(n.c([2, 3, 4]), n.x(3)))),
    ("constant_right", lambda n: n(n.mul(n.x(3), n.c([2, 3, 4])))),
    ("times_one", lambda n: n(n.mul(n.x(3), n.c([1, 1, 2])))),
    ("times_one", lambda n: n(n.mul(n.x(3), n.c(np.ones((2, 3)))))),  # repeats x
    ("over_one", lambda n: n(n.div(n.c([1, 1, 1]), n.x(3)))),
    ("plus_zero", lambda n: n(n.add(n.x(3), n.c(0.0)))),  # -0.0 + 0.0 is 0.0
    ("plus_zero", lambda n: n(n.sub(n.x(3), n.c(-0.0)))),
    ("plus_zero", lambda n: n(n.sub(n.c([0, 0, 0]), n.x(3)))),
    ("small_power", lambda n: n(n.pow(n.x(3), n.c(0.5)))),
    ("small_power", lambda n: n(n.pow(n.x(3, dtype="f16"), n.c(3, "float16")))),
    ("over_power_of_two", lambda n: n(n.div(n.x(3), n.c(3.0)))),
    ("over_power_of_two", lambda n: n(n.div(n.x(3), n.c(2.0**127)))),  # the inverse is denormal
    ("over_power_of_two", lambda n: n(n.div(n.x(3), n.c(2.0**-149)))),  # the inverse is infinite
    ("over_power_of_two", lambda n: n(n.div(n.x(3), n.c(0.0)))),
    ("over_power_of_two", lambda n: n(n.div(n.x(3, dtype="i32"), n.c(4, "int32")))),
    ("integer_chain", lambda n: n(n.add(n.add(n.x(3), n.c(1.0)), n.c(2.0)))),
    ("relu_of_positive", lambda n: n(n.relu(n.abs(n.x(3, dtype="i8"))))),  # |-128| is -128
    ("clip_chain", lambda n: n(n.clip(n.clip(n.x(9), lo=3.0, hi=4.0), lo=0.0, hi=1.0))),
    ("cast_chain", lambda n: n(n.cast(n.cast(n.x(3), to="i32"), to="f32"))),
    ("cast_chain", lambda n: n(n.cast(n.cast(n.x(3, dtype="i8"), to="f32"), to="u8"))),  # saturates, would wrap
    ("where_constant", lambda n: n(n.where(n.c([True, False], "bool"), n.x(2), n.x(2, name="y")))),
    ("broadcast_operand", lambda n: n(n.add(n.broadcast_to(n.x(3), shape=(2, 3)), n.x(3, name="y")))),
    ("broadcast_operand", lambda n: n(n.prelu(n.broadcast_to(n.x(1), shape=(3,)), n.x(3, name="y")))),
]


@pytest.mark.parametrize("name, build", KEEPS_OFF, ids=[f"{k}-{case[0]}" for k, case in enumerate(KEEPS_OFF)])
def test_rule_keeps_off(name: str, build: Build) -> None:
    before = net(build)
    assert apply_rule(RULES[name], before) is before


def test_every_rule_has_a_case() -> None:
    assert {name for name, *_ in FIRES} == set(RULES)


def test_minus_zero_survives_a_sum_with_zero() -> None:
    n = Net()
    graph = n(n.add(n.x(1), n.c(0.0)))
    after = apply_rule(RULES["plus_zero"], graph)
    assert not np.signbit(run_graph(after, {"x": np.array([-0.0], np.float32)})["out0"]).any()


def _samples(name: str) -> np.ndarray:
    t = dtype_of(name)
    if t.kind == "b":
        return np.array([False, True])
    if t.is_float:
        numbers = [0.0, -0.0, 1.5, -2.75, 127, 255, 300, -300, 1e9, -1e9, 1e30, np.inf, -np.inf, np.nan, 1e-7]
        with np.errstate(all="ignore"):
            return np.array(numbers).astype(t.numpy)
    edges = [0, 1, t.max_value, t.min_value, int(t.max_value) // 3, int(t.min_value) // 3]
    return np.array(edges + [-1] * (t.kind == "i"), t.numpy)


def test_casts_that_pass_through_a_type_equal_the_direct_cast() -> None:
    joined = 0
    for a in ALL_DTYPES:
        for b in ALL_DTYPES:
            for c in ALL_DTYPES:
                ta, tb, tc = ALL_DTYPES[a], ALL_DTYPES[b], ALL_DTYPES[c]
                if passes_through(ta, tb, tc):
                    joined += 1
                    x = _samples(a)
                    with np.errstate(all="ignore"):
                        twice, once = convert(convert(x, tb), tc), convert(x, tc)
                    assert twice.tobytes() == once.tobytes() or (
                        tc.is_float and np.array_equal(twice.astype(float), once.astype(float), equal_nan=True)
                    ), (a, b, c)
    assert joined > 500
