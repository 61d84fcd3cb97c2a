"""The routes of the review page: questions, answers, undo, photographs.

Who may answer is decided by a token, and in a browser by where the page is from: no page of another site can ask for a
question, see a photograph, or answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flows.review.question_views import QuestionView, QuestionViews
from flows.serving.guard import Guard, check_length, read_body
from flows.serving.limits import Limits, RefusedError, Room
from flows.serving.web_page import Page
from tasks.common.errors import AttendError
from tasks.datasets.corrections import Verdict
from tasks.review.assignments import Assignments, Reply
from tasks.review.queue import Question

LIMITS = Limits(body=32 * 1024, bodies=4 * 2**20)
_LOG = logging.getLogger("attend.serve")
_NUMBER = re.compile(r"[0-9a-f]{32}")  # what the page draws: of a browser, and of an answer
_NOTE_SECONDS = 30.0
_MAX_CAPTION, _MAX_WHO = 1000, 100  # characters
_T = TypeVar("_T")


class ReviewServer:
    """The routes, which share the assignments.

    hosts: the `Host` headers that are answered; None for any. token: what a request needs to have; None for nothing.
    note: called now and then after answers came, and when the server stops.
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
        self._one = threading.Lock()  # held while the assignments are called
        self._room = Room(LIMITS.bodies)
        self._page = Page("flows.review", "review")

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            *self._page.routes(),
            Route("/next", self.next, methods=["POST"]),
            Route("/answer", self.answer, methods=["POST"]),
            Route("/undo", self.undo, methods=["POST"]),
            Route("/photograph/{picture}", self.photograph),
            *(Route(path, self.health) for path in ("/health", "/ping")),
        ]
        return Guard(self._hosts, _LOG, lambda *_: None).app(routes, self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        notes = asyncio.create_task(self._note_often())
        yield
        notes.cancel()
        await asyncio.to_thread(self._note)

    async def _note_often(self) -> None:
        """Note what people said, where they said something since."""
        while True:
            await asyncio.sleep(_NOTE_SECONDS)
            if not self._noted:
                self._noted = True
                try:
                    await asyncio.to_thread(self._note)
                except Exception as error:  # MLflow's and its database's are of many kinds; answers are in their file
                    self._noted = False
                    _LOG.warning("what people said is not noted in MLflow yet: %s", error)

    async def next(self, request: Request) -> Response:
        """Return the question that a browser's person is asked, or null where none is left for them."""
        person = _number(await self._fields(request, {"person"}), "person")
        while True:
            question = await self._locked(lambda: self._assignments.next(person, time.time()))
            try:
                return self._told({"question": None if question is None else await self._view(question)})
            except AttendError as error:  # its photograph is gone
                _LOG.warning("%s: not asked about", error)
                if question is not None:
                    await self._locked(partial(self._assignments.drop, question.picture))

    async def answer(self, request: Request) -> Response:
        """Take an answer: once it is confirmed, it is in the file."""
        fields = await self._fields(request, {"person", "number", "picture", "shown", "verdict", "given", "who"})
        person, picture, shown = _number(fields, "person"), _text(fields, "picture", 64), _text(fields, "shown")
        reply = Reply(
            _number(fields, "number"),
            _verdict(fields),
            _text(fields, "given", optional=True),
            _text(fields, "who", _MAX_WHO, optional=True),
        )
        now = time.time()
        try:
            taken = await self._locked(lambda: self._assignments.answer(person, picture, shown, reply, now))
        except AttendError as error:
            raise RefusedError(400, str(error)) from None
        if taken == "lost":
            raise RefusedError(409, "this picture was answered meanwhile, or is asked about no more")
        self._noted = False
        return self._told({})

    async def undo(self, request: Request) -> Response:
        """Return what a browser's person answered last, with the question, to be answered once more."""
        fields = await self._fields(request, {"person", "number"})
        person, number = _number(fields, "person"), _number(fields, "number")
        answer = await self._locked(lambda: self._assignments.to_undo(person, number))
        if answer is None:
            raise RefusedError(409, "there is nothing to undo")
        try:
            # Before they lose what they have now.
            await asyncio.to_thread(self._views.check, answer["picture"], answer["name"])
            question = await self._locked(lambda: self._assignments.undo(person, number, time.time()))
            view = None if question is None else await self._view(question)
        except AttendError as error:
            raise RefusedError(409, f"{error}: it cannot be undone") from None
        return self._told({"question": view, "answer": {"verdict": answer["verdict"], "given": answer["given"]}})

    async def photograph(self, request: Request) -> Response:
        """Return the photograph of a question."""
        self._admit(request)
        question = self._assignments.question(request.path_params["picture"])
        if question is None:
            raise HTTPException(404, "no such picture")
        try:
            return Response(await asyncio.to_thread(self._views.photograph, question), media_type="image/jpeg")
        except AttendError as error:
            raise HTTPException(404, str(error)) from None

    async def health(self, _: Request) -> Response:
        """Answer 200."""
        return JSONResponse({"status": "ok"})

    def _told(self, values: dict[str, Any]) -> Response:
        """Return a response with these values, and how many questions are left."""
        left, number = self._assignments.counts
        return JSONResponse({**values, "left": left, "of": number})

    async def _view(self, question: Question) -> QuestionView:
        """Return what the page shows of a question; AttendError where its photograph is gone."""
        return await asyncio.to_thread(self._views.view, question)

    async def _locked(self, call: Callable[[], _T]) -> _T:
        """Return what a call of the assignments returns, made when no other is under way."""

        def alone() -> _T:
            with self._one:
                return call()

        return await asyncio.to_thread(alone)

    async def _fields(self, request: Request, names: set[str]) -> dict[str, Any]:
        """Return the fields of a request that has exactly these; RefusedError for any other request."""
        self._admit(request)
        # A page of another site cannot send this type without a CORS preflight, which this server refuses.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "send application/json")
        check_length(request, LIMITS)
        with self._room.held() as held:
            body = await read_body(request, LIMITS, held)
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise RefusedError(400, "the body is not JSON") from None
        if not isinstance(fields, dict) or fields.keys() != names:
            raise RefusedError(400, f"the body needs the fields {', '.join(sorted(names))}, and no other")
        return fields

    def _admit(self, request: Request) -> None:
        """Raise RefusedError where a request has not the token, or is sent by a page of another site."""
        origin = request.headers.get("origin")
        foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        if foreign or (origin is not None and urlsplit(origin).netloc != request.headers.get("host")):
            raise RefusedError(403, "a page of another site cannot do this")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
            raise RefusedError(401, "Open the address that `attend review serve` printed, with its token")


def _number(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        raise RefusedError(400, f"{name}: give 32 hexadecimal digits")
    return value


def _text(fields: dict[str, Any], name: str, most: int = _MAX_CAPTION, optional: bool = False) -> Any:
    value = fields[name]
    if value is None and optional:
        return None
    if not isinstance(value, str):
        raise RefusedError(400, f"{name}: give a text{' or null' if optional else ''}")
    if len(value) > most:
        raise RefusedError(400, f"{name}: has {len(value):,} characters: give {most:,} at most")
    return " ".join(value.split()) if optional else value


def _verdict(fields: dict[str, Any]) -> Verdict:
    if fields["verdict"] not in get_args(Verdict):
        raise RefusedError(400, f"verdict: give one of: {', '.join(get_args(Verdict))}")
    verdict: Verdict = fields["verdict"]
    return verdict
