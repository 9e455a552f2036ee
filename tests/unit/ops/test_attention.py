from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from tests.unit.ops.oracle import evaluate


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "batch, m, n, e, d, mask, scale",
    [
        ((2, 3), 5, 7, 4, 6, (2, 1, 1, 7), 0.5),
        ((), 3, 3, 2, 2, None, 1.0),
        ((2,), 1, 5, 3, 1, (1, 5), 2.0),
        ((1, 2), 4, 1, 3, 3, (4, 1), 1.0),
        ((2,), 0, 3, 2, 2, None, 1.0),
    ],
)
def test_attention(batch, m, n, e, d, mask, scale):
    q, k, v = array(*batch, m, e), array(*batch, n, e, seed=1), array(*batch, n, d, seed=2)
    masks = [] if mask is None else [array(*mask, seed=3)]
    want = softmax(q @ k.swapaxes(-1, -2) * scale + sum(masks)) @ v if m else np.zeros((*batch, m, d), np.float32)
    np.testing.assert_allclose(evaluate("attention", q, k, v, *masks, scale=scale), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((2, 3, 4), (1, 3, 4), (2, 3, 4)), "batch axes"),
        (((3, 4), (3, 5), (3, 4)), "differ in length"),
        (((3, 4), (3, 4), (2, 4)), "as many keys"),
        (((3, 4), (5, 4), (5, 4), (5, 3)), "does not broadcast"),
        (((3, 4), (5, 4)), "3 or 4"),
        (((4,), (5, 4), (5, 4)), "rank 2"),
    ],
)
def test_refusals(shapes, message):
    with pytest.raises(VerifyError, match=message):
        evaluate("attention", *[array(*s) for s in shapes])


def test_only_f32():
    q = array(2, 3).astype(np.float64)
    with pytest.raises(VerifyError, match="not all f32"):
        evaluate("attention", q, q, q)
