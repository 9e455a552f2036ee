"""What a benchmark has found so far, a line of JSON each, kept as soon as it is found: a run may end at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.zoo import MODELS

Row = dict[str, Any]
_KEY = ("stage", "model", "precision", "tuned", "quick")


class State:
    """The rows of a file.

    Args:
        path: of the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[Any, ...], Row] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for line in lines[:-1]:  # what follows the last end of a line was cut off in the midst
            row = json.loads(line)
            self._rows[_key(row)] = row
        if lines and lines[-1]:
            path.write_bytes(b"".join(line + b"\n" for line in lines[:-1]))

    def __iter__(self) -> Iterator[Row]:
        """By stage, precision and model: jobs that run side by side end in any order."""
        return iter(sorted(self._rows.values(), key=_order))

    def has(self, row: Row) -> bool:
        """Whether the same thing was done before, to its end, and went well."""
        found = self.row(row)
        return found is not None and not found.get("error") and not found.get("unfinished")

    def row(self, row: Row) -> Row | None:
        """What is known of the same thing."""
        return self._rows.get(_key(row))

    def keep(self, row: Row) -> None:
        """Keeps a row, in place of an older one of the same thing."""
        self._rows[_key(row)] = row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _order(row: Row) -> tuple[Any, ...]:
    return row["stage"], row["tuned"], row["precision"] != "fp32", list(MODELS).index(row["model"])


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(k) for k in _KEY)
