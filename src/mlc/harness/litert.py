"""LiteRT, the interpreter of TensorFlow Lite models, as the reference."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import MissingDependencyError, UnsupportedError
from mlc.harness.reference import Tap, batches, cannot_run, missing_input

# What the interpreter raises, which has no class of its own.
_FAULTS = (RuntimeError, ValueError)


class LitertReference:
    """A ``.tflite`` file run by LiteRT's reference kernels, or, where an operator has none, by its usual ones.

    Args:
        path: the file.
        constants: values for inputs that were made constants when the model was compiled, and what states begin with.
        threads: as many as LiteRT takes unless given.
    Raises:
        MissingDependencyError: LiteRT is not installed.
        UnsupportedError: LiteRT cannot run the model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._library = _litert()
        self._constants = dict(constants or {})
        self._threads = threads
        self._interpreter = self._open(keep=False)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises:
            UsageError: the model has an input for which there is no value.
            UnsupportedError: LiteRT fails, or a value is that of a variable.
        """
        self._invoke(self._interpreter, inputs)
        details = self._interpreter.get_output_details()
        return {d["name"]: np.array(self._interpreter.get_tensor(d["index"])) for d in details}

    def intermediates(self, inputs: Mapping[str, np.ndarray], taps: Sequence[Tap]) -> Iterator[dict[str, np.ndarray]]:
        """Intermediate tensors, in batches of a bounded size; the model is run once.

        Args:
            inputs: as for ``run``.
            taps: tensors of the model, see ``tensor_names``.
        """
        interpreter = self._open(keep=True)
        self._invoke(interpreter, inputs)
        places = {d["name"]: d["index"] for d in interpreter.get_tensor_details()}
        for batch in batches(taps):
            yield {name: np.array(interpreter.get_tensor(places[name])) for name in batch}

    def tensor_names(self) -> set[str]:
        """Tensors of the model whose names are theirs alone."""
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
            if "Didn't find op" not in str(error):
                raise cannot_run(self.path, "LiteRT", error) from error
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
