"""Modules that run outside this process, with the face of one that runs here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from mlc.runtime.buffers import Ports
from mlc.runtime.manifest import Manifest
from mlc.runtime.module import DeviceRun, drawn_seed
from mlc.runtime.tensor_spec import TensorSpec


class OutsideModule(ABC):
    """What such modules have in common. A context manager.

    Args:
        manifest: all that the package says about itself.
        threads: threads that run the model.

    Attributes:
        inputs, outputs: types, in the model's order; the seed of a model that draws random numbers is not among them.
        device_runs: what a device said of its runs: nothing, as there is none here.
    """

    device_runs: tuple[DeviceRun, ...] = ()

    def __init__(self, manifest: Manifest, threads: int) -> None:
        self.manifest, self.threads = manifest, threads
        self.inputs: tuple[TensorSpec, ...] = tuple(spec for spec in manifest.inputs if spec.name != manifest.seed)
        self.outputs: tuple[TensorSpec, ...] = manifest.outputs
        self._input_ports, self._output_ports = Ports("input", self.inputs), Ports("output", self.outputs)

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers by the seed of each run."""
        return self.manifest.seed is not None

    def _given(self, inputs: Mapping[str, np.ndarray], seed: int | None) -> tuple[dict[str, np.ndarray], int]:
        """Inputs by name as they are read, and the seed of a run.

        Raises:
            UsageError: an array is missing, unknown or unfit, or the seed is no such number.
        """
        arrays = self._input_ports.to_read(inputs)
        return dict(zip((spec.name for spec in self.inputs), arrays, strict=True)), drawn_seed(seed)

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray], *, seed: int | None = None) -> dict[str, np.ndarray]:
        """Runs the model once.

        Args:
            inputs: an array for each input, of exactly its element type and shape.
            seed: 0 .. 2^64 - 1, of the random numbers of a model that draws some.
        Returns:
            an array for each output.
        Raises:
            UsageError: an array is missing, unknown or unfit, or the seed is no such number.
            DeviceError: whatever runs it failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back what it holds. Twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
