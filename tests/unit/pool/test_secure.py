"""Addresses of pools."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from mlc.errors import DeviceError, UsageError
from mlc.pool.certificates import Role
from mlc.pool.secure import Address, greet, security_of


@pytest.mark.parametrize(
    "text, plain, url",
    [
        ("tls://hub:1234", False, "tls://hub:1234"),
        ("tls://hub.example.org", False, "tls://hub.example.org:8786"),
        ("tls://:8786", False, "tls://:8786"),
        ("tls://[::1]:99", False, "tls://[::1]:99"),
        ("tcp://127.0.0.1:1", True, "tcp://127.0.0.1:1"),
        ("tcp://localhost", True, "tcp://localhost:8786"),
        ("tcp://[::1]:5", True, "tcp://[::1]:5"),
    ],
)
def test_addresses_are_understood(text: str, plain: bool, url: str) -> None:
    assert Address.parse(text, plain=plain).url == url


@pytest.mark.parametrize(
    "text, plain, words",
    [
        ("hub:8786", False, "no address of a pool"),
        ("https://hub", False, "no address of a pool"),
        ("tls://hub:99999", False, "no address of a pool"),
        ("tls://a b", False, "no address of a pool"),
        ("tcp://127.0.0.1:8786", False, "not talked to in clear"),
        ("tcp://10.0.0.1:8786", True, "for this machine alone"),
        ("tcp://0.0.0.0:8786", True, "for this machine alone"),
        ("tcp://:8786", True, "for this machine alone"),
        ("tcp://127.0.0.1.example.org", True, "for this machine alone"),
        ("tls://127.0.0.1:8786", True, "contradicts"),
    ],
)
def test_other_addresses_are_refused(text: str, plain: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Address.parse(text, plain=plain)


def test_a_certificate_is_asked_for_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="takes a certificate"):
        security_of(Address.parse("tls://hub"), None, Role.CLIENT)


def test_where_nobody_listens_there_is_one_message() -> None:
    with pytest.raises(DeviceError, match="cannot be reached"):
        greet(Address("127.0.0.1", 1, plain=True), None)


def test_a_connection_that_ends_before_tls_begins_is_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed.comm import connect
    from tornado.tcpclient import TCPClient

    from mlc.pool.cluster import prepared

    async def reset(*_: object, **__: object) -> None:
        raise ValueError("IOStream is not idle; cannot convert to SSL")

    prepared()
    monkeypatch.setattr(TCPClient, "connect", reset)
    talk = connect("tls://127.0.0.1:1", timeout=0.1, ssl_context=ssl.create_default_context())
    with pytest.raises(OSError, match="Timed out"):
        asyncio.run(talk)
