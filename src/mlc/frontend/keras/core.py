"""Dense layers, embeddings, and layers that do nothing when a model is run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, reshape, scalar
from mlc.frontend.keras.activations import apply_activation
from mlc.frontend.keras.config import Config
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, Masked, bias, floats, layer, named, weight
from mlc.frontend.keras.weights import Variable
from mlc.ir.graph import Value
from mlc.ir.types import i32


@layer(
    "Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D",
    "SpatialDropout3D", "ActivityRegularization", "Identity", "RandomFlip", "RandomRotation", "RandomZoom",
    "RandomTranslation", "RandomContrast", "RandomBrightness", masks="keep",
)  # fmt: skip
def _identity(ctx: Context, layer: Layer, call: Arguments) -> Value:
    """What acts in training only."""
    x = call.one()
    return floats(ctx, layer, x) if layer.class_name.startswith("Random") else x


@layer("Dense", variables=named("kernel", "bias"), masks="keep")
def _dense(ctx: Context, layer: Layer, call: Arguments) -> Value:
    _refuse_quantised(layer.config)
    x = floats(ctx, layer, call.one())
    (units,) = layer.config.positive("units", 1)
    if x.type.rank < 2:
        raise ImportModelError(f"called on {x.type}, of rank 2 or more it must be")
    w = weight(ctx, layer, "kernel", (x.type.shape[-1], units))
    y = ctx.add("matmul", [x, ctx.constant(w)])
    offset = bias(ctx, layer, units)
    return apply_activation(ctx, layer, y if offset is None else ctx.add("add", [y, offset]))


def _refuse_quantised(config: Config) -> None:
    config.refuse("quantization_config")
    config.refuse("lora_rank")


def _einsum_variables(config: Config) -> Sequence[Variable]:
    return [Variable("kernel"), *([Variable("bias")] if config.get("bias_axes") else [])]


@layer("EinsumDense", variables=_einsum_variables)
def _einsum_dense(ctx: Context, layer: Layer, call: Arguments) -> Value:
    _refuse_quantised(layer.config)
    x = floats(ctx, layer, call.one())
    equation = layer.config.get("equation")
    if not isinstance(equation, str) or equation.count(",") != 1 or equation.count("->") != 1:
        raise ImportModelError(f"equation {equation!r:.60}")
    left, right, result = _terms(equation.replace(" ", ""), x.type.rank)
    shape = layer.weights.shape("kernel")
    if len(shape) != len(right):
        raise ImportModelError(f"equation {equation!r} for weights of shape {list(shape)}")
    extents = {**dict(zip(right, shape, strict=True)), **dict(zip(left, x.type.shape, strict=True))}
    w = weight(ctx, layer, "kernel", [extents[c] for c in right])
    y = contract(ctx, x, w, left, right, result)
    axes = layer.config.get("bias_axes")
    if axes:
        if not isinstance(axes, str) or not set(axes) <= set(result):
            raise ImportModelError(f"bias axes {axes!r:.60} of {equation!r}")
        # the bias begins at the first of its axes, with extent 1 where it has no axis
        first = min(result.index(c) for c in axes)
        shape = tuple(extents[c] if c in axes else 1 for c in result[first:])
        y = ctx.add("add", [y, ctx.constant(weight(ctx, layer, "bias", shape))])
    return apply_activation(ctx, layer, y)


def _terms(equation: str, rank: int) -> tuple[str, str, str]:
    """Letters of data, weights and result; an ellipsis stands for the axes of the data that have none."""
    left, rest = equation.split(",")
    right, result = rest.split("->")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    hidden = rank - len(left.replace("...", ""))
    if "..." in left and 0 <= hidden <= len(free):
        dots = "".join(free[:hidden])
        left, result = left.replace("...", dots), result.replace("...", dots)
    letters = left + right + result
    if len(left) != rank or not letters.isalpha() or any(len(set(t)) < len(t) for t in (left, right, result)):
        raise UnsupportedError(f"equation {equation!r} on a tensor of rank {rank}")
    if not set(result) <= set(left + right):
        raise ImportModelError(f"equation {equation!r} has axes in its result that are nowhere else")
    return left, right, result


def contract(ctx: Context, x: Value, w: np.ndarray, left: str, right: str, result: str) -> Value:
    """The sum of products that letters describe: a matrix product where the axes lie so."""
    summed = [c for c in right if c in left and c not in result]
    k = len(summed)
    kept, new = left[: len(left) - k], "".join(c for c in right if c not in summed)
    if k and left[len(left) - k :] == "".join(summed) == right[:k] and result == kept + new:
        inner = prod(w.shape[:k])
        rows = reshape(ctx, x, (*x.type.shape[: len(kept)], inner))
        y = ctx.add("matmul", [rows, ctx.constant(w.reshape(inner, -1))])
        return reshape(ctx, y, (*x.type.shape[: len(kept)], *w.shape[k:]))
    return ctx.add("einsum", [x, ctx.constant(w)], equation=f"{left},{right}->{result}")


@layer("Embedding", variables=named("embeddings"), limits="indices in range")
def _embedding(ctx: Context, layer: Layer, call: Arguments) -> Value | Masked:
    _refuse_quantised(layer.config)
    ids = call.one()
    (rows,), (size,) = layer.config.positive("input_dim", 1), layer.config.positive("output_dim", 1)
    table = ctx.constant(weight(ctx, layer, "embeddings", (rows, size)))
    y = ctx.add("gather", [table, cast(ctx, ids, i32)], axis=0)
    if not layer.config.flag("mask_zero"):
        return y
    return Masked(y, ctx.add("ne", [ids, scalar(ctx, 0, ids.type.dtype)]))


@layer("Masking")
def _masking(ctx: Context, layer: Layer, call: Arguments) -> Masked:
    """Steps that have the mask value everywhere become zeros and do not count."""
    x = floats(ctx, layer, call.one())
    value = scalar(ctx, layer.config.number("mask_value", 0.0), x.type.dtype)
    differs = ctx.add("ne", [x, value])
    mask = ctx.add("reduce_any", [differs], axes=(x.type.rank - 1,), keepdims=False)
    shown = reshape(ctx, mask, (*mask.type.shape, 1))
    return Masked(ctx.add("where", [shown, x, scalar(ctx, 0, x.type.dtype)]), mask)


@layer("LayerScale", variables=named("gamma"))
def _layer_scale(ctx: Context, layer: Layer, call: Arguments) -> Value:
    """Of ConvNeXt in ``keras.applications``."""
    x = floats(ctx, layer, call.one())
    (size,) = layer.config.positive("projection_dim", 1)
    return ctx.add("mul", [x, ctx.constant(weight(ctx, layer, "gamma", (size,)))])
