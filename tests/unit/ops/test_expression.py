"""Operators in no table, as documents: read back they are the same, and whatever else a document says is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from mlc.define.te import combiner
from mlc.errors import DocumentError, UnsupportedError
from mlc.ir import te
from mlc.ir.expr import Expr, binary, call, cast, select, within
from mlc.ir.graph import FusionKind, Value
from mlc.ir.index import as_index, dynamic
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import TensorType, f32, i64
from mlc.ops.expression import expression_to_json, kept_inside, own_operator, read_expression

X, W = te.placeholder((6, 8), f32, "x"), te.placeholder((3, 8), f32, "w")
VALUES = [Value("x", TensorType((6, 8), f32)), Value("w", TensorType((3, 8), f32))]


def window() -> te.Compute:
    r, k = te.reduce_axis(3, "r"), te.reduce_axis(8, "k")
    inside = lambda i: within(i + r - 1, 0, 6)  # noqa: E731
    t = te.compute(
        (6, 4),
        lambda i, j: te.sum_of(
            select(inside(i), call("exp", X[i + r - 1, (k + j) % 8]) * W[r, k // 2 * 2 + k % 2], float("inf")),
            (r, k),
        ),
        "window",
    )
    assert t.op is not None
    return t.op


def document() -> dict[str, Any]:
    op = own_operator(window(), FusionKind.REDUCTION)
    found: dict[str, Any] = json.loads(json.dumps(expression_to_json(op, VALUES, {})))
    return found


def test_what_is_written_reads_back() -> None:
    read = read_expression(document(), "window", VALUES, "op")
    assert (read.kind, read.elementwise) == (FusionKind.REDUCTION, False)
    assert expression_to_json(read, VALUES, {}) == document()
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal(v.type.shape).astype(np.float32) for v in VALUES]
    assert read.express is not None
    ins = [te.placeholder(v.type.shape, f32, v.name) for v in VALUES]
    (ours,) = run_tensors(read.express(ins, {}), dict(zip(ins, feeds, strict=True)))
    (wanted,) = run_tensors(window().outputs, dict(zip([X, W], feeds, strict=True)))
    np.testing.assert_array_equal(ours, wanted)


def folded() -> te.Compute:
    times = combiner(lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]), (1.0, 0.0), "times")
    k = te.reduce_axis(8, "k")
    op = te.compute_many((6, 3), lambda i, j: times((X[i, k], W[j, k]), k), "turned")[0].op
    assert op is not None
    return op


def test_folds_of_ones_own_read_back() -> None:
    op = own_operator(folded(), FusionKind.REDUCTION)
    written = json.loads(json.dumps(expression_to_json(op, VALUES, {})))
    read = read_expression(written, "turned", VALUES, "op")
    assert expression_to_json(read, VALUES, {}) == written
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(v.type.shape).astype(np.float32) for v in VALUES)
    assert read.express is not None
    ins = [te.placeholder(v.type.shape, f32, v.name) for v in VALUES]
    real, imaginary = run_tensors(read.express(ins, {}), dict(zip(ins, (x, w), strict=True)))
    want = np.prod(x[:, None].astype(np.float64) + 1j * w[None].astype(np.float64), axis=2)
    np.testing.assert_allclose(real + 1j * imaginary, want, rtol=1e-4)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), 3, "op.fold"),
        (("name",), "sum", "op.fold: expected a fold of 2 values with a name of its own"),
        (("identity",), [1.0], "op.fold"),
        (("identity", 0), "1", "op.fold.identity[0]"),
        (("results",), [0], "op.fold"),
        (("terms",), [], "op.fold.results"),
        (("terms", 0), ["load", 4, []], "op.fold.terms[0]"),
        (("terms", 0), ["load", 0, [[0]]], "op.fold.terms[0]"),
        (("terms", 0), ["index", [0, [1, 0]], "i64"], "op.fold.terms[0]"),
        (("terms", -1), ["number", 1, "i64"], "op.fold"),
        (("more",), 1, "more"),
    ],
)
def test_what_is_no_fold_is_refused(path: tuple[Any, ...], value: Any, message: str) -> None:
    wrong = json.loads(json.dumps(expression_to_json(own_operator(folded(), FusionKind.REDUCTION), VALUES, {})))
    place, last = wrong, "fold"
    for key in path:
        place, last = place[last], key
    place[last] = value
    with pytest.raises(DocumentError) as raised:
        read_expression(wrong, "turned", VALUES, "op")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("kind",), "opaque", "op.kind: expected one of reduction"),
        (("fold",), "median", "op.fold"),
        (("fold",), "", "op.fold"),
        (("fold",), "argmax", "op"),
        (("axes", 0), ["i", 0], "op.axes[0]"),
        (("results", 0), 99, "op.results[0]"),
        (("terms", 0), ["load", 7, [[0], [0]]], "op.terms[0]"),
        (("terms", 0), ["load", 0, [[0]]], "op.terms[0]: x has 2 axes"),
        (("terms", 0), ["exp", 5], "op.terms[0]: expected the number of one of the 0 terms before it"),
        (("terms", 0), ["exec", 0], "op.terms[0]"),
        (("terms", 0), ["number", "1", "f32"], "op.terms[0]: expected a number"),
        (("terms", 0), ["number", 1, "f31"], "op.terms[0]: expected an element type"),
        (("terms", 0), ["inside", [0, [1, ["//", [0], 0]]], 0, 1], "op.terms[0]"),
        (("terms", 0), ["inside", [0, [1, 17]], 0, 1], "op.terms[0]"),
        (("extra",), 1, "extra"),
    ],
)
def test_what_is_no_expression_is_refused(path: tuple[Any, ...], value: Any, message: str) -> None:
    wrong = copy.deepcopy(document())
    *outer, last = path
    place = wrong
    for key in outer:
        place = place[key]
    place[last] = value
    with pytest.raises(DocumentError) as raised:
        read_expression(wrong, "window", VALUES, "op")
    assert message in str(raised.value)


def reads(body: Expr) -> str:
    return repr(kept_inside(body))


def test_nothing_reads_beyond_a_tensor_whatever_conditions_say() -> None:
    i = as_index(te.axis(9, "i"))
    assert reads(X[i - 1, 0]).startswith("select(0 <= i - 1 < 6, x[i - 1, 0], ")
    good = select(within(i - 1, 0, 6), X[i - 1, 0], 0.0)
    assert kept_inside(good) is good
    other = select(within(i, 0, 6), X[i - 1, 0], 0.0)
    assert reads(other).count("select") == 2
    swapped = select(within(i - 1, 0, 6), 0.0 * X[0, 0], X[i - 1, 0])
    assert reads(swapped).count("select") == 2
    both = binary("add", good, X[i - 1, 0])
    assert reads(both).count("select") == 2


def test_what_no_document_can_hold() -> None:
    at = te.compute((4,), lambda i: X[dynamic(cast(W[0, i], i64), 0, 5), 0], "at")
    assert at.op is not None
    with pytest.raises(UnsupportedError, match="depends on data"):
        expression_to_json(own_operator(at.op, FusionKind.INJECTIVE), [VALUES[1], VALUES[0]], {})
