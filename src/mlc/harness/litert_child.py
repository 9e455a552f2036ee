"""LiteRT in a process of its own, which :mod:`mlc.harness.litert` starts and asks.

``python -m mlc.harness.litert_child FD`` answers on a socket that it inherited. A request is a pair (name of a method
of :class:`Litert`, its arguments); the first one makes it, and is answered by its ``note``. An answer is a pair (what
it returned, None) or (None, (name of an error's class, message, hint)).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import MissingDependencyError, MlcError, UnsupportedError
from mlc.harness.reference import cannot_run, missing_input

# What the interpreter raises, which has no class of its own.
_FAULTS = (RuntimeError, ValueError)
_MISSING = re.compile(r"Didn't find op(?: for builtin opcode '(\w+)')?")


class Litert:
    """A ``.tflite`` file; the arguments and errors are :class:`mlc.harness.litert.LitertReference`'s."""

    def __init__(self, path: str, constants: Mapping[str, npt.ArrayLike], threads: int | None) -> None:
        self.path = Path(path)
        self._library = _litert()
        self._constants = constants
        self._threads = threads
        self.note = ""
        self._interpreter = self._open(keep=False)
        self._kept: Any = None

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._invoke(self._interpreter, inputs)
        details = self._interpreter.get_output_details()
        return {d["name"]: np.array(self._interpreter.get_tensor(d["index"])) for d in details}

    def keep(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Runs the model, and keeps all of its tensors for :meth:`tensors`."""
        self._kept = self._open(keep=True)
        self._invoke(self._kept, inputs)

    def tensors(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        places = {d["name"]: d["index"] for d in self._kept.get_tensor_details()}
        return {name: np.array(self._kept.get_tensor(places[name])) for name in names}

    def tensor_names(self) -> set[str]:
        names = [d["name"] for d in self._interpreter.get_tensor_details() if d["name"]]
        return {name for name in names if names.count(name) == 1}

    def _open(self, *, keep: bool) -> Any:
        kinds = self._library.OpResolverType
        options = {"num_threads": self._threads, "experimental_preserve_all_tensors": keep}
        try:
            return self._library.Interpreter(
                os.fspath(self.path), experimental_op_resolver_type=kinds.BUILTIN_REF, **options
            )
        except _FAULTS as error:
            # the set of reference kernels lacks some operators altogether
            missing = _MISSING.search(str(error))
            if missing is None:
                raise cannot_run(self.path, "LiteRT", error) from error
            self.note = (
                f"LiteRT has no reference kernel for {missing[1] or 'an operator'}; its usual kernels run the whole"
                " model, and may round otherwise"
            )
        try:
            kind = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            return self._library.Interpreter(os.fspath(self.path), experimental_op_resolver_type=kind, **options)
        except _FAULTS as error:
            raise cannot_run(self.path, "LiteRT", error) from error

    def _invoke(self, interpreter: Any, inputs: Mapping[str, np.ndarray]) -> None:
        values = {}
        details = interpreter.get_input_details()
        apart = sorted(set(inputs) - {d["name"] for d in details})
        states = [n for n in apart if n not in self._constants or not np.array_equal(inputs[n], self._constants[n])]
        if states:
            raise UnsupportedError(
                f"{self.path}: LiteRT keeps variables to itself and cannot be given {', '.join(map(repr, states))}",
                hint="compare with your own results: --verify reference.npz",
            )
        for detail in details:
            name = detail["name"]
            if name not in inputs and name not in self._constants:
                raise missing_input(self.path, "LiteRT", name)
            value = inputs[name] if name in inputs else np.asarray(self._constants[name], detail["dtype"])
            values[detail["index"]] = np.asarray(value)
        try:
            for index, value in values.items():
                interpreter.resize_tensor_input(index, value.shape)
            interpreter.allocate_tensors()
            interpreter.reset_all_variables()
            for index, value in values.items():
                interpreter.set_tensor(index, value)
            interpreter.invoke()
        except _FAULTS as error:
            raise cannot_run(self.path, "LiteRT", error) from error


def _litert() -> ModuleType:
    try:
        from ai_edge_litert import interpreter
    except ImportError as error:
        raise MissingDependencyError(
            "LiteRT, the reference to compare with, is not installed",
            hint="pip install ai-edge-litert, or compare with your own results: --verify reference.npz",
        ) from error
    found: ModuleType = interpreter
    return found


def _serve(connection: Connection) -> None:
    made: Litert | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            if made is None:
                made = Litert(*arguments)
                value = made.note
            else:
                value = getattr(made, method)(*arguments)
            connection.send((value, None))
        except MlcError as error:
            connection.send((None, (type(error).__name__, error.message, error.hint)))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
