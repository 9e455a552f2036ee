"""Layers around layers."""

from __future__ import annotations

from collections.abc import Mapping

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import reshape
from mlc.frontend.keras.model import Layer, ModelDef, part_of
from mlc.frontend.keras.registry import Arguments, find_kind, layer
from mlc.frontend.limits import Limits
from mlc.ir.graph import Value


def _inner(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    return {"layer": part_of(layer, "layer", limits)}


@layer("TimeDistributed", parts=_inner, masks="use")
def _time_distributed(ctx: Context, layer: Layer, call: Arguments) -> list[Value]:
    """Every step by itself: steps join the batch, which no layer looks across."""
    x, inner = call.one(), layer.parts["layer"]
    if x.type.rank < 3:
        raise ImportModelError(f"called on {x.type}, of rank 3 or more it must be")
    kind = find_kind(inner)
    reads = isinstance(inner, ModelDef) or (kind is not None and kind.masks in ("use", "read", "own", "take", "refuse"))
    if call.mask is not None and reads:
        raise UnsupportedError(f"a mask with the layer {inner.class_name!r} inside")
    batch, steps = x.type.shape[:2]
    rows = reshape(ctx, x, (batch * steps, *x.type.shape[2:]))
    results = call.apply(inner, Arguments((rows,), {}))
    return [reshape(ctx, y, (batch, steps, *y.type.shape[1:])) for y in results]
