"""Keras models: reading them as data, and converting their layers to core operators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy.typing as npt

from mlc.frontend.base import ImportedModel, OperatorInfo
from mlc.frontend.keras.archive import HDF5, is_keras_archive
from mlc.frontend.keras.live import is_live_model, saved_bytes
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.survey import Survey


class KerasFrontend:
    """The front end for ``.keras`` and ``.h5`` files, and for live models."""

    name = "keras"
    suffixes = (".keras", ".h5", ".hdf5")

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether a file with these first bytes is HDF5, or a zip archive as Keras writes it."""
        return head.startswith(HDF5) or is_keras_archive(head)

    def accepts(self, model: object) -> bool:
        """Whether ``model`` is a live ``keras.Model``."""
        return is_live_model(model)

    def load(
        self,
        path: object,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dims: Mapping[str, int] | None = None,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> ImportedModel:
        """Import a file or a live model; see :func:`mlc.frontend.keras.importer.import_keras`."""
        from mlc.frontend.keras.importer import import_keras

        given = path if isinstance(path, (str, os.PathLike)) else saved_bytes(path)
        return import_keras(given, shapes=shapes, dims=dims, constants=constants, limits=limits)

    def survey(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Survey:
        """What is in a file; see :func:`mlc.frontend.keras.survey.survey_keras`."""
        from mlc.frontend.keras.survey import survey_keras

        return survey_keras(path, limits)

    def supported_operators(self) -> list[OperatorInfo]:
        """Every layer and operation that can be imported, by name."""
        from mlc.frontend.keras.catalogue import supported_operators

        return supported_operators()
