"""Building graphs in one line, and comparing what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.ir.graph import Builder, Graph, Value, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, dtype_of, f32
from mlc.ops import get
from mlc.rewrite.pattern import Rule, RuleSet, apply_rules


class Net:
    """A builder with short words: ``y = n.relu(x)`` applies an operator, ``n(y)`` finishes the graph.

    An operator whose name is a word of Python takes an underscore: ``n.not_(x)``.
    """

    def __init__(self) -> None:
        self.builder = Builder()

    def __getattr__(self, name: str) -> Any:
        op = get(name.rstrip("_"))

        def apply(*inputs: Value, sources: Sequence[str] = (), **attrs: Any) -> Value:
            return self.builder.add(op, inputs, attrs, sources=sources)[0]

        return apply

    def x(self, *shape: int, dtype: Any = f32, name: str = "x") -> Value:
        """An input."""
        return self.builder.input(name, TensorType(shape, dtype_of(dtype)))

    def c(self, array: Any, dtype: Any = "float32") -> Value:
        """A constant."""
        return self.builder.constant(np.asarray(array, dtype))

    def w(self, *shape: int, seed: int = 0, dtype: Any = "float32") -> Value:
        """A constant of small whole eighths: sums and products of a few are exact."""
        values = np.random.default_rng(seed).integers(-8, 9, shape) / 8
        return self.builder.constant(values.astype(dtype))

    def __call__(self, *outputs: Value) -> Graph:
        graph = self.builder.finish(outputs, [f"out{k}" for k in range(len(outputs))])
        verify(graph)
        return graph


def inputs_of(graph: Graph, seed: int = 1) -> dict[str, np.ndarray]:
    """Random values for every input: whole numbers and halves, negative ones and zeros among them."""
    rng = np.random.default_rng(seed)
    out = {}
    for v in graph.inputs:
        values = rng.integers(-6, 7, v.type.shape)
        if v.type.dtype.kind == "b":
            out[v.name] = values > 0
        else:
            scaled = values / 2 if v.type.dtype.is_float else np.abs(values) if v.type.dtype.kind == "u" else values
            out[v.name] = np.asarray(scaled).astype(v.type.dtype.numpy)
    return out


def assert_same(before: Graph, after: Graph, *, rtol: float = 0.0, atol: float = 0.0, seed: int = 1) -> None:
    """Both graphs verify and give equal outputs of equal types under equal names."""
    verify(after)
    given = inputs_of(before, seed)
    a, b = run_graph(before, given), run_graph(after, given)
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].shape == b[name].shape
        np.testing.assert_allclose(
            b[name].astype(np.float64), a[name].astype(np.float64), rtol=rtol, atol=atol, err_msg=name
        )


def op_names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def apply_rule(rule: Rule, graph: Graph) -> Graph:
    return apply_rules(graph, RuleSet([rule]))


def find_rule(rules: RuleSet, name: str) -> Rule:
    return next(r for r in rules.rules if r.name == name)
