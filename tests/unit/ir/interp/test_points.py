from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.interp import run_tensors
from mlc.ir.interp.points import run_points
from mlc.ir.types import f32
from mlc.ops import get


@pytest.mark.parametrize(
    "name, shapes, attrs",
    [
        ("conv", [(1, 6, 9, 7), (5, 6, 3, 3)], {"strides": (2, 1), "pads": (1, 0, 1, 2), "dilations": (1, 1)}),
        ("matmul", [(4, 5, 6), (4, 6, 7)], {"transpose_a": False, "transpose_b": False}),
        ("softmax", [(5, 11)], {"axis": 1}),
        ("argmax", [(5, 11)], {"axis": 1}),
        ("relu", [()], {}),
    ],
)
def test_points_are_those_of_the_whole(name: str, shapes: list[tuple[int, ...]], attrs: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    op = get(name)
    inputs = [te.placeholder(s, f32, f"x{k}") for k, s in enumerate(shapes)]
    outputs = op.express(inputs, {**op.attrs, **attrs})  # type: ignore[misc]
    given = {t: rng.standard_normal(t.shape).astype(np.float32) for t in inputs}
    for tensor, whole in zip(outputs, run_tensors(outputs, given), strict=True):
        points = [rng.integers(0, n, (3, 4)) for n in tensor.shape]
        found = run_points(tensor, points, given)
        assert found.dtype == whole.dtype
        np.testing.assert_allclose(found, whole[tuple(points)], rtol=1e-6)


def test_a_load_outside_is_refused() -> None:
    x = te.placeholder((4,), f32, "x")
    y = te.compute((4,), lambda i: x[i] + 1.0, "y")
    z = te.compute((4,), lambda i: y[i + 1], "z")
    with pytest.raises(VerifyError, match="leaves axis 0"):
        run_points(z, [np.array([3])], {x: np.zeros(4, np.float32)})
