"""Checkpoints: all that a run needs to go on as if it had never stopped, in one file that is whole or not there.

The file is a safetensors file: tensors by name, and in its metadata what the run is, as JSON, with a checksum of the
tensors. The one before stays beside it, for when the disk has not kept what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.atomic import atomic_write

_KEY = "mlc.training"
_BEFORE = ".previous"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a run stands.

    Args:
        run: what must be the same for it to go on: model, data, options.
        tensors: parameters and what the optimizer remembers, by name.
        epoch: that is being gone through, from 0.
        batch: of it, the next one.
        step: how many steps there were.
        history: what was told of epochs that are over.
    """

    run: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    epoch: int
    batch: int
    step: int
    history: tuple[Mapping[str, Any], ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file; the one that was there stays as the previous one.

        Raises:
            OutputError: it cannot be written; the one that was there stays.
        """
        from safetensors.numpy import save

        about = {
            "run": self.run,
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "history": self.history,
            "sum": _sum(self.tensors),
        }
        data = save({n: np.ascontiguousarray(a) for n, a in self.tensors.items()}, {_KEY: json.dumps(about)})
        file = Path(path)
        before = Path(f"{path}{_BEFORE}")
        with atomic_write(file) as out:
            out.write(data)
            if file.exists():
                _link(file, before)


def _link(file: Path, before: Path) -> None:
    """Keeps a file under a second name, in place of what has that name."""
    aside = before.with_name(f".{before.name}.tmp")
    aside.unlink(missing_ok=True)
    os.link(file, aside)
    os.replace(aside, before)
    aside.unlink(missing_ok=True)  # a rename between two names of one file does nothing


def _sum(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, with what is to be said of those that are not.

    Raises:
        UsageError: there are some, and none of them is whole.
    """
    notes: list[str] = []
    files = [Path(path), Path(f"{path}{_BEFORE}")]
    for file in files:
        if not file.exists():
            continue
        try:
            return _read(file), notes
        except (OSError, ValueError, KeyError, TypeError) as error:
            notes.append(f"{file}: is no whole checkpoint ({error}); the one before is used")
    if notes:
        raise UsageError(f"{path}: neither it nor the one before is a whole checkpoint", hint="start without --resume")
    return None, notes


def _read(file: Path) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as data:
            about = json.loads((data.metadata() or {})[_KEY])
            tensors = {name: data.get_tensor(name) for name in data.keys()}  # noqa: SIM118  # no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if _sum(tensors) != about["sum"]:
        raise ValueError("the checksum is another one")
    history = tuple(about["history"])
    return Checkpoint(about["run"], tensors, int(about["epoch"]), int(about["batch"]), int(about["step"]), history)
