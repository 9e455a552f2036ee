"""An authority of one's own: who gets what, and who is let in."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from mlc.errors import UsageError
from mlc.pool.certificates import Authority, Role, files_of, role_in
from mlc.pool.secure import Address, RefusedError, context, greet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca") / "pool"
    authority = Authority(folder)
    assert authority.made
    for name, role in (("hub", Role.SCHEDULER), ("pi", Role.BOARD), ("ann", Role.CLIENT)):
        authority.issue(name, role)
    return folder


def greeted(listening: Path, coming: Path) -> str:
    """What a party is told that comes to another one: nothing where it is let in."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            plain, _ = server.accept()
            try:
                with context(files_of(listening), ssl.Purpose.CLIENT_AUTH).wrap_socket(plain, server_side=True) as talk:
                    talk.send(b"welcome")
                    talk.recv(1)
            except OSError:
                plain.close()

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            greet(Address("127.0.0.1", server.getsockname()[1]), coming)
            return ""
        except RefusedError as error:
            return error.message
        finally:
            thread.join()


def test_everybody_gets_a_folder_that_nobody_else_reads(folder: Path) -> None:
    for name, role in (("hub", "scheduler"), ("pi", "board"), ("ann", "client")):
        files = files_of(folder / name)
        assert role_in(files["cert.pem"]) == role
        assert stat.S_IMODE(files["key.pem"].stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600


def test_those_of_a_pool_are_let_in(folder: Path) -> None:
    assert greeted(folder / "hub", folder / "ann") == ""
    assert greeted(folder / "hub", folder / "pi") == ""
    assert greeted(folder / "pi", folder / "hub") == ""


def test_a_client_cannot_pose_as_a_scheduler_or_a_board(folder: Path) -> None:
    assert "unsuitable certificate purpose" in greeted(folder / "ann", folder / "pi")


def test_those_of_another_pool_are_not_let_in(folder: Path, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "other")
    stranger, hub = foreign.issue("ann", Role.CLIENT), foreign.issue("hub", Role.SCHEDULER)
    assert "is not of your pool" in greeted(folder / "hub", stranger)
    assert "is not of your pool" in greeted(hub, folder / "ann")
    # who takes any server for his own is told by the scheduler
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name in ("cert.pem", "key.pem"):
        (mixed / name).write_bytes((stranger / name).read_bytes())
    for name in ("ca.pem", "crl.pem"):
        (mixed / name).write_bytes((folder / "ann" / name).read_bytes())
    assert "does not let you in" in greeted(folder / "hub", mixed)


def test_a_certificate_that_was_withdrawn_opens_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pool")
    hub, ann, bob = (
        authority.issue(n, r) for n, r in (("hub", Role.SCHEDULER), ("ann", Role.CLIENT), ("bob", Role.CLIENT))
    )
    assert greeted(hub, bob) == ""
    again = Authority(tmp_path / "pool")
    assert not again.made
    again.revoke("bob")
    assert "does not let you in" in greeted(hub, bob)
    assert greeted(hub, ann) == ""
    again.issue("bob", Role.CLIENT)
    assert greeted(hub, bob) == ""


def test_an_expired_certificate_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "pool")
    hub, old = authority.issue("hub", Role.SCHEDULER), authority.issue("old", Role.CLIENT, days=0)
    assert "does not let you in" in greeted(hub, old)


def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    authority = Authority(folder)
    with pytest.raises(UsageError, match="cannot be a party's name"):
        authority.issue("../etc", Role.CLIENT)
    with pytest.raises(UsageError, match="has a certificate already"):
        authority.issue("ann", Role.BOARD)
    with pytest.raises(UsageError, match="'eve' has no certificate"):
        authority.revoke("eve")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is no authority"):
        Authority(tmp_path)
    with pytest.raises(UsageError, match="there is no such file"):
        files_of(tmp_path)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ca.key").write_text("no key")
    with pytest.raises(UsageError, match="no authority that can be read"):
        Authority(broken)
