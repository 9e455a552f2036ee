"""The language of patterns, matching, and rule sets."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.ir.graph import Value
from mlc.rewrite.pattern import (
    AnyValue,
    Call,
    Literal,
    Match,
    Rule,
    RuleSet,
    apply_rules,
    match,
    parse_pattern,
    rule,
    scalar_of,
)  # fmt: skip
from mlc.rewrite.rewriter import Rewriter
from tests.unit.rewrite.helpers import Net, assert_same, op_names


def test_a_pattern_is_read() -> None:
    read = parse_pattern("add(y=conv|matmul!(x, #w, …), -1.5e-3)")
    inner = Call(("conv", "matmul"), (AnyValue("x"), AnyValue("w", constant=True)), rest=True, once=True, label="y")
    assert read == Call(("add",), (inner, Literal(-1.5e-3)))


@pytest.mark.parametrize(
    "text, message",
    [
        ("x", "one application is wanted"),
        ("relu(x", r", expected, found the end"),
        ("relu(x y)", r", expected, found y"),
        ("relu(x))", "one application is wanted"),
        ("a|b", r"operands of a\|b are missing"),
        ("relu(y=x)", "operands of x are missing"),
        ("relu(x!)", "operands of x are missing"),
        ("relu(?)", r"cannot read '\?\)'"),
        ("", "more expected, found the end"),
    ],
)
def test_a_malformed_pattern_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_pattern(text)


def matches(text: str, n: Net, *outputs: Value) -> list[Match]:
    graph = n(*outputs)
    rw = Rewriter(graph)
    for node in graph.nodes:
        rw.visit(node, lambda _, __: None)
    return list(match(parse_pattern(text), graph.nodes[-1], rw))


def test_commutative_operands_match_in_either_order() -> None:
    n = Net()
    x = n.x(3)
    e = n.exp(x)
    (found,) = matches("mul(a, exp(b))", n, n.mul(e, n.x(3, name="y")))
    assert found["a"].name == "y"
    assert found["b"] is x


def test_operands_of_other_operators_keep_their_order() -> None:
    n = Net()
    x = n.x(3)
    assert not matches("sub(a, exp(b))", n, n.sub(n.exp(x), x))


def test_a_name_used_twice_meets_one_value() -> None:
    n = Net()
    x, y = n.x(3), n.x(3, name="y")
    assert matches("mul(x, sigmoid(x))", n, n.mul(x, n.sigmoid(x)))
    n = Net()
    x, y = n.x(3), n.x(3, name="y")
    assert not matches("mul(x, sigmoid(x))", n, n.mul(y, n.sigmoid(x)))


def test_once_refuses_what_is_read_elsewhere() -> None:
    n = Net()
    e = n.exp(n.x(3))
    assert not matches("relu(exp!(x))", n, e, n.relu(e))
    n = Net()
    assert matches("relu(exp!(x))", n, n.relu(n.exp(n.x(3))))


def test_literals_take_what_half_precision_makes_of_them() -> None:
    n = Net()
    assert matches("mul(x, 0.044715)", n, n.mul(n.x(3, dtype="f16"), n.c([0.044715], "float16")))
    n = Net()
    assert not matches("mul(x, 0.044715)", n, n.mul(n.x(3), n.c(0.045)))
    n = Net()
    assert not matches("mul(x, 0)", n, n.mul(n.x(3), n.c([0.0, 0.0, 0.0])))


def test_the_wrong_number_of_operands_does_not_match() -> None:
    n = Net()
    assert not matches("concat(x)", n, n.concat(n.x(3), n.x(3), axis=0))
    n = Net()
    assert matches("concat(x, …)", n, n.concat(n.x(3), n.x(3), axis=0))


def test_scalar_of_looks_at_constants_of_one_element_only() -> None:
    n = Net()
    one, two, x = n.c([[5.0]]), n.c([5.0, 5.0]), n.x(1)
    rw = Rewriter(n(n.add(n.add(x, one), two)))
    assert [scalar_of(rw, v) for v in (one, two, x)] == [5.0, None, None]


def test_two_rules_of_one_name_are_refused() -> None:
    r = Rule("same", ("relu(x)",), lambda rw, m: None, "")
    with pytest.raises(UsageError, match="two rewriting rules are called 'same'"):
        RuleSet([r, r])


def test_a_rule_set_that_goes_on_for_ever_is_stopped() -> None:
    from mlc.ops import get

    @rule("ping", "sin(x)")
    def ping(rw: Rewriter, m: Match) -> Value:
        return rw.emit(get("cos"), (m["x"],))

    @rule("pong", "cos(x)")
    def pong(rw: Rewriter, m: Match) -> Value:
        return rw.emit(get("sin"), (m["x"],))

    n = Net()
    assert len(apply_rules(n(n.sin(n.x(2))), RuleSet([ping, pong])).nodes) == 1


def test_rules_simplify_what_other_rules_make() -> None:
    from mlc.rewrite.algebra import RULES

    n = Net()
    x = n.x(2, 3)
    y = n.transpose(n.mul(n.transpose(n.neg(n.neg(x)), perm=(1, 0)), n.c(np.ones((3, 2)))), perm=(1, 0))
    before = n(n.relu(n.relu(y)))
    after = apply_rules(before, RULES)
    assert op_names(after) == ["relu"]
    assert_same(before, after)
