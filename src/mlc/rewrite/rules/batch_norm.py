"""Rules that take batch normalisation into the weights of what comes before it, or into one product and one sum.

``(x - mean) / sqrt(var + epsilon) * scale + bias`` is ``x * f + (bias - mean * f)`` with ``f = scale / sqrt(var +
epsilon)``, computed in double precision. This is the one place where floats are reassociated.
"""

from __future__ import annotations

import numpy as np

from mlc.ir.graph import Node, Value
from mlc.ops import get
from mlc.rewrite.pattern import Match, rule
from mlc.rewrite.rewriter import Rewriter

_PARAMETERS = "#scale, #bias, #mean, #var"


def _factors(rw: Rewriter, m: Match) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset of every channel, in f64."""
    scale, bias, mean, var = (_f64(rw, m[name]) for name in ("scale", "bias", "mean", "var"))
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + m.root.attrs["epsilon"])
        return factor, bias - mean * factor


def _f64(rw: Rewriter, value: Value) -> np.ndarray:
    array = rw.constant(value)
    assert array is not None
    return array.astype(np.float64)


def _along_channels(rw: Rewriter, values: np.ndarray, like: Value) -> Value:
    """A constant of one number a channel (axis 1) that broadcasts to ``like``."""
    shape = (values.size, *(1,) * (like.type.rank - 2))
    return rw.new_constant(values.astype(like.type.dtype.numpy).reshape(shape))


def _scaled_weights(rw: Rewriter, node: Node, factor: np.ndarray) -> np.ndarray:
    """The weights of a ``conv``, ``conv_transpose`` or ``matmul`` whose output channel ``o`` grows by ``factor[o]``."""
    w = _f64(rw, node.inputs[1])
    if node.op.name == "matmul":
        return w * (factor[:, None] if node.attrs["transpose_b"] else factor)
    spatial = (1,) * (w.ndim - 2)
    if node.op.name == "conv":
        return w * factor.reshape(-1, 1, *spatial)
    # weights[c, o] of a transposed convolution: the channels of a group only reach the outputs of that group
    groups, (inputs, per_group) = node.attrs["groups"], w.shape[:2]
    spread = np.repeat(factor.reshape(groups, per_group), inputs // groups, axis=0)
    return w * spread.reshape(inputs, per_group, *spatial)


def _normalised(rw: Rewriter, m: Match, product: Node, bias: np.ndarray | None) -> Value | None:
    if product.op.name == "matmul" and (product.outputs[0].type.rank != 2 or product.inputs[1].type.rank != 2):
        return None  # axis 1 is not the columns
    weights = product.inputs[1]
    if not weights.type.dtype.is_float or product.outputs[0].type.dtype is not weights.type.dtype:
        return None
    factor, offset = _factors(rw, m)
    new = rw.new_constant(_scaled_weights(rw, product, factor).astype(weights.type.dtype.numpy), weights.name)
    if bias is not None:
        offset = offset + bias * factor
    y = rw.emit(product.op, (product.inputs[0], new), product.attrs)
    return rw.emit(get("add"), (y, _along_channels(rw, offset, y)))


@rule("batch_norm_into_weights", f"batch_norm(y=conv|conv_transpose|matmul!(x, #w), {_PARAMETERS})")
def batch_norm_into_weights(rw: Rewriter, m: Match) -> Value | None:
    """Batch norm right after a product with constant weights scales them and adds one number a channel."""
    product = rw.maker(m["y"])
    assert product is not None
    return _normalised(rw, m, product, None) if m["w"] is product.inputs[1] else None


@rule("batch_norm_into_biased_weights", f"batch_norm(add!(y=conv|conv_transpose|matmul!(x, #w), #b), {_PARAMETERS})")
def batch_norm_into_biased_weights(rw: Rewriter, m: Match) -> Value | None:
    """The same with a constant bias of one number a channel between the two."""
    product, bias = rw.maker(m["y"]), rw.constant(m["b"])
    assert product is not None
    assert bias is not None
    out = m["y"].type
    aligned = bias.reshape((1,) * (out.rank - bias.ndim) + bias.shape) if bias.ndim <= out.rank else bias
    channels = out.shape[1]
    if aligned.ndim != out.rank or aligned.size not in (1, channels) or aligned.shape[1] != aligned.size:
        return None
    return _normalised(rw, m, product, aligned.reshape(-1).astype(np.float64))


@rule("batch_norm_is_affine", f"batch_norm(x, {_PARAMETERS})")
def batch_norm_is_affine(rw: Rewriter, m: Match) -> Value:
    """Batch norm with constant parameters is one product and one sum a channel."""
    x = m.root.inputs[0]
    factor, offset = _factors(rw, m)
    y = rw.emit(get("mul"), (x, _along_channels(rw, factor, x)))
    return rw.emit(get("add"), (y, _along_channels(rw, offset, x)))


RULES = (batch_norm_into_weights, batch_norm_into_biased_weights, batch_norm_is_affine)
