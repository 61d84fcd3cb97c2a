"""The server's routes: captions in MLflow's protocol and by single pictures, health, metrics, and the page."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flows.serving.batching import Batcher, failed
from flows.serving.limits import Held, Limits, RefusedError, Room
from flows.serving.requests import Asked, Values, parameters, parse
from flows.serving.served import Served
from models.photographs import admit
from tasks.evaluation.report import page_file

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


class Server:
    """The routes, over one model, one batcher and one set of metrics."""

    def __init__(self, served: Served, limits: Limits, most: int, hosts: set[str] | None) -> None:
        """most: pictures a batch. hosts: the `Host` headers answered to; None for any."""
        self._served, self._limits, self._hosts = served, limits, hosts
        self._metrics = Metrics()
        self._batcher = Batcher(served.predict, most, limits.waiting, self._metrics.batches.observe)
        self._room = Room(limits.bodies)
        self._files = _page_files()

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/", self.page),
            Route("/static/{name}", self.static),
            Route("/invocations", self.invocations, methods=["POST"]),
            Route("/caption", self.caption, methods=["POST"]),
            *(Route(path, self.health) for path in ("/health", "/ping")),
            Route("/ready", self.ready),
            *(Route(path, self.model) for path in ("/model", "/version")),
            Route("/metrics", self.metrics),
        ]
        middleware = [Middleware(BaseHTTPMiddleware, dispatch=self._guard)]
        handlers: dict[Any, Any] = {RefusedError: _refused, HTTPException: _unknown}
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=self._living)

    @contextlib.asynccontextmanager
    async def _living(self, _: Starlette) -> AsyncIterator[None]:
        self._served.watch()
        yield
        self._served.stop()
        await asyncio.to_thread(self._batcher.close)

    async def _guard(self, request: Request, go_on: RequestResponseEndpoint) -> Response:
        """What holds for every request: the host it names, what a failure tells, headers, metrics."""
        begun = time.perf_counter()
        response: Response
        if self._hosts is not None and _host(request) not in self._hosts:
            response = _refusal(RefusedError(403, "this server answers to localhost alone"))
        else:
            try:
                response = await go_on(request)
            except Exception:
                _LOG.exception("%s %s failed", request.method, request.url.path)
                response = _refusal(RefusedError(500, "the server failed: its log says why"))
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        route = getattr(request.scope.get("endpoint"), "__name__", "none")
        self._metrics.requests.labels(route, response.status_code).inc()
        self._metrics.seconds.labels(route).observe(time.perf_counter() - begun)
        return response

    async def invocations(self, request: Request) -> Response:
        """Pictures and parameters in one of MLflow's forms."""
        kind, known = request.headers.get("content-type", ""), self._served.current.params
        rows = await self._answered(request, lambda body: parse(kind, body, known, self._limits))
        return JSONResponse({"predictions": rows})

    async def caption(self, request: Request) -> Response:
        """The bytes of one picture; parameters in the query."""
        # A form of another site can send no such type without asking first.
        if not request.headers.get("content-type", "").startswith(("image/", "application/octet-stream")):
            raise RefusedError(415, "send the bytes of one picture, with Content-Type image/jpeg or the like")
        params: Values = parameters(request.query_params, self._served.current.params)
        rows = await self._answered(request, lambda body: Asked([body], params))
        return JSONResponse(rows[0])

    async def health(self, _: Request) -> Response:
        """It runs, and captions."""
        return JSONResponse(
            {"status": "ok"} if self._batcher.alive else {"status": "stuck"}, 200 if self._batcher.alive else 503
        )

    async def ready(self, _: Request) -> Response:
        """Whether it can take more."""
        full = len(self._batcher) >= self._limits.waiting
        told = {"ready": not full, "model": self._served.current.uri, "waiting": len(self._batcher)}
        return JSONResponse({**told, "failure": self._served.failure}, 503 if full else 200)

    async def model(self, _: Request) -> Response:
        """Which version it is, and its card."""
        return JSONResponse(self._served.current.about)

    async def metrics(self, _: Request) -> Response:
        """For Prometheus."""
        self._metrics.waiting.set(len(self._batcher))
        self._metrics.version.clear()
        about = self._served.current.about
        self._metrics.version.labels(about["model"], about["version"]).set(1)
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def page(self, _: Request) -> Response:
        """The page to try it on."""
        return Response(self._files["page.html"], media_type="text/html")

    async def static(self, request: Request) -> Response:
        """A file of the page."""
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404, "no such file")
        return Response(self._files[name], media_type=_KINDS[name.rpartition(".")[2]])

    async def _answered(self, request: Request, asked: Callable[[bytes], Asked]) -> list[dict[str, Any]]:
        """Read the body, and have its pictures captioned, each within its time."""
        limits = self._limits
        _check_length(request, limits)
        with self._room.held() as held:
            body = await _body(request, limits, held)
            pictures, params = await asyncio.to_thread(asked, body)
            del body
            refusals = await asyncio.to_thread(_refusals, pictures, limits)
            sound = [picture for picture, why in zip(pictures, refusals, strict=True) if why is None]
            try:
                async with asyncio.timeout(limits.answer_seconds):
                    found = iter(await self._batcher.caption(sound, params))
            except TimeoutError:
                why = f"no caption within {limits.answer_seconds:.0f} s: the server is busy"
                raise RefusedError(504, why) from None
        rows = [next(found) if why is None else failed(why) for why in refusals]
        self._metrics.errors.inc(sum(row["error"] is not None for row in rows))
        return rows


def _page_files() -> dict[str, str]:
    page = importlib.resources.files("flows.serving") / "page"
    files = {name: (page / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    return files | {name: page_file(name) for name in ("look.css", "heat.js")}


def _refusals(pictures: list[bytes], limits: Limits) -> list[str | None]:
    """Why a picture is not to be decoded, or None; RefusedError where all together are too large."""
    refusals: list[str | None] = []
    pixels = 0
    for picture in pictures:
        try:
            pixels += admit(picture)
            refusals.append(None)
        except ValueError as error:
            refusals.append(str(error))
    if pixels > limits.pixels:
        raise RefusedError(413, f"the pictures have {pixels:,} pixels: send {limits.pixels:,} at most in a request")
    return refusals


def _check_length(request: Request, limits: Limits) -> None:
    """Refuse a body that is announced to be too large, before it comes."""
    length = int(request.headers.get("content-length", 0))  # h11 has refused what is no number
    if length > limits.body:
        raise RefusedError(413, f"the body has {length:,} bytes: send {limits.body:,} at most")


async def _body(request: Request, limits: Limits, held: Held) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for part in request.stream():
                held.take(len(part))
                body += part
                if len(body) > limits.body:
                    raise RefusedError(413, f"the body has over {limits.body:,} bytes")
    except TimeoutError:
        raise RefusedError(408, f"the body did not come within {limits.read_seconds:.0f} s") from None
    except ClientDisconnect:
        raise RefusedError(400, "the client went away") from None
    return bytes(body)


async def _refused(_: Request, error: RefusedError) -> Response:
    return _refusal(error)


async def _unknown(request: Request, error: HTTPException) -> Response:
    return _refusal(RefusedError(error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"))


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _refusal(error: RefusedError) -> Response:
    # What is left of a body that is not wanted is not waited for.
    headers = {"Connection": "close"} if error.status in (408, 413, 503) else {}
    if error.status == 503:
        headers["Retry-After"] = "1"
    why = error.why.encode("utf-8", "replace").decode()  # a name in a request may be no text: half a surrogate pair
    return JSONResponse({"error": why}, error.status, headers)
