"""The list of operators that can be imported, for ``mlc ops``; taken from the table that the import itself uses."""

from __future__ import annotations

from mlc.frontend.base import OperatorInfo
from mlc.frontend.tflite import converters as _converters  # noqa: F401, fills the table
from mlc.frontend.tflite.registry import CONVERTERS
from mlc.frontend.tflite.variables import OPERATORS


def supported_operators() -> list[OperatorInfo]:
    """Every operator that can be imported, custom ones last, by name."""
    found = [OperatorInfo(c.name, "custom" if c.custom else "", 1, c.limits) for c in CONVERTERS.entries.values()]
    found += [OperatorInfo(name, limits=limits) for name, limits in OPERATORS.items()]
    return sorted(found, key=lambda o: (o.domain, o.name))
