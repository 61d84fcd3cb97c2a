"""Ports of this machine, and whether servers answer."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

_SECONDS = 5.0


def is_listening(port: int) -> bool:
    """Return whether a program on this machine listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def why_silent(request: str | urllib.request.Request) -> str | None:
    """Return why no HTTP server answers a request within 5 s; None if one does, even with an error."""
    try:
        urllib.request.urlopen(request, timeout=_SECONDS).close()
    except urllib.error.HTTPError:
        return None  # it answers; later requests show whether it grants access
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None
