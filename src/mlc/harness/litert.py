"""LiteRT, the interpreter of TensorFlow Lite models, as the reference.

It runs in a process of its own (:mod:`mlc.harness.litert_child`): some of its reference kernels end their process on
models that its usual kernels take.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc import errors
from mlc.errors import UnsupportedError
from mlc.harness.reference import Tap, batches


class LitertReference:
    """A ``.tflite`` file run by LiteRT's reference kernels, or, where an operator has none, by its usual ones.

    Args:
        path: the file.
        constants: values for inputs that were made constants when the model was compiled, and what states begin with.
        threads: as many as LiteRT takes unless given.
    Raises:
        MissingDependencyError: LiteRT is not installed.
        UnsupportedError: LiteRT cannot run the model, or its process ended.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__ + "_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
            )
        self._connection = Connection(ours.detach())
        weakref.finalize(self, _end, self._process, self._connection)
        fixed = {name: np.asarray(value) for name, value in (constants or {}).items()}
        self.note: str = self._ask("make", os.fspath(self.path), fixed, threads)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises:
            UsageError: the model has an input for which there is no value.
            UnsupportedError: LiteRT fails, or a value is that of a variable.
        """
        outputs: dict[str, np.ndarray] = self._ask("run", dict(inputs))
        return outputs

    def intermediates(self, inputs: Mapping[str, np.ndarray], taps: Sequence[Tap]) -> Iterator[dict[str, np.ndarray]]:
        """Intermediate tensors, in batches of a bounded size; the model is run once.

        Args:
            inputs: as for ``run``.
            taps: tensors of the model, see ``tensor_names``.
        """
        self._ask("keep", dict(inputs))
        for batch in batches(taps):
            yield self._ask("tensors", batch)

    def tensor_names(self) -> set[str]:
        """Tensors of the model whose names are theirs alone."""
        names: set[str] = self._ask("tensor_names")
        return names

    def _ask(self, method: str, *arguments: object) -> Any:
        try:
            self._connection.send((method, arguments))
            value, failed = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if failed:
            name, message, hint = failed
            raise getattr(errors, name)(message, hint=hint)
        return value

    def _ended(self) -> UnsupportedError:
        """How the process ended, and the last that it said."""
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return UnsupportedError(
            f"{self.path}: LiteRT {how} while it ran it" + (f": {lines[-1]}" if lines else ""),
            hint="compare with your own results: --verify reference.npz",
        )


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()
