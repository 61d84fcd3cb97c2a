"""The server's routes: captions in MLflow's protocol and by single pictures, health, metrics, and the page."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.serving.batching import Batcher
from flows.serving.limits import Limits, RefusedError, Room
from flows.serving.requests import Asked, Values, parameters, parse
from flows.serving.served import Served
from tasks.report import page_file

_LOG = logging.getLogger("attend.serve")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_KINDS = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Deadline:
    """Ends a request that takes longer than any may: the client reads its answer too slowly."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with contextlib.suppress(TimeoutError):  # uvicorn then closes the connection
            async with asyncio.timeout(self._seconds):
                await self._app(scope, receive, send)


class Metrics:
    """What Prometheus is told."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("attend_requests", "requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("attend_request_seconds", "seconds a request", ["route"], registry=self.registry)
        self.batches = Histogram("attend_batch_pictures", "pictures a batch", buckets=_BATCHES, registry=self.registry)
        self.errors = Counter("attend_picture_errors", "pictures without a caption", registry=self.registry)
        self.waiting = Gauge("attend_waiting_pictures", "pictures that wait", registry=self.registry)
        self.version = Gauge("attend_model", "the version served", ["model", "version"], registry=self.registry)


def create_app(served: Served, limits: Limits, most: int, hosts: set[str] | None) -> FastAPI:
    """The application. most: pictures a batch. hosts: the `Host` headers answered to; None for any."""
    metrics = Metrics()
    batcher = Batcher(served.predict, most, limits.waiting, metrics.batches.observe)
    room = Room(limits.bodies)

    @contextlib.asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        served.watch()
        yield
        served.stop()
        await asyncio.to_thread(batcher.close)

    # Its pages of documentation fetch scripts from elsewhere.
    app = FastAPI(title="attend", lifespan=living, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        begun = time.perf_counter()
        response: Response
        if hosts is not None and _host(request) not in hosts:
            response = _refusal(RefusedError(403, "this server answers to localhost alone"))
        else:
            try:
                response = await go_on(request)
            except Exception:
                _LOG.exception("%s %s failed", request.method, request.url.path)
                response = _refusal(RefusedError(500, "the server failed: its log says why"))
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        route = getattr(request.scope.get("route"), "path", "other")
        metrics.requests.labels(route, response.status_code).inc()
        metrics.seconds.labels(route).observe(time.perf_counter() - begun)
        return response

    app.add_middleware(Deadline, seconds=2 * limits.read_seconds + limits.answer_seconds)

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        return _refusal(error)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return _refusal(RefusedError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"))

    async def answer(request: Request, asked: Callable[[bytes], Asked]) -> list[dict[str, Any]]:
        rows = await _answered(request, asked, batcher, room, limits)
        metrics.errors.inc(sum(row["error"] is not None for row in rows))
        return rows

    @app.post("/invocations")
    async def invocations(request: Request) -> Response:
        kind, known = request.headers.get("content-type", ""), served.current.params
        rows = await answer(request, lambda body: parse(kind, body, known, limits))
        return JSONResponse({"predictions": rows})

    @app.post("/caption")
    async def caption(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        # A form of another site can send no such type without asking first.
        if not kind.startswith(("image/", "application/octet-stream")):
            raise RefusedError(415, "send the bytes of one picture, with Content-Type image/jpeg or the like")
        params: Values = parameters(request.query_params, served.current.params)
        rows = await answer(request, lambda body: Asked([body], params))
        return JSONResponse(rows[0])

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        full = len(batcher) >= limits.waiting
        told = {"ready": not full, "model": served.current.uri, "waiting": len(batcher), "failure": served.failure}
        return JSONResponse(told, 503 if full else 200)

    @app.get("/version")
    @app.get("/model")
    async def model() -> Response:
        return JSONResponse(served.current.about)

    @app.get("/metrics")
    async def measured() -> Response:
        metrics.waiting.set(len(batcher))
        metrics.version.clear()
        metrics.version.labels(served.current.about["model"], served.current.about["version"]).set(1)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    _add_page(app)
    return app


def _add_page(app: FastAPI) -> None:
    """The page, and the files that it needs."""
    page = importlib.resources.files("flows.serving") / "page"
    files = {name: (page / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    files |= {name: page_file(name) for name in ("look.css", "heat.js")}

    @app.get("/")
    async def index() -> Response:
        return Response(files["page.html"], media_type="text/html")

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "no such file")
        return Response(files[name], media_type=_KINDS[name.rpartition(".")[2]])


async def _answered(
    request: Request, asked: Callable[[bytes], Asked], batcher: Batcher, room: Room, limits: Limits
) -> list[dict[str, Any]]:
    """Read the body, and have its pictures captioned, each within its time."""
    size = _announced(request, limits)
    room.take(size)
    try:
        try:
            async with asyncio.timeout(limits.read_seconds):
                body = await _body(request, limits)
        except TimeoutError:
            raise RefusedError(408, f"the body did not come within {limits.read_seconds:.0f} s") from None
        except ClientDisconnect:
            raise RefusedError(400, "the client went away") from None
        pictures, params = await asyncio.to_thread(asked, body)
        del body
        try:
            async with asyncio.timeout(limits.answer_seconds):
                return await batcher.caption(pictures, params)
        except TimeoutError:
            raise RefusedError(504, f"no caption within {limits.answer_seconds:.0f} s: the server is busy") from None
    finally:
        room.give_back(size)


def _announced(request: Request, limits: Limits) -> int:
    """The bytes that the body may have."""
    length = request.headers.get("content-length")
    if length is None:
        return limits.body
    if int(length) > limits.body:  # h11 has refused what is no number
        raise RefusedError(413, f"the body has {int(length):,} bytes: send {limits.body:,} at most")
    return int(length)


async def _body(request: Request, limits: Limits) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limits.body:
            raise RefusedError(413, f"the body has over {limits.body:,} bytes")
    return bytes(body)


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _refusal(error: RefusedError) -> Response:
    # What is left of a body that is not read would be taken for the next request.
    headers = {"Connection": "close"} if error.status in (408, 413) else {}
    if error.status == 503:
        headers["Retry-After"] = "1"
    return JSONResponse({"error": error.why}, error.status, headers)
