"""Rows of windows that lie in the border add nothing, and are made conditional."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.targets.groups.borders import share_of_rows, without_rows_in_border
from mlc.targets.groups.group import Group


def conv(shape: tuple[int, ...], kernel: tuple[int, ...], *, pads: int, strides: int = 1, dilations: int = 1) -> Group:
    rank = len(kernel)
    x, w = te.placeholder(shape, f32, "x"), te.placeholder((4, shape[1], *kernel), f32, "w")
    attrs = {"strides": (strides,) * rank, "dilations": (dilations,) * rank, "pads": (pads,) * (2 * rank), "groups": 1}
    express = get("conv").express
    assert express is not None
    (out,) = express((x, w), attrs)
    return Group((x, w), (out,), out.op, {}, Knobs())


CASES = [
    ({"shape": (1, 3, 7, 9), "kernel": (3, 3), "pads": 1}, 19 / 21),
    ({"shape": (1, 3, 14, 14), "kernel": (3, 3), "pads": 12, "dilations": 12}, 18 / 42),
    ({"shape": (1, 3, 9, 9), "kernel": (5, 3), "pads": 2, "strides": 2}, 21 / 25),
    ({"shape": (1, 3, 4, 5, 6), "kernel": (3, 3, 3), "pads": 1}, 10 / 12 * 13 / 15),
]


@pytest.mark.parametrize("case, share", CASES)
def test_rows_in_the_border_are_passed_over(case: dict[str, object], share: float) -> None:
    plain = conv(**case)  # type: ignore[arg-type]
    assert share_of_rows(plain) == pytest.approx(share)
    bare = without_rows_in_border(plain)
    assert "select" in str(bare.anchor)
    rng = np.random.default_rng(3)
    feeds = {t: rng.standard_normal(t.shape).astype(np.float32) for t in plain.inputs}
    (a,), (b,) = run_tensors(plain.outputs, feeds), run_tensors(bare.outputs, feeds)
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def test_without_a_border_nothing_changes() -> None:
    plain = conv((1, 3, 7, 9), (3, 3), pads=0)
    assert share_of_rows(plain) == 1
    assert without_rows_in_border(plain) is plain
