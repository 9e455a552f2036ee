"""From a file or bytes to a parsed ``ModelProto``, with a size cap before anything is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from mlc.errors import ImportModelError
from mlc.frontend.common.importing import read_file
from mlc.frontend.limits import Limits
from mlc.frontend.sniff import HEAD_BYTES, describe


@dataclass(frozen=True)
class ModelFile:
    """A parsed model and where it lay.

    Args:
        proto: the model, unchecked.
        sha256: of its bytes.
        folder: where its external data may lie; ``None`` when the model came as bytes.
    """

    proto: onnx.ModelProto
    sha256: str
    folder: Path | None


def read_model(source: str | os.PathLike[str] | bytes, limits: Limits) -> ModelFile:
    """Read and parse a model; its external data stays where it is.

    Raises:
        UsageError: the file cannot be opened.
        ImportModelError: it is too large, or no ONNX model.
    """
    if isinstance(source, bytes):
        limits.check("file_bytes", len(source), "the model")
        data, folder = source, None
    else:
        data, folder = read_file(source, limits), Path(source).parent
    return ModelFile(_parse(data), sha256(data).hexdigest(), folder)


def _parse(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    looks = describe(data[:HEAD_BYTES])
    if looks:
        raise ImportModelError(f"not an ONNX model: looks like {looks}")
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ImportModelError(
            "not an ONNX model, or a damaged or truncated one: its protobuf encoding is broken",
            hint="compare the file's size with the original's; subgraphs may nest about 30 deep",
        ) from error
    if not model.HasField("graph"):
        raise ImportModelError("not an ONNX model: it has no graph")
    return model


def looks_like_onnx(head: bytes) -> bool:
    """Whether these first bytes can begin a ``ModelProto``: a field of it, with its wire type."""
    if not head or describe(head):
        return False
    # ir_version is field 1, a small integer; serialisers write fields in order, but need not
    if head[0] == 0x08:
        return len(head) > 1 and 0 < head[1] < 0x40
    # opset_import, producer name and version, domain, doc string, graph
    return head[0] in (0x42, 0x12, 0x1A, 0x22, 0x32, 0x3A)
