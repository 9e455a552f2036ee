"""Tables of the TFLite schema: names, places and types of their fields.

The ``tflite`` package is generated from the schema, but its accessors trust the file. Its builder functions name the
slot, type and default of every field as well, so the schema is learnt by calling them with a builder that only takes
notes; :mod:`mlc.frontend.tflite.flatbuffer` then reads files by it, checking every step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tflite

# fields that hold tables, and whether a vector of them
_TABLES = {
    ("Model", "operator_codes"): ("OperatorCode", True),
    ("Model", "subgraphs"): ("SubGraph", True),
    ("Model", "buffers"): ("Buffer", True),
    ("SubGraph", "tensors"): ("Tensor", True),
    ("SubGraph", "operators"): ("Operator", True),
    ("Tensor", "quantization"): ("QuantizationParameters", False),
    ("Tensor", "sparsity"): ("SparsityParameters", False),
    ("SparsityParameters", "dim_metadata"): ("DimensionMetadata", True),
}
# fields that hold a table whose name another field gives
_UNIONS = {
    ("Operator", "builtin_options"): "BuiltinOptions",
    ("Operator", "builtin_options2"): "BuiltinOptions2",
    ("QuantizationParameters", "details"): "QuantizationDetails",
    ("DimensionMetadata", "array_segments"): "SparseIndexVector",
    ("DimensionMetadata", "array_indices"): "SparseIndexVector",
}
# vectors of 4 bytes an element that are no int32
_FLOATS = {
    ("QuantizationParameters", "min"),
    ("QuantizationParameters", "max"),
    ("QuantizationParameters", "scale"),
    ("BucketizeOptions", "boundaries"),
}
_SIGNED = {1: "<u1", 2: "<u2", 4: "<i4", 8: "<i8"}
_SCALARS = {
    "Bool": "<?", "Int8": "<i1", "Uint8": "<u1", "Int16": "<i2", "Uint16": "<u2", "Int32": "<i4", "Uint32": "<u4",
    "Int64": "<i8", "Uint64": "<u8", "Float32": "<f4", "Float64": "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A field of a table.

    Args:
        slot: its place in the table's list of offsets.
        kind: ``scalar``, ``string``, ``vector`` (of scalars), ``table``, ``tables`` or ``union``.
        numpy: type of a scalar, or of a vector's elements.
        default: of a scalar.
        table: name of the table, or of the enumeration of a union's types.
    """

    slot: int
    kind: str
    numpy: str = ""
    default: Any = None
    table: str = ""


class _Notes:
    """A builder that remembers the last call."""

    def __init__(self) -> None:
        self.call: tuple[str, tuple[Any, ...]] = ("", ())

    def __getattr__(self, name: str) -> Any:
        def note(*args: Any) -> int:
            self.call = name, args
            return 0

        return note


def snake_case(name: str) -> str:
    """``StrideW`` as ``stride_w``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@cache
def table_fields(table: str) -> Mapping[str, Field]:
    """The fields of a table by name."""
    prefix = f"{table}Add"
    found: dict[str, Field] = {}
    for function in [name for name in dir(tflite) if name.startswith(prefix)]:
        camel = function.removeprefix(prefix)
        notes = _Notes()
        getattr(tflite, function)(notes, 0)
        method, args = notes.call
        found[snake_case(camel)] = _field(table, camel, method, args)
    return found


def _field(table: str, camel: str, method: str, args: tuple[Any, ...]) -> Field:
    key = table, snake_case(camel)
    slot = args[0]
    if method != "PrependUOffsetTRelativeSlot":
        return Field(slot, "scalar", _SCALARS[method.removeprefix("Prepend").removesuffix("Slot")], args[2])
    if key in _TABLES:
        name, many = _TABLES[key]
        return Field(slot, "tables" if many else "table", table=name)
    if key in _UNIONS:
        return Field(slot, "union", table=_UNIONS[key])
    start = getattr(tflite, f"{table}Start{camel}Vector", None)
    if start is None:
        return Field(slot, "string")
    notes = _Notes()
    start(notes, 0)
    width = notes.call[1][0]
    return Field(slot, "vector", "<f4" if key in _FLOATS else _SIGNED[width])


@cache
def enumeration(name: str) -> Mapping[int, str]:
    """Names of an enumeration's values by number."""
    values = vars(getattr(tflite, name))
    return {number: key for key, number in values.items() if isinstance(number, int) and not key.startswith("_")}
