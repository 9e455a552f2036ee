"""Sums over channels and space of a blocked tensor are taken channel by channel, to the same result."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.targets.groups.channels import sums_by_channel
from mlc.targets.groups.group import Group

SHAPE = (2, 12, 3, 5)


def group(op: str, **attrs: object) -> Group:
    shapes = [SHAPE, *([SHAPE[1:2]] * (2 if "norm" in op else 0))]
    inputs = tuple(te.placeholder(s, f32, f"x{k}") for k, s in enumerate(shapes))
    express = get(op).express
    assert express is not None
    return Group(inputs, tuple(express(inputs, attrs)), None, {}, Knobs())


def values(g: Group) -> np.ndarray:
    rng = np.random.default_rng(7)
    feeds = {t: rng.standard_normal(t.shape).astype(np.float32) for t in g.inputs}
    (out,) = run_tensors(g.outputs, feeds)
    return out


CASES = [
    ("group_norm", {"groups": 1, "epsilon": 1e-5}),
    ("group_norm", {"groups": 4, "epsilon": 1e-5}),
    ("reduce_max", {"axes": (1, 2, 3), "keepdims": False}),
]


@pytest.mark.parametrize("op, attrs", CASES)
def test_sums_are_taken_channel_by_channel(op: str, attrs: dict[str, object]) -> None:
    plain = group(op, **attrs)
    apart = sums_by_channel(plain, plain.inputs[:1])
    over = [[a.hi + 1 for a in r.reduce_axes] for r in apart.reductions]
    assert over.count([3, 5]) == len(plain.reductions)
    assert len(apart.reductions) == 2 * len(plain.reductions)
    np.testing.assert_allclose(values(apart), values(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("instance_norm", {"epsilon": 1e-5}),
        ("reduce_mean", {"axes": (1,), "keepdims": True}),
        ("reduce_mean", {"axes": (1, 3), "keepdims": True}),
    ],
)
def test_others_stay(op: str, attrs: dict[str, object]) -> None:
    plain = group(op, **attrs)
    assert sums_by_channel(plain, plain.inputs[:1]) is plain
