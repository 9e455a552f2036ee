"""Saved models, ``.mlc``: an imported graph and its weights in one file, read by every command like any other model.

The file is a safetensors file: the weights are its tensors, and the graph is JSON text in its metadata (``graph``), so
that other tools can read both. Its hashes are checked, and the graph is built through the same type rules as an import.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy.typing as npt

from mlc.errors import ImportModelError, UsageError
from mlc.frontend.base import ImportedModel, OperatorInfo, TensorInfo
from mlc.frontend.files import open_regular
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.saved.container import MAGIC, read_container, write_container
from mlc.frontend.saved.document import model_from_json, model_to_json
from mlc.frontend.survey import Survey, by_count
from mlc.ops import operators


class SavedFrontend:
    """Reads what ``encode_model`` wrote."""

    name = "mlc"
    suffixes = (".mlc",)

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether the file starts as ``write_container`` starts it."""
        return head[8 : 8 + len(MAGIC)] == MAGIC

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
        """Read a saved model.

        Args:
            path: the file.
            shapes: must be what the model has already: shapes were fixed when it was imported.
            dims, constants: must be empty, for the same reason.
            limits: budgets.
        Returns:
            the model, with the source that it was first imported from.
        Raises:
            ImportModelError: the file is damaged, of another version, or beyond a limit.
            UsageError: another shape, a dimension or a constant is asked for.
        """
        name = os.fspath(path)
        descriptor, size = open_regular(path)
        try:
            document, weights = read_container(descriptor, size, limits)
        except ImportModelError as error:
            raise ImportModelError(f"{name}: {error.message}", hint=error.hint) from error
        finally:
            os.close(descriptor)
        try:
            model = model_from_json(document, weights, limits)
        except ImportModelError as error:
            raise ImportModelError(f"{name}: {error.message}", hint=error.hint) from error
        _require_same(model, shapes or {}, {**(dims or {}), **(constants or {})})
        return model

    def survey(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Survey:
        """What is in a file: core operators, since that is what it holds.

        Raises:
            ImportModelError: as for ``load``.
        """
        model = self.load(path, limits=limits)
        arrays = model.graph.constants.values()
        return Survey(
            format=self.name,
            name=model.source.name,
            producer=f"mlc import, from {model.source.format} ({model.source.path})",
            inputs=tuple((info.name, _type_text(info)) for info in model.source.inputs),
            outputs=tuple((info.name, _type_text(info)) for info in model.source.outputs),
            operators=by_count(Counter(node.op.name for node in model.graph.nodes)),
            parameters=sum(array.size for array in arrays),
            parameter_bytes=sum(array.nbytes for array in arrays),
            versions=model.source.opsets,
        )

    def supported_operators(self) -> list[OperatorInfo]:
        """The core operators: a saved model may hold any of them."""
        return [OperatorInfo(op.name) for op in operators()]


def encode_model(model: ImportedModel, mlc_version: str) -> Iterator[bytes | memoryview]:
    """The bytes of a saved model, piece by piece; they depend on the model alone.

    Args:
        model: as imported: no fused groups, no layouts.
        mlc_version: of the program that writes it.
    Raises:
        UnsupportedError: the graph has something that only a compiled graph has, or an operator of the user's own.
    """
    document = {"mlc_version": mlc_version, **model_to_json(model)}
    return write_container(document, {v.name: array for v, array in model.graph.constants.items()})


def _require_same(model: ImportedModel, shapes: Mapping[str, Sequence[int]], others: Mapping[str, object]) -> None:
    hint = "import the original model again with this option, and save that"
    for name in others:
        raise UsageError(f"{name!r}: a saved model takes no --dim or --const", hint=hint)
    inputs = {info.name: info.shape for info in model.source.inputs}
    for name, shape in shapes.items():
        if name not in inputs:
            raise UsageError(f"--shape {name}: there is no such input", hint=f"inputs: {', '.join(inputs)}")
        if tuple(shape) != inputs[name]:
            had = ",".join(map(str, inputs[name]))
            raise UsageError(f"--shape {name}: the saved model was imported with {had}", hint=hint)


def _type_text(info: TensorInfo) -> str:
    return f"{info.dtype}[{','.join(map(str, info.shape))}]"
