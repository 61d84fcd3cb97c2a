"""The review page: who is asked what, what the server takes and refuses, and a hundred photographs by keyboard."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect
from starlette.testclient import TestClient

from flows.registered.review_queue import QueueOptions, questions_of
from flows.review.looks import Looks
from flows.review.serve import Record
from flows.review.server import LIMITS, ReviewServer
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.datasets.corrections import Answer, latest, read_answers
from tasks.pipeline.workspace import Workspace
from tasks.registry import tracking
from tasks.registry.versions import REVIEWED, find
from tasks.review.assignments import KEPT, Assignments, Said
from tasks.review.queue import Question, Shares
from tests.support import HERE, pictures
from tests.test_page import CHROMIUM, browser, faults, no_wider_than_the_screen, page  # noqa: F401 # fixtures
from tests.test_serving import free_port

ANN, BOB = "a" * 32, "b" * 32
Written = list[Answer]


def number(at: int) -> str:
    return f"{at:032x}"


def question(at: int) -> Question:
    return Question(f"{at:064x}", f"{at}.png", f"a dog {at}", 0.5, 0.5)


def accepted(at: int, **changes: Any) -> Said:
    return Said(number(at), "accepted", "a dog", None)._replace(**changes)


class InMemory:
    """The record of what outlives the server's process, without files."""

    def __init__(self, written: Written) -> None:
        self._written = written
        self._held: dict[str, str] = {}

    def taken(self) -> set[str]:
        return {item["source"] for item in self._written}

    def write(self, item: Answer) -> None:
        self._written.append(item)

    def held(self) -> dict[str, str]:
        return self._held

    def hold(self, held: Mapping[str, str]) -> None:
        self._held = dict(held)


def assignments(count: int, record: InMemory) -> Assignments:
    chosen: Any = [(question(at), "least sure") for at in range(count)]
    return Assignments(chosen, "models:/small/1", record, 0.0)


def answer(to: Assignments, person: str, of: Question, said: Said, now: float = 0.0) -> str:
    return to.answer(person, of.picture, of.shown, said, now)


def test_nobody_gets_anothers_picture_and_each_is_asked_once() -> None:
    written: Written = []
    given = assignments(40, InMemory(written))
    people = [number(at) for at in range(7)]
    at = 0
    while given.counts[0]:
        asked = [(person, given.next(person, float(at))) for person in people]
        held = [found.picture for _, found in asked if found is not None]
        assert len(set(held)) == len(held)
        for person, found in asked:
            assert given.next(person, float(at)) == found  # the same until it is answered
        for person, found in asked[at % 3 :]:
            if found is not None:
                at += 1
                assert answer(given, person, found, accepted(at), float(at)) == "taken"
    assert Counter(item["picture"] for item in written) == {question(at).picture: 1 for at in range(40)}
    assert given.next(ANN, 0.0) is None


def test_an_answer_that_is_sent_twice_is_taken_once() -> None:
    written: Written = []
    given = assignments(2, InMemory(written))
    first = given.next(ANN, 0.0)
    assert first is not None
    assert answer(given, ANN, first, accepted(1)) == "taken"
    assert answer(given, ANN, first, accepted(1)) == "taken"  # the confirmation was lost
    assert answer(given, BOB, first, accepted(2)) == "lost"
    assert len(written) == 1
    # The server died after the answer was in the file.
    again = assignments(2, InMemory(written))
    assert answer(again, ANN, first, accepted(1)) == "taken" and len(written) == 1


def test_who_has_a_picture_keeps_it_when_the_server_dies() -> None:
    record = InMemory([])
    given = assignments(3, record)
    first, second = given.next(ANN, 0.0), given.next(BOB, 0.0)
    again = assignments(3, record)
    assert again.next("c" * 32, 1.0) not in (first, second)
    assert again.next(ANN, 1.0) == first and again.next(BOB, 1.0) == second


def test_a_picture_that_was_left_is_asked_again_but_not_while_it_is_held() -> None:
    written: Written = []
    given = assignments(1, InMemory(written))
    held = given.next(ANN, 0.0)
    assert held is not None and given.next(BOB, KEPT - 1) is None
    assert answer(given, BOB, held, accepted(1), KEPT - 1) == "lost"
    assert given.next(BOB, KEPT + 1) == held
    assert answer(given, ANN, held, accepted(2), KEPT + 2) == "lost"  # Bob has it now
    assert answer(given, BOB, held, accepted(3), KEPT + 3) == "taken"
    assert [item["source"] for item in written] == [number(3)]


def test_undo_asks_once_more_and_the_last_answer_counts() -> None:
    written: Written = []
    given = assignments(3, InMemory(written))
    assert given.undo(ANN, 0.0) is None
    first = given.next(ANN, 0.0)
    assert first is not None
    answer(given, ANN, first, accepted(1, verdict="rejected", given=None))
    other = given.next(ANN, 0.0)
    assert other is not None and other != first
    assert given.undo(BOB, 0.0) is None  # it is another's answer
    assert given.undo(ANN, 0.0) == (first, accepted(1, verdict="rejected", given=None))
    assert given.next(ANN, 0.0) == first and given.next(BOB, 0.0) == other
    answer(given, ANN, first, accepted(2))
    assert [item["verdict"] for item in latest(written)] == ["accepted"] and len(written) == 2


def test_what_cannot_be_written_is_refused_and_is_still_asked() -> None:
    written: Written = []
    given = assignments(1, InMemory(written))
    first = given.next(ANN, 0.0)
    assert first is not None
    with pytest.raises(AttendError, match="the answer: given: "):
        answer(given, ANN, first, accepted(1, given="\ud800"))
    assert answer(given, ANN, question(0), accepted(1), 0.0) == "taken"
    assert given.answer(ANN, "c" * 64, "x", accepted(2), 0.0) == "lost"


@pytest.fixture(scope="module")
def inbox(registered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a hundred photographs that the champion can caption."""
    folder = tmp_path_factory.mktemp("review") / "inbox"
    folder.mkdir()
    for path in pictures(registered)[:100]:
        shutil.copy(path, folder)
    return folder


class Client(TestClient):
    """A browser's requests to the routes, as one person."""

    def sent(self, path: str, person: str = ANN, **fields: Any) -> tuple[int, Any]:
        response = self.post(path, json={"person": person, **fields})
        return response.status_code, response.json()


@contextmanager
def opened(folder: Path, registered: Path, answers: Path, token: str | None = None) -> Iterator[Client]:
    options = QueueOptions(folder, None, 20, Shares(0.2, 0.2), answers, registered)
    questions, model, captioner = questions_of(options)
    given = Assignments(questions, model, Record(answers, Workspace(registered)), 0.0)
    app = ReviewServer(given, Looks(folder, captioner), {"localhost"}, token).app()
    with Client(app, base_url="http://localhost") as client:
        yield client


def said(look: dict[str, Any], at: int, **changes: Any) -> dict[str, Any]:
    fields = {"number": number(at), "picture": look["picture"], "shown": look["shown"], "verdict": "accepted"}
    return {**fields, "given": look["shown"], "who": "Ann", **changes}


def test_a_question_has_what_the_page_shows(registered: Path, inbox: Path, tmp_path: Path) -> None:
    with opened(inbox, registered, tmp_path / "r.jsonl") as client:
        status, told = client.sent("/next")
        look = told["question"]
        assert status == 200 and (told["left"], told["of"]) == (20, 20)
        assert digest_of_file(inbox / look["name"]) == look["picture"]
        assert " ".join(look["words"]) == look["shown"] and len(look["attention"]) == len(look["words"])
        assert [len(set(place)) for place in look["likely"]] == [6] * len(look["words"])
        assert len(look["alternatives"]) == 1  # it was evaluated with a beam of 2
        response = client.get(f"/photograph/{look['picture']}")
        assert response.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(response.content)).size == Image.open(inbox / look["name"]).size
        assert client.sent("/answer", **said(look, 1)) == (200, {"left": 19, "of": 20})
        status, told = client.sent("/undo")
        assert told["question"] == look and told["said"] == {"verdict": "accepted", "given": look["shown"]}
        client.sent("/answer", **said(look, 2, verdict="edited", given="  a  dog "))
        written = [item for _, item in read_answers(tmp_path / "r.jsonl")]
        assert [(item["given"], item["who"]) for item in written] == [(look["shown"], "Ann"), ("a dog", "Ann")]


def test_a_photograph_that_is_gone_is_not_asked_about(registered: Path, inbox: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(inbox, own)
    with opened(own, registered, tmp_path / "r.jsonl") as client:
        first = client.sent("/next")[1]["question"]
        (own / first["name"]).unlink()
        status, told = client.sent("/next")
        assert status == 200 and told["question"]["picture"] != first["picture"] and told["of"] == 19
        shutil.copy(own / told["question"]["name"], own / first["name"])
        assert client.get(f"/photograph/{first['picture']}").status_code == 404


TOKEN = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (TOKEN, 200),
        ({}, 401),
        ({"Authorization": "Bearer secrets"}, 401),
        ({"Authorization": "Basic c2VjcmV0"}, 401),
        ({**TOKEN, "Origin": "http://localhost"}, 200),
        ({**TOKEN, "Origin": "http://evil.example"}, 403),
        ({**TOKEN, "Origin": "null"}, 403),
        ({**TOKEN, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**TOKEN, "Host": "evil.example"}, 403),
        ({**TOKEN, "Content-Type": "text/plain"}, 415),
        ({**TOKEN, "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_who_may_not_changes_nothing(
    registered: Path, inbox: Path, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    answers = tmp_path / "r.jsonl"
    with opened(inbox, registered, answers, "secret") as client:
        look = client.post("/next", json={"person": ANN}, headers=TOKEN).json()["question"]
        body = json.dumps({"person": ANN, **said(look, 1)})
        found = client.post("/answer", content=body, headers={"Content-Type": "application/json", **headers})
        assert found.status_code == status and answers.exists() == (status == 200)
        if status != 415:
            assert client.get(f"/photograph/{look['picture']}", headers=headers).status_code == status
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"number": "1"}, "number: give 32 hexadecimal digits"),
        ({"person": 3}, "person: give 32 hexadecimal digits"),
        ({"verdict": "fine"}, "verdict: give one of: accepted, edited, rejected, skipped, no photograph"),
        ({"given": "x" * 1001}, "given: has 1,001 characters: give 1,000 at most"),
        ({"given": None}, "the answer: given: is None; a text is needed"),
        ({"given": 7}, "given: give a text or null"),
        ({"who": "\ud800"}, "the answer: who: "),
        ({"shown": None}, "shown: give a text"),
        ({"more": 1}, "the body needs the fields "),
    ],
)
def test_a_wrong_answer_is_refused_and_the_right_one_taken(
    registered: Path, inbox: Path, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    answers = tmp_path / "r.jsonl"
    with opened(inbox, registered, answers) as client:
        look = client.sent("/next")[1]["question"]
        body = json.dumps({"person": ANN, **said(look, 1), **changes})
        response = client.post("/answer", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 400 and response.json()["error"].startswith(why)
        assert not answers.exists()
        assert client.sent("/answer", **said(look, 1))[0] == 200
        assert client.sent("/answer", BOB, **said(look, 2))[0] == 409
        assert client.post("/answer", content=b"x" * (LIMITS.body + 1)).status_code in (413, 415)
        deep = client.post("/next", content=b"[" * 30_000, headers={"Content-Type": "application/json"})
        assert deep.status_code == 400


class Serving:
    """`attend review serve` as a process, which can be killed and started again."""

    def __init__(self, folder: Path, workspace: Path, answers: Path) -> None:
        self.port = free_port()
        words = ["review", "serve", folder, "--workspace", workspace, "--answers", answers, "--port", self.port]
        self._command = [sys.executable, "-m", "flows.commands.cli", *map(str, words)]
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, cwd=HERE)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{self.address}health"):  # our own address
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None
                time.sleep(0.1)
        raise AssertionError("it does not answer")

    def stop(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_a_hundred_by_keyboard_two_at_once_and_the_server_killed_between(
    browser: Any,  # noqa: F811
    registered: Path,
    inbox: Path,
    tmp_path: Path,
) -> None:
    workspace, answers = tmp_path / "workspace", tmp_path / "reviews.jsonl"
    shutil.copytree(registered, workspace)
    serving = Serving(inbox, workspace, answers)
    try:
        people = [browser.new_context().new_page() for _ in range(2)]
        for who in people:
            who.goto(serving.address)
            expect(who.locator("#accept")).to_be_enabled()
        done = 0
        keys = ["a", "r", "s", "n", "a"]
        while people[0].locator("#desk").is_visible() or people[1].locator("#desk").is_visible():
            if done in (30, 61):
                serving.stop(signal.SIGKILL)
                people[0].keyboard.press("a")  # it is kept, and sent when there is a server again
                expect(people[0].locator("#trouble")).to_be_visible()
                serving.start()
                done += 1
                expect(people[0].locator("#accept")).to_be_enabled()
                continue
            who = people[done % 2]
            if not who.locator("#desk").is_visible():
                who = people[1 - done % 2]
            names = {one.inner_text("#name") for one in people if one.locator("#desk").is_visible()}
            assert len(names) == sum(one.locator("#desk").is_visible() for one in people)
            who.keyboard.press(keys[done % len(keys)])
            done += 1
            expect(who.locator("#accept")).to_be_enabled()
        assert people[0].locator("#finished").is_visible()
    finally:
        serving.stop(signal.SIGTERM)
    found = [item for _, item in read_answers(answers)]
    digests = {digest_of_file(path) for path in inbox.iterdir()}
    assert Counter(item["picture"] for item in found) == dict.fromkeys(digests, 1)
    assert {item["verdict"] for item in found} == {"accepted", "rejected", "skipped", "no photograph"}
    client, address = tracking.connect(workspace), find(None, workspace).address
    version = client.get_model_version(*address.removeprefix("models:/").split("/"))
    assert "% accepted (" in version.tags[REVIEWED]


@pytest.fixture
def served(registered: Path, inbox: Path, tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(inbox, registered, tmp_path / "reviews.jsonl")
    yield serving
    serving.stop(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_replaced_and_captions_written_by_keyboard(
    page: Any,  # noqa: F811
    served: Serving,
    tmp_path: Path,
    scheme: str,
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(served.address)
    expect(page.locator("#accept")).to_be_enabled()
    assert faults(page) == [] and no_wider_than_the_screen(page)
    shown = page.input_value("#caption")
    page.keyboard.press("ArrowRight")
    assert page.locator("#frame").evaluate("frame => frame.classList.contains('on')")
    page.keyboard.press("ArrowDown")
    changed = page.input_value("#caption")
    assert changed != shown and changed.split()[1:] == shown.split()[1:]
    assert faults(page) == [] and no_wider_than_the_screen(page)
    if folder := os.environ.get("ATTEND_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/review-{scheme}-{page.viewport_size['width']}.png", full_page=True)
    page.keyboard.press("ArrowUp")
    assert page.input_value("#caption") == shown
    page.keyboard.press("1")
    other = page.input_value("#caption")
    assert other == page.inner_text("#list li") and other != shown
    page.keyboard.press("e")
    page.keyboard.press("End")
    page.keyboard.type(" by night")
    page.keyboard.press("Enter")
    expect(page.locator("#name")).not_to_be_empty()
    expect(page.locator("#accept")).to_be_enabled()
    page.keyboard.press("u")
    expect(page.locator("#caption")).to_have_value(f"{other} by night")
    page.keyboard.press("e")
    page.keyboard.press("Escape")
    expect(page.locator("#caption")).to_have_value(shown)
    expect(page.locator("#accept")).to_be_enabled()
    page.keyboard.press("a")
    expect(page.locator("#count")).to_have_text("99 of 100 left")
    expect(page.locator("#accept")).to_be_enabled()
    written = [item for _, item in read_answers(tmp_path / "reviews.jsonl")]
    assert [item["given"] for item in written] == [f"{other} by night", shown]
    assert [item["verdict"] for item in latest(written)] == ["accepted"]
