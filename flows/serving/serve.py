"""Start a server, and run it until it is stopped: the captioning server, or any other of this project."""

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
_MAX_CONNECTIONS = 1024  # with those that send nothing, of which limits.py keeps few
_CLIENT_TIMEOUT_MS = 60_000
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_FIRST_REQUEST_SECONDS = 1.0  # for which a stopping server waits for the request of a new connection
_FIRST_FD = 3  # of the sockets that systemd, or another that starts services, hands over


def serve(load: Callable[[], Served], host: str, port: int, max_batch: int, drain: float) -> None:
    """Serve a model until the process is stopped.

    load: returns the model. max_batch: the most pictures in a batch. drain: seconds for which it goes on answering
    after SIGTERM, while /ready says that it does not, so that those who send requests turn to another server. Raises
    AttendError where it cannot listen.
    """
    listener, host = listen(host, port)  # before the model is loaded, which takes seconds
    served, leaving = load(), threading.Event()
    app = Server(served, Limits(), max_batch, allowed_hosts(host), leaving).app()
    log.info(f"serving {served.current.name} at {address_of(listener, host)}")
    run(app, listener, drain, leaving)


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a socket that listens on the address, or the one that whoever started this process hands over; its host.

    Raises AttendError where that is not possible.
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
    # Those that it accepts inherit these. asyncio sets the first only on sockets that it made; without it, the second
    # packet of an answer waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: drop a client that acknowledges nothing for this long
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _CLIENT_TIMEOUT_MS)
    return listener, host


def address_of(listener: socket.socket, host: str) -> str:
    """Return the address of a listening socket, as `http://HOST:PORT`."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def run(app: Starlette, listener: socket.socket, drain: float = 0, leaving: threading.Event | None = None) -> None:
    """Answer requests until the process is stopped.

    drain: seconds for which it goes on after SIGTERM. leaving: is set when they begin.
    """
    logging.basicConfig(format=_LOG_FORMAT, level=logging.WARNING)
    requests = logging.getLogger("attend.serve")  # of its own format, not that of the command line
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
    """A server that goes on for some seconds after the first SIGTERM; after any other signal it stops at once.

    Either way, what it has begun is answered.
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
        # uvicorn closes the connections whose first request has not arrived, and the request on its way is lost: accept
        # no more, and wait for those that were accepted. Of a socket that was handed over, others accept the next ones.
        for listener in sockets or []:
            asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0.02)  # until what was accepted last is among the connections
        for server in self.servers:
            server.close()
        stop_at = time.monotonic() + _FIRST_REQUEST_SECONDS
        connections = cast(set[PatientProtocol], self.server_state.connections)
        while any(one.cycle is None for one in connections) and not self.force_exit and time.monotonic() < stop_at:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def _inherited() -> socket.socket | None:
    """Return the listening socket that whoever started this process hands over, as systemd does; None if none is.

    Raises AttendError where what is handed over is not one socket of an IP address.
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
