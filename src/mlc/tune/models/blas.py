"""How many threads numpy's linear algebra takes, which small matrices are better off without.

Its threads wait for one another by spinning. On a machine that builds, measures or does anything else meanwhile, they
make a batch of proposals take ten times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_MAPS = Path("/proc/self/maps")
# OpenBLAS as numpy's wheels have it, and as others build it
_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Linear algebra by the calling thread alone; a library that is not OpenBLAS goes on as it likes."""
    before = [(put, get()) for get, put in _libraries()]
    for put, _ in before:
        put(1)
    try:
        yield
    finally:
        for put, threads in before:
            put(threads)


@cache
def _libraries() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """What asks and what sets the number of threads of every OpenBLAS in this process."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return ()
    paths = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line.rpartition("/")[2]}
    found = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            name = next((n for n in _NAMES if hasattr(library, n.format("set"))), None)
            if name is not None:
                found.append((library[name.format("get")], library[name.format("set")]))
    return tuple(found)
