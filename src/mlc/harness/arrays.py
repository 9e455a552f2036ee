"""Arrays in files: reading ``.npz`` and ``.npy`` that nobody has vouched for, and writing ``.npz``."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.atomic import atomic_write
from mlc.runtime.dtypes import to_plain

# What a file may unpack to, in bytes, for each byte that it has: .npz files may be compressed.
_MAX_RATIO = 200
_MIB = 1 << 20


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, by name.

    Raises:
        UsageError: the file cannot be read, is not an ``.npz`` of plain arrays, or unpacks to far more than its size.
    """
    _require_file(path)
    try:
        _require_modest(path)
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UsageError(f"{os.fspath(path)}: is one array, not an .npz", hint="give it as NAME=FILE.npy")
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, "an .npz file of arrays", error) from error


def read_npy(path: str | os.PathLike[str], *, mapped: bool = False) -> np.ndarray:
    """The array of an ``.npy`` file.

    Args:
        mapped: it stays where it is, and what is read of it is; for files that do not fit into memory.
    Raises:
        UsageError: the file cannot be read or is not an ``.npy``.
    """
    _require_file(path)
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, "an .npy file", error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError(f"{os.fspath(path)}: is an .npz, not an .npy", hint="give the .npz without a name")
    return array


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``.npz`` file, whole or not at all; the bytes depend on the arrays alone.

    Unlike ``numpy.savez`` it takes any name. Types that the format lacks are written as numpy's
    own: ``bfloat16`` as float32, integers of less than a byte as bytes.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            # A ZipInfo of its own carries no time of day.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(to_plain(array)), allow_pickle=False)


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
