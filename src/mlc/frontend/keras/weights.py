"""Variables of layers: found in the file by name or by position, read when a converter asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.keras.hdf5 import Dataset


@dataclass(frozen=True)
class Variable:
    """A variable that a class of layers has.

    Args:
        name: as converters call it.
        trained: whether it is a trainable one; files list those first.
    """

    name: str
    trained: bool = True


@dataclass
class Weights:
    """The variables of one layer."""

    stored: dict[str, Dataset] = field(default_factory=dict)
    _read: dict[str, np.ndarray] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents of a variable.

        Raises:
            ImportModelError: it is not there.
        """
        return self._find(name).shape

    def read(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """A variable, whose shape must be ``shape``.

        Raises:
            ImportModelError: it is not there, has another shape, or cannot be read.
        """
        found = self._find(name)
        if found.shape != tuple(shape):
            raise ImportModelError(f"weights {name!r} have shape {list(found.shape)}, {list(shape)} is needed")
        if name not in self._read:
            self._read[name] = found.read()
        return self._read[name]

    def _find(self, name: str) -> Dataset:
        if name not in self.stored:
            raise ImportModelError(f"the file has no weights {name!r} for it")
        return self.stored[name]
