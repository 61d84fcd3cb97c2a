"""Protection shared by all servers of this project: check the host, limit the body, hide failures, add headers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from flows.serving.limits import Limits, RefusedError
from flows.serving.requests import why_invalid

Answered = Callable[[Request, Response, float], None]
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_ONLY_LOCALHOST = (
    "this server answers requests to localhost only: start it with --host and an address that other machines reach"
)


def protect(app: FastAPI, hosts: set[str] | None, log: logging.Logger, answered: Answered | None = None) -> None:
    """Make an application answer only these hosts, hide details of failures, add headers, and format refusals.

    hosts: the accepted `Host` headers; None for any. log: for failures. answered: called with each request, its
    response and the seconds that it took.
    """

    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        started = time.perf_counter()
        response: Response
        if hosts is not None and _host(request) not in hosts:
            response = _refusal(RefusedError(403, _ONLY_LOCALHOST))
        else:
            try:
                response = await call_next(request)
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                response = _refusal(RefusedError(500, "the server failed: see its log"))
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if answered is not None:
            answered(request, response, time.perf_counter() - started)
        return response

    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown)


def check_origin(request: Request) -> None:
    """Raise RefusedError for a request from a page of another site, which browsers allow."""
    origin = request.headers.get("origin")
    foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if foreign or (origin is not None and origin.partition("://")[2] != request.headers.get("host")):
        raise RefusedError(403, "a page of another site cannot do this")


def check_length(request: Request, limits: Limits) -> None:
    """Raise RefusedError if the header announces too large a body, before the body is read."""
    length = int(request.headers.get("content-length", 0))  # always a number: h11 refuses anything else
    if length > limits.body:
        raise RefusedError(413, f"the body has {length:,} bytes: send {limits.body:,} at most")


async def read_body(request: Request, limits: Limits, take: Callable[[int], None]) -> bytes:
    """Read the body. take: see `MemoryBudget.held`. Raises RefusedError if it is too large, too slow, or incomplete."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for part in request.stream():
                take(len(part))
                body += part
                if len(body) > limits.body:
                    raise RefusedError(413, f"the body is too large: send {limits.body:,} bytes at most")
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.read_seconds:.0f} s") from None
    except ClientDisconnect:
        raise RefusedError(400, "the client closed the connection") from None
    return bytes(body)


async def _refused(_: Request, error: Any) -> Response:
    """Return the response to a refused request."""
    return _refusal(error)


async def _invalid(_: Request, error: Any) -> Response:
    """Return the response to a request with a wrong parameter."""
    return _refusal(RefusedError(400, why_invalid(error.errors())))


async def _unknown(request: Request, error: Any) -> Response:
    """Return the response to an unknown path or method."""
    response = _refusal(RefusedError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"))
    response.headers.update(error.headers or {})  # such as the allowed methods
    return response


def _host(request: Request) -> str:
    """Return the host named in the request, in lower case and without a port."""
    host = request.headers.get("host", "")
    return (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()


def _refusal(error: RefusedError) -> Response:
    """Return the response with the reason for a refusal."""
    # These close the connection, so that the server does not wait for the rest of the body.
    headers = {"Connection": "close"} if error.status in (408, 413, 503) else {}
    if error.status == 503:
        headers["Retry-After"] = "1"
    why = error.why.encode("utf-8", "replace").decode()  # a name from the request may hold half a surrogate pair
    return JSONResponse({"error": why}, error.status, headers)
