"""The file: a safetensors file whose metadata holds JSON and whose tensors are the weights.

``u64 length of the header | header (JSON, padded with spaces) | weights``. In the header, ``__metadata__`` comes first,
with strings ``format`` (``mlc-model``), ``version``, ``graph`` (JSON text), and the SHA-256 of the graph's text and of
the weights. The tensors are numbered, and follow each other without gaps, wider element types first, so that each
starts at a multiple of its item size. Integers of less than a byte are stored one a byte, as the type that stands for
them (``I8``, ``U8``); which they are, the graph says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.files import read_exactly
from mlc.frontend.limits import Limits
from mlc.ir.types import dtype_of

VERSION = 1
MAGIC = b'{"__metadata__":{"format":"mlc-model",'

# What the safetensors library accepts as a header.
_MAX_HEADER = 100_000_000
_ALIGNMENT = 64

_SAFETENSORS_NAMES = {
    "bool": "BOOL", "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64", "i8": "I8", "i16": "I16", "i32": "I32",
    "i64": "I64", "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64",
}  # fmt: skip
_DTYPES = {theirs: ours for ours, theirs in _SAFETENSORS_NAMES.items()}


def write_container(document: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The bytes of the file; at most one weight is copied at a time.

    Args:
        document: JSON to keep in the metadata.
        weights: arrays by name; a name may be anything.
    Raises:
        ImportModelError: the header would be larger than safetensors allows.
    """
    # Names of weights may clash with the format's own key; numbers cannot.
    arrays = [array.astype(dtype_of(array.dtype).carrier.numpy, copy=False) for array in weights.values()]
    numbered = sorted(enumerate(arrays), key=lambda item: -item[1].itemsize)
    entries: dict[str, Any] = {}
    digest, end = sha256(), 0
    for number, array in numbered:
        digest.update(_raw(array))
        span = [end, end + array.nbytes]
        kind = _SAFETENSORS_NAMES[dtype_of(array.dtype).name]
        entries[str(number)] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        end = span[1]
    text = _dumps({**document, "weights": list(weights)})
    metadata = {
        "format": "mlc-model",
        "version": str(VERSION),
        "graph_sha256": sha256(text.encode("ascii")).hexdigest(),
        "weights_sha256": digest.hexdigest(),
        "graph": text,
    }
    header = _dumps({"__metadata__": metadata, **entries}).encode("ascii")
    header = header.ljust(-(-(8 + len(header)) // _ALIGNMENT) * _ALIGNMENT - 8)
    if len(header) > _MAX_HEADER:
        raise ImportModelError(f"the graph takes {len(header)} bytes as JSON, more than the format's {_MAX_HEADER}")
    return _chunks(header, [array for _, array in numbered])


def read_container(descriptor: int, size: int, limits: Limits) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the weights of an open file.

    Args:
        descriptor: a regular file.
        size: of the file in bytes.
        limits: ``tensor_bytes`` and ``rank`` hold for every weight.
    Returns:
        the JSON document, and read-only arrays by name.
    Raises:
        ImportModelError: damaged, of a newer version, or beyond a limit.
    """
    length = int.from_bytes(read_exactly(descriptor, 0, 8), "little")
    if length > min(_MAX_HEADER, size - 8):
        raise _damaged("its header does not fit the file")
    header = _loads(read_exactly(descriptor, 8, length), "its header")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged("its metadata is missing or no strings")
    _require_version(metadata.get("version", ""))
    text = metadata.get("graph", "")
    if sha256(text.encode("utf-8", "replace")).hexdigest() != metadata.get("graph_sha256"):
        raise _damaged("its graph does not match its SHA-256")
    document = _loads(text.encode("utf-8"), "its graph")
    data = read_exactly(descriptor, 8 + length, size - 8 - length)
    if sha256(data).hexdigest() != metadata.get("weights_sha256"):
        raise _damaged("its weights do not match their SHA-256")
    arrays = _arrays(header, data, limits)
    names = document.pop("weights", None)
    if not isinstance(names, list) or len(names) != len(arrays) or not all(isinstance(n, str) for n in names):
        raise _damaged("its weights have no names")
    return document, {name: arrays[str(i)] for i, name in enumerate(names) if str(i) in arrays}


def _arrays(entries: Mapping[str, Any], data: bytes, limits: Limits) -> dict[str, np.ndarray]:
    """The tensors of the header, each checked against the data."""
    arrays = {}
    for name, entry in entries.items():
        kind, shape, begin, end = _entry(entry)
        limits.check("rank", len(shape), f"weight {name}: rank")
        nbytes = prod(shape) * kind.itemsize
        limits.check("tensor_bytes", nbytes, f"weight {name}")
        if not 0 <= begin <= end <= len(data) or end - begin != nbytes:
            raise _damaged(f"weight {name} does not lie in the file as its header says")
        flat = np.frombuffer(data, kind.numpy, prod(shape), begin) if nbytes else np.empty(0, kind.numpy)
        # Any other byte would be a truth value that numpy and native code see differently.
        if kind.name == "bool" and flat.view(np.uint8).max(initial=0) > 1:
            raise _damaged(f"weight {name} has booleans that are neither 0 nor 1")
        arrays[name] = flat.reshape(shape)
    return arrays


def _entry(entry: Any) -> tuple[Any, tuple[int, ...], int, int]:
    """Element type, shape and place of one tensor."""
    try:
        kind = dtype_of(_DTYPES[entry["dtype"]])
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _damaged("a weight has a wrong entry in the header") from None
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in (*shape, begin, end)):
        raise _damaged("a weight has a wrong entry in the header")
    return kind, shape, begin, end


def _require_version(text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _damaged("its version is no number")
    if int(text) != VERSION:
        raise ImportModelError(
            f"saved models of version {int(text)} cannot be read by this mlc, which reads version {VERSION}",
            hint="import the original model again",
        )


def _loads(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _damaged(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise _damaged(f"{what} is not a JSON object")
    return value


def _refuse(name: str) -> float:
    raise ValueError(name)


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _chunks(header: bytes, arrays: list[np.ndarray]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little") + header
    yield from (_raw(array) for array in arrays)


def _raw(array: np.ndarray) -> memoryview:
    """The bytes of an array in row-major order; the formats and targets of ours are all little-endian."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _damaged(reason: str) -> ImportModelError:
    return ImportModelError(f"is not a sound saved model: {reason}", hint="import the original model again")
