"""What the server bears of its clients, whoever they are."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_SECONDS, _TAKE_SECONDS = 10.0, 30.0


@dataclass(frozen=True)
class Limits:
    """Bytes of a body, pictures of a request and their pixels, pictures that wait, bytes of all bodies, and seconds."""

    body: int = 32 * 2**20
    pictures: int = 64
    pixels: int = 400_000_000
    waiting: int = 512
    bodies: int = 128 * 2**20
    read_seconds: float = 20.0
    answer_seconds: float = 60.0


class RefusedError(Exception):
    """A request that is not served, and why, in a line for the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Room:
    """How many bytes of bodies are held at once."""

    def __init__(self, size: int) -> None:
        self.left = size

    @contextmanager
    def held(self) -> Iterator[Held]:
        """What one request takes, as its bytes come; given back when the block ends."""
        found = Held(self)
        try:
            yield found
        finally:
            self.left += found.size


class Held:
    """The bytes of one request."""

    def __init__(self, room: Room) -> None:
        self._room, self.size = room, 0

    def take(self, size: int) -> None:
        if size > self._room.left:
            raise RefusedError(503, "the server is busy: try again in a moment")
        self._room.left -= size
        self.size += size


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP, with an end to its patience.

    A client has ten seconds to send the head of a request, or what is left of one that was answered already, and thirty
    to take what is sent to it.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head, self._taken = (_Timer(self.loop, transport.abort) for _ in range(2))
        self._head.start(_HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        part_of_head = self.conn.their_state is h11.IDLE
        answered = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if part_of_head or answered:
            self._head.start(_HEAD_SECONDS)
        else:
            self._head.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._taken.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken.start(_TAKE_SECONDS)

    def resume_writing(self) -> None:
        self._taken.stop()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # closing would wait for a client that does not read


class _Timer:
    """Does something once, some time after it was started first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop, self._action = loop, action
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._action)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def hosts_of(host: str) -> set[str] | None:
    """The `Host` headers that a server on this address answers to; None for any.

    On loopback a page of another site must not reach it by a name that it has pointed here (DNS rebinding).
    """
    found = {str(place[0]) for *_, place in socket.getaddrinfo(host, None)}
    if not all(ipaddress.ip_address(address).is_loopback for address in found):
        return None
    return {"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host.lower()}
