"""External data: the bytes of tensors that lie in files beside the model.

The file names come from the model, so this is where a hostile model would reach for other files. Rules (each answers a
published attack on ONNX loaders): the path is relative, has no ``..``, and no component is a symbolic link; the file is
regular, has one link, and lies inside the model's folder; opening never blocks; offset and length lie within the file
and fit the tensor exactly; regions are not read over and over.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from mlc.errors import ImportModelError
from mlc.frontend.files import kind_of, read_exactly
from mlc.frontend.limits import DEFAULT_LIMITS, Limits

_KEYS = {"location", "offset", "length", "checksum", "basepath"}
_HINT = "mlc reads external data only from regular files inside the model's folder: copy them there"


@dataclass
class _Read:
    """What was read of one file so far."""

    taken: int = 0
    regions: dict[tuple[int, int], bytes] = field(default_factory=dict)


class ExternalData:
    """Reads the external tensors of one model.

    Args:
        folder: the model's folder; ``None`` when the model came as bytes, and so has no folder.
        limits: ``external_bytes`` caps what is read in all.
    """

    def __init__(self, folder: Path | None, limits: Limits = DEFAULT_LIMITS) -> None:
        self.folder = folder
        self.limits = limits
        self._total = 0
        self._files: dict[str, _Read] = {}

    def read(self, tensor: onnx.TensorProto, nbytes: int, where: str) -> bytes:
        """The bytes of an external tensor.

        Args:
            tensor: its ``data_location`` is ``EXTERNAL``.
            nbytes: bytes its shape and type need.
            where: the tensor, for messages.
        Raises:
            ImportModelError: a rule of this module is broken.
        """
        fields = _fields(tensor, where)
        parts = _components(fields.get("location", ""), where)
        location = "/".join(parts)
        offset = _number(fields, "offset", 0, where)
        length = _number(fields, "length", nbytes, where)
        if length != nbytes:  # asked before anything is read: the file may be sparse, and the length anything
            raise ImportModelError(f"{where}: external data of {length} bytes, its shape and type need {nbytes}")
        file = self._files.setdefault(location, _Read())
        if (offset, length) not in file.regions:
            file.regions[offset, length] = self._region(parts, offset, length, file, where)
        return file.regions[offset, length]

    def _region(self, parts: list[str], offset: int, length: int, file: _Read, where: str) -> bytes:
        location = "/".join(parts)
        if self.folder is None:
            raise ImportModelError(
                f"{where}: has external data, but the model was given as bytes", hint="load the model by its path"
            )
        try:
            descriptor = _open_beneath(self.folder, parts, where)
        except OSError as error:
            raise ImportModelError(
                f"{where}: external data {location!r} cannot be opened: {error.strerror}", hint=_HINT
            ) from error
        try:
            size = os.fstat(descriptor).st_size
            if offset + length > size:
                raise ImportModelError(
                    f"{where}: external data ends at byte {offset + length} of {location!r}, which has {size}",
                    hint="the file is incomplete or belongs to another model: copy it anew",
                )
            # tied weights name one region; a file whose regions overlap otherwise could be read without end
            file.taken += length
            if file.taken > size:
                raise ImportModelError(f"{where}: external data in {location!r} overlaps with that of other tensors")
            self._total += length
            self.limits.check("external_bytes", self._total, f"{where}: external data so far")
            data = read_exactly(descriptor, offset, length)
        finally:
            os.close(descriptor)
        if len(data) != length:
            raise ImportModelError(f"{where}: {location!r} became shorter while it was read")
        return data


def _fields(tensor: onnx.TensorProto, where: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in fields or entry.key not in _KEYS or not isinstance(entry.value, str):
            raise ImportModelError(f"{where}: external data has a wrong entry {entry.key!r}")
        fields[entry.key] = entry.value
    if fields.get("basepath"):
        raise ImportModelError(f"{where}: external data with a base path", hint=_HINT)
    return fields


def _number(fields: dict[str, str], key: str, default: int, where: str) -> int:
    text = fields.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ImportModelError(f"{where}: external data has {key} {text!r}, not a number of bytes")
    return int(text)


def _components(location: str, where: str) -> list[str]:
    parts = location.split("/")
    if location.startswith("./"):
        parts = parts[1:]
    bad = (
        not location
        or "\0" in location
        or "\\" in location
        or location.startswith("/")
        or any(p in ("", ".", "..") for p in parts)
        or ":" in parts[0]  # a URL or a drive
    )
    if bad:
        raise ImportModelError(
            f"{where}: external data at {location!r}, not a path inside the model's folder", hint=_HINT
        )
    return parts


def _open_beneath(folder: Path, parts: list[str], where: str) -> int:
    """Open a file component by component, so that no link can lead away between a check and the opening."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    descriptor = os.open(folder, flags | os.O_DIRECTORY)
    for k, part in enumerate(parts):
        last = k == len(parts) - 1
        try:
            mode = os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode
            wanted = stat.S_ISREG(mode) if last else stat.S_ISDIR(mode)
            if not wanted:
                name = "/".join(parts[: k + 1])
                raise ImportModelError(f"{where}: external data {name!r} is {kind_of(mode)}", hint=_HINT)
            extra = os.O_NONBLOCK if last else os.O_DIRECTORY
            inner = os.open(part, flags | extra | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise ImportModelError(f"{where}: external data {'/'.join(parts)!r} has several hard links", hint=_HINT)
    return descriptor
