from __future__ import annotations

import pytest

from mlc.errors import UnsupportedError
from mlc.frontend.common.activations import ACTIVATIONS, activate
from mlc.frontend.common.context import Context
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32


def test_every_activation_is_an_operator():
    ctx = Context(Builder())
    x = ctx.builder.input("x", TensorType((3,), f32))
    for name in ACTIVATIONS:
        assert activate(ctx, x, name).type == x.type
    assert activate(ctx, x, "") is x
    assert activate(ctx, x, "linear") is x
    activate(ctx, x, "leaky_relu", alpha=0.5)
    assert ctx.builder.nodes[-1].attrs["alpha"] == 0.5


def test_an_unknown_one_is_refused():
    ctx = Context(Builder())
    x = ctx.builder.input("x", TensorType((3,), f32))
    with pytest.raises(UnsupportedError, match="activation 'frob'"):
        activate(ctx, x, "frob")
