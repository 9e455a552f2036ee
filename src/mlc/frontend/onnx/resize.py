"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.axes import ints, normal_axes
from mlc.frontend.common.context import Context
from mlc.frontend.common.resize import COORDINATES, NEAREST, Axis, Method, by_scales, by_sizes, resize
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value


def _floats(ctx: Context, value: Value, what: str) -> tuple[float, ...]:
    array = ctx.require_const(value, what)
    return tuple(float(v) for v in array.reshape(-1))


def _method(node: OnnxNode) -> Method:
    method = Method(
        mode=node.attr("mode", "nearest"),
        coordinates=node.attr("coordinate_transformation_mode", "half_pixel"),
        nearest_mode=node.attr("nearest_mode", "round_prefer_floor"),
        cubic_a=node.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        antialias=bool(node.attr("antialias", 0)),
        extrapolation=node.attr("extrapolation_value", 0.0),
    )
    known = {"nearest", "linear", "cubic"}, set(COORDINATES), set(NEAREST)
    for value, names in zip((method.mode, method.coordinates, method.nearest_mode), known, strict=True):
        if value not in names:
            raise ImportModelError(f"{value!r}, known: {', '.join(sorted(names))}")
    return method


@converter("Upsample", since=7)
def upsample(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    scales = node.attr("scales") if node.opset < 9 else _floats(ctx, inputs[1], "scales")
    return [_asymmetric(ctx, node, x, scales)]


def _asymmetric(ctx: Context, node: OnnxNode, x: Value, scales: Sequence[float]) -> Value:
    """The only way of resizing there was before opset 11."""
    mode = "nearest" if node.attr("mode", "nearest") == "nearest" else "linear"
    method = Method(mode, "asymmetric", "floor")
    return resize(ctx, x, method, by_scales(x, scales, range(x.type.rank)))


@converter("Resize", since=10)
def convert_resize(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    if node.opset == 10:
        return [_asymmetric(ctx, node, x, _floats(ctx, inputs[1], "scales"))]
    method, rank = _method(node), x.type.rank
    axes = normal_axes(node.attr("axes", range(rank)), rank)
    _, roi, scales, sizes = inputs
    given = () if scales is None else _floats(ctx, scales, "scales")
    if given:
        found = by_scales(x, given, axes)
    elif sizes is not None:
        found = by_sizes(x, ints(ctx, sizes, "sizes"), axes, node.attr("keep_aspect_ratio_policy", "stretch"))
    else:
        raise ImportModelError("neither scales nor sizes")
    if method.coordinates == "tf_crop_and_resize":
        region = () if roi is None else _floats(ctx, roi, "roi")
        if len(region) != 2 * len(axes):
            raise ImportModelError(f"roi has {len(region)} values for {len(axes)} axes")
        pairs = zip(found, region[: len(axes)], region[len(axes) :], strict=True)
        found = [Axis(a.axis, a.extent, a.out, a.scale, (b, e)) for a, b, e in pairs]
    if method.mode == "nearest" and method.antialias:
        raise UnsupportedError("antialias of mode nearest has no meaning")
    return [resize(ctx, x, method, found)]
