"""The table of templates: what an expression does decides, not what it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads
from mlc.ir.graph import Attrs, Builder, FusionKind, Graph, Node, Operator, Value
from mlc.ir.index import Linear, as_index
from mlc.ir.interp.loop import run_function
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.rewrite.fuse import fuse
from mlc.settings import CompileOptions, Observer
from mlc.targets.cpu.schedules.templates import TEMPLATES
from mlc.targets.groups.group import group_of
from mlc.targets.groups.template import template_for
from mlc.targets.x86.record import record_for
from mlc.targets.x86.target import X86Target

TARGET = X86Target(record_for("haswell"), native=False)
PREFIX = "nameless_"

Apply = Callable[[Builder, str, Sequence[Value], Attrs], Value]


def named(b: Builder, name: str, inputs: Sequence[Value], attrs: Attrs) -> Value:
    """A core operator."""
    return b.add(get(name), inputs, attrs)[0]


def nameless(b: Builder, name: str, inputs: Sequence[Value], attrs: Attrs) -> Value:
    """A user's operator of the same meaning: other names, and neither tags nor facts."""
    core = get(name)
    user = Operator(f"user_{name}", core.kind, core.infer, lambda xs, a: without_tags(core, xs, a), attrs=core.attrs)
    return b.add(user, inputs, attrs)[0]


def without_tags(core: Operator, inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    assert core.express is not None
    outputs = core.express(inputs, attrs)
    new: dict[te.Tensor, te.Tensor] = {}

    def swap(ld: Load) -> Expr:
        return Load(new.get(ld.source, ld.source), ld.indices)

    for op in te.topological(outputs):
        bodies = tuple(replace_loads(body, swap) for body in op.bodies)
        fresh = te.Compute(PREFIX + op.name, op.axes, op.reduce_axes, bodies, op.combiner)
        new.update(zip(op.outputs, te.finish(fresh), strict=True))
    return [new[t] for t in outputs]


def constant(b: Builder, name: str, *shape: int) -> Value:
    return b.constant(np.random.default_rng(0).standard_normal(shape).astype(np.float32), name)


def window(stride: int = 1, pad: int = 1, rank: int = 2, **more: object) -> dict[str, object]:
    return {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (1,) * rank, **more}


def blocked_input(b: Builder, channels: int = 24) -> Value:
    x = b.input("x", TensorType((1, 8, 14, 14), f32))
    return named(b, "conv", [x, constant(b, "w0", channels, 8, 3, 3)], window())


def convolution(b: Builder, apply: Apply) -> Value:
    return apply(b, "conv", [blocked_input(b), constant(b, "w", 32, 24, 3, 3)], window())


def single_pixels(b: Builder, apply: Apply) -> Value:
    return apply(b, "conv", [blocked_input(b), constant(b, "w", 40, 24, 1, 1)], window(2, 0))


def grouped(b: Builder, apply: Apply) -> Value:
    x = b.input("x", TensorType((1, 24, 9, 9), f32))
    return apply(b, "conv", [x, constant(b, "w", 36, 8, 3, 3)], window(groups=3))


def depthwise(b: Builder, apply: Apply) -> Value:
    return apply(b, "conv", [blocked_input(b), constant(b, "w", 24, 1, 3, 3)], window(groups=24))


def multiplied(b: Builder, apply: Apply) -> Value:
    x = b.input("x", TensorType((1, 12, 9, 30), f32))
    return apply(b, "conv", [x, constant(b, "w", 24, 1, 5, 5)], window(2, 2, groups=12))


def greatest(b: Builder, apply: Apply) -> Value:
    return apply(b, "max_pool", [blocked_input(b)], window(2, 1, kernel=(3, 3)))


def mean(b: Builder, apply: Apply) -> Value:
    x = b.input("x", TensorType((1, 6, 30, 31), f32))
    return apply(b, "avg_pool", [x], window(2, 0, kernel=(2, 2)))


def transposed_convolution(b: Builder, apply: Apply) -> Value:
    attrs = window(2, 1, output_shape=(27, 27))
    return apply(b, "conv_transpose", [blocked_input(b), constant(b, "w", 24, 16, 4, 4)], attrs)


def product(b: Builder, apply: Apply) -> Value:
    x = b.input("x", TensorType((20, 48), f32))
    return apply(b, "matmul", [x, constant(b, "w", 48, 40)], {})


def product_of_activations(b: Builder, apply: Apply) -> Value:
    x, y = (b.input(n, TensorType((3, 20, 48), f32)) for n in ("x", "y"))
    return apply(b, "matmul", [x, y], {"transpose_b": True})


def attention(b: Builder, apply: Apply) -> Value:
    q, k, v = (b.input(n, TensorType((2, rows, 16), f32)) for n, rows in (("q", 40), ("k", 24), ("v", 24)))
    return apply(b, "attention", [q, k, v], {"scale": 0.25})


def winograd(b: Builder, apply: Apply) -> Value:
    u = constant(b, "u", 6, 6, 24, 16)
    return apply(b, "conv_winograd", [blocked_input(b), u], {"pads": (1, 1, 1, 1), "tile": 4})


def rows(b: Builder, apply: Apply) -> Value:
    return apply(b, "softmax", [b.input("x", TensorType((12, 70), f32))], {"axis": 1})


CASES = {
    "convolution": (convolution, single_pixels, grouped),
    "window": (depthwise, multiplied, greatest, mean),
    "transposed convolution": (transposed_convolution,),
    "matrix product": (product, product_of_activations),
    "attention": (attention,),
    "Winograd convolution": (winograd,),
    "reduction": (rows,),
}
EACH = [(name, case) for name, cases in CASES.items() for case in cases]


def compiled(case: Callable[[Builder, Apply], Value], apply: Apply) -> tuple[Graph, list[str]]:
    """The graph with layouts, and the loops of its kernels."""
    b = Builder("g")
    y = case(b, apply)
    (part,) = parts_of(fuse(b.finish([y])), TARGET)
    graph = lay_out(part, CompileOptions("m", "test", ""), Observer())
    return graph, [repr(TARGET.kernel(n, "k")).replace(PREFIX, "") for n in graph.nodes]


def template_of(node: Node) -> str:
    g = group_of(node, Knobs())
    return template_for(g, TEMPLATES, TARGET.record).name


@pytest.mark.parametrize("name, case", EACH, ids=[case.__name__ for _, case in EACH])
def test_what_expressions_do_decides_their_loops(name: str, case: Callable[[Builder, Apply], Value]) -> None:
    core, expected = compiled(case, named)
    user, found = compiled(case, nameless)
    of_user = [n for n in user.nodes if "user_" in str(n.attrs.get("body", ""))]
    assert [template_of(n) for n in of_user] == [name]
    assert name in {template_of(n) for n in core.nodes}
    assert found == expected


def user_product(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``sum(y[k, j] * d[i, j])``, the gradient of a product by its left operand, right operand first."""
    y, d = inputs
    j = te.reduce_axis(y.shape[1], "j")
    return [te.compute((d.shape[0], y.shape[0]), lambda i, k: te.sum_of(y[k, j] * d[i, j], j), "dx")]


def user_convolution(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """A convolution with its weights first, taps before channels."""
    x, w = inputs
    c, r, s = (te.reduce_axis(w.shape[d], n) for d, n in ((1, "c"), (2, "r"), (3, "s")))
    shape = (x.shape[0], w.shape[0], x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1)

    def element(n: Linear, o: Linear, i: Linear, j: Linear) -> te.Reduction:
        return te.sum_of(w[o, c, r, s] * x[n, c, i + as_index(r), j + as_index(s)], (s, c, r))

    return [te.compute(shape, element, "mine")]


@pytest.mark.parametrize(
    "express, shapes, name",
    [
        (user_product, ((40, 48), (20, 48)), "matrix product"),
        (user_convolution, ((1, 8, 12, 12), (16, 8, 3, 3)), "convolution"),
    ],
)
def test_other_spellings_meet_the_fast_schedules(
    express: Callable[..., list[te.Tensor]], shapes: tuple[tuple[int, ...], ...], name: str
) -> None:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
        tensors = [te.placeholder(t.shape, t.dtype) for t in types]
        return [TensorType(express(tensors, attrs)[0].shape, f32)]

    b = Builder("g")
    arrays = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)]
    x = b.input("x", TensorType(shapes[0], f32))
    y = b.input("y", TensorType(shapes[1], f32))
    (z,) = b.add(Operator("mine", FusionKind.COMPLEX, infer, express), [x, y])
    (node,) = fuse(b.finish([z])).nodes
    assert template_of(node) == name
    out = np.full(z.type.shape, np.nan, np.float32)
    run_function(TARGET.kernel(node, "k"), [*arrays, out])
    if name == "matrix product":
        wanted = arrays[1] @ arrays[0].T
    else:
        views = np.lib.stride_tricks.sliding_window_view(arrays[0], (3, 3), (2, 3))
        wanted = np.einsum("ncijrs,ocrs->noij", views, arrays[1])
    np.testing.assert_allclose(out, wanted, atol=1e-4)
