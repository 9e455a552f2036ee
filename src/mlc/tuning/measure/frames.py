"""Messages between processes: a short header as JSON and some bytes, with their lengths in front. Nothing is pickled.

Whoever sends may have lost its mind (a kernel writes over memory that is not its own), so a receiver believes nothing:
lengths are bounded, and what is no message is refused as soon as it is seen.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, NamedTuple

_PREFIX = struct.Struct("<4sIQ")  # magic, bytes of the header, bytes of the body
_MAGIC = b"mlcm"
MAX_HEADER = 1 << 20
MAX_BODY = 256 << 20


class FrameError(Exception):
    """What arrived is no message."""


class Message(NamedTuple):
    """A header and a body."""

    header: dict[str, Any]
    body: bytes


class Channel:
    """One end of a connection to another process.

    Args:
        sock: a connected stream socket, which the channel closes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._seen = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, header: dict[str, Any], body: bytes = b"", timeout: float | None = None) -> None:
        """Sends one message.

        Args:
            timeout: seconds that the other side may take to read it.
        Raises:
            OSError: the other side is gone, or does not read (``TimeoutError``).
        """
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > MAX_HEADER or len(body) > MAX_BODY:
            raise FrameError(f"a message of {len(text)} and {len(body)} bytes is too long")
        self.sock.settimeout(timeout)
        self.sock.sendall(_PREFIX.pack(_MAGIC, len(text), len(body)) + text + body)

    def receive(self) -> Message:
        """The next message, waiting for it.

        Raises:
            EOFError: the other side has closed.
            FrameError: that is no message.
        """
        self.sock.settimeout(None)
        while True:
            message = self._take()
            if message is not None:
                return message
            self._more(self.sock.recv(1 << 20))

    def poll(self) -> Message | None:
        """The next message if it is all there; never waits.

        Raises:
            EOFError: the other side has closed.
            FrameError: that is no message.
        """
        try:
            self._more(self.sock.recv(1 << 20, socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except ConnectionError:
            self._more(b"")
        return self._take()

    @property
    def halfway(self) -> bool:
        """Whether part of a message has arrived."""
        return bool(self._seen)

    def close(self) -> None:
        self.sock.close()

    def _more(self, data: bytes) -> None:
        if not data:
            raise EOFError
        self._seen += data

    def _take(self) -> Message | None:
        if len(self._seen) < _PREFIX.size:
            if not _MAGIC.startswith(bytes(self._seen[: len(_MAGIC)])):
                raise FrameError("not a message")
            return None
        magic, header, body = _PREFIX.unpack_from(self._seen)
        if magic != _MAGIC or header > MAX_HEADER or body > MAX_BODY:
            raise FrameError("not a message" if magic != _MAGIC else f"a message of {header} and {body} bytes")
        end = _PREFIX.size + header + body
        if len(self._seen) < end:
            return None
        text = bytes(self._seen[_PREFIX.size : _PREFIX.size + header])
        rest = bytes(self._seen[_PREFIX.size + header : end])
        del self._seen[:end]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FrameError("a header that is no JSON") from error
        if not isinstance(found, dict):
            raise FrameError("a header that is no object")
        return Message(found, rest)
