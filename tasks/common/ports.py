"""Ports of this machine."""

from __future__ import annotations

import socket


def is_listening(port: int) -> bool:
    """Return whether a program on this machine listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
