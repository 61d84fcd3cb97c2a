"""Start a server and run it until it is stopped: the captioning server, or another one of this project."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette

from flows.serving.app import Server
from flows.serving.limits import Limits, PatientProtocol, allowed_hosts
from flows.serving.served import Served
from tasks.common.errors import AttendError
from tasks.common.log import log

_MAX_HEAD_BYTES = 16 * 1024
_MAX_CONNECTIONS = 1024  # including idle ones, which limits.py keeps to a few
_CLIENT_TIMEOUT_MS = 60_000
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_FIRST_REQUEST_SECONDS = 1.0  # how long a stopping server waits for the request of a new connection
_FIRST_FD = 3  # the first socket handed over by systemd or another service manager


def serve(load: Callable[[], Served], host: str, port: int, max_batch: int, drain: float) -> None:
    """Serve a model until the process is stopped.

    load: returns the model. max_batch: the maximum number of pictures in a batch. drain: seconds for which it keeps
    answering after SIGTERM, while /ready reports that it is not ready, so that clients turn to another server. Raises
    AttendError if it cannot listen.
    """
    listener, host = listen(host, port)  # before the model is loaded, which takes seconds
    served, leaving = load(), threading.Event()
    app = Server(served, Limits(), max_batch, allowed_hosts(host), leaving).app()
    log.info(f"serving {served.current.name} at {address_of(listener, host)}")
    run(app, listener, drain, leaving)


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a socket that listens on the address, or the one handed over by the parent process, and its host.

    Raises AttendError if that is not possible.
    """
    listener = _inherited()
    if listener is not None:
        host = str(listener.getsockname()[0])
    else:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "is not the name of a host"
            raise AttendError(f"--host {host} --port {port}: {why}: give another --port or --host") from None
    # Accepted sockets inherit these options. asyncio sets the first only on sockets that it created; without it, the
    # second packet of a response waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: drop a client that acknowledges nothing for this long
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _CLIENT_TIMEOUT_MS)
    return listener, host


def address_of(listener: socket.socket, host: str) -> str:
    """Return the address of a listening socket, as `http://HOST:PORT`."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def run(app: Starlette, listener: socket.socket, drain: float = 0, leaving: threading.Event | None = None) -> None:
    """Answer requests until the process is stopped.

    drain: seconds for which it keeps running after SIGTERM. leaving: set when they begin.
    """
    logging.basicConfig(format=_LOG_FORMAT, level=logging.WARNING)
    requests = logging.getLogger("attend.serve")  # has its own format, not that of the command line
    requests.setLevel(logging.INFO)
    requests.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    requests.addHandler(handler)
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
    _DrainingServer(config, leaving or threading.Event(), drain).run(sockets=[listener])


class _DrainingServer(uvicorn.Server):
    """A server that keeps running for some seconds after the first SIGTERM, but stops at once on any other signal.

    Requests that have begun are answered in both cases.
    """

    def __init__(self, config: uvicorn.Config, leaving: threading.Event, seconds: float) -> None:
        super().__init__(config)
        self._leaving, self._seconds = leaving, seconds
        self._stop_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._stop_at is None and self._seconds:
            self._stop_at = time.monotonic() + self._seconds
            self._leaving.set()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        stops = await super().on_tick(counter)
        return stops or (self._stop_at is not None and time.monotonic() >= self._stop_at)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn closes connections whose first request has not arrived, which loses a request on its way. So accept no
        # more, and wait for the accepted ones. If the socket was handed over, other processes accept new connections.
        for listener in sockets or []:
            asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0.02)  # until the last accepted connection is in `connections`
        for server in self.servers:
            server.close()
        stop_at = time.monotonic() + _FIRST_REQUEST_SECONDS
        connections = cast(set[PatientProtocol], self.server_state.connections)
        while any(one.cycle is None for one in connections) and not self.force_exit and time.monotonic() < stop_at:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def _inherited() -> socket.socket | None:
    """Return the listening socket handed over by the parent process, as systemd does; None if there is none.

    Raises AttendError if anything else than one socket of an IP address is handed over.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    try:
        listener = socket.socket(fileno=_FIRST_FD)
        is_tcp = listener.family in (socket.AF_INET, socket.AF_INET6) and listener.type == socket.SOCK_STREAM
        if os.environ.get("LISTEN_FDS") == "1" and is_tcp:
            return listener
    except OSError:
        pass
    raise AttendError("LISTEN_FDS: hand over one listening socket of an IP address, or unset LISTEN_PID")
