"""Start the review page, and note in MLflow what people said when it stops."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import filelock

from flows.registered.review_queue import QueueOptions, questions_of
from flows.review.question_views import QuestionViews
from flows.review.server import ReviewServer
from flows.serving.limits import allowed_hosts
from flows.serving.serve import address_of, listen, run
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.log import log
from tasks.common.wording import counted
from tasks.datasets.corrections import Answer, add_answers, answers_lock, read_answers
from tasks.registry.reviewed import note_answers
from tasks.review.assignments import KEPT, Asked, Assignments, Held
from tasks.review.queue import Question

TOKEN = "ATTEND_REVIEW_TOKEN"  # the name of a variable


def serve_review(options: QueueOptions, host: str, port: int) -> int:
    """Serve the page until the process is stopped, or not at all where there is no question; return their number.

    On an address that other machines reach, it needs the token of the variable `ATTEND_REVIEW_TOKEN`, or one that is
    drawn; on a loopback address only where the variable is set. Raises AttendError for options that cannot be used.
    """
    listener, host = listen(host, port)  # before the photographs are captioned
    hosts = allowed_hosts(host)
    token = _token(needed=hosts is None)
    record = Record(options.answers)
    with record.alone():
        queue = questions_of(options)
        asked = [Asked(question, chosen, queue.model) for question, chosen in queue.questions]
        assignments = Assignments(asked, record, time.monotonic())
        number = assignments.counts[0]
        if number:
            server = ReviewServer(
                assignments,
                QuestionViews(queue.files, queue.captioner),
                hosts,
                token,
                lambda: note_answers(options.workspace, options.answers),
            )
            fragment = f"#{quote(token, safe='')}" if token else ""
            log.info(f"{counted(number, 'photograph')} to look at: {address_of(listener, host)}/{fragment}")
            run(server.app(), listener)
    return number


def _token(needed: bool) -> str | None:
    """Return the token that requests need; None for none."""
    token = os.environ.get(TOKEN)
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise AttendError(f"{TOKEN}: give letters, digits and signs of ASCII, without spaces")
    return token or (secrets.token_urlsafe(16) if needed else None)


class Record:
    """The file of the answers, and beside it one of what people have, so that they keep it when the server dies."""

    def __init__(self, answers: Path) -> None:
        self._answers = answers
        self._held = answers.with_name(f"{answers.name}.held")
        self._before = self._read_held()  # before the photographs are captioned, which may take long

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have no other server ask about the same answers for the length of the block; AttendError where one does."""
        lock = filelock.FileLock(self._held.with_name(f".{self._held.name}.lock"))
        try:
            lock.acquire(timeout=0)
            self.hold(self._before)
        except filelock.Timeout:
            raise AttendError(
                f"{self._answers}: another `attend review serve` writes it: stop that, or give another --answers"
            ) from None
        except OSError as error:
            raise AttendError(f"{self._answers}: {error.strerror}: give another place with --answers") from None
        try:
            yield
        finally:
            lock.release()

    def answers(self) -> list[Answer]:
        return [answer for _, answer in read_answers(self._answers)] if self._answers.exists() else []

    def write(self, answer: Answer) -> None:
        with answers_lock(self._answers):
            add_answers(self._answers, [answer])

    def held(self) -> dict[str, Held]:
        return self._before

    def hold(self, held: Mapping[str, Held]) -> None:
        values = {
            person: {
                "question": vars(one.asked.question),
                "chosen": one.asked.chosen,
                "model": one.asked.model,
                "undo": one.undo,
                "answers": one.answers,
            }
            for person, one in held.items()
        }
        write_atomically(self._held, json.dumps(values))

    def _read_held(self) -> dict[str, Held]:
        """Return what people have; nothing where the file is old or damaged: they are asked something else then."""
        try:
            if time.time() - self._held.stat().st_mtime > KEPT:
                return {}
            found = {}
            for person, values in json.loads(self._held.read_text(encoding="utf-8")).items():
                question = Question(**values["question"])
                texts = (question.picture, question.name, question.shown, values["chosen"], values["model"])
                if not all(isinstance(text, str) for text in texts) or not isinstance(values["answers"], int):
                    return {}
                found[person] = Held(
                    Asked(question, values["chosen"], values["model"]), values["undo"], values["answers"]
                )
            return found
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}
