"""Start the review page, and note in MLflow what people said when it stops."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from flows.registered.review_queue import QueueOptions, questions_of
from flows.review.looks import Looks
from flows.review.server import ReviewServer
from flows.serving.limits import allowed_hosts
from flows.serving.serve import address_of, listen, run
from tasks.common.errors import AttendError
from tasks.common.files import write_atomically
from tasks.common.log import log
from tasks.common.wording import counted
from tasks.datasets.corrections import Answer, add_answers, read_answers
from tasks.pipeline.workspace import Workspace
from tasks.registry.reviewed import note_answers
from tasks.review.assignments import KEPT, Assignments

TOKEN = "ATTEND_REVIEW_TOKEN"  # the name of a variable


class Record:
    """The file of the answers, and beside it one that says who has which picture."""

    def __init__(self, answers: Path, workspace: Workspace) -> None:
        self._answers, self._workspace = answers, workspace
        self._held = answers.with_name(f"{answers.name}.held")

    def taken(self) -> set[str]:
        if not self._answers.exists():
            return set()
        return {answer["source"] for _, answer in read_answers(self._answers) if "source" in answer}

    def write(self, answer: Answer) -> None:
        with self._workspace.lock("reviews", f"answers of {self._answers}"):
            add_answers(self._answers, [answer])

    def held(self) -> dict[str, str]:
        try:
            if time.time() - self._held.stat().st_mtime > KEPT:
                return {}
            held: dict[str, str] = json.loads(self._held.read_text(encoding="utf-8"))
            return held
        except (OSError, ValueError):
            return {}  # people are asked about other pictures then

    def hold(self, held: Mapping[str, str]) -> None:
        write_atomically(self._held, json.dumps(held))


def serve_review(options: QueueOptions, host: str, port: int) -> int:
    """Serve the page until the process is stopped, or not at all where there is no question; return their number.

    On an address that other machines reach, it needs the token of the variable `ATTEND_REVIEW_TOKEN`, or one that is
    drawn; on a loopback address only where the variable is set. Raises AttendError for options that cannot be used.
    """
    listener, host = listen(host, port)  # before the photographs are captioned
    hosts, path = allowed_hosts(host), options.answers
    if not path.parent.is_dir():
        raise AttendError(f"--answers: {path.parent}: no such folder")
    token = os.environ.get(TOKEN) or (None if hosts is not None else secrets.token_urlsafe(16))
    queue = questions_of(options)
    if not queue.questions:
        return 0
    record = Record(path, Workspace(options.workspace))
    assignments = Assignments(queue.questions, queue.model, record, time.monotonic())
    looks = Looks(options.folder, queue.captioner)
    server = ReviewServer(assignments, looks, hosts, token, lambda: note_answers(options.workspace, path))
    log.info(
        f"{counted(len(queue.questions), 'photograph')} to look at: "
        f"{address_of(listener, host)}/{f'#{token}' if token else ''}"
    )
    run(server.app(), listener)
    return len(queue.questions)
