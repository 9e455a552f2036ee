"""What candidates of a machine are run on, so that whoever measures them need not know the machine.

A target, or the accelerator beside it, gives a :class:`Bench`. That is made before any process is forked, and opened in
each process that runs candidates. Those may be wrong in every way: crash, hang, write where they must not. Who measures
isolates the process, draws the inputs, compares the results and takes the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mlc.errors import MlcError
from mlc.ir.graph import Node


class StrayWriteError(MlcError):
    """A candidate wrote where it must not."""


@dataclass(frozen=True)
class Program:
    """A candidate as it was built.

    Args:
        data: what the machine runs.
        scratch: bytes of memory that it wants besides its operands.
    """

    data: bytes
    scratch: int = 0


class Loaded(Protocol):
    """A candidate on the machine that runs it, with buffers of its own."""

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        """Runs once; the seconds that it took.

        Args:
            inputs: by position, in physical shape, contiguous. A constant that is the same object as last time is
                where it was, and need not be brought again.
            fill: byte that all results hold before.
        Raises:
            StrayWriteError: it wrote somewhere else than to its results.
            DeviceError: it says that it failed.
        """
        ...

    def results(self) -> list[np.ndarray]:
        """The results as they are now, by position, in physical shape; good until the next run."""
        ...

    def check(self) -> None:
        """Looks whether the runs since the last look wrote somewhere else than to the results.

        Raises:
            StrayWriteError: they did.
        """
        ...

    def sample(self, calls: int) -> int:
        """Nanoseconds of so many calls in a row, on the inputs of the last run."""
        ...

    def cold_sample(self, calls: int) -> int:
        """The same, where nothing that a call reads or writes is in a cache before it."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


class Stand(Protocol):
    """A bench in the process that runs candidates."""

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> Loaded:
        """Makes a candidate ready to run.

        Args:
            program: the candidate.
            node: what it computes, with the layouts of its inputs and results.
            constant: which inputs are constants.
        Raises:
            MlcError: it cannot be loaded.
        """
        ...

    def peak(self) -> float:
        """Operations a second of one core, which nothing exceeds, as measured now; 0 where that is unknown."""
        ...


class Bench(Protocol):
    """A machine that candidates are run on.

    Attributes:
        exact: whether times are computed and not taken: each is the same whenever it is asked for, and whatever else
            goes on meanwhile.
        device: what runs of several processes would disturb each other on, whatever cores they have; else nothing.
    """

    exact: bool
    device: str

    def require(self) -> None:
        """Looks whether the machine can be had, but does not open it in this process, which will be forked.

        Raises:
            DeviceError: it cannot.
        """
        ...

    def open(self, threads: int) -> Stand:
        """Opens the bench in this process.

        Args:
            threads: that run a kernel.
        Raises:
            DeviceError: the machine cannot be had.
        """
        ...
