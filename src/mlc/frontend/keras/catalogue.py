"""The list of layers and operations that can be imported, for ``mlc ops``, from the tables of converters."""

from __future__ import annotations

from mlc.frontend.base import OperatorInfo
from mlc.frontend.keras import converters as _converters  # noqa: F401, fills the tables
from mlc.frontend.keras.registry import LAYERS, OPERATIONS


def supported_operators() -> list[OperatorInfo]:
    """Layers by name, then operations of ``keras.ops``."""
    models = [OperatorInfo(name) for name in ("Functional", "InputLayer", "Sequential")]
    layers = [*models, *(OperatorInfo(kind.name, limits=kind.limits) for kind in LAYERS.values())]
    operations = [OperatorInfo(kind.name, "keras.ops", limits=kind.limits) for kind in OPERATIONS.values()]
    return [*sorted(layers, key=lambda o: o.name), *sorted(operations, key=lambda o: o.name)]
