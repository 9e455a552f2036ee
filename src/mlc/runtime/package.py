"""``module.tar``: writing it, and reading one that nobody has vouched for.

A package is a plain, uncompressed tar file of regular files, ``module.json`` first and ``params.safetensors`` last:

=========================  ===========================================================================
``module.json``            the manifest (see ``manifest.py``), with the SHA-256 of every other member
``graph.txt``              the optimised graph, for people
``examples/main.c``        a C program that runs the model, unless that takes a device; ``examples/main.py`` with numpy
``include/mlc_model.h``    its header
``device/*``               programs of the device that takes over parts of the model, where there is one
``lib/model.o``            the code, relocatable; ``lib/model.so`` where a linker was at hand
``src/*``                  what was generated, readable
``params.safetensors``     the parameters, 64-byte aligned in this very file
=========================  ===========================================================================

The bytes depend on the contents alone: no times, no owners, a fixed order.

A package holds native code, so running one means trusting it. Reading one does not: the reader walks the tar headers
itself, takes only regular files with the names above, never extracts, and checks every sum before anybody sees a byte.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from mlc.errors import PackageError, UsageError
from mlc.runtime.atomic import atomic_write
from mlc.runtime.manifest import Manifest, MemberSpec
from mlc.runtime.params import data_start, params_chunks, plan_params

MANIFEST = "module.json"
PARAMS = "params.safetensors"
OBJECT = "lib/model.o"

_BLOCK = 512
_MAX_MEMBERS = 4096
_MIB = 1 << 20
_HUGE = 2 * _MIB  # a large page of x86 and of ARM with small ones of 4 KiB
_FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"

# Which members may be there, and the largest size of each in bytes. What is read into memory is bounded; the parameters
# are mapped, and so bounded by the file itself.
_ALLOWED: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), limit)
    for pattern, limit in (
        (re.escape(MANIFEST), 64 * _MIB),
        (re.escape(PARAMS), 1 << 50),
        (r"graph\.txt", 256 * _MIB),
        (rf"lib/{_FILE_NAME}", 1024 * _MIB),
        (rf"device/{_FILE_NAME}", 1024 * _MIB),
        (rf"src/{_FILE_NAME}", 256 * _MIB),
        (rf"(?:include|examples)/{_FILE_NAME}", 16 * _MIB),
    )
)


def write_package(
    path: str | os.PathLike[str],
    manifest: Manifest,
    params: Mapping[str, np.ndarray],
    members: Mapping[str, bytes],
) -> Manifest:
    """Writes a ``module.tar``, whole or not at all, without a second copy of the parameters in memory.

    Args:
        path: where the package shall be.
        manifest: everything but ``members``, which is filled in here; ``params`` as ``plan_params`` placed them.
        params: one array for each parameter; see ``params_chunks``.
        members: contents of the other members, by name.
    Returns:
        the manifest as written.
    Raises:
        PackageError: the manifest is inconsistent, a parameter does not fit it, or a member's name is not allowed.
        OutputError: the file cannot be written.
    """
    plan = plan_params(manifest.params)
    if plan.params != manifest.params or plan.nbytes != manifest.memory.params_bytes:
        raise PackageError("the parameters do not lie where plan_params places them")
    for name in (MANIFEST, PARAMS):
        if name in members:
            raise PackageError(f"member {name!r}: is written by write_package itself")
    sums = {name: MemberSpec(hashlib.sha256(members[name]).hexdigest(), len(members[name])) for name in sorted(members)}
    sums[PARAMS] = _sum_of(params_chunks(plan.params, params))
    for name, member in sums.items():
        _require_allowed(name, member.size)
    if len(sums) >= _MAX_MEMBERS:
        raise PackageError(f"{len(sums)} members are more than the {_MAX_MEMBERS} that a package may have")
    manifest = manifest.with_members(sums)
    text = manifest.to_text()
    # The reader's own strictness, applied before anything is written.
    Manifest.from_text(text)
    with atomic_write(path) as file:
        _write_member(file, MANIFEST, len(text), (text,))
        for name in sorted(members):
            _write_member(file, name, len(members[name]), (members[name],))
        _write_member(file, PARAMS, sums[PARAMS].size, params_chunks(plan.params, params))
        # Two empty blocks end an archive.
        file.write(bytes(2 * _BLOCK))
    return manifest


def _sum_of(chunks: Iterable[bytes | memoryview]) -> MemberSpec:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return MemberSpec(digest.hexdigest(), size)


def _write_member(file: BinaryIO, name: str, size: int, chunks: Iterable[bytes | memoryview]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    # Plain ustar counts to 8 GiB in octal; beyond, every tar program understands the binary form.
    header = info.tobuf(tarfile.USTAR_FORMAT if size < 8**11 else tarfile.GNU_FORMAT, "ascii", "strict")
    file.write(header)
    for chunk in _in_pages(chunks, file.tell()):
        file.write(chunk)
    file.write(bytes(-size % _BLOCK))


def _in_pages(chunks: Iterable[bytes | memoryview], at: int) -> Iterator[bytes | memoryview]:
    """The same bytes, cut where large pages of the file end: the system then keeps it in such pages.

    A network that reads more weights than caches hold runs faster from them: translating addresses takes memory's time.

    Args:
        chunks: of bytes.
        at: where in the file they begin.
    """
    page = bytearray()
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            room = _HUGE - at % _HUGE
            piece, rest = rest[:room], rest[room:]
            at += len(piece)
            if at % _HUGE:
                page += piece
            elif page:
                yield bytes(page) + bytes(piece)
                page.clear()
            else:
                yield piece
    yield bytes(page)


@dataclass(frozen=True)
class _Place:
    """Where the contents of a member lie in the file, in bytes."""

    offset: int
    size: int


class Package:
    """A package whose sums were checked, mapped read-only. Made by ``open_package``; a context manager.

    Arrays handed out keep the mapping alive after ``close``. The file must not be rewritten in place meanwhile
    (``write_package`` never does: it puts a new file in the old one's place).
    """

    def __init__(self, path: Path, manifest: Manifest, mapped: mmap.mmap, places: Mapping[str, _Place]) -> None:
        self.path = path
        self.manifest = manifest
        self._mapped: mmap.mmap | None = mapped
        self._places = places

    def names(self) -> tuple[str, ...]:
        """The members, in the file's order."""
        return tuple(self._places)

    def read(self, name: str) -> bytes:
        """The contents of a member.

        Raises:
            PackageError: there is no such member.
            UsageError: the package was closed.
        """
        place = self._places.get(name)
        if place is None:
            raise PackageError(f"{self.path}: {name}: is not in the package", hint="it has: " + ", ".join(self._places))
        return self._open()[place.offset : place.offset + place.size]

    def params(self) -> np.ndarray:
        """The data section of the parameters: u8[params_bytes], read-only, 64-byte aligned, not copied."""
        place, mapped = self._places[PARAMS], self._open()
        start = place.offset + data_start(mapped[place.offset : place.offset + 8], place.size)
        # At the very end of the file frombuffer would refuse an empty range; a slice of the whole does not.
        return np.frombuffer(mapped, np.uint8)[start : place.offset + place.size]

    def close(self) -> None:
        """Forgets the mapping; it goes when the last array into it goes."""
        self._mapped = None

    def _open(self) -> mmap.mmap:
        if self._mapped is None:
            raise UsageError(f"{self.path}: the package was closed")
        return self._mapped

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_package(path: str | os.PathLike[str]) -> Package:
    """Opens a ``module.tar`` and checks all of it: the walk, the manifest, and the sum of every member.

    Raises:
        UsageError: the file cannot be opened.
        PackageError: it is not a sound package; one line with the file, the member and the reason.
    """
    try:
        return _open_checked(Path(path))
    except PackageError as error:
        hint = error.hint or "the file is damaged or not a module.tar; compile the model again"
        raise PackageError(f"{os.fspath(path)}: {error.message}", hint=hint) from error.__cause__


def _open_checked(path: Path) -> Package:
    mapped = _map(path)
    places = _walk(mapped)
    manifest = _read_manifest(mapped, places)
    for name, expected in manifest.members.items():
        _require_sum(mapped, name, expected, places[name])
    package = Package(path, manifest, mapped, places)
    held = package.params().nbytes
    if held != manifest.memory.params_bytes:
        raise PackageError(f"{PARAMS}: holds {held} bytes, but the manifest says {manifest.memory.params_bytes}")
    return package


def _map(path: Path) -> mmap.mmap:
    """The file, mapped read-only; never blocks on a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PackageError("is not a regular file")
        if status.st_size < _BLOCK:
            raise PackageError(f"is only {status.st_size} bytes long")
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system that has none
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _walk(mapped: mmap.mmap) -> dict[str, _Place]:
    """The members of a tar file, from its headers alone."""
    places: dict[str, _Place] = {}
    at = 0
    while True:
        header = mapped[at : at + _BLOCK]
        if len(header) < _BLOCK:
            raise PackageError(f"is cut off: byte {at} should start another header")
        if not any(header):
            return places
        try:
            info = tarfile.TarInfo.frombuf(header, "ascii", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise PackageError(f"byte {at}: is not a tar header: {error}") from None
        name = info.name
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise PackageError(f"member {name!r}: is not a regular file")
        _require_allowed(name, info.size)
        if name in places:
            raise PackageError(f"member {name!r}: occurs twice")
        if len(places) == _MAX_MEMBERS:
            raise PackageError(f"has more than {_MAX_MEMBERS} members")
        place = _Place(at + _BLOCK, info.size)
        if place.offset + place.size > len(mapped):
            raise PackageError(f"member {name!r}: is cut off: {place.size} bytes expected")
        places[name] = place
        at = place.offset + place.size + -place.size % _BLOCK


def _require_allowed(name: str, size: int) -> None:
    for pattern, limit in _ALLOWED:
        if pattern.fullmatch(name):
            if not 0 <= size <= limit:
                raise PackageError(f"member {name!r}: a size of {size} bytes is outside 0 .. {limit}")
            return
    raise PackageError(f"member {name!r}: is not a name that a package may have")


def _read_manifest(mapped: mmap.mmap, places: Mapping[str, _Place]) -> Manifest:
    """The manifest, whose list of members must be exactly what the walk found."""
    first = next(iter(places), None)
    if first != MANIFEST:
        raise PackageError(f"{MANIFEST} is not the first member", hint="this is not a package made by mlc compile")
    place = places[MANIFEST]
    try:
        manifest = Manifest.from_text(mapped[place.offset : place.offset + place.size])
    except PackageError as error:
        raise PackageError(f"{MANIFEST}: {error.message}", hint=error.hint) from None
    for name in places.keys() - manifest.members.keys() - {MANIFEST}:
        raise PackageError(f"member {name!r}: is not in the manifest")
    for name in [*manifest.members, PARAMS]:
        if name not in places:
            raise PackageError(f"member {name!r}: is missing")
    return manifest


def _require_sum(mapped: mmap.mmap, name: str, expected: MemberSpec, place: _Place) -> None:
    if place.size != expected.size:
        raise PackageError(f"member {name!r}: has {place.size} bytes, not {expected.size} as the manifest says")
    # Hashed through the mapping, in pieces so that an interrupt does not wait for gigabytes.
    digest, end = hashlib.sha256(), place.offset + place.size
    with memoryview(mapped) as view:
        for at in range(place.offset, end, 64 * _MIB):
            digest.update(view[at : min(at + 64 * _MIB, end)])
    if digest.hexdigest() != expected.sha256:
        raise PackageError(f"member {name!r}: does not match its SHA-256")
