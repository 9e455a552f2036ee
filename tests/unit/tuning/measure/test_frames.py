from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.tuning.measure.frames import MAX_HEADER, Channel, FrameError
from tests.fuzz import examples


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    a, b = (Channel(s) for s in socket.socketpair())
    yield a, b
    a.close()
    b.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    a.send({"id": 1, "text": "ä"}, b"body")
    a.send({})
    assert b.receive() == ({"id": 1, "text": "ä"}, b"body")
    assert b.poll() == ({}, b"")
    assert b.poll() is None
    assert not b.halfway


def test_half_a_message_is_waited_for(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    frame = struct.pack("<4sIQ", b"mlcm", 2, 3) + b"{}xyz"
    a.sock.sendall(frame[:7])
    assert b.poll() is None
    assert b.halfway
    a.sock.sendall(frame[7:])
    assert b.poll() == ({}, b"xyz")


def test_the_end_of_the_other_side_is_told(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    a.close()
    with pytest.raises(EOFError):
        b.poll()
    with pytest.raises(EOFError):
        b.receive()
    with pytest.raises(OSError, match="pipe"):
        b.send({}, b"x" * (1 << 20))


def test_who_does_not_read_is_not_waited_for(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(TimeoutError):
        ends[0].send({}, b"x" * (8 << 20), timeout=0.05)


@pytest.mark.parametrize(
    "data, words",
    [
        (b"hello", "not a message"),
        (b"m!", "not a message"),
        (struct.pack("<4sIQ", b"mlcm", 2, 1 << 30), "1073741824 bytes"),
        (struct.pack("<4sIQ", b"mlcm", MAX_HEADER + 1, 0), "bytes"),
        (struct.pack("<4sIQ", b"mlcm", 2, 0) + b"[]", "no object"),
        (struct.pack("<4sIQ", b"mlcm", 2, 0) + b"{]", "no JSON"),
        (struct.pack("<4sIQ", b"mlcm", 2, 0) + b"\xff\xfe", "no JSON"),
        (struct.pack("<4sIQ", b"mlcm", 200000, 0) + b"[" * 200000, "no JSON"),
    ],
)
def test_what_is_no_message_is_refused(ends: tuple[Channel, Channel], data: bytes, words: str) -> None:
    a, b = ends
    a.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    a.sock.sendall(data)
    a.close()
    with pytest.raises(FrameError, match=words):
        b.receive()


def test_a_message_that_is_too_long_is_not_sent(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(FrameError, match="too long"):
        ends[0].send({"text": "x" * MAX_HEADER})


@given(st.binary(max_size=64))
@examples(100)
def test_no_bytes_break_a_receiver(data: bytes) -> None:
    x, y = socket.socketpair()
    with x, y:
        x.sendall(data + b"\0")
        receiver = Channel(y)
        with contextlib.suppress(FrameError):
            receiver.poll()
