"""The highest entries of an output: what a classifier thinks it sees."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlc.errors import UsageError

_MAX_LABEL_BYTES = 16 << 20


@dataclass(frozen=True)
class Entry:
    """One of the highest entries.

    Args:
        row: position in the batch.
        rank: 1 is the highest.
        index: position in the row.
        value: what stands there.
        label: name of that position; empty without labels.
    """

    row: int
    rank: int
    index: int
    value: float
    label: str


def top_entries(array: np.ndarray, count: int, labels: list[str] | None = None) -> list[Entry] | None:
    """The ``count`` highest entries of every row, NaNs last; equal ones in their order.

    Args:
        array: of shape ``[classes]`` or ``[batch, classes]``, followed by any number of extents of 1.
        count: how many, at least 1.
        labels: names of the classes.
    Returns:
        the entries row by row; ``None`` for an array of another shape, which has no classes.
    """
    shape = array.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (1, 2):
        return None
    entries = []
    for row, values in enumerate(array.reshape(1, *shape) if len(shape) == 1 else array.reshape(shape)):
        # float64 holds what any element type has, but for the last digits of large integers
        order = np.argsort(-values.astype(np.float64), kind="stable")[:count]
        for rank, index in enumerate(order.tolist(), 1):
            label = labels[index] if labels and index < len(labels) else ""
            entries.append(Entry(row, rank, index, values[index].item(), label))
    return entries


def read_labels(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file.

    Raises:
        UsageError: it cannot be read as text, or is too large for a list of names.
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise UsageError(f"{os.fspath(path)}: there is no such file", hint="check the path after --labels")
        if file.stat().st_size > _MAX_LABEL_BYTES:
            raise UsageError(f"{os.fspath(path)}: is larger than {_MAX_LABEL_BYTES} bytes", hint="one label a line")
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{os.fspath(path)}: cannot be read as text: {error}", hint="one label a line") from error
