"""Limits on size and time that protect the server from its clients, well-meaning or not."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_SECONDS, _WRITE_SECONDS = 10.0, 30.0
_MAX_IDLE = 256  # number of connections that send nothing


@dataclass(frozen=True)
class Limits:
    """The largest sizes and times that the server accepts.

    body: bytes of one body. pictures, pixels: in one request. waiting: pictures waiting for the model. bodies: bytes of
    all bodies together. read_seconds: until a body has arrived. answer_seconds: until its pictures have captions.
    """

    body: int = 32 * 2**20
    pictures: int = 64
    pixels: int = 400_000_000
    waiting: int = 512
    bodies: int = 128 * 2**20
    read_seconds: float = 20.0
    answer_seconds: float = 60.0


class RefusedError(Exception):
    """A refused request. status: the HTTP status. why: the reason, in one line for the client."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, " ".join(why.split())  # it may quote a name from the request
        super().__init__(self.why)


class MemoryBudget:
    """A budget of `size` bytes for all request bodies in memory."""

    def __init__(self, size: int) -> None:
        self.left = size

    @contextmanager
    def held(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes bytes for one request; they are returned to the budget when the block ends.

        The function raises RefusedError if too few bytes are left.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self.left:
                raise RefusedError(503, "the server is busy: try again in a moment")
            self.left -= size
            taken += size

        try:
            yield take
        finally:
            self.left += taken


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with time limits for slow clients.

    A client has ten seconds to send the head of a request, or the rest of a request that was answered already, and
    thirty seconds to read the response. Otherwise its connection is closed. If more than `_MAX_IDLE` connections send
    nothing, the oldest is closed, so that they do not block active ones.
    """

    _idle: ClassVar[dict[PatientProtocol, None]] = {}  # connections that wait for a head, oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer, self._write_timer = (_Timer(self.loop, transport.abort) for _ in range(2))
        self._await_head()

    def _await_head(self) -> None:
        """Start to wait for the head of a request; if too many connections wait, close the one that waited longest."""
        self._head_timer.start(_HEAD_SECONDS)
        self._idle.setdefault(self)
        if len(self._idle) > _MAX_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        awaits_head = self.conn.their_state is h11.IDLE
        answered = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if awaits_head or answered:
            self._await_head()
        else:
            self._head_timer.stop()
            self._idle.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._head_timer.stop()
        self._write_timer.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer.start(_WRITE_SECONDS)

    def resume_writing(self) -> None:
        self._write_timer.stop()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # close() would wait for a client that does not read


class _Timer:
    """A timer that runs `action` once; starting it again while it runs has no effect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop, self._action = loop, action
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Start the timer; do nothing if it is running."""
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._action)

    def stop(self) -> None:
        """Stop the timer, so that it may be started again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def allowed_hosts(host: str) -> set[str] | None:
    """Return the `Host` headers that a server on this address answers; None for any.

    A server on a loopback address must refuse pages of other sites that use a host name pointing to this machine (DNS
    rebinding).
    """
    addresses = {str(address[0]) for *_, address in socket.getaddrinfo(host, None)}
    if not all(ipaddress.ip_address(address).is_loopback for address in addresses):
        return None
    return {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host.lower()}
