"""``params.safetensors``: the parameters, laid out so that native code can use them straight from the mapped file.

Safetensors has no notion of alignment and refuses gaps. So the header is padded with spaces until the data section
starts at a multiple of 64 bytes, and what lies between two tensors is a tensor itself, ``__pad0``, ``__pad1``, ... of
bytes. Any safetensors reader can still read the file. Names that start with ``__`` belong to the format; a parameter
of such a name is written as ``param:NAME``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mlc.errors import PackageError
from mlc.runtime.dtypes import ELEMENTS, describe, numpy_dtype, to_plain
from mlc.runtime.tensor_spec import ALIGNMENT, ParamSpec, TensorSpec

# What the safetensors library accepts as a header.
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class ParamPlan:
    """Parameters in their places, and the size of the data section in bytes, a multiple of ``ALIGNMENT``."""

    params: tuple[ParamSpec, ...]
    nbytes: int


def plan_params(specs: Iterable[TensorSpec]) -> ParamPlan:
    """Gives every parameter its offset: in the order given, each at a multiple of ``ALIGNMENT`` bytes.

    The order is the caller's to choose: parameters used one after the other should lie one after the other. The end is
    padded too, so that a vector load may read past the last element of a tensor.
    """
    params, end = [], 0
    for spec in specs:
        params.append(ParamSpec(spec.name, spec.dtype, spec.shape, end))
        end = _align(end + spec.nbytes)
    return ParamPlan(tuple(params), end)


def params_header(params: Iterable[ParamSpec]) -> bytes:
    """The safetensors header for parameters as ``plan_params`` placed them: length, JSON, spaces.

    Returns:
        bytes, as many as a multiple of ``ALIGNMENT``.
    Raises:
        PackageError: there are so many parameters that safetensors would refuse the header.
    """
    header: dict[str, object] = {}
    end = pads = 0

    def entry(name: str, dtype: str, shape: tuple[int, ...], begin: int, nbytes: int) -> None:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + nbytes]}

    for spec in params:
        entry(_key(spec.name), ELEMENTS[spec.dtype].safetensors, spec.shape, spec.offset, spec.nbytes)
        end = spec.offset + spec.nbytes
        gap = _align(end) - end
        if gap:
            entry(f"__pad{pads}", "U8", (gap,), end, gap)
            pads += 1
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text = text.ljust(_align(8 + len(text)) - 8)
    if len(text) > _MAX_HEADER:
        raise PackageError(f"params.safetensors: the header would take {len(text)} bytes, more than {_MAX_HEADER}")
    return len(text).to_bytes(8, "little") + text


def params_chunks(params: Iterable[ParamSpec], arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The bytes of ``params.safetensors``, piece by piece; a strided tensor is copied, alone.

    Args:
        params: as ``plan_params`` placed them.
        arrays: one array for each, of its shape and element type; ``bf16`` may also come as the bits in ``uint16``.
    Raises:
        PackageError: an array is missing, left over, or of another type.
    """
    params = tuple(params)
    known = {spec.name for spec in params}
    for name in arrays:
        if name not in known:
            raise PackageError(f"parameter {name!r} is not in the manifest")
    yield params_header(params)
    for spec in params:
        if spec.name not in arrays:
            raise PackageError(f"parameter {spec.name!r} has no array")
        array = arrays[spec.name]
        _require_type(spec, array)
        if spec.nbytes:
            if ELEMENTS[spec.dtype].itemsize == 1:
                array = to_plain(array)  # whole bytes, also where ml_dtypes leaves the upper bits of one open
            # safetensors is little-endian, as every target of ours is
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            yield bytes(-spec.nbytes % ALIGNMENT)


def data_start(head: bytes, size: int) -> int:
    """Where the data section of a ``params.safetensors`` starts, in bytes.

    Args:
        head: its first 8 bytes.
        size: its size in bytes.
    Raises:
        PackageError: the header does not fit the file, or leaves the data unaligned.
    """
    start = 8 + int.from_bytes(head, "little")
    if len(head) < 8 or start > size:
        raise PackageError(f"params.safetensors: the header does not fit into {size} bytes")
    if start % ALIGNMENT:
        raise PackageError(f"params.safetensors: the data starts at byte {start}, not at a multiple of {ALIGNMENT}")
    return start


def _require_type(spec: TensorSpec, array: np.ndarray) -> None:
    bits = spec.dtype == "bf16" and array.dtype == np.uint16
    if array.shape != spec.shape or not (bits or array.dtype == numpy_dtype(spec.dtype)):
        raise PackageError(f"parameter {spec.name!r}: expected {spec}, got {describe(array.dtype, array.shape)}")


def _key(name: str) -> str:
    """The name of a parameter in the file: never one of the format's own, and never that of another parameter."""
    return f"param:{name}" if name.startswith(("__", "param:")) else name


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
