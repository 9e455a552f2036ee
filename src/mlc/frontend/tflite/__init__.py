"""TensorFlow Lite models: reading them safely, and converting their operators to ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy.typing as npt

from mlc.frontend.base import ImportedModel, OperatorInfo
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.survey import Survey


class TfliteFrontend:
    """The front end for ``.tflite`` files."""

    name = "tflite"
    suffixes = (".tflite", ".lite")

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether a file with these first bytes is a TFLite model."""
        return head[4:8] == b"TFL3"

    def accepts(self, model: object) -> bool:
        """No live objects."""
        return False

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dims: Mapping[str, int] | None = None,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> ImportedModel:
        """Import a file; see :func:`mlc.frontend.tflite.importer.import_tflite`."""
        from mlc.frontend.tflite.importer import import_tflite

        return import_tflite(path, shapes=shapes, dims=dims, constants=constants, limits=limits)

    def survey(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Survey:
        """What is in a file; see :func:`mlc.frontend.tflite.survey.survey_tflite`."""
        from mlc.frontend.tflite.survey import survey_tflite

        return survey_tflite(path, limits)

    def supported_operators(self) -> list[OperatorInfo]:
        """Every operator that can be imported, by name."""
        from mlc.frontend.tflite.catalogue import supported_operators

        return supported_operators()
