"""The review page: who is asked what, what the server takes and refuses, and a hundred photographs by keyboard."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect
from starlette.testclient import TestClient

from flows.registered.review_queue import Queue, QueueOptions, questions_of
from flows.review.question_views import QuestionViews
from flows.review.serve import AnswerFile
from flows.review.server import LIMITS, ReviewServer
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.datasets.corrections import Answer, latest, read_answers
from tasks.mlflow_store import tracking
from tasks.mlflow_store.versions import REVIEWED, find
from tasks.review.assignments import KEPT, Assignments, ChosenQuestion, HeldQuestion, Reply
from tasks.review.queue import Question, Shares
from tests.browser import CHROMIUM, faults, no_wider_than_the_screen
from tests.cli import review as attend
from tests.support import HERE, free_port, pictures

ANN, BOB, EVE = "a" * 32, "b" * 32, "e" * 32
Written = list[Answer]


def number(at: int) -> str:
    return f"{at:032x}"


def question(at: int) -> Question:
    return Question(f"{at:064x}", f"{at}.png", f"a dog {at}", 0.5, 0.5)


def accepted(at: int, **changes: Any) -> Reply:
    return Reply(number(at), "accepted", "a dog", None)._replace(**changes)


class InMemory:
    """The record of what outlives the server's process, without files."""

    def __init__(self) -> None:
        self.written: Written = []
        self._held: dict[str, HeldQuestion] = {}

    def answers(self) -> Written:
        return list(self.written)

    def write(self, item: Answer) -> None:
        self.written.append(item)

    def held(self) -> dict[str, HeldQuestion]:
        return self._held

    def hold(self, held: Mapping[str, HeldQuestion]) -> None:
        self._held = dict(held)


def assignments(questions: Iterable[int], record: InMemory, model: str = "models:/small/1") -> Assignments:
    return Assignments([ChosenQuestion(question(at), "least sure", model) for at in questions], record)


def asked(of: Assignments, person: str, now: float = 0.0) -> Question:
    found = of.next(person, now)
    assert found is not None
    return found


def answer(to: Assignments, person: str, of: Question, reply: Reply, now: float = 0.0) -> str:
    return to.answer(person, of.picture, of.shown, reply, now)


def test_each_picture_is_asked_once_and_of_one_person() -> None:
    record = InMemory()
    queue = assignments(range(40), record)
    people = [number(at) for at in range(7)]
    at = 0
    while queue.counts[0]:
        all_asked = [(person, queue.next(person, float(at))) for person in people]
        held = [found.picture for _, found in all_asked if found is not None]
        assert len(set(held)) == len(held)
        for person, found in all_asked:
            assert queue.next(person, float(at)) == found  # the same until it is answered
        for person, found in all_asked[at % 3 :]:
            if found is not None:
                at += 1
                assert answer(queue, person, found, accepted(at), float(at)) == "taken"
    assert Counter(item["picture"] for item in record.written) == {question(at).picture: 1 for at in range(40)}
    assert queue.next(ANN, 0.0) is None and queue.counts == (0, 40)


def test_an_answer_that_is_sent_twice_is_taken_once() -> None:
    record = InMemory()
    queue = assignments(range(2), record)
    first = asked(queue, ANN)
    assert answer(queue, ANN, first, accepted(1)) == "taken"
    assert answer(queue, ANN, first, accepted(1)) == "taken"  # the confirmation was lost
    assert answer(queue, BOB, first, accepted(2)) == "lost"
    assert len(record.written) == 1
    # The server died after the answer was in the file.
    again = assignments([1], record)
    assert answer(again, ANN, first, accepted(1)) == "taken" and len(record.written) == 1


def test_held_questions_survive_a_crash() -> None:
    record = InMemory()
    queue = assignments(range(3), record)
    first, second = asked(queue, ANN), asked(queue, BOB)
    again = assignments(range(3), record)
    assert again.next(EVE, 1.0) not in (first, second)
    assert again.next(ANN, 1.0) == first and again.next(BOB, 1.0) == second


def test_answered_questions_are_not_asked_again_after_a_crash() -> None:
    record = InMemory()
    queue = assignments(range(3), record)
    first = asked(queue, ANN)
    for at in (1, 2):
        held = record.held()
        answer(queue, ANN, first, accepted(at))
        record.hold(held)  # as it was when the server died
        queue = assignments([1, 2], record)
        assert queue.next(ANN, 0.0) != first and queue.next(BOB, 0.0) != first
        if at == 1:
            undone = queue.undo(ANN, number(90), 0.0)
            assert undone is not None and undone.picture == first.picture
    assert len(record.written) == 2


def test_an_answer_is_taken_though_the_queue_is_another_one_by_then() -> None:
    record = InMemory()
    first = asked(assignments(range(3), record), ANN)
    again = assignments(range(5, 9), record, "models:/small/2")
    assert answer(again, ANN, first, accepted(1)) == "taken"
    assert [(item["picture"], item["model"]) for item in record.written] == [(first.picture, "models:/small/1")]


def test_a_picture_that_was_left_is_asked_again_but_not_while_it_is_held() -> None:
    record = InMemory()
    queue = assignments([0], record)
    held = asked(queue, ANN)
    assert queue.next(BOB, KEPT - 1) is None
    assert answer(queue, BOB, held, accepted(1), KEPT - 1) == "lost"
    assert queue.next(BOB, KEPT + 1) == held
    assert answer(queue, ANN, held, accepted(2), KEPT + 2) == "lost"  # Bob has it now
    assert answer(queue, BOB, held, accepted(3), KEPT + 3) == "taken"
    assert [item["source"] for item in record.written] == [f"page {BOB} {number(3)}"]
    # While others are free, who was away for long keeps theirs.
    queue = assignments([0, 1], InMemory())
    mine = asked(queue, ANN)
    assert queue.next(BOB, 10 * KEPT) != mine and queue.next(ANN, 11 * KEPT) == mine


def test_undo_asks_once_more_and_the_last_answer_counts() -> None:
    record = InMemory()
    queue = assignments(range(4), record)
    assert queue.undo(ANN, number(90), 0.0) is None
    first = asked(queue, ANN)
    answer(queue, ANN, first, accepted(1, verdict="rejected", given=None))
    other = asked(queue, ANN)
    assert other != first
    assert queue.undo(BOB, number(91), 0.0) is None  # it is another's answer
    told = queue.to_undo(ANN, number(92))
    assert told is not None and told["verdict"] == "rejected"
    for _ in range(2):  # the response of the first was lost
        undone = queue.undo(ANN, number(92), 0.0)
        assert undone is not None and undone.picture == first.picture
    assert queue.next(ANN, 0.0) == undone and queue.next(BOB, 0.0) == other
    # The server dies, and what was undone is undone. The name was told meanwhile: it is the same person.
    queue = assignments([2, 3], record)
    assert queue.next(ANN, 0.0) == undone
    assert answer(queue, ANN, first, accepted(2, who="Ann")) == "taken"
    assert [item["verdict"] for item in latest(record.written)] == ["accepted"] and len(record.written) == 2


def test_undoing_further_back_keeps_the_last_answer() -> None:
    record = InMemory()
    queue = assignments(range(3), record)
    for at in (1, 2):
        answer(queue, ANN, asked(queue, ANN), accepted(at))
    one, two = (queue.undo(ANN, number(at), 0.0) for at in (90, 91))
    assert one is not None and two is not None
    assert [one.picture, two.picture] == [question(1).picture, question(0).picture]
    assert queue.undo(ANN, number(92), 0.0) is None and queue.next(ANN, 0.0) == two
    assert answer(queue, ANN, two, accepted(3, verdict="skipped")) == "taken"
    assert queue.next(BOB, 0.0) == question(2) and queue.next(ANN, 0.0) is None


@pytest.mark.parametrize("seed", range(40))
def test_random_actions_lose_no_confirmed_answer(seed: int) -> None:
    chance = random.Random(seed)
    record = InMemory()
    queue = assignments(range(12), record)
    confirmed: dict[str, str] = {}  # picture -> the person whose answer was confirmed
    sees: dict[str, Question | None] = {}
    for step in range(400):
        person = chance.choice((ANN, BOB, EVE))
        what = chance.random()
        before = record.held()
        if what < 0.15:
            queue.undo(person, number(step), 0.0)
            sees.pop(person, None)
            before = record.held()
        elif person not in sees:
            sees[person] = queue.next(person, 0.0)
            before = record.held()
        elif (found := sees[person]) is not None:
            for _ in range(chance.choice((1, 2))):  # the confirmation may be lost
                assert answer(queue, person, found, accepted(1000 + step)) == "taken"
            assert confirmed.setdefault(found.picture, person) == person
            del sees[person]
        else:
            del sees[person]
        shown = [found.picture for found in sees.values() if found is not None]
        assert len(set(shown)) == len(shown)
        if chance.random() < 0.1:  # the server dies, perhaps before it let go of what was answered
            record.hold(chance.choice((before, record.held())))
            left = [at for at in range(12) if question(at).picture not in {item["picture"] for item in record.written}]
            queue = assignments(chance.sample(left, len(left)), record)
    assert len(confirmed) == 12 and {item["picture"] for item in record.written} == set(confirmed)


def test_an_answer_that_cannot_be_written_is_refused_and_asked_again() -> None:
    queue = assignments([0], InMemory())
    first = asked(queue, ANN)
    with pytest.raises(AttendError, match="the answer: given: "):
        answer(queue, ANN, first, accepted(1, given="\ud800"))
    assert answer(queue, ANN, first, accepted(1)) == "taken"
    assert queue.answer(ANN, "c" * 64, "x", accepted(2), 0.0) == "lost"


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


@functools.cache
def queue_of(folder: Path, registered: Path) -> Queue:
    return questions_of(QueueOptions(folder, None, 20, Shares(0.2, 0.2), folder / "none.jsonl", registered))


@contextmanager
def opened(folder: Path, registered: Path, answers: Path, token: str | None = None) -> Iterator[Client]:
    queue = queue_of(folder, registered)
    chosen = [ChosenQuestion(one, why, queue.model) for one, why in queue.questions]
    views = QuestionViews(queue.files, queue.captioner)
    given = Assignments(chosen, AnswerFile(answers))
    app = ReviewServer(given, views, {"localhost"}, token, lambda: None).app()
    with Client(app, base_url="http://localhost") as client:
        yield client


def said(look: dict[str, Any], at: int, **changes: Any) -> dict[str, Any]:
    fields = {"number": number(at), "picture": look["picture"], "shown": look["shown"], "verdict": "accepted"}
    return {**fields, "given": look["shown"], "who": "Ann", **changes}


def test_a_question_has_what_the_page_shows(registered: Path, inbox: Path, tmp_path: Path) -> None:
    with opened(inbox, registered, tmp_path / "r.jsonl") as client:
        status, body = client.sent("/next")
        look = body["question"]
        assert status == 200 and (body["left"], body["of"]) == (20, 20)
        assert digest_of_file(inbox / look["name"]) == look["picture"]
        assert " ".join(look["words"]) == look["shown"] and len(look["attention"]) == len(look["words"])
        assert [len(set(place)) for place in look["likely"]] == [6] * len(look["words"])
        assert len(look["alternatives"]) == 1  # it was evaluated with a beam of 2
        response = client.get(f"/photograph/{look['picture']}")
        assert response.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(response.content)).size == Image.open(inbox / look["name"]).size
        assert client.sent("/answer", **said(look, 1)) == (200, {"left": 19, "of": 20})
        status, body = client.sent("/undo", number=number(9))
        assert body["question"] == look and body["answer"] == {"verdict": "accepted", "given": look["shown"]}
        client.sent("/answer", **said(look, 2, verdict="edited", given="  a  dog "))
        written = [item for _, item in read_answers(tmp_path / "r.jsonl")]
        assert [(item["given"], item["who"]) for item in written] == [(look["shown"], "Ann"), ("a dog", "Ann")]


def test_a_photograph_that_is_gone_is_not_asked_about(registered: Path, inbox: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(inbox, own)
    with opened(own, registered, tmp_path / "r.jsonl") as client:
        first = client.sent("/next")[1]["question"]
        (own / first["name"]).unlink()
        status, body = client.sent("/next")
        assert status == 200 and body["question"]["picture"] != first["picture"] and body["of"] == 19
        shutil.copy(own / body["question"]["name"], own / first["name"])
        assert client.get(f"/photograph/{first['picture']}").status_code == 404
        # What cannot be undone takes nothing from who asks for it.
        look = body["question"]
        client.sent("/answer", **said(look, 1))
        (own / look["name"]).unlink()
        now = client.sent("/next")[1]["question"]
        status, body = client.sent("/undo", number=number(9))
        assert status == 409 and body["error"] == f"{look['name']}: is not there any more: it cannot be undone"
        assert client.sent("/next")[1]["question"] == now


def test_names_that_are_no_text_are_asked_about(registered: Path, inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    odd = os.fsdecode(b"caf\xe9 <b>.png")
    shutil.copy(next(inbox.iterdir()), tmp_path / "own" / odd)
    with opened(tmp_path / "own", registered, tmp_path / "r.jsonl") as client:
        look = client.sent("/next")[1]["question"]
        assert look["name"] == "caf\ufffd <b>.png" and client.get(f"/photograph/{look['picture']}").status_code == 200


QUESTION: dict[str, Any] = {
    "picture": [],
    "name": "a.png",
    "shown": "a dog",
    "confidence": None,
    "sureness": 0.0,
    "distance": None,
}
HELD = {"question": QUESTION, "chosen": "at random", "model": "models:/m/1", "undo": None, "answers": 0, "heard": 2e9}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        "[" * 100_000,
        '{"a": ["x"]}',
        '{"a": {}}',
        json.dumps({ANN: HELD}),
    ],
)
def test_a_damaged_record_of_what_people_have_is_no_obstacle(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.jsonl.held").write_text(text)
    with AnswerFile(tmp_path / "r.jsonl").alone():
        assert AnswerFile(tmp_path / "r.jsonl").held() == {}


def test_held_questions_are_kept_in_a_file(tmp_path: Path) -> None:
    record = AnswerFile(tmp_path / "r.jsonl")
    held = {ANN: HeldQuestion(ChosenQuestion(question(1), "at random", "models:/m/1"), number(3), 1, time.time())}
    record.hold(held)
    assert AnswerFile(tmp_path / "r.jsonl").held() == held
    record.hold({ANN: held[ANN]._replace(heard=time.time() - KEPT - 1)})
    assert AnswerFile(tmp_path / "r.jsonl").held() == {}


def test_two_servers_do_not_ask_about_the_same_answers(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with (
        AnswerFile(path).alone(),
        pytest.raises(AttendError, match="another `attend review serve` writes it"),
        AnswerFile(path).alone(),
    ):
        pass
    with AnswerFile(path).alone():
        pass


def test_a_link_to_the_answers_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "r.jsonl").symlink_to(tmp_path / "disk" / "r.jsonl")
    queue = assignments([0], record := InMemory())
    answer(queue, ANN, asked(queue, ANN), accepted(1))
    AnswerFile(tmp_path / "r.jsonl").write(record.written[0])
    assert (tmp_path / "r.jsonl").is_symlink() and len(list(read_answers(tmp_path / "disk" / "r.jsonl"))) == 1


@pytest.mark.parametrize(
    ("words", "token", "why"),
    [
        (("--answers", "."), "", "--answers: .: is a folder"),
        (("--answers", "none/r.jsonl"), "", "--answers: none/r.jsonl: its folder is not there"),
        ((), "a b", "ATTEND_REVIEW_TOKEN: give letters, digits and signs of ASCII, without spaces"),
        (("--share", "0.7", "--unlike", "0.7"), "", "give shares that are 1 together, or less"),
        ((), "", "no model is registered there"),
    ],
)
def test_options_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], token: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTEND_REVIEW_TOKEN", token)
    with pytest.raises(AttendError, match=why):
        attend("serve", ".", "--workspace", tmp_path / "w", "--port", free_port(), *words)


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
def test_unauthorised_requests_change_nothing(
    registered: Path, inbox: Path, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    answers = tmp_path / "r.jsonl"
    with opened(inbox, registered, answers, "secret") as client:
        look = client.post("/next", json={"person": ANN}, headers=TOKEN).json()["question"]
        body = json.dumps({"person": ANN, **said(look, 1)})
        if status != 415:
            assert client.get(f"/photograph/{look['picture']}", headers=headers).status_code == status
        found = client.post("/answer", content=body, headers={"Content-Type": "application/json", **headers})
        assert found.status_code == status and answers.exists() == (status == 200)
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"number": "1"}, "number: is '1': String should match pattern"),
        ({"person": 3}, "person: is '3': Input should be a valid string"),
        ({"verdict": "fine"}, "verdict: is 'fine': Input should be 'accepted', 'edited', 'rejected', 'skipped' or"),
        ({"given": "x" * 1001}, "given: is 'xxx"),
        ({"given": None}, "the answer: given: is None; a text is needed"),
        ({"given": 7}, "given: is '7': Input should be a valid string"),
        ({"who": "\ud800"}, "Invalid JSON"),
        ({"shown": None}, "shown: is 'None': Input should be a valid string"),
        ({"more": 1}, "more: no such field"),
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
    browser: Any,
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
        assert not any("caption" in who.inner_text("#state") for who in people)  # of a photograph that is not shown
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
    page: Any,
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
    page.keyboard.press("ArrowRight")  # with a word in focus, Enter answers too
    expect(page.locator("#accept")).to_be_enabled()
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("99 of 100 left")
    expect(page.locator("#accept")).to_be_enabled()
    written = [item for _, item in read_answers(tmp_path / "reviews.jsonl")]
    assert [item["given"] for item in written] == [f"{other} by night", shown]
    assert [item["verdict"] for item in latest(written)] == ["accepted"]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_a_browser_is_the_same_person_in_a_new_tab_and_sends_what_was_not_confirmed(
    browser: Any,
    registered: Path,
    inbox: Path,
    tmp_path: Path,
) -> None:
    answers = tmp_path / "reviews.jsonl"
    serving, context = Serving(inbox, registered, answers), browser.new_context()
    try:
        first = context.new_page()
        first.goto(serving.address)
        expect(first.locator("#accept")).to_be_enabled()
        name = first.inner_text("#name")
        serving.stop(signal.SIGKILL)
        first.keyboard.press("r")
        expect(first.locator("#trouble")).to_contain_text("The server does not answer")
        first.close()
        serving.start()
        again = context.new_page()
        again.goto(serving.address)
        expect(again.locator("#count")).to_have_text("99 of 100 left")
        assert [(item["name"], item["verdict"]) for _, item in read_answers(answers)] == [(name, "rejected")]
        expect(again.locator("#accept")).to_be_enabled()
        again.keyboard.press("u")
        expect(again.locator("#name")).to_have_text(name)
    finally:
        serving.stop(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_keys_that_come_too_early_or_are_held_down_answer_nothing(
    page: Any,
    served: Serving,
    tmp_path: Path,
) -> None:
    page.goto(served.address)
    expect(page.locator("#accept")).to_be_enabled()
    page.keyboard.down("a")
    for _ in range(20):
        page.keyboard.down("a")  # a key that is down already repeats
        page.wait_for_timeout(20)
    page.keyboard.up("a")
    expect(page.locator("#count")).to_have_text("99 of 100 left")
    expect(page.locator("#accept")).to_be_enabled()
    page.wait_for_timeout(400)
    page.keyboard.press("a")
    page.keyboard.press("e")  # before the next one is there
    page.keyboard.type("an answer", delay=60)
    expect(page.locator("#count")).to_have_text("98 of 100 left")
    expect(page.locator("#caption")).to_be_focused()
    assert len(list(read_answers(tmp_path / "reviews.jsonl"))) == 2


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")
def test_an_answer_that_is_not_taken_is_reported_with_what_was_written(
    browser: Any,
    served: Serving,
) -> None:
    page = browser.new_page()
    page.goto(served.address)
    expect(page.locator("#accept")).to_be_enabled()
    page.route("**/answer", lambda route: route.fulfill(status=409, json={"error": "it is somebody else's"}))
    page.keyboard.press("e")
    page.keyboard.press("End")
    page.keyboard.type(" by night")
    written = page.input_value("#caption")
    page.keyboard.press("Enter")
    expect(page.locator("#trouble")).to_have_text(f"Not taken: it is somebody else's. It was: {written}")
    page.close()
