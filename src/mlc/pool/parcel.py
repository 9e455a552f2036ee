"""Parcels: what goes to a board and what it answers. A header in JSON and parts of bytes, each with its checksum.

Nothing of ours is ever pickled, and a receiver believes nothing: lengths are bounded, sums are checked, and the fields
of a header are read one by one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mlc import __version__
from mlc.errors import DocumentError
from mlc.fields import Fields, as_list, as_text, as_whole

_PREFIX = struct.Struct("<4sI32s")  # magic, bytes of the header, their SHA-256
_MAGIC = b"mlcp"
MAX_HEADER = 1 << 20
MAX_BYTES = 1 << 30
MAX_PARTS = 4096


@dataclass(frozen=True)
class Parcel:
    """What was sent.

    Args:
        kind: what it is.
        header: its fields; whoever reads them checks them.
        parts: bytes that belong to it.
        version: of the program that made it.
    """

    kind: str
    header: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()
    version: str = __version__

    def to_bytes(self) -> bytes:
        """As it travels.

        Raises:
            DocumentError: it is too large.
        """
        parts = [{"bytes": len(p), "sha256": hashlib.sha256(p).hexdigest()} for p in self.parts]
        whole = {"mlc": self.version, "kind": self.kind, "parts": parts, "header": dict(self.header)}
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()
        size = _PREFIX.size + len(text) + sum(map(len, self.parts))
        if len(text) > MAX_HEADER or size > MAX_BYTES or len(parts) > MAX_PARTS:
            raise DocumentError(f"a parcel of {size} bytes in {len(parts)} parts is too large for a pool")
        return b"".join((_PREFIX.pack(_MAGIC, len(text), hashlib.sha256(text).digest()), text, *self.parts))

    @classmethod
    def from_bytes(cls, data: object) -> Parcel:
        """The inverse, for what may be anything.

        Raises:
            DocumentError: it is no parcel, too large, or was altered.
        """
        if not isinstance(data, bytes) or not _PREFIX.size <= len(data) <= MAX_BYTES:
            raise DocumentError("no parcel")
        magic, length, digest = _PREFIX.unpack_from(data)
        start = _PREFIX.size + length
        if magic != _MAGIC or length > MAX_HEADER or start > len(data):
            raise DocumentError("no parcel")
        text = data[_PREFIX.size : start]
        if hashlib.sha256(text).digest() != digest:
            raise DocumentError("header: the checksum does not fit")
        try:
            get = Fields(json.loads(text), "")
        except (ValueError, RecursionError) as error:
            raise DocumentError("a parcel whose header is no JSON") from error
        version, kind = get.take("mlc", as_text), get.take("kind", as_text)
        sizes = get.take("parts", lambda items, where: as_list(items, where, _part, MAX_PARTS))
        header = get.take("header", _object)
        get.end()
        if start + sum(size for size, _ in sizes) != len(data):
            raise DocumentError("a parcel that is not as long as it says")
        parts = []
        for k, (size, digest) in enumerate(sizes):
            part = data[start : start + size]
            if hashlib.sha256(part).hexdigest() != digest:
                raise DocumentError(f"parts[{k}]: the checksum does not fit")
            parts.append(part)
            start += size
        return cls(kind, header, tuple(parts), version)


def refusal(reason: str) -> Parcel:
    """The answer of a board that does not do what it was asked."""
    return Parcel("refused", {"reason": reason[:500]})


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Bytes cut into pieces of some sizes, of which they consist."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [data[a:b] for a, b in pairwise(ends)]


def _part(value: Any, where: str) -> tuple[int, str]:
    get = Fields(value, where)
    found = get.take("bytes", as_whole(0, MAX_BYTES)), get.take("sha256", as_text)
    get.end()
    return found


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f"{where}: expected an object")
    return value
