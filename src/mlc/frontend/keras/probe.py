"""Walks the structure of an HDF5 file in a process of its own: libhdf5 goes round for ever in some damaged ones.

What ends there ends here, too: the importer asks for less than the walk does. Data of arrays are not read.

A server, started with the first file, has h5py loaded and forks a child a file: that takes milliseconds, where loading
h5py takes some tenths of a second. It ends with this process, or when it has had nothing to do for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from itertools import count
from typing import Any

from mlc.errors import ImportModelError

SECONDS = 20  # of a core that a walk may take; the largest public models take less than one
WAIT = 300  # seconds, on a machine that has other things to do
IDLE = 60  # seconds without a file after which a server ends

_REQUEST, _REPLY = struct.Struct("<I"), struct.Struct("<i")  # seconds of a core; exit code, negative for a signal
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
        code = _SERVER.walk(image)
    finally:
        os.close(image)
    if code:
        raise ImportModelError(f"{what}: damaged HDF5: its groups and attributes cannot be read within {SECONDS} s")


class _Server:
    """The end of this process of the connection to a server, which is started when one is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0  # the process that started it: one that is forked from that has to start its own
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def walk(self, image: int) -> int:
        """The exit code of a process that walks a file; not 0 where none ends in time."""
        with self._lock:
            for _ in range(2):  # the one that is there may be about to end
                try:
                    return self._ask(image)
                except TimeoutError:
                    self.stop()
                    return -signal.SIGKILL
                except OSError:
                    self.stop()
                except BaseException:
                    self.stop()
                    raise
        raise ImportModelError("HDF5 cannot be looked over: a Python process that does it does not start")

    def _ask(self, image: int) -> int:
        if self._socket is None or self._owner != os.getpid():
            self._start()
        assert self._socket is not None
        socket.send_fds(self._socket, [_REQUEST.pack(SECONDS)], [image])
        reply = self._socket.recv(_REPLY.size)
        if not reply:
            raise ConnectionResetError
        return int(_REPLY.unpack(reply)[0])

    def _start(self) -> None:
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.settimeout(WAIT)
        command = [sys.executable, "-m", "mlc.frontend.keras.probe", str(its.fileno()), str(IDLE)]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with its:
            self._process = subprocess.Popen(command, pass_fds=(its.fileno(),), start_new_session=True, **quiet)
        self._socket, self._owner = own, os.getpid()

    def stop(self) -> None:
        """Ends the server, and what it may be walking."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and self._owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._socket = self._process = None


_SERVER = _Server()
atexit.register(_SERVER.stop)


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


def _serve(descriptor: int, idle: int) -> None:
    """Walks the files that come by a socket, one by one, until none comes for ``idle`` seconds, or ever again."""
    import h5py

    with socket.socket(fileno=descriptor) as requests:
        requests.settimeout(idle)
        while True:
            try:
                request, images, *_ = socket.recv_fds(requests, _REQUEST.size, 1)
            except TimeoutError:
                return
            if not request:
                return
            (image,) = images
            child = os.fork()
            if not child:
                _child(h5py, image, *_REQUEST.unpack(request))
            os.close(image)
            _, status = os.waitpid(child, 0)
            requests.send(_REPLY.pack(os.waitstatus_to_exitcode(status)))


def _child(h5: Any, image: int, seconds: int) -> None:
    """Walks the file behind a descriptor for so many seconds of a core at most, and ends the process."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        with open(image, "rb") as file:
            file.seek(0)
            data = file.read()
        with contextlib.suppress(Exception):
            _walk(h5, opened(h5, data)["/"])
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
