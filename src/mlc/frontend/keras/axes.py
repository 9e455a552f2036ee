"""Channels first and last: core operators take them first, Keras has them last unless told otherwise."""

from __future__ import annotations

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import transpose
from mlc.frontend.keras.config import Config
from mlc.ir.graph import Value


def channels_first(ctx: Context, x: Value, config: Config) -> Value:
    """``x`` as ``[n, c, …]``; passes cancel the transposes between neighbours."""
    rank = x.type.rank
    return transpose(ctx, x, (0, rank - 1, *range(1, rank - 1))) if config.channels_last() else x


def as_given(ctx: Context, y: Value, config: Config) -> Value:
    """``y``, which is ``[n, c, …]``, as the layer's format has it."""
    rank = y.type.rank
    return transpose(ctx, y, (0, *range(2, rank), 1)) if config.channels_last() else y


def spatial_rank(x: Value, class_name: str) -> int:
    """How many spatial axes a class has by its name, which must be those of ``x``.

    Raises:
        ImportModelError: ``x`` has another rank.
    """
    rank = next(n for n in (1, 2, 3) if f"{n}D" in class_name)
    if x.type.rank != rank + 2:
        raise ImportModelError(f"called on {x.type}, which is not of rank {rank + 2}")
    return rank
