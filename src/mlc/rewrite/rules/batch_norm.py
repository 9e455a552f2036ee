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


def of_channels(rw: Rewriter, value: Value, like: Value) -> np.ndarray | None:
    """A constant with one number for each channel (axis 1) of ``like``, or one for all, in f64."""
    array, channels = rw.constant(value), like.type.shape[1]
    if array is None or array.ndim > like.type.rank:
        return None
    aligned = array.reshape((1,) * (like.type.rank - array.ndim) + array.shape)
    if aligned.size not in (1, channels) or aligned.shape[1] != aligned.size:
        return None
    return np.broadcast_to(aligned.reshape(-1).astype(np.float64), (channels,))


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


def _scaled(
    rw: Rewriter, factor: np.ndarray, offset: np.ndarray, product: Node, bias: np.ndarray | None
) -> Value | None:
    """A product whose channels grow by a factor, and an offset more; ``bias`` was added to it before."""
    if product.op.name == "matmul" and (product.outputs[0].type.rank != 2 or product.inputs[1].type.rank != 2):
        return None  # axis 1 is not the columns
    weights = product.inputs[1]
    if not weights.type.dtype.is_float or product.outputs[0].type.dtype is not weights.type.dtype:
        return None
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
    return _scaled(rw, *_factors(rw, m), product, None) if m["w"] is product.inputs[1] else None


@rule("batch_norm_into_biased_weights", f"batch_norm(add!(y=conv|conv_transpose|matmul!(x, #w), #b), {_PARAMETERS})")
def batch_norm_into_biased_weights(rw: Rewriter, m: Match) -> Value | None:
    """The same with a constant bias of one number a channel between the two."""
    product, bias = rw.maker(m["y"]), of_channels(rw, m["b"], m["y"])
    assert product is not None
    return None if bias is None else _scaled(rw, *_factors(rw, m), product, bias)


@rule("batch_norm_is_affine", f"batch_norm(x, {_PARAMETERS})")
def batch_norm_is_affine(rw: Rewriter, m: Match) -> Value:
    """Batch norm with constant parameters is one product and one sum a channel."""
    return _affine(rw, *_factors(rw, m), m.root.inputs[0])


def _affine(rw: Rewriter, factor: np.ndarray, offset: np.ndarray, x: Value) -> Value:
    y = rw.emit(get("mul"), (x, _along_channels(rw, factor, x)))
    return rw.emit(get("add"), (y, _along_channels(rw, offset, x)))


_SPELLED = "add(mul!(sub!({}, #mean), #scale), #bias)"


@rule("spelled_norm_into_weights", _SPELLED.format("y=conv|conv_transpose!(x, #w)"))
def spelled_norm_into_weights(rw: Rewriter, m: Match) -> Value | None:
    """A difference, a product and a sum of one number a channel, as Keras exports batch norm by PyTorch: the same."""
    product, affine = rw.maker(m["y"]), _spelled_factors(rw, m, m["y"])
    assert product is not None
    return None if affine is None or m["w"] is not product.inputs[1] else _scaled(rw, *affine, product, None)


@rule("spelled_norm_into_biased_weights", _SPELLED.format("add!(y=conv|conv_transpose!(x, #w), #b)"))
def spelled_norm_into_biased_weights(rw: Rewriter, m: Match) -> Value | None:
    """The same with a constant bias between."""
    product, affine, bias = rw.maker(m["y"]), _spelled_factors(rw, m, m["y"]), of_channels(rw, m["b"], m["y"])
    assert product is not None
    return None if affine is None or bias is None else _scaled(rw, *affine, product, bias)


@rule("spelled_norm_is_affine", _SPELLED.format("x"))
def spelled_norm_is_affine(rw: Rewriter, m: Match) -> Value | None:
    """The same behind anything else is one product and one sum a channel."""
    affine = _spelled_factors(rw, m, m["x"])
    return None if affine is None else _affine(rw, *affine, m["x"])


def _spelled_factors(rw: Rewriter, m: Match, x: Value) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and offset of every channel of ``(x - mean) * scale + bias``, in f64."""
    if x.type.rank < 3 or not x.type.dtype.is_float or m.root.outputs[0].type != x.type or m["scale"].type.size == 1:
        return None
    mean, scale, bias = (of_channels(rw, m[name], x) for name in ("mean", "scale", "bias"))
    return None if mean is None or scale is None or bias is None else (scale, bias - mean * scale)


RULES = (
    spelled_norm_into_weights,
    spelled_norm_into_biased_weights,
    spelled_norm_is_affine,
    batch_norm_into_weights,
    batch_norm_into_biased_weights,
    batch_norm_is_affine,
)
