"""The server's routes: captions in MLflow's protocol and of single pictures, health, metrics, and the web page."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel
from starlette.requests import Request

from flows.serving.batching import Batcher
from flows.serving.guard import check_length, check_origin, protect, read_body
from flows.serving.limits import Limits, MemoryBudget, RefusedError
from flows.serving.requests import CaptionRequest, Invocation, Parameters, media_type_of, parse, parse_form
from flows.serving.responses import ERRORS, Health, ModelInfo, Predictions, Ready, Row
from flows.serving.served import Served
from flows.serving.web_page import page_routes
from models.encoded_pictures import admit
from models.requests import CaptionRow, failed

_LOG = logging.getLogger("attend.serve")
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
_BINARY = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {**Parameters.model_json_schema()["properties"], "image": _BINARY},
}
_PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "application/octet-stream")
_PICTURE = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FORM}, **{name: {"schema": _BINARY} for name in _PICTURE_TYPES}},
    }
}
_INVOCATION_SCHEMA = Invocation.model_json_schema(ref_template="#/components/schemas/{model}")
_INVOCATION_PARTS = _INVOCATION_SCHEMA.pop("$defs")
_INVOCATION = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _INVOCATION_SCHEMA},
            "text/csv": {"schema": {"type": "string", "description": "a table with a column image"}},
        },
    }
}


class Metrics:
    """The metrics for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("attend_requests", "requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("attend_request_seconds", "seconds a request", ["route"], registry=self.registry)
        self.batches = Histogram(
            "attend_batch_pictures", "pictures a batch", buckets=_BATCH_SIZES, registry=self.registry
        )
        self.errors = Counter("attend_picture_errors", "pictures without a caption", registry=self.registry)
        self.waiting = Gauge("attend_waiting_pictures", "pictures that wait", registry=self.registry)
        self.version = Gauge("attend_model", "the version served", ["model", "version"], registry=self.registry)


class Server:
    """The routes, which share one model, one batcher and one set of metrics."""

    def __init__(
        self,
        served: Served,
        limits: Limits,
        max_batch: int,
        hosts: set[str] | None,
        leaving: threading.Event | None = None,
    ) -> None:
        """max_batch: the maximum number of pictures in a batch. hosts: the accepted `Host` headers; None for any.

        leaving: set when the server is about to stop: it then asks its clients to reconnect, which brings them to
        another server.
        """
        self._served, self._limits, self._hosts = served, limits, hosts
        self._leaving = leaving or threading.Event()
        self._metrics = Metrics()
        self._batcher = Batcher(served.predict, max_batch, limits.waiting, self._metrics.batches.observe)
        self._budget = MemoryBudget(limits.bodies)

    def app(self) -> FastAPI:
        """Return the ASGI application."""
        app = FastAPI(
            title="attend serve",
            version=metadata.version("attend"),
            description="Captions of photographs, in the protocol of MLflow's server and for single pictures.",
            docs_url=None,  # its page loads its script from another site
            redoc_url=None,
            lifespan=self._lifespan,
        )
        protect(app, self._hosts, _LOG, self._answered)
        app.router.routes += page_routes("flows.serving", "page")
        app.post("/invocations", **_answers(Predictions), openapi_extra=_INVOCATION)(self.invocations)
        app.post("/caption", **_answers(Row), openapi_extra=_PICTURE)(self.caption)
        read: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
            **dict.fromkeys(("/health", "/ping"), (self.health, _answers(Health, 503))),
            "/ready": (self.ready, _answers(Ready, 503)),
            **dict.fromkeys(("/model", "/version"), (self.model, _answers(ModelInfo))),
            "/metrics": (self.metrics, {"response_class": PlainTextResponse}),
        }
        for path, (answer, described) in read.items():
            app.get(path, **described)(answer)
            app.head(path, include_in_schema=False)(answer)
        app.openapi()["components"]["schemas"] |= _INVOCATION_PARTS  # FastAPI keeps the description
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Watch for a new champion while the application runs; when it stops, finish the waiting pictures."""
        self._served.watch()
        yield
        self._served.stop()
        await asyncio.to_thread(self._batcher.close)

    def _answered(self, request: Request, response: Response, seconds: float) -> None:
        """Count a request in the metrics; if this server is about to stop, ask its client to reconnect."""
        if self._leaving.is_set():
            response.headers["Connection"] = "close"
        route = getattr(request.scope.get("endpoint"), "__name__", "none")
        self._metrics.requests.labels(route, response.status_code).inc()
        self._metrics.seconds.labels(route).observe(seconds)

    async def invocations(self, request: Request) -> Response:
        """Caption the pictures of a request in one of MLflow's forms, with its parameters."""
        content_type = request.headers.get("content-type", "")
        rows = await self._caption_body(
            request, lambda body: asyncio.to_thread(parse, content_type, body, self._limits)
        )
        return JSONResponse({"predictions": rows})

    async def caption(self, request: Request, params: Annotated[Parameters, Query()]) -> Response:
        """Caption one picture: the body, or the file of a form. Parameters are in the query, or fields of the form."""
        query: Any = params
        media_type = media_type_of(request.headers.get("content-type", ""))
        if media_type == "multipart/form-data":
            check_origin(request)

            async def parse_body(body: bytes) -> CaptionRequest:
                content_type = request.headers["content-type"]
                picture, fields = await asyncio.to_thread(parse_form, content_type, body, self._limits)
                return CaptionRequest(picture, {**query.as_params(), **fields})

        # A page of another site cannot send these types without a CORS preflight, which this server refuses.
        elif media_type.startswith("image/") or media_type == "application/octet-stream":

            async def parse_body(body: bytes) -> CaptionRequest:
                return CaptionRequest([body], query.as_params())

        else:
            how = f"curl -F image=@photo.jpg {request.url.replace(query='')}"
            raise RefusedError(415, f"send one picture, as the body with Content-Type image/jpeg, or in a form: {how}")
        return JSONResponse((await self._caption_body(request, parse_body))[0])

    async def health(self) -> Response:
        """Answer 200 while the thread that captions is alive, otherwise 503."""
        return JSONResponse(
            {"status": "ok"} if self._batcher.alive else {"status": "stuck"}, 200 if self._batcher.alive else 503
        )

    async def ready(self) -> Response:
        """Answer 200 while more pictures can be taken, otherwise 503, as when this server is about to stop."""
        full = self._leaving.is_set() or len(self._batcher) >= self._limits.waiting
        state = {"ready": not full, "model": self._served.current.name, "waiting": len(self._batcher)}
        return JSONResponse({**state, "failure": self._served.failure}, 503 if full else 200)

    async def model(self) -> ModelInfo:
        """Return the description of the version that is served, with its model card."""
        return self._served.current.about

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        self._metrics.waiting.set(len(self._batcher))
        self._metrics.version.clear()
        about = self._served.current.about
        self._metrics.version.labels(about.model, about.version).set(1)
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _caption_body(
        self, request: Request, parse_body: Callable[[bytes], Awaitable[CaptionRequest]]
    ) -> list[CaptionRow]:
        """Read the body and caption its pictures, both within the time limits. Returns a row for each picture.

        parse_body: returns the pictures and parameters of a body. Raises RefusedError for a request that is refused; a
        picture that cannot be captioned has a row with the reason.
        """
        limits = self._limits
        check_length(request, limits)
        with self._budget.held() as take:
            body = await read_body(request, limits, take)
            pictures, params = await parse_body(body)
            del body
            unknown = sorted(params.keys() - self._served.current.about.parameters)
            if unknown:
                raise RefusedError(400, f"{unknown[0]}: the version that is served has no such parameter")
            refusals = await asyncio.to_thread(_refusals, pictures, limits)
            admitted = [picture for picture, why in zip(pictures, refusals, strict=True) if why is None]
            try:
                async with asyncio.timeout(limits.answer_seconds):
                    captioned = iter(await self._batcher.caption(admitted, params))
            except TimeoutError:
                why = f"no caption within {limits.answer_seconds:.0f} s: the server is busy"
                raise RefusedError(504, why) from None
        rows = [next(captioned) if why is None else failed(why) for why in refusals]
        self._metrics.errors.inc(sum(row["error"] is not None for row in rows))
        return rows


def _answers(model: type[BaseModel], *other: int) -> dict[str, Any]:
    """Return the arguments of a route whose responses, also for the `other` statuses, are JSON of this model.

    The handlers return responses, so that rows are not validated again.
    """
    return {"responses": {**ERRORS, **{status: {"model": model} for status in (200, *other)}}}


def _refusals(pictures: list[bytes], limits: Limits) -> list[str | None]:
    """Return why each picture is refused, None if it is not. Raises RefusedError if they are too large together."""
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
