"""Models: what a file holds, imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy.typing as npt

from mlc import __version__
from mlc.errors import UsageError
from mlc.frontend.base import (
    CustomOperator,
    Extensible,
    ImportedModel,
    ModelSource,
    TensorInfo,
    frontend_accepting,
    get_frontend,
    guess_frontend,
)
from mlc.frontend.layouts import with_layouts
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.survey import Survey
from mlc.ir.graph import Graph
from mlc.runtime import atomic_write


@dataclass(frozen=True, eq=False)
class Model:
    """An imported model.

    Args:
        graph: its operators.
        info: the file it came from; for a saved model, the one it was first imported from.
        format: the front end that read it.
    """

    graph: Graph
    info: ModelSource
    format: str

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model takes: names, shapes and element types."""
        return self.info.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives."""
        return self.info.outputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a ``.mlc`` file, whole or not at all.

        Raises:
            OutputError: the file cannot be written.
            UnsupportedError: the graph holds an operator of the user's own.
        """
        from mlc.frontend.saved import encode_model

        with atomic_write(path) as file:
            for chunk in encode_model(ImportedModel(self.graph, self.info), __version__):
                file.write(chunk)


def load(
    path: str | os.PathLike[str] | object,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    limits: Limits | None = None,
    frontend: str | None = None,
    layouts: Mapping[str, str] | None = None,
    operators: str | os.PathLike[str] | Sequence[CustomOperator] = (),
) -> Model:
    """Import a model file, a live ``keras.Model``, or a network of :func:`mlc.graph`.

    Args:
        path: the file, whose format is guessed by its content; or the model.
        shapes: shapes of inputs, by name.
        dims: values of symbolic dimensions, by name.
        constants: values for inputs that shall be fixed; plain numbers take the input's element type.
        limits: budgets of the import.
        frontend: name of the front end, when its guess shall not count.
        layouts: orders of axes in which inputs are to be taken, by name: ``NCHW``, or ``NHWC->NCHW`` with the model's
            own, which is that of its format unless it is said. ``shapes`` and ``constants`` stay in the model's own.
        operators: of the user's own (:func:`mlc.operator`) that the model calls, or the Python file that defines them,
            which is run.
    Raises:
        ImportModelError: the file is broken, hostile, or beyond a limit.
        UnsupportedError: it uses something that cannot be compiled; names all of it.
        UsageError: a shape, dimension, constant or layout does not fit the model, or operators cannot be used.
    """
    if not isinstance(path, (str, os.PathLike)):
        reader = frontend_accepting(path)
    else:
        reader = get_frontend(frontend) if frontend else guess_frontend(path)
    if operators:
        if not isinstance(reader, Extensible):
            raise UsageError(
                f"models of the format {reader.name} call no operators of one's own", hint="ONNX models do"
            )
        reader = reader.with_operators(_operators(operators))
    imported = reader.load(path, shapes=shapes, dims=dims, constants=constants, limits=limits or DEFAULT_LIMITS)
    if layouts:
        imported = with_layouts(imported, layouts)
    return Model(imported.graph, imported.source, reader.name)


def _operators(given: str | os.PathLike[str] | Sequence[CustomOperator]) -> Sequence[CustomOperator]:
    if not isinstance(given, (str, os.PathLike)):
        return given
    from mlc.define.files import operators_in

    return operators_in(given)


def survey(path: str | os.PathLike[str], *, limits: Limits | None = None, frontend: str | None = None) -> Survey:
    """What is in a model file, whether or not it can be imported.

    Args:
        path: the file.
        limits, frontend: as for ``load``.
    Raises:
        ImportModelError: the file is broken, hostile, or beyond a limit.
    """
    reader = get_frontend(frontend) if frontend else guess_frontend(path)
    return reader.survey(path, limits or DEFAULT_LIMITS)
