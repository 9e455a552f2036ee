"""The process that walks HDF5 files before they are read."""

from __future__ import annotations

import io
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mlc.errors import ImportModelError
from mlc.frontend.keras import probe

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'mlc[keras]'")


def hdf5() -> bytes:
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        file["group/data"] = [1.0, 2.0]
        file["group"].attrs["names"] = ["data"]
    return made.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    made = probe._Server()
    monkeypatch.setattr(probe, "_SERVER", made)
    yield made
    made.stop()


def test_one_process_serves_all_files(server: probe._Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: probe.check_structure(hdf5(), "f.h5"), range(8)))
    assert server._process is not None
    first = server._process.pid
    probe.check_structure(b"no HDF5 at all", "f.h5")  # told by whoever reads it
    assert server._process.pid == first


def test_one_that_has_ended_is_replaced(server: probe._Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "IDLE", 1)
    probe.check_structure(hdf5(), "f.h5")
    first = server._process
    assert first is not None
    assert first.wait(30) == 0  # of itself
    probe.check_structure(hdf5(), "f.h5")
    second = server._process
    assert second is not None
    os.kill(second.pid, signal.SIGKILL)
    probe.check_structure(hdf5(), "f.h5")
    assert server._process is not second


def test_it_ends_when_nobody_is_left_to_ask(server: probe._Server) -> None:
    probe.check_structure(hdf5(), "f.h5")
    assert server._process is not None
    assert server._socket is not None
    server._socket.close()
    assert server._process.wait(30) == 0


def test_a_forked_process_starts_its_own(server: probe._Server) -> None:
    probe.check_structure(hdf5(), "f.h5")
    child = os.fork()
    if not child:
        code = 1
        try:
            probe.check_structure(hdf5(), "f.h5")
            code = 0
        finally:
            server.stop()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    probe.check_structure(hdf5(), "f.h5")


def test_one_that_cannot_start_is_told(server: probe._Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ImportModelError, match="a Python process that does it does not start"):
        probe.check_structure(hdf5(), "f.h5")
