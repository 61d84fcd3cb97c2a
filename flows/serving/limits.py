"""What the server bears of its clients, whoever they are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_SECONDS = 10.0


@dataclass(frozen=True)
class Limits:
    """Bytes of a body, pictures of a request, pictures that wait, bytes of all bodies at once, and seconds."""

    body: int = 32 * 2**20
    pictures: int = 64
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
        self._left = size

    def take(self, size: int) -> None:
        if size > self._left:
            raise RefusedError(503, "the server is busy: try again in a moment")
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP, with an end to its patience: a client has ten seconds to send the head of a request."""

    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # a part of a head
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._ending is None:
            self._ending = self.loop.call_later(_HEAD_SECONDS, self._end)

    def _stop_waiting(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end(self) -> None:
        self._ending = None
        if not self.transport.is_closing():
            self.transport.abort()


def hosts_of(host: str) -> set[str] | None:
    """The `Host` headers that a server on this address answers to; None for any.

    On loopback a page of another site must not reach it by a name that it has pointed here (DNS rebinding).
    """
    loopback = {"localhost", "127.0.0.1", "[::1]"}
    return loopback if host in ("localhost", "127.0.0.1", "::1") else None
