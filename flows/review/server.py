"""The routes of the review page: questions, answers, undo, photographs.

Access is decided by a token, and in a browser by the page's origin: no page of another site can request a question, see
a photograph, or answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flows.review.question_views import QuestionView, QuestionViews
from flows.serving.guard import check_length, check_origin, protect, read_body
from flows.serving.limits import Limits, MemoryBudget, RefusedError
from flows.serving.requests import media_type_of, validated
from flows.serving.web_page import page_routes
from tasks.common.errors import AttendError
from tasks.datasets.corrections import Verdict
from tasks.review.assignments import Assignments, Reply
from tasks.review.queue import Question

LIMITS = Limits(body=32 * 1024, bodies=4 * 2**20)
_LOG = logging.getLogger("attend.serve")
_NOTE_SECONDS = 30.0
_T = TypeVar("_T")
_Number = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # drawn by the page, for a browser or an answer
_Text = Annotated[str, Field(max_length=1000)]


def _joined(text: str) -> str:
    """Return a text as one line."""
    return " ".join(text.split())


class _Asks(BaseModel):
    """The body of a request for a question. person: number of the browser."""

    model_config = ConfigDict(extra="forbid")

    person: _Number


class _Undoes(_Asks):
    """The body of a request to undo an answer. number: of the request, which the page may send again."""

    number: _Number


class _Answers(_Undoes):
    """The body of an answer. given: the caption of an edited one. who: the name that a person gives themselves."""

    picture: Annotated[str, Field(max_length=64)]
    shown: _Text
    verdict: Verdict
    given: Annotated[_Text, AfterValidator(_joined)] | None
    who: Annotated[str, Field(max_length=100), AfterValidator(_joined)] | None


_M = TypeVar("_M", bound=BaseModel)


class ReviewServer:
    """The routes, which share the assignments.

    hosts: the accepted `Host` headers; None for any. token: required in requests; None for no token. note: called from
    time to time after new answers, and when the server stops.
    """

    def __init__(
        self,
        assignments: Assignments,
        views: QuestionViews,
        hosts: set[str] | None,
        token: str | None,
        note: Callable[[], None],
    ) -> None:
        self._assignments, self._views, self._hosts, self._token = assignments, views, hosts, token
        self._note, self._noted = note, True
        self._one = threading.Lock()  # held during calls of the assignments
        self._budget = MemoryBudget(LIMITS.bodies)

    def app(self) -> FastAPI:
        """Return the ASGI application."""
        app = FastAPI(openapi_url=None, lifespan=self._lifespan)
        protect(app, self._hosts, _LOG)
        app.router.routes += page_routes("flows.review", "review")
        for path in (self.next, self.answer, self.undo):
            app.post(f"/{path.__name__}")(path)
        for name in ("/health", "/ping"):
            app.api_route(name, methods=["GET", "HEAD"])(self.health)
        app.api_route("/photograph/{picture}", methods=["GET", "HEAD"])(self.photograph)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        notes = asyncio.create_task(self._note_often())
        yield
        notes.cancel()
        await asyncio.to_thread(self._note)

    async def _note_often(self) -> None:
        """Call `note` regularly, if there are new answers."""
        while True:
            await asyncio.sleep(_NOTE_SECONDS)
            if not self._noted:
                self._noted = True
                try:
                    await asyncio.to_thread(self._note)
                except Exception as error:  # MLflow and its database raise many kinds; the answers are in their file
                    self._noted = False
                    _LOG.warning("what people said is not noted in MLflow yet: %s", error)

    async def next(self, request: Request) -> Response:
        """Return the question that a browser's person is asked, or null where none is left for them."""
        person = (await self._fields(request, _Asks)).person
        while True:
            question = await self._locked(lambda: self._assignments.next(person, time.time()))
            try:
                return self._told({"question": None if question is None else await self._view(question)})
            except AttendError as error:  # its photograph is missing or has changed
                _LOG.warning("%s: not asked about", error)
                if question is not None:
                    await self._locked(partial(self._assignments.drop, question.picture))

    async def answer(self, request: Request) -> Response:
        """Take an answer: once it is confirmed, it is in the file."""
        fields = await self._fields(request, _Answers)
        reply = Reply(fields.number, fields.verdict, fields.given, fields.who)
        now = time.time()
        try:
            taken = await self._locked(
                lambda: self._assignments.answer(fields.person, fields.picture, fields.shown, reply, now)
            )
        except AttendError as error:
            raise RefusedError(400, str(error)) from None
        if taken == "lost":
            raise RefusedError(409, "this picture was answered meanwhile, or is asked about no more")
        self._noted = False
        return self._told({})

    async def undo(self, request: Request) -> Response:
        """Return what a browser's person answered last, with the question, to be answered once more."""
        fields = await self._fields(request, _Undoes)
        person, number = fields.person, fields.number
        answer = await self._locked(lambda: self._assignments.to_undo(person, number))
        if answer is None:
            raise RefusedError(409, "there is nothing to undo")
        try:
            # Before undoing, because that takes their current question from them.
            await asyncio.to_thread(self._views.read, answer["picture"], answer["name"])
            question = await self._locked(lambda: self._assignments.undo(person, number, time.time()))
            view = None if question is None else await self._view(question)
        except AttendError as error:
            raise RefusedError(409, f"{error}: it cannot be undone") from None
        return self._told({"question": view, "answer": {"verdict": answer["verdict"], "given": answer["given"]}})

    async def photograph(self, request: Request, picture: str) -> Response:
        """Return the photograph of a question."""
        self._admit(request)
        question = self._assignments.question(picture)
        if question is None:
            raise HTTPException(404, "no such picture")
        try:
            return Response(await asyncio.to_thread(self._views.photograph, question), media_type="image/jpeg")
        except AttendError as error:
            raise HTTPException(404, str(error)) from None

    async def health(self) -> dict[str, str]:
        """Answer 200."""
        return {"status": "ok"}

    def _told(self, values: dict[str, Any]) -> Response:
        """Return a response with these values and the number of questions left."""
        left, number = self._assignments.counts
        return JSONResponse({**values, "left": left, "of": number})

    async def _view(self, question: Question) -> QuestionView:
        """Return the page's data for a question; AttendError if its photograph is missing or has changed."""
        return await asyncio.to_thread(self._views.view, question)

    async def _locked(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call of the assignments, made while no other call runs."""

        def alone() -> _T:
            with self._one:
                return call()

        return await asyncio.to_thread(alone)

    async def _fields(self, request: Request, model: type[_M]) -> _M:
        """Return the fields of a request whose body must match this model; RefusedError for any other request."""
        self._admit(request)
        # A page of another site cannot send this type without a CORS preflight, which this server refuses.
        if media_type_of(request.headers.get("content-type", "")) != "application/json":
            raise RefusedError(415, "send application/json")
        check_length(request, LIMITS)
        with self._budget.held() as take:
            return validated(model, await read_body(request, LIMITS, take))

    def _admit(self, request: Request) -> None:
        """Raise RefusedError if a request lacks the token, or is sent by a page of another site."""
        check_origin(request)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._token is not None and not hmac.compare_digest(token.encode(), self._token.encode()):
            raise RefusedError(401, "Open the address that `attend review serve` printed, with its token")
