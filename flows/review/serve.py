"""Start the review page, and store the results in MLflow when it stops."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import filelock
from pydantic import TypeAdapter

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
from tasks.mlflow_store.versions import find_captioner
from tasks.registry.reviewed import note_answers
from tasks.review.assignments import KEPT, Assignments, ChosenQuestion, HeldQuestion

TOKEN = "ATTEND_REVIEW_TOKEN"  # the name of a variable
_HELD = TypeAdapter(dict[str, HeldQuestion])


def serve_review(options: QueueOptions, host: str, port: int) -> int:
    """Serve the page until the process is stopped, or not at all without questions; return the number of questions.

    On an address that other machines reach, requests need the token in the variable `ATTEND_REVIEW_TOKEN`, or a random
    one; on a loopback address only if the variable is set. Raises AttendError for options that cannot be used.
    """
    listener, host = listen(host, port)  # before the photographs are captioned
    hosts = allowed_hosts(host)
    token = _token(needed=hosts is None)
    find_captioner(options.model, options.workspace)  # before anything is written
    record = AnswerFile(options.answers)
    with record.alone():
        queue = questions_of(options)
        held = {one.asked.question.picture for one in record.held().values()}
        asked = [ChosenQuestion(*item, queue.model) for item in queue.questions if item[0].picture not in held]
        # The questions that people already have count towards the number.
        assignments = Assignments(asked[: max(options.number - len(held), 0)], record)
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
            shown = socket.gethostname() if host in ("0.0.0.0", "::") else host  # other machines cannot open these
            log.info(f"{counted(number, 'photograph')} to look at: {address_of(listener, shown)}/{fragment}")
            run(server.app(), listener)
    return number


def _token(needed: bool) -> str | None:
    """Return the token that requests need; None for none."""
    token = os.environ.get(TOKEN)
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise AttendError(f"{TOKEN}: give letters, digits and signs of ASCII, without spaces")
    return token or (secrets.token_urlsafe(16) if needed else None)


class AnswerFile:
    """The file of answers, and a file beside it with the assigned questions, which survives if the server dies."""

    def __init__(self, answers: Path) -> None:
        self._answers = answers
        self._held = answers.with_name(f"{answers.name}.held")
        self._before = self._read_held()  # before the photographs are captioned, which may take long

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other servers from using the same answers for the length of the block; AttendError if one does."""
        lock = filelock.FileLock(self._held.with_name(f".{self._held.name}.lock"))
        try:
            self._answers.parent.mkdir(parents=True, exist_ok=True)
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
            if self._held.read_text(encoding="utf-8") == "{}":
                self._held.unlink()
            lock.release()

    def answers(self) -> list[Answer]:
        return [answer for _, answer in read_answers(self._answers)] if self._answers.exists() else []

    def write(self, answer: Answer) -> None:
        with answers_lock(self._answers):
            add_answers(self._answers, [answer])

    def held(self) -> dict[str, HeldQuestion]:
        return self._before

    def hold(self, held: Mapping[str, HeldQuestion]) -> None:
        write_atomically(self._held, _HELD.dump_json(dict(held)).decode())

    def _read_held(self) -> dict[str, HeldQuestion]:
        """Return the questions of people who were recently active.

        If the file is missing or damaged, return none: people are then asked other questions.
        """
        try:
            held = _HELD.validate_json(self._held.read_bytes(), strict=True)
        except (OSError, ValueError):
            return {}
        return {person: one for person, one in held.items() if time.time() - one.heard < KEPT}
