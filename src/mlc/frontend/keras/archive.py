"""From bytes to the parts of a Keras file, read as data alone: a zip of JSON and HDF5 (``.keras``), or HDF5 (``.h5``).

Nothing is extracted to disk, and no member is read before its size, its name and its way of packing were looked at.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from mlc.errors import ImportModelError
from mlc.frontend.keras.hdf5 import Group, open_image, text_attribute
from mlc.frontend.limits import Limits

ZIP, HDF5 = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
_CONFIG, _WEIGHTS, _METADATA = "config.json", "model.weights.h5", "metadata.json"
_MEMBERS = 64  # a .keras file has three, and maybe assets


@dataclass(frozen=True)
class KerasFile:
    """A file taken apart.

    Args:
        config: the model's description, parsed JSON.
        weights: the group that holds the weights: of ``model.weights.h5``, or ``model_weights`` of an ``.h5`` file.
        legacy: whether it is an ``.h5`` file, whose weights are flat lists by layer.
        version: of the Keras that wrote it, as far as it says.
        sha256: of all its bytes.
    """

    config: dict[str, Any]
    weights: Group
    legacy: bool
    version: str
    sha256: str


def is_keras_archive(head: bytes) -> bool:
    """Whether a file with these first bytes is a zip archive as Keras writes it.

    The first member is one of the three, whose names stand in the first header.
    """
    length = int.from_bytes(head[26:28], "little")
    return head.startswith(ZIP) and head[30 : 30 + length].decode("utf-8", "replace") in (_CONFIG, _WEIGHTS, _METADATA)


def read_file_parts(data: bytes, limits: Limits) -> KerasFile:
    """Take a file apart.

    Args:
        data: all of it.
        limits: budgets.
    Raises:
        ImportModelError: it is no Keras model, is damaged, or is beyond a limit.
        MissingDependencyError: h5py is not installed.
    """
    digest = sha256(data).hexdigest()
    if data.startswith(ZIP):
        members = _unzip(data, limits)
        config = parse_json(members[_CONFIG], limits, _CONFIG)
        metadata = parse_json(members[_METADATA], limits, _METADATA) if _METADATA in members else {}
        version = metadata.get("keras_version", "")
        weights = open_image(members[_WEIGHTS], limits, _WEIGHTS)
        return KerasFile(config, weights, False, version if isinstance(version, str) else "", digest)
    if not data.startswith(HDF5):
        raise ImportModelError("not a Keras model: neither a zip archive (.keras) nor HDF5 (.h5)")
    root = open_image(data, limits, "the file")
    text = text_attribute(root, "model_config")
    if text is None:
        what = (
            "it holds weights alone" if "layer_names" in root.attributes() or root.has("layers") else "it is other HDF5"
        )
        raise ImportModelError(
            f"not a Keras model: there is no attribute 'model_config'; {what}",
            hint="save the whole model: model.save('model.keras')",
        )
    config = parse_json(text.encode("utf-8", "surrogateescape"), limits, "model_config")
    return KerasFile(config, root.group("model_weights"), True, text_attribute(root, "keras_version") or "", digest)


def parse_json(data: bytes, limits: Limits, what: str) -> dict[str, Any]:
    """The object that a JSON text holds.

    Raises:
        ImportModelError: it is beyond the limit ``config_bytes``, is no JSON, no object, or nests too deep.
    """
    limits.check("config_bytes", len(data), what)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise ImportModelError(f"{what} is no JSON: {reason}") from error
    if not isinstance(found, dict):
        raise ImportModelError(f"{what} is JSON, but no object")
    return found


def _unzip(data: bytes, limits: Limits) -> dict[str, bytes]:
    """The members of a ``.keras`` file that a model is made of."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            names = [info.filename for info in infos]
            if len(infos) > _MEMBERS or len(set(names)) < len(names):
                raise ImportModelError(f"not a Keras model: the archive has {len(infos)} members, or some of one name")
            for wanted in (_CONFIG, _WEIGHTS):
                if wanted not in names:
                    raise ImportModelError(f"not a Keras model: the archive has no {wanted!r}")
            taken = [info for info in infos if info.filename in (_CONFIG, _WEIGHTS, _METADATA)]
            return {info.filename: _member(archive, info, limits) for info in taken}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise ImportModelError(f"the archive is damaged: {error}") from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limits: Limits) -> bytes:
    if info.flag_bits & 1:
        raise ImportModelError(f"member {info.filename!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ImportModelError(f"member {info.filename!r} is packed in a way that Keras does not use")
    if info.compress_type == zipfile.ZIP_DEFLATED:
        limits.check("unpacked_bytes", info.file_size, f"member {info.filename!r}, unpacked,")
    else:
        limits.check("file_bytes", info.file_size, f"member {info.filename!r}")
    with archive.open(info) as file:
        # what the directory says is not what the packed data must give
        content = file.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise ImportModelError(f"member {info.filename!r} is not as long as the archive says")
    return content
