"""Ports for tests that listen."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody listened at a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
