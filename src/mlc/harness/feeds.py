"""Inputs for a model: read from files that nobody has vouched for, or made up from a seed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.dtypes import ELEMENTS, numpy_dtype
from mlc.runtime.manifest import TensorSpec

# What a file of arrays may unpack to, in bytes, for each byte that it has: .npz files may be compressed.
_MAX_RATIO = 200
_MIB = 1 << 20


class Fill(StrEnum):
    """How to make up inputs."""

    RANDOM = "random"
    ZEROS = "zeros"
    ONES = "ones"


@dataclass(frozen=True)
class Span:
    """The values that random inputs are drawn from: ``low`` to ``high``, both included for integers."""

    low: float
    high: float


# Integers wider than a byte are mostly token ids, masks, positions and the like: 0 and 1 are valid for all of these,
# whatever the size of the table that they index. Bytes are mostly quantised data, where every value is valid.
_WIDE_INTEGERS = Span(0, 1)


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, by name.

    Raises:
        UsageError: the file cannot be read, is not an ``.npz`` of plain arrays, or unpacks to far more than its size.
    """
    _require_file(path)
    try:
        _require_modest(path)
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(f"{os.fspath(path)}: is one array, not an .npz", hint="give it as NAME=FILE.npy")
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, "an .npz file of arrays", error) from error


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of an ``.npy`` file.

    Raises:
        UsageError: the file cannot be read or is not an ``.npy``.
    """
    _require_file(path)
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, "an .npy file", error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError(f"{os.fspath(path)}: is an .npz, not an .npy", hint="give the .npz without a name")
    return array


def make_feeds(
    specs: Sequence[TensorSpec],
    fill: Fill,
    seed: int,
    everywhere: Span | None = None,
    spans: Mapping[str, Span] | None = None,
) -> dict[str, np.ndarray]:
    """An array for each input.

    Random floats are standard normal, booleans even odds, bytes anything, and wider integers 0 or 1, unless a span says
    otherwise. What an input gets depends on the seed and its own name alone.

    Args:
        specs: the inputs.
        fill: how to fill them.
        seed: of the random generator, >= 0.
        everywhere: values of all random inputs but booleans; floats are then uniform.
        spans: the same for single inputs, by name.
    Raises:
        UsageError: a span is for an unknown input, or does not fit the element type.
    """
    spans = dict(spans or {})
    for name in spans:
        if name not in {spec.name for spec in specs}:
            hint = "the model's inputs: " + ", ".join(repr(spec.name) for spec in specs)
            raise UsageError(f"a range is given for {name!r}, which is not an input", hint=hint)
    return {spec.name: _filled(spec, fill, seed, spans.get(spec.name, everywhere)) for spec in specs}


def _filled(spec: TensorSpec, fill: Fill, seed: int, span: Span | None) -> np.ndarray:
    dtype = numpy_dtype(spec.dtype)
    if fill is Fill.ZEROS:
        return np.zeros(spec.shape, dtype)
    if fill is Fill.ONES:
        return np.ones(spec.shape, dtype)
    generator = np.random.default_rng([seed, *spec.name.encode("utf-8")])
    if spec.dtype == "bool":
        return generator.integers(0, 2, spec.shape, dtype=np.uint8).astype(bool)
    if dtype.kind in "iu":
        low, high = _integer_span(spec, span)
        return generator.integers(low, high, spec.shape, dtype=dtype, endpoint=True)
    if span is None:
        return generator.standard_normal(spec.shape).astype(dtype)
    return generator.uniform(span.low, span.high, spec.shape).astype(dtype)


def _integer_span(spec: TensorSpec, span: Span | None) -> tuple[int, int]:
    least, most = integer_limits(spec.dtype)
    if span is None:
        if ELEMENTS[spec.dtype].itemsize == 1:
            return least, most
        span = _WIDE_INTEGERS
    if not (least <= span.low <= span.high <= most and span.low == int(span.low) and span.high == int(span.high)):
        raise UsageError(
            f"input {spec.name!r}: {span.low:g}:{span.high:g} is not a range of {spec.dtype}",
            hint=f"give whole numbers from {least} to {most}, as in --range {spec.name}=0:9",
        )
    return int(span.low), int(span.high)


def integer_limits(dtype: str) -> tuple[int, int]:
    """The least and greatest value of an integer element type, sub-byte ones included."""
    bits = int(dtype[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.startswith("i") else (0, (1 << bits) - 1)


def _require_file(path: str | os.PathLike[str]) -> None:
    """Refuses what is not a plain file; opening a pipe would wait for ever."""
    if not Path(path).is_file():
        reason = "is not a regular file" if Path(path).exists() else "there is no such file"
        raise UsageError(f"{os.fspath(path)}: {reason}", hint="check the path")


def _require_modest(path: str | os.PathLike[str]) -> None:
    """Refuses an archive that unpacks to far more than it takes."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > max(_MAX_RATIO * Path(path).stat().st_size, 256 * _MIB):
        raise UsageError(
            f"{os.fspath(path)}: unpacks to {unpacked} bytes, more than {_MAX_RATIO} times its size",
            hint="save it with numpy.savez, without compression",
        )


def _unreadable(path: str | os.PathLike[str], expected: str, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0] if str(error) else type(error).__name__
    if "allow_pickle" in str(error):
        reason = "it holds Python objects, which are never loaded"
    return UsageError(f"{os.fspath(path)}: is not {expected}: {reason}", hint="write it with numpy.savez or numpy.save")
