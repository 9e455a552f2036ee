"""A module that a board of a pool runs, with the face of one that runs here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlc.errors import DeviceError, DocumentError
from mlc.fields import Fields
from mlc.pool.client import Pool
from mlc.pool.remote import RunJob, arrays_from_json
from mlc.pool.wish import Wish
from mlc.runtime import open_package
from mlc.runtime.outside import OutsideModule


class PooledModule(OutsideModule):
    """A module on the boards of a pool.

    Args:
        wish: how to reach the pool.
        path: a ``module.tar``.
        threads: threads to run on; as many as the board has unless given.

    Attributes:
        threads: that were asked for; 0 for as many as the board has.
    Raises:
        UsageError: the file cannot be opened, or there is no certificate for the pool.
        PackageError: the package is unsound.
        DeviceError: the pool cannot be reached, or has no board for the target.
    """

    def __init__(self, wish: Wish, path: str | os.PathLike[str], threads: int | None = None) -> None:
        with open_package(path) as package:
            manifest = package.manifest
        super().__init__(manifest, threads or 0)
        self._data = Path(path).read_bytes()
        self._family = manifest.target.string.split()[0]
        self._memory = manifest.memory.params_bytes + manifest.memory.workspace_bytes
        self._pool = Pool(wish)
        try:
            self._pool.wait_for(self._family, self._memory)
        except BaseException:
            self._pool.close()
            raise

    def run(self, inputs: Mapping[str, np.ndarray], *, seed: int | None = None) -> dict[str, np.ndarray]:
        """Runs the model once, on whichever board has time; see :meth:`OutsideModule.run`.

        Raises:
            UsageError: as there.
            DeviceError: the pool or the board failed, or its answer makes no sense.
        """
        feeds, drawn = self._given(inputs, seed)
        job = RunJob(self._family, self._data, feeds, drawn, self.threads, self._pool.me)
        answer = self._pool.ask(job.parcel(), self._family, memory=self._memory)
        try:
            get = Fields(answer.header, "")
            found = arrays_from_json(get.take("outputs", lambda item, _: item), answer.parts)
            get.end()
            missing = [spec.name for spec in self.outputs if spec.name not in found]
            if missing:
                raise DocumentError(f"the output {missing[0]!r} is missing")
        except DocumentError as error:
            raise DeviceError(f"{self._pool.url}: a board's answer makes no sense: {error.message}") from None
        for spec in self.outputs:
            if found[spec.name].shape != tuple(spec.shape):
                raise DeviceError(f"{self._pool.url}: a board gave {spec.name!r} of another shape")
        return {spec.name: found[spec.name] for spec in self.outputs}

    def close(self) -> None:
        """Leaves the pool. Twice is fine."""
        self._pool.close()
