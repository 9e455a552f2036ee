"""ONNX models: reading them safely, and converting their operators to ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy.typing as npt

from mlc.frontend.base import CustomOperator, ImportedModel, OperatorInfo
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.onnx.reader import looks_like_onnx
from mlc.frontend.survey import Survey


class OnnxFrontend:
    """The front end for ``.onnx`` files.

    Args:
        operators: of the user's own, for nodes of custom domains.
    """

    name = "onnx"
    suffixes = (".onnx",)

    def __init__(self, operators: Sequence[CustomOperator] = ()) -> None:
        self.operators = tuple(operators)

    def with_operators(self, operators: Sequence[CustomOperator]) -> OnnxFrontend:
        """The front end that knows operators of the user's own."""
        return OnnxFrontend(operators)

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether a file with these first bytes is an ONNX model."""
        return looks_like_onnx(head)

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
        """Import a file; see :func:`mlc.frontend.onnx.importer.import_onnx`."""
        from mlc.frontend.onnx.importer import import_onnx

        return import_onnx(path, shapes=shapes, dims=dims, constants=constants, limits=limits, operators=self.operators)

    def survey(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Survey:
        """What is in a file; see :func:`mlc.frontend.onnx.survey.survey_onnx`."""
        from mlc.frontend.onnx.survey import survey_onnx

        return survey_onnx(path, limits)

    def supported_operators(self) -> list[OperatorInfo]:
        """Every operator that can be imported, by name."""
        from mlc.frontend.onnx.catalogue import supported_operators

        return supported_operators()
