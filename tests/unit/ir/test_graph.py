"""The graph: growing one, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.graph import Attrs, Builder, FusionKind, Graph, Node, Operator, Value, express, fill_attrs, verify
from mlc.ir.layout import blocked
from mlc.ir.loop import NOTHING
from mlc.ir.types import TensorType, f32, i32

T = TensorType((2, 3), f32)


def _same(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    return [types[0]]


def _express(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    (x,) = inputs
    return [te.compute(x.shape, lambda *ix: x[ix] * attrs["by"], "scaled")]


SCALE = Operator("scale", FusionKind.INJECTIVE, _same, _express, elementwise=True, attrs={"by": 2.0, "at": ...})
SORT = Operator("sort", FusionKind.OPAQUE, _same, routine=lambda i, o, a: NOTHING)


def scaled() -> tuple[Builder, Value]:
    b = Builder("g")
    x = b.input("x", T)
    (y,) = b.add(SCALE, [x], {"at": 1}, names=["y"], sources=["Scale_0"])
    return b, y


def test_graph_prints_as_a_function() -> None:
    b, y = scaled()
    w = b.constant(np.array([1.5], np.float32), "w")
    (z,) = b.add(SCALE, [y], {"at": 0, "by": 3.0})
    assert repr(b.finish([z, w], ["out", "w"])) == (
        "@graph g(%x: f32[2,3]) -> (f32[2,3], f32[1]):\n"
        "  %w: const f32[1] = 1.5\n"
        "  %y: f32[2,3] = scale(%x, at=1)  # Scale_0\n"
        "  %scale: f32[2,3] = scale(%y, by=3.0, at=0)\n"
        "  return %scale, %w"
    )


def test_names_stay_unique() -> None:
    b = Builder()
    names = [b.input("x", T).name for _ in range(3)]
    assert names == ["x", "x.1", "x.2"]
    assert b.input("x.1", T).name == "x.1.1"


def test_outputs_are_named_after_their_values() -> None:
    b, y = scaled()
    assert b.finish([y]).output_names == ("y",)


def test_producers_and_consumers() -> None:
    b, y = scaled()
    (z,) = b.add(SCALE, [y], {"at": 0})
    g = b.finish([z])
    first, second = g.nodes
    assert g.producers() == {y: first, z: second}
    assert g.consumers() == {g.inputs[0]: [first], y: [second]}


def test_attributes_are_filled_in() -> None:
    assert fill_attrs(SCALE, {"at": 3}) == {"by": 2.0, "at": 3}


def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(VerifyError, match="scale has no attribute a, b"):
        fill_attrs(SCALE, {"b": 1, "a": 2, "at": 0})


def test_missing_attribute_is_refused() -> None:
    with pytest.raises(VerifyError, match="scale needs attribute at"):
        fill_attrs(SCALE, {})


def test_opaque_operators_have_no_expression() -> None:
    b = Builder()
    (y,) = b.add(SORT, [b.input("x", T)])
    with pytest.raises(VerifyError, match="sort is opaque: it has no tensor expression"):
        express(b.finish([y]).nodes[0], [te.placeholder((2, 3), f32)])


def test_good_graphs_pass() -> None:
    b, y = scaled()
    packed = blocked((3, 3), 0, 2)
    array = np.zeros((3, 3), np.float32)
    g = b.finish([y, b.inputs[0], y])
    w = Value("w", TensorType((3, 3), f32, packed))
    verify(replace(g, constants={w: packed.pack(array)}))


def _change_node(g: Graph, **fields: object) -> Graph:
    (n,) = g.nodes
    old = {k: getattr(n, k) for k in ("op", "inputs", "attrs", "outputs", "sources")}
    return replace(g, nodes=(Node(**{**old, **fields}),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda g: replace(g, inputs=(*g.inputs, Value("x", T))), "two values are called 'x'"),
        (
            lambda g: replace(g, constants={Value("c", T): np.zeros((2, 3))}),
            r"constant c: is float64\(2, 3\), typed f32\[2,3\]",
        ),
        (
            lambda g: replace(g, constants={Value("c", T): np.zeros((3, 2), np.float32)}),
            r"constant c: is float32\(3, 2\), typed f32\[2,3\]",
        ),
        (lambda g: _change_node(g, inputs=(Value("late", T),)), "late is used before it is made"),
        (lambda g: _change_node(g, attrs={"by": 1.0}), "scale needs attribute at"),
        (lambda g: _change_node(g, outputs=(*g.nodes[0].outputs, Value("z", T))), "2 outputs, the operator gives 1"),
        (
            lambda g: _change_node(g, outputs=(Value("y", TensorType((2, 3), i32)),)),
            r"y is typed i32\[2,3\], the operator gives f32\[2,3\]",
        ),
        (lambda g: _change_node(g, outputs=(Value("x", T),)), "x is made twice"),
        (lambda g: replace(g, outputs=(Value("gone", T),)), "output gone is never made"),
        (lambda g: replace(g, output_names=("a", "b")), "1 outputs but 2 names"),
    ],
)
def test_bad_graphs_are_refused(spoil: Callable[[Graph], Graph], message: str) -> None:
    b, y = scaled()
    with pytest.raises(VerifyError, match=message):
        verify(spoil(b.finish([y])))
