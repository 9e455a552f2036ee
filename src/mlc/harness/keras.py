"""Keras as the reference for its own models."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import MissingDependencyError
from mlc.harness.reference import Tap, batches, cannot_run, missing_input

_BACKENDS = ("tensorflow", "jax", "torch")


class KerasReference:
    """A ``.keras`` or ``.h5`` file run by Keras, with whichever of its backends is installed (``KERAS_BACKEND``).

    Keras itself builds the model here: it is asked to run no code of the file (``safe_mode``), and asks it in turn.

    Args:
        path: the file.
        constants: values for inputs that were made constants when the model was compiled.
        threads: as many as the backend takes, whatever is given.
    Raises:
        MissingDependencyError: Keras, or a backend of it, is not installed.
        UnsupportedError: Keras cannot load the model.
    """

    note = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._keras = _keras()
        self._constants = dict(constants or {})
        self._model = self._load()
        # a model of its own, since the file's may want its inputs in a dictionary
        self._flat = self._keras.Model(list(self._model.inputs), list(self._model.outputs))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises:
            UsageError: the model has an input for which there is no value.
            UnsupportedError: Keras fails.
        """
        values = [self._value(tensor, inputs) for tensor in self._model.inputs]
        with _failing_as_unsupported(self.path):
            results = self._flat(values if len(values) > 1 else values[0], training=False)
            arrays = [np.asarray(self._keras.ops.convert_to_numpy(v)) for v in _listed(results)]
        return dict(zip(self._output_names(), arrays, strict=True))

    def intermediates(self, inputs: Mapping[str, np.ndarray], taps: Sequence[Tap]) -> Iterator[dict[str, np.ndarray]]:
        """Results of layers, in batches of a bounded size; the model is run once for each batch.

        Args:
            inputs: as for ``run``.
            taps: layers of the model, see ``tensor_names``.
        """
        values = [self._value(tensor, inputs) for tensor in self._model.inputs]
        tensors = self._results()
        for batch in batches(taps):
            with _failing_as_unsupported(self.path):
                part = self._keras.Model(list(self._model.inputs), [tensors[name] for name in batch])
                results = _listed(part(values if len(values) > 1 else values[0], training=False))
                arrays = [np.asarray(self._keras.ops.convert_to_numpy(v)) for v in results]
            yield dict(zip(batch, arrays, strict=True))

    def tensor_names(self) -> set[str]:
        """Layers of the model, but for those inside of others, that are called once and have one result."""
        return set(self._results())

    def _results(self) -> dict[str, Any]:
        """The result of every such layer by its name."""
        calls: dict[str, list[Any]] = {}
        for node in (node for nodes in self._flat._nodes_by_depth.values() for node in nodes):
            if not node.is_input:
                calls.setdefault(node.operation.name, []).append(node.outputs)
        return {name: made[0][0] for name, made in calls.items() if len(made) == 1 and len(made[0]) == 1}

    def _load(self) -> Any:
        layers = self._keras.layers

        class Depthwise(layers.DepthwiseConv2D):  # type: ignore[name-defined]
            """As Keras 2 saved it: with a setting that Keras 3 refuses, and that was always 1."""

            def __init__(self, *args: Any, groups: int = 1, **settings: Any) -> None:
                super().__init__(*args, **settings)

        with self.path.open("rb") as file:
            archive = file.read(2) == b"PK"
        known = {} if archive else {"DepthwiseConv2D": Depthwise}
        # Keras tells the formats apart by the name alone
        with _failing_as_unsupported(self.path), TemporaryDirectory(prefix="mlc-keras-") as folder:
            named = Path(folder) / ("model.keras" if archive else "model.h5")
            named.symlink_to(self.path.resolve())
            return self._keras.saving.load_model(named, custom_objects=known, compile=False, safe_mode=True)

    def _value(self, tensor: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        if len(self._model.inputs) == 1 and len(inputs) == 1:
            return next(iter(inputs.values()))
        if tensor.name in inputs:
            return np.asarray(inputs[tensor.name])
        if tensor.name in self._constants:
            return np.asarray(self._constants[tensor.name], tensor.dtype)
        raise missing_input(self.path, "Keras", tensor.name)

    def _output_names(self) -> list[str]:
        """Names of the layers that make the outputs, numbered where one makes several, as the import has them."""
        names: list[str] = []
        for tensor in self._model.outputs:
            own = name = tensor._keras_history.operation.name
            k = 1
            while name in names:
                name, k = f"{own}_{k}", k + 1
            names.append(name)
        return names


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


class _failing_as_unsupported:
    """Turns what Keras raises, which may be anything that its backend raises, into one error of ours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._warnings.__exit__(None, None, None)
        if isinstance(error, Exception):
            raise cannot_run(self._path, "Keras", error) from error


def _keras() -> ModuleType:
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        found = next((name for name in _BACKENDS if find_spec(name) is not None), None)
        if found is not None:
            os.environ["KERAS_BACKEND"] = found
    try:
        return import_module("keras")
    except ImportError as error:
        raise MissingDependencyError(
            f"Keras, the reference to compare with, cannot be imported: {error}",
            hint="pip install keras torch, or compare with your own results: --verify reference.npz",
        ) from error
