"""Products of integers as products of bytes by signed bytes: the same numbers, whatever the operands were."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.interp import run_graph
from mlc.ir.types import DType, TensorType, dtype_of, i8, u8
from mlc.ops import get
from mlc.rewrite.bytes import use_bytes

RNG = np.random.default_rng(3)


def integers(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(max(info.min, -300), min(info.max, 300), shape, endpoint=True).astype(dtype)


def build(op: str, x: np.ndarray, w: np.ndarray, zero: int | None = None, **attrs: object) -> Graph:
    """A product, as the importers of ConvInteger and MatMulInteger write it."""
    b = Builder("net")
    v: Value = b.input("x", TensorType(x.shape, dtype_of(x.dtype)))

    def add(name: str, *inputs: Value, **attrs: object) -> Value:
        return b.add(get(name), list(inputs), attrs, names=[name])[0]

    if zero is not None:
        v = add("sub", add("cast", v, to="i16"), b.constant(np.asarray(zero, np.int16), "z"))
    return b.finish([add(op, v, b.constant(w, "w"), **attrs)])


CONV = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 1)}


@pytest.mark.parametrize("wanted", [u8, i8])
@pytest.mark.parametrize("zero", [None, 0, 1, 255])
def test_unsigned_data(zero, wanted):
    x, w = integers((2, 3, 5, 6), np.uint8), integers((4, 3, 3, 3), np.int8).astype(np.int16)
    check(build("conv", x, w, zero, **CONV), x, wanted)


@pytest.mark.parametrize("wanted", [u8, i8])
@pytest.mark.parametrize("zero", [None, -128, 0, 127])
def test_signed_data(zero, wanted):
    x, w = integers((2, 4, 5, 6), np.int8), integers((6, 2, 3, 3), np.int8)
    check(build("conv", x, w, zero, groups=2, **CONV), x, wanted)
    m = integers((3, 7), np.int8)
    for transposed in (False, True):
        w = integers((5, 7) if transposed else (7, 5), np.int8)
        check(build("matmul", m, w, zero, transpose_b=transposed), m, wanted)


def test_bytes_moved_after_their_zero_point_is_gone():
    x, w = integers((4, 3, 7), np.int8), integers((7, 5), np.int8)
    b = Builder("net")
    v: Value = b.input("x", TensorType(x.shape, i8))
    for op, attrs in (("cast", {"to": "i16"}), ("sub", {}), ("transpose", {"perm": (1, 0, 2)}),
                      ("reshape", {"shape": (12, 7)}), ("matmul", {})):  # fmt: skip
        more = {"sub": [np.asarray(-9, np.int16)], "matmul": [w]}.get(op, [])
        (v,) = b.add(get(op), [v, *(b.constant(a, "w") for a in more)], attrs, names=[op])
    check(b.finish([v]), x, u8)


def test_what_is_no_product_of_bytes_stays():
    x = integers((3, 7), np.uint8)
    wide = np.full((7, 5), 128, np.int16)
    check(build("matmul", x, wide), x, None)
    check(build("matmul", x, integers((3, 5), np.int8), 1, transpose_a=True), x, None)
    x16 = integers((3, 7), np.int16)
    check(build("matmul", x16, integers((7, 5), np.int8)), x16, None)
    graph = build("matmul", x, integers((7, 5), np.int8))
    assert use_bytes(graph) is graph
    assert use_bytes(graph, i8) is not graph


def check(graph: Graph, x: np.ndarray, wanted: DType | None) -> None:
    made = use_bytes(graph, wanted or u8)
    (product,) = (n for n in made.nodes if n.op.name in ("conv", "matmul"))
    assert ([v.type.dtype for v in product.inputs] == [wanted, i8]) == (wanted is not None)
    (before,), (after,) = run_graph(graph, {"x": x}).values(), run_graph(made, {"x": x}).values()
    np.testing.assert_array_equal(before, after)
