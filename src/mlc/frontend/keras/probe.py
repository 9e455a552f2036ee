"""Walks the structure of an HDF5 file in a process of its own: libhdf5 goes round for ever in some damaged ones.

What ends there ends here, too: the importer asks for less than the walk does. Data of arrays are not read.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from itertools import count
from typing import Any

from mlc.errors import ImportModelError

SECONDS = 20  # of a core that a walk may take; the largest public models take less than one
WAIT = 300  # seconds, on a machine that has other things to do

_IMAGES = count()


def opened(h5: Any, data: bytes) -> Any:
    """A file in memory as h5py's; raises what h5py does.

    Args:
        h5: the module h5py.
        data: the file.
    """
    access = h5.h5p.create(h5.h5p.FILE_ACCESS)
    access.set_fapl_core(backing_store=False)
    access.set_file_image(data)
    # files in memory that are open under one name are one file to HDF5
    return h5.File(h5.h5f.open(b"mlc-image-%d" % next(_IMAGES), h5.h5f.ACC_RDONLY, fapl=access))


def check_structure(data: bytes, what: str) -> None:
    """Sees that groups and attributes can be read in a limited time.

    Errors of a walk that ends are not told: whoever reads what he needs finds out what is wrong with it.

    Args:
        data: the file.
        what: names it in errors.
    Raises:
        ImportModelError: they cannot.
    """
    image = os.memfd_create("mlc-hdf5")
    try:
        with open(image, "wb", closefd=False) as file:
            file.write(data)
        command = [sys.executable, "-m", "mlc.frontend.keras.probe", str(image), str(SECONDS)]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        try:
            code = subprocess.run(command, pass_fds=(image,), timeout=WAIT, check=False, **quiet).returncode
        except subprocess.TimeoutExpired:
            code = -1
    finally:
        os.close(image)
    if code < 0:
        raise ImportModelError(f"{what}: damaged HDF5: its groups and attributes cannot be read within {SECONDS} s")


def _walk(h5: Any, group: Any) -> None:
    """Names and attributes of all groups and datasets that hard links lead to, each once."""
    seen, stack = set(), [group]
    while stack:
        handle = stack.pop()
        with contextlib.suppress(Exception):  # told by the importer, if it needs this
            place = h5.h5o.get_info(handle.id).addr
            if place in seen:
                continue
            seen.add(place)
        for name in _listed(handle.attrs):
            with contextlib.suppress(Exception):
                handle.attrs[name]
        for name in _listed(handle) if isinstance(handle, h5.Group) else ():
            with contextlib.suppress(Exception):
                encoded = name.encode("utf-8", "surrogateescape")
                if handle.id.links.get_info(encoded).type == h5.h5l.TYPE_HARD:
                    stack.append(handle[name])


def _listed(names: Any) -> list[str]:
    with contextlib.suppress(Exception):
        return list(names)
    return []


def main(descriptor: int, seconds: int) -> None:
    """Walks the file behind a descriptor for so many seconds of a core at most."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    import h5py

    with open(descriptor, "rb") as file:
        file.seek(0)
        data = file.read()
    with contextlib.suppress(Exception):
        _walk(h5py, opened(h5py, data)["/"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
