"""Start the captioning server, and run it until it is stopped."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import uvicorn

from flows.serving.app import Server
from flows.serving.limits import Limits, PatientProtocol, allowed_hosts
from flows.serving.served import ServedModel
from tasks.common.errors import AttendError
from tasks.common.log import log

_MAX_HEAD_BYTES = 16 * 1024
_MAX_CONNECTIONS = 1024  # with those that send nothing, of which limits.py keeps few
_CLIENT_TIMEOUT_MS = 60_000
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def serve(model: str | None, workspace: Path, host: str, port: int, max_batch: int, refresh: float) -> None:
    """Serve a registered model until the process is stopped.

    model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None for the champion promoted last. max_batch: the most
    pictures in a batch. refresh: seconds between two checks of the alias. Raises AttendError where it cannot listen.
    """
    listener = _listen(host, port)  # before the model is loaded, which takes seconds
    logging.basicConfig(format=_LOG_FORMAT, level=logging.WARNING)
    requests = logging.getLogger("attend.serve")  # of its own format, not that of the command line
    requests.setLevel(logging.INFO)
    requests.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    requests.addHandler(handler)
    served = ServedModel(model, workspace, refresh)
    app = Server(served, Limits(), max_batch, allowed_hosts(host)).app()
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    url_host = f"[{host}]" if ":" in host else host
    log.info(f"serving {served.current.uri} at http://{url_host}:{port}")
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address. Raises AttendError where that is not possible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "is not the name of a host"
        raise AttendError(f"--host {host} --port {port}: {why}: give another address") from None
    # asyncio sets this only on sockets that it made. Without it, the second packet of an answer waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: drop a client that acknowledges nothing for this long
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _CLIENT_TIMEOUT_MS)
    return listener
