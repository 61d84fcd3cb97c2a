"""Run the server of flows/serving until it is stopped."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import uvicorn

from flows.serving.app import Server
from flows.serving.limits import Limits, PatientProtocol, hosts_of
from flows.serving.served import Served
from tasks.common.errors import AttendError
from tasks.common.progress import say

_HEAD_BYTES = 16 * 1024
_CONNECTIONS = 256
_GONE_MILLISECONDS = 60_000


def serve(model: str | None, workspace: Path, host: str, port: int, most: int, refresh: float) -> None:
    """Serve a registered model. most: pictures a batch. refresh: seconds between two looks at the alias."""
    place = _listen(host, port)  # before the model is loaded, which takes seconds
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("attend.serve").setLevel(logging.INFO)
    served = Served(model, workspace, refresh)
    app = Server(served, Limits(), most, hosts_of(host)).app()
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    shown = f"[{host}]" if ":" in host else host
    say(f"serving {served.current.uri} at http://{shown}:{port}")
    uvicorn.Server(config).run(sockets=[place])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        place = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "is no name of a host"
        raise AttendError(f"--host {host} --port {port}: {why}: give another") from None
    # asyncio does so only for sockets that it made itself. Without it an answer's second packet waits 40 ms.
    place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: a client that takes nothing for so long is gone
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MILLISECONDS)
    return place
