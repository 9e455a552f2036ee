"""Reading flatbuffers that nobody vouches for: every offset, length and table is checked before it is followed.

A table becomes a dictionary of its fields. Offsets in flatbuffers point forwards only and the schema has no table
within itself, so there is nothing to go round in; but many fields may point at one table, so tables are counted.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.limits import Limits
from mlc.frontend.tflite.schema import Field, enumeration, table_fields

Table = dict[str, Any]

_TABLES_A_NODE = 8  # tables that a file may have for each node of the limit: its tensors, their scales, its options


class FlatbufferReader:
    """Reads tables of a file.

    Args:
        data: the whole file.
        limits: budgets.
    """

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.limits = limits
        self._tables = 0

    def root(self, table: str) -> Table:
        """The table that the file is.

        Raises:
            ImportModelError: something in it points out of the file, or there is more of it than the limits allow.
        """
        return self.table(table, self._follow(0, table), table)

    def table(self, table: str, at: int, where: str) -> Table:
        """The table at a position.

        Args:
            table: its name in the schema.
            at: where it begins.
            where: how messages call it.
        Raises:
            ImportModelError: see :meth:`root`.
        """
        self._tables += 1
        self._check_aligned(at, 4, where)
        self.limits.check("nodes", self._tables // _TABLES_A_NODE, "tables of the file, eight for each node")
        start = at - self._number("<i", at, where)
        length, size = self._number("<H", start, where), self._number("<H", start + 2, where)
        if length < 4 or length % 2 or start + length > len(self.data) or size < 4 or at + size > len(self.data):
            raise self._damaged(where, "its list of fields is broken")
        found: Table = {}
        for name, field in table_fields(table).items():
            entry = 4 + 2 * field.slot
            offset = self._number("<H", start + entry, where) if entry + 2 <= length else 0
            if offset == 0:
                found[name] = _absent(field)
                continue
            width = np.dtype(field.numpy).itemsize if field.kind == "scalar" else 4
            if offset < 4 or offset + width > size:
                raise self._damaged(f"{where}: {name}", "it lies outside of its table")
            self._check_aligned(at + offset, width, f"{where}: {name}")
            if field.kind == "union":
                continue  # once the types are known
            found[name] = self._value(field, at + offset, f"{where}: {name}")
        for name, field in table_fields(table).items():
            if field.kind == "union" and name not in found:
                entry = self._number("<H", start + 4 + 2 * field.slot, where)
                found[name] = self._union(field, found.get(f"{name}_type", 0), at + entry, f"{where}: {name}")
        return found

    def _value(self, field: Field, at: int, where: str) -> Any:
        if field.kind == "scalar":
            return np.frombuffer(self.data, field.numpy, 1, at)[0].item()
        target = self._follow(at, where)
        if field.kind == "table":
            return self.table(field.table, target, where)
        if field.kind == "tables":
            count = self._length(target, 4, where)
            self.limits.check("nodes", count // _TABLES_A_NODE, f"{where}, eight for each node")
            places = [target + 4 + 4 * k for k in range(count)]
            names = [f"{field.table} {k}" for k in range(count)]
            return [self.table(field.table, self._follow(p, n), n) for p, n in zip(places, names, strict=True)]
        numpy = np.dtype(field.numpy or "<u1")
        count = self._length(target, numpy.itemsize, where)
        vector = np.frombuffer(self.data, numpy, count, target + 4)
        if field.kind == "string":
            self.limits.check("name_length", count, where)
            if self.data[target + 4 + count : target + 5 + count] != b"\0":
                raise self._damaged(where, "the text is not ended by a zero")
            return vector.tobytes().decode("utf-8", "backslashreplace")
        return vector

    def _union(self, field: Field, kind: int, at: int, where: str) -> Table | None:
        names = enumeration(field.table)
        if kind not in names:
            raise self._damaged(where, f"there is no kind {kind} of {field.table}")
        if names[kind] == "NONE":
            return None
        return self.table(names[kind], self._follow(at, where), where)

    def _check_aligned(self, at: int, width: int, where: str) -> None:
        if at % width:
            raise self._damaged(where, f"it lies at {at}, no multiple of {width}")

    def _length(self, at: int, width: int, where: str) -> int:
        self._check_aligned(at, 4, where)
        count = self._number("<I", at, where)
        if at + 4 + count * width > len(self.data):
            raise self._damaged(where, f"{count} elements reach beyond the end of the file")
        return count

    def _follow(self, at: int, where: str) -> int:
        """Where the offset at a position leads."""
        offset = self._number("<I", at, where)
        if offset < 4 or at + offset + 4 > len(self.data):
            raise self._damaged(where, f"it points {offset} bytes on, out of the file")
        return at + offset

    def _number(self, code: str, at: int, where: str) -> int:
        if at < 0 or at + struct.calcsize(code) > len(self.data):
            raise self._damaged(where, "it points out of the file")
        (number,) = struct.unpack_from(code, self.data, at)
        return int(number)

    def _damaged(self, where: str, reason: str) -> ImportModelError:
        return ImportModelError(
            f"{where}: {reason}", hint="the file is damaged or truncated: compare its size with the original's"
        )


def _absent(field: Field) -> Any:
    if field.kind == "scalar":
        return field.default
    return {"string": "", "vector": np.zeros(0, field.numpy or "<u1"), "tables": []}.get(field.kind)
