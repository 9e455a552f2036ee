"""Gradients of tensor expressions, against differences, and as people would write them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc.define.te import combiner
from mlc.ir import te
from mlc.ir.expr import binary, call, cast, select
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import f32, f64, i64
from mlc.ops import get
from mlc.training.autodiff.expression import gradients
from tests.fuzz import examples
from tests.unit.training.autodiff.networks import network

STEP = 1e-6


def agrees(placeholders: list[te.Tensor], results: list[te.Tensor], rng: np.random.Generator) -> None:
    """Compares the derivative along a random direction with a difference, of a random sum of all results."""
    x = {t: rng.standard_normal(t.shape) for t in placeholders}
    along = {t: rng.standard_normal(t.shape) for t in placeholders}
    weights = [rng.standard_normal(t.shape) for t in results]
    seeds = [te.placeholder(t.shape, f64, f"d{t.name}") for t in results]

    def total(step: float) -> float:
        values = run_tensors(results, {t: a + step * along[t] for t, a in x.items()})
        return sum(float((a * w).sum()) for a, w in zip(values, weights, strict=True))

    found = gradients(results, seeds, placeholders)
    te.verify([t for t in found if t is not None])
    wanted = [k for k, t in enumerate(found) if t is not None]
    values = run_tensors([found[k] for k in wanted], x | dict(zip(seeds, weights, strict=True)))  # type: ignore[misc]
    got = sum(float((along[placeholders[k]] * a).sum()) for k, a in zip(wanted, values, strict=True))
    want = (total(STEP) - total(-STEP)) / (2 * STEP)
    size = sum(float(np.abs(along[placeholders[k]] * a).sum()) for k, a in zip(wanted, values, strict=True))
    assert got == pytest.approx(want, rel=1e-5, abs=1e-6 * (1 + size))


def agrees_with_pytorch(placeholders: list[te.Tensor], results: list[te.Tensor], rng: np.random.Generator) -> None:
    """Compares every element of every derivative with PyTorch's, of a random sum of all results."""
    torch = pytest.importorskip("torch")
    from tests.unit.training.autodiff.torch_tensors import torch_tensors

    x = {t: rng.standard_normal(t.shape) for t in placeholders}
    weights = [rng.standard_normal(t.shape) for t in results]
    theirs = {t: torch.tensor(a, requires_grad=True) for t, a in x.items()}
    values = torch_tensors(results, theirs)
    total = sum((torch.from_numpy(w) * v).sum() for w, v in zip(weights, values, strict=True))
    want = torch.autograd.grad(total, list(theirs.values()), allow_unused=True) if total.requires_grad else []
    seeds = [te.placeholder(t.shape, f64, f"d{t.name}") for t in results]
    found = gradients(results, seeds, placeholders)
    wanted = [k for k, t in enumerate(found) if t is not None]
    given = x | dict(zip(seeds, weights, strict=True))
    got = dict(zip(wanted, run_tensors([found[k] for k in wanted], given), strict=True))  # type: ignore[misc]
    for k, (t, theirs_) in enumerate(zip(placeholders, want, strict=bool(want))):
        ours = got.get(k, np.zeros(t.shape))
        expected = np.zeros(t.shape) if theirs_ is None else theirs_.numpy()
        np.testing.assert_allclose(ours, expected, rtol=1e-8, atol=1e-10, err_msg=t.name)


@given(seed=st.integers(0, 1 << 30))
@examples(60)
def test_random_expressions(seed: int) -> None:
    placeholders, results = network(Random(seed))
    agrees(placeholders, results, np.random.default_rng(seed))
    agrees_with_pytorch(placeholders, results, np.random.default_rng(seed))


@pytest.mark.slow
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=2000)
def test_two_thousand_random_expressions(seed: int) -> None:
    placeholders, results = network(Random(seed))
    agrees(placeholders, results, np.random.default_rng(seed))
    agrees_with_pytorch(placeholders, results, np.random.default_rng(seed))


def printed(found: list[te.Tensor | None]) -> str:
    return "\n".join("\n".join(map(str, te.topological([t]))) for t in found if t is not None) + "\n"


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution(golden: Callable[[str], None], stride: int) -> None:
    x, w = te.placeholder((2, 4, 9, 9), f32, "x"), te.placeholder((6, 4, 3, 3), f32, "w")
    attrs = {"strides": (stride, stride), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    golden(printed(gradients([y], [te.placeholder(y.shape, f32, "dy")], [x, w])))


def capsules(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """A convolution of 4×4 matrices: ``y[n, o, h, w] = sum(x[n, c, h + r, w + s] @ w[o, c, r, s])``."""
    n, c, height, width, p, _ = x.shape
    o, _, taps, _, _, q = w.shape
    k, r, s, j = (te.reduce_axis(e, name) for e, name in ((c, "c"), (taps, "r"), (taps, "s"), (p, "j")))
    return te.compute(
        (n, o, height - taps + 1, width - taps + 1, p, q),
        lambda b, m, a, d, i, l: te.sum_of(x[b, k, a + r, d + s, i, j] * w[m, k, r, s, j, l], (k, r, s, j)),
        "y",
        axis_names=["n", "o", "h", "w", "i", "l"],
    )


def test_capsule_convolution(golden: Callable[[str], None]) -> None:
    x, w = te.placeholder((1, 2, 5, 5, 4, 4), f64, "x"), te.placeholder((3, 2, 3, 3, 4, 4), f64, "w")
    y = capsules(x, w)
    dy = te.placeholder(y.shape, f64, "dy")
    found = gradients([y], [dy], [x, w])
    golden(printed(found))
    rng = np.random.default_rng(0)
    at = {t: rng.standard_normal(t.shape) for t in (x, w, dy)}
    dx, dw = run_tensors(found, at)  # type: ignore[arg-type]
    # by hand: the patch under every tap times the other operand's matrix, transposed
    want_x, want_w = np.zeros(x.shape), np.zeros(w.shape)
    for r in range(3):
        for s in range(3):
            patch = at[x][:, :, r : r + 3, s : s + 3]
            want_w[:, :, r, s] = np.einsum("nchwij,nohwil->ocjl", patch, at[dy])
            want_x[:, :, r : r + 3, s : s + 3] += np.einsum("nohwil,ocjl->nchwij", at[dy], at[w][:, :, r, s])
    np.testing.assert_allclose(dx, want_x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dw, want_w, rtol=1e-12, atol=1e-12)


def test_the_first_of_equal_elements_receives_all() -> None:
    x = te.placeholder((2, 3), f64, "x")
    r = te.reduce_axis(3, "r")
    y = te.compute((2,), lambda i: te.max_of(x[i, r], r), "y")
    dy = te.placeholder((2,), f64, "dy")
    (dx,) = gradients([y], [dy], [x])
    assert dx is not None
    (got,) = run_tensors([dx], {x: np.array([[1.0, 4.0, 4.0], [2.0, 2.0, 2.0]]), dy: np.array([3.0, 5.0])})
    np.testing.assert_array_equal(got, [[0, 3, 0], [5, 0, 0]])


def test_a_product_with_zeros() -> None:
    x = te.placeholder((4,), f64, "x")
    r = te.reduce_axis(4, "r")
    y = te.compute((1,), lambda i: te.prod_of(x[r], r), "y")
    dy = te.placeholder((1,), f64, "dy")
    (dx,) = gradients([y], [dy], [x])
    assert dx is not None
    (got,) = run_tensors([dx], {x: np.array([2.0, 0.0, 3.0, 5.0]), dy: np.array([1.0])})
    np.testing.assert_array_equal(got, [0, 30, 0, 0])


def test_rows_chosen_at_run_time_receive_what_is_read_of_them() -> None:
    table, rows = te.placeholder((5, 2), f64, "table"), te.placeholder((3,), i64, "rows")
    (y,) = get("gather").express([table, rows], {"axis": 0})  # type: ignore[misc]
    dy = te.placeholder(y.shape, f64, "dy")
    (found,) = gradients([y], [dy], [table])
    assert found is not None
    (got,) = run_tensors([found], {rows: np.array([4, 1, 4]), dy: np.arange(6.0).reshape(3, 2)})
    np.testing.assert_array_equal(got, [[0, 0], [2, 3], [0, 0], [0, 0], [4, 6]])


def test_steps_and_integers_receive_nothing() -> None:
    x, k = te.placeholder((3,), f32, "x"), te.placeholder((3,), i64, "k")
    y = te.compute((3,), lambda i: call("floor", x[i]) + cast(cast(x[i], i64) + k[i], f32), "y")
    assert gradients([y], [te.placeholder((3,), f32, "dy")], [x]) == [None]


def test_a_fold_of_ones_own() -> None:
    x, r = te.placeholder((3,), f64, "x"), te.reduce_axis(3, "r")
    norm = combiner(lambda a, b: call("sqrt", a * a + b * b), 0.0, "norm")
    y = te.compute((1,), lambda i: norm(x[r], r), "y")
    dy = te.placeholder((1,), f64, "dy")
    (dx,) = gradients([y], [dy], [x])
    assert dx is not None
    (got,) = run_tensors([dx], {x: np.array([3.0, 0.0, -4.0]), dy: np.array([10.0])})
    np.testing.assert_allclose(got, [6, 0, -8])


@pytest.mark.parametrize("wanted", [(0, 1), (1,)])
def test_folds_of_several_values(wanted: tuple[int, ...]) -> None:
    """Products of complex numbers: real and imaginary parts, folded together."""
    x, w = te.placeholder((3, 4, 2), f64, "x"), te.placeholder((2,), f64, "w")
    times = combiner(lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]), (1.0, 0.0), "times")
    k = te.reduce_axis(4, "k")
    results = te.compute_many((3,), lambda i: times((x[i, k, 0] * w[0], x[i, k, 1] + w[1]), k), "y")
    agrees([x, w], [results[n] for n in wanted], np.random.default_rng(3))


def test_a_result_that_nothing_depends_on() -> None:
    x = te.placeholder((3,), f32, "x")
    y = te.compute((3,), lambda i: x[i] * 2.0, "y")
    z = te.compute((3,), lambda i: select(binary("gt", x[i], 0.0), y[i], 1.0), "z")
    (dy, dx) = gradients([y, z], [te.placeholder((3,), f32, "dy"), None], [y, x])
    assert dy is not None
    assert str(dx.op) == "dx[i:3] = dy[i] * 2.0"  # type: ignore[union-attr]
