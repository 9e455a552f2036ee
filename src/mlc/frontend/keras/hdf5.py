"""HDF5 read with distrust: hard links alone, plain numbers stored in the file itself, sizes checked before reading.

HDF5 can do more than hold arrays: links and datasets may name other files, filters may be libraries that are loaded,
and a few bytes may describe terabytes. None of this is followed; what Keras writes has none of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, MissingDependencyError
from mlc.frontend.keras.probe import check_structure, opened
from mlc.frontend.limits import Limits

_ATTRIBUTE_CHUNKS = 10_000  # Keras cuts long lists of names into attributes NAME0, NAME1, …


@dataclass
class _File:
    """What all groups of a file share."""

    h5: Any  # the module h5py
    handle: Any
    limits: Limits
    what: str
    unpacked: int = 0  # bytes of compressed datasets read so far


@dataclass(frozen=True)
class Group:
    """A group of a file.

    Args:
        file: that it lies in.
        handle: h5py's.
        path: from the root.
    """

    file: _File = field(repr=False)
    handle: Any = field(repr=False)
    path: str

    def names(self) -> list[str]:
        """Names of what lies in it."""
        with _reading(self.path):
            return [str(name) for name in self.handle]

    def has(self, path: str) -> bool:
        """Whether there is something under a relative path, links of every kind counted."""
        group: Group | None = self
        *parents, last = path.split("/")
        for name in parents:
            if group is None or not group.is_group(name):
                return False
            group = group.group(name)
        with _reading(self.path):
            return group is not None and last in group.names()

    def is_group(self, name: str) -> bool:
        """Whether a name in it is that of a group."""
        if name not in self.names():
            return False
        return isinstance(self._open(name), self.file.h5.Group)

    def group(self, path: str) -> Group:
        """The group under a relative path.

        Raises:
            ImportModelError: there is none, or it is no hard link.
        """
        found = self
        for name in path.split("/"):
            opened = found._open(name)
            if not isinstance(opened, self.file.h5.Group):
                raise ImportModelError(f"{found.path}/{name}: is no group")
            found = Group(self.file, opened, posixpath.join(found.path, name))
        return found

    def dataset(self, path: str) -> Dataset:
        """The dataset under a relative path.

        Raises:
            ImportModelError: there is none, it is no hard link, or it is stored in a way that is not read.
        """
        parent, _, name = path.rpartition("/")
        group = self.group(parent) if parent else self
        where = posixpath.join(group.path, name)
        opened = group._open(name)
        if not isinstance(opened, self.file.h5.Dataset):
            raise ImportModelError(f"{where}: is no dataset")
        return Dataset(self.file, opened, where)

    def attributes(self) -> list[str]:
        """Names of its attributes."""
        with _reading(self.path):
            return [str(name) for name in self.handle.attrs]

    def _open(self, name: str) -> Any:
        """What a hard link leads to; other links are not followed, and virtual datasets are not opened."""
        h5, where = self.file.h5, posixpath.join(self.path, name)
        if name in ("", ".", ".."):
            raise ImportModelError(f"{where}: is no name")
        with _reading(where):
            encoded = name.encode("utf-8", "surrogateescape")
            if not self.handle.id.links.exists(encoded):
                raise ImportModelError(f"{where}: is not in {self.file.what}")
            kind = self.handle.id.links.get_info(encoded).type
            if kind != h5.h5l.TYPE_HARD:
                label = "a soft" if kind == h5.h5l.TYPE_SOFT else "an external"
                raise ImportModelError(f"{where}: is {label} link; links are not followed")
            opened = h5.h5o.open(self.handle.id, encoded)
            if isinstance(opened, h5.h5g.GroupID):
                return h5.Group(opened)
            if isinstance(opened, h5.h5d.DatasetID):
                _check_storage(h5, opened, where)
                return h5.Dataset(opened)
        raise ImportModelError(f"{where}: is neither group nor dataset")


@dataclass(frozen=True)
class Dataset:
    """An array in a file, not read yet."""

    file: _File = field(repr=False)
    handle: Any = field(repr=False)
    path: str

    @property
    def shape(self) -> tuple[int, ...]:
        with _reading(self.path):
            return tuple(int(n) for n in self.handle.shape or ())

    @property
    def dtype(self) -> np.dtype[Any]:
        with _reading(self.path):
            found: np.dtype[Any] = self.handle.dtype
            return found

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The array.

        Raises:
            ImportModelError: it is not plain numbers, is beyond a limit, has no data in the file, or is damaged.
        """
        limits, dtype = self.file.limits, self.dtype
        if dtype.kind not in "fiub" or dtype.itemsize > 8:
            raise ImportModelError(f"{self.path}: elements are {dtype}, numbers are needed")
        limits.check("tensor_bytes", self.nbytes, f"weights {self.path!r}")
        with _reading(self.path):
            stored = self.handle.id.get_storage_size()
            if self.handle.chunks is None and stored < self.nbytes:
                raise ImportModelError(f"{self.path}: {self.nbytes} bytes, of which the file holds {stored}")
            if self.handle.chunks is not None:
                self.file.unpacked += self.nbytes
                limits.check("unpacked_bytes", self.file.unpacked, "all weights in chunks, unpacked,")
            if not self.nbytes:
                return np.zeros(self.shape, dtype)
            array = np.empty(self.shape, dtype.newbyteorder("="))
            self.handle.read_direct(array)
        return array


def open_image(data: bytes, limits: Limits, what: str) -> Group:
    """The root group of an HDF5 file in memory.

    Args:
        data: the file.
        limits: budgets.
        what: names it in errors.
    Raises:
        ImportModelError: it is no HDF5, or so damaged that reading it does not end.
        MissingDependencyError: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError(
            "h5py, which reads the weights of Keras models, is not installed", hint="pip install 'mlc[keras]'"
        ) from error
    check_structure(data, what)
    with _reading(what):
        handle = opened(h5py, data)
        return Group(_File(h5py, handle, limits, what), handle["/"], "")


def text_attribute(group: Group, name: str) -> str | None:
    """A text, ``None`` where there is no such attribute.

    Raises:
        ImportModelError: it is no text, or beyond the limit ``config_bytes``.
    """
    if name not in group.attributes():
        return None
    value = _attribute(group, name)
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise ImportModelError(f"{group.path or '/'}: attribute {name!r} is no text")
    return value


def names_attribute(group: Group, name: str) -> list[str]:
    """A list of texts, which may be cut into several attributes; empty where there is none.

    Raises:
        ImportModelError: it is something else.
    """
    present = set(group.attributes())
    parts = [name] if name in present else []
    if not parts:
        for k in range(_ATTRIBUTE_CHUNKS):
            if f"{name}{k}" not in present:
                break
            parts.append(f"{name}{k}")
    found: list[str] = []
    for part in parts:
        value = _attribute(group, part)
        for item in np.asarray(value).reshape(-1).tolist():
            text = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
            if not isinstance(text, str):
                raise ImportModelError(f"{group.path}: attribute {part!r} is no list of names")
            found.append(text)
    return found


def _attribute(group: Group, name: str) -> Any:
    limits, where = group.file.limits, f"{group.path or '/'}: attribute {name!r}"
    with _reading(where):
        low = group.file.h5.h5a.open(group.handle.id, name.encode("utf-8", "surrogateescape"))
        limits.check("config_bytes", int(prod(low.shape)) * low.dtype.itemsize, where)
        if low.dtype.kind not in "SOUfiub" or low.dtype.names is not None:
            raise ImportModelError(f"{where} is {low.dtype}")
        return group.handle.attrs[name]


def _check_storage(h5: Any, dataset: Any, where: str) -> None:
    """Refuse arrays whose data lie in other files or need a filter that would be loaded."""
    plan = dataset.get_create_plist()
    if plan.get_layout() == h5.h5d.VIRTUAL:
        raise ImportModelError(f"{where}: is a virtual dataset; its parts would lie in other files")
    if plan.get_external_count():
        raise ImportModelError(f"{where}: its data lie in another file; external data are not read")
    known = {h5.h5z.FILTER_DEFLATE, h5.h5z.FILTER_SHUFFLE, h5.h5z.FILTER_FLETCHER32, h5.h5z.FILTER_LZF}
    for k in range(plan.get_nfilters()):
        if plan.get_filter(k)[0] not in known:
            raise ImportModelError(f"{where}: is packed by filter {plan.get_filter(k)[0]}, which is not known")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns what h5py raises about a damaged file into an error of ours."""
    try:
        yield
    except (
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        MemoryError,
        OverflowError,
        NotImplementedError,
    ) as error:
        raise ImportModelError(f"{where or '/'}: damaged HDF5: {str(error).strip() or type(error).__name__}") from error
