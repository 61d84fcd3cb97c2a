"""`attend serve`: MLflow's protocol and single pictures, what it bears of its clients, and a champion that changes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from flows.registered.compare import force_champion
from flows.serving.app import Server
from flows.serving.batching import Batcher
from flows.serving.limits import Limits, RefusedError, allowed_hosts
from flows.serving.registered_model import RegisteredModel
from models.requests import TYPES, CaptionRow, Params, failed
from tasks.captioner.bundle import make_captioner
from tasks.mlflow_store import tracking
from tests.support import HERE, captioner_artifacts, free_port, pictures, register_all, trained

LIMITS = Limits(body=200_000, pictures=8, pixels=90_000_000, read_seconds=1.0)


@pytest.fixture(scope="module")
def served(registered: Path) -> RegisteredModel:
    return RegisteredModel(None, registered, 3600)


@pytest.fixture(scope="module")
def client(served: RegisteredModel) -> Iterator[TestClient]:
    app = Server(served, LIMITS, 4, {"localhost"}).app()
    with TestClient(app, base_url="http://localhost") as found:
        yield found


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sent(client: TestClient, body: Any, **headers: str) -> tuple[int, Any]:
    response = client.post(
        "/invocations", content=json.dumps(body), headers={"Content-Type": "application/json", **headers}
    )
    return response.status_code, response.json()


@pytest.fixture(scope="module")
def photographs(registered: Path) -> list[bytes]:
    return [path.read_bytes() for path in pictures(registered)[:6]]


@pytest.fixture(scope="module")
def expected(registered: Path, photographs: list[bytes]) -> list[str]:
    config = trained(registered)
    captioner = make_captioner(config, captioner_artifacts(config))
    return [item.caption for item in captioner.caption(photographs)]


def test_every_form_of_a_request(client: TestClient, photographs: list[bytes], expected: list[str]) -> None:
    encoded = [text(item) for item in photographs]
    for body in (
        {"dataframe_split": {"columns": ["image"], "data": [[item] for item in encoded]}},
        {"dataframe_split": {"columns": ["id", "image"], "data": [[at, item] for at, item in enumerate(encoded)]}},
        {"dataframe_records": [{"image": item} for item in encoded]},
        {"inputs": encoded},
        {"inputs": {"image": encoded}},
        {"instances": [{"image": item} for item in encoded], "params": {"beam_size": 0}},
    ):
        status, reply = sent(client, body)
        assert status == 200 and [row["caption"] for row in reply["predictions"]] == expected
    table = "image\n" + "\n".join(encoded)
    reply = client.post("/invocations", content=table, headers={"Content-Type": "text/csv"}).json()
    assert [row["caption"] for row in reply["predictions"]] == expected
    one = client.post("/caption", content=photographs[0], headers={"Content-Type": "image/png"})
    assert one.status_code == 200 and one.json()["caption"] == expected[0]


def test_a_form_with_one_file(client: TestClient, photographs: list[bytes], expected: list[str]) -> None:
    image = {"image": ("photo.png", photographs[0], "image/png")}
    asked = client.post("/caption?max_length=9", files=image, data={"beam_size": "3", "n_best": "2"})
    as_body = client.post(
        "/caption?max_length=9&beam_size=3&n_best=2", content=photographs[0], headers={"Content-Type": "image/png"}
    )
    assert asked.status_code == 200 and asked.json() == as_body.json() and len(asked.json()["alternatives"]) == 1
    assert client.post("/caption", files=image).json()["caption"] == expected[0]
    for files, fields, line in (
        ({"image": (None, "photo.png")}, {}, "the form has 0 files: send one picture"),
        ({**image, "other": image["image"]}, {}, "Too many files"),
        (image, {"beam_size": "1_0"}, "beam_size: is no number"),
        (image, {"beam_size": "2.5"}, "beam_size: is '2.5': Input should be a valid integer"),
        (image, {"beamsize": "3"}, "beamsize: no such field; did you mean 'beam_size'?"),
    ):
        refused = client.post("/caption", files=files, data=fields)
        assert refused.status_code == 400 and line in refused.json()["error"], refused.text
    slow = {"Content-Type": "multipart/form-data; boundary=x; charset=punycode"}  # quadratic in Python
    assert "leave out the charset" in client.post("/caption", content=b"--x--", headers=slow).json()["error"]
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "http://["}, {"Sec-Fetch-Site": "cross-site"}):
        assert client.post("/caption", files=image, headers=headers).status_code == 403


def test_parameters(client: TestClient, photographs: list[bytes]) -> None:
    query = "/caption?beam_size=3&n_best=2&max_length=9&return_attention=true"
    row = client.post(query, content=photographs[0], headers={"Content-Type": "image/png"}).json()
    assert len(row["alternatives"]) == 1 and len(row["attention"]) == len(row["tokens"]) <= 9
    drawn = {"inputs": [text(photographs[0])], "params": {"temperature": 1.5, "top_p": 0.9, "n_best": 5}}
    status, body = sent(client, drawn)
    assert status == 200 and len(body["predictions"][0]["alternatives"]) == 4
    for params, line in (
        ({"beam_size": 99}, "beam_size is 99: give 1 to 32, or 0 for the model's own"),
        ({"beam_size": 2, "n_best": 4}, "n_best: a beam of 2 cannot give 4 captions"),
        ({"beam_size": 2, "temperature": 1.0}, "beam and temperature do not go together"),
        ({"temperature": 1e9}, "temperature is 1000000000.0: give 0.05 to 10.0"),
        ({"top_p": -1}, "top_p is -1.0: give 0.01 to 1.0"),
        ({"beam_size": 2.5}, "beam_size: is '2.5': Input should be a valid integer"),
        ({"beam_size": float("nan")}, "Input should be a"),
        ({"beam_size": True}, "beam_size: is 'True': Input should be a valid integer"),
        ({"return_attention": "perhaps"}, "return_attention: is 'perhaps': Input should be a valid boolean"),
        ({"beamsize": 2}, "beamsize: no such field; did you mean 'beam_size'?"),
    ):
        status, body = sent(client, {"inputs": [text(photographs[0])], "params": params})
        assert status == 400 and line in body["error"], body


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (b"", 400, "Invalid JSON"),
        (b"{", 400, "Invalid JSON"),
        (b"\xff\xfe", 400, "Invalid JSON"),
        (b"[1]", 400, "send an object with one of dataframe_split, "),
        (b"{}", 400, "this has none"),
        (b'{"inputs": [], "instances": []}', 400, "this has inputs and instances"),
        (b'{"inputs": []}', 400, "there is no picture in the request"),
        (b'{"inputs": [1]}', 400, "inputs: 0: give the picture's bytes as base64 text"),
        (b'{"inputs": [null]}', 400, "inputs: 0: give the picture's bytes as base64 text"),
        (b'{"inputs": ["%%%"]}', 400, "inputs: 0: is not base64 text"),
        (b'{"inputs": ["AAAA"], "parms": {}}', 400, "parms: no such field; did you mean 'params'?"),
        (b'{"inputs": ["AAAA"], "params": [1]}', 400, "params: is '[1]': Input should be an object"),
        (b'{"inputs": ["AAAA"], "\\ud800": 1}', 400, "Invalid JSON"),
        (b'{"inputs": ["AAAA"], "params": {"\\ud800": 1}}', 400, "Invalid JSON"),
        (b'{"dataframe_records": ["AAAA"]}', 400, "dataframe_records: 0: is 'AAAA': Input should be an object"),
        (b'{"dataframe_split": {"columns": ["picture"], "data": []}}', 400, "needs \"columns\" with 'image'"),
        (b'{"dataframe_split": {"columns": ["image"], "data": [[]]}}', 400, "row 0 needs 1 values"),
        (b'{"inputs": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "too many values"),
        (b'{"inputs": [' + b"[]," * 60_000 + b"[]]}", 400, "the body has too many values"),
        (json.dumps({"inputs": ["AAAA"] * 9}).encode(), 413, "9 pictures in a request: send 8 at most"),
        (b'{"inputs": ["' + b"A" * 300_000 + b'"]}', 413, "the body has 300,016 bytes: send 200,000 at most"),
    ],
)
def test_requests_refused(client: TestClient, body: bytes, status: int, line: str) -> None:
    response = client.post("/invocations", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status and line in response.json()["error"], response.text
    assert "Traceback" not in response.text and len(response.text) < 400


@pytest.mark.parametrize(
    "form",
    [
        lambda text: f"data:image/png;base64,{text}",
        lambda text: "\n".join(text[start : start + 76] for start in range(0, len(text), 76)),
        lambda text: text.replace("+", "-").replace("/", "_"),
        lambda text: text.rstrip("="),
    ],
    ids=["data URI", "wrapped", "URL-safe", "unpadded"],
)
def test_every_form_of_base64_is_taken(
    client: TestClient, photographs: list[bytes], expected: list[str], form: Callable[[str], str]
) -> None:
    body = json.dumps({"inputs": [form(base64.b64encode(data).decode()) for data in photographs[:3]]})
    rows = client.post("/invocations", content=body, headers={"Content-Type": "application/json"}).json()
    assert [row["caption"] for row in rows["predictions"]] == expected[:3]


def test_tables_that_are_too_long(client: TestClient) -> None:
    for body, line in (
        (b"image\n" + b"QUJD\n" * 30_000, "9 pictures"),
        (b"image\n" + b"," * 150_000, "too many values"),
    ):
        response = client.post("/invocations", content=body, headers={"Content-Type": "text/csv"})
        assert response.status_code in (400, 413) and line in response.json()["error"]


def test_pictures_refused_one_by_one(client: TestClient, photographs: list[bytes], expected: list[str]) -> None:
    file = io.BytesIO()
    Image.new("L", (9000, 9000)).save(file, "PNG")
    tiff = io.BytesIO()
    Image.new("RGB", (8, 8)).save(tiff, "TIFF")
    bad = [b"\xff\xd8 broken", b"nothing", file.getvalue(), tiff.getvalue(), photographs[1][:200], b""]
    slow = io.BytesIO()
    Image.new("RGB", (64, 64)).save(slow, "JPEG", progressive=True)
    scan = slow.getvalue()[slow.getvalue().rindex(b"\xff\xda") : -2]
    bad[-1] = slow.getvalue()[:-2] + scan * 300 + b"\xff\xd9"
    images = [photographs[0], *bad, photographs[2]]
    status, body = sent(client, {"inputs": [text(item) for item in images]})
    rows = body["predictions"]
    assert status == 200 and [row["error"] is None for row in rows] == [True, *[False] * 3, True, *[False] * 2, True]
    assert rows[0]["caption"] == expected[0] and rows[-1]["caption"] == expected[2]
    assert "81,000,000 pixels, over the limit of 50,000,000" in rows[3]["error"]
    assert rows[6]["error"] == "has more scans or segments than any photograph"
    Image.new("1", (7000, 7000)).save(file := io.BytesIO(), "PNG")
    status, body = sent(client, {"inputs": [text(file.getvalue())] * 2})
    assert status == 413 and "98,000,000 pixels: send 90,000,000 at most in a request" in body["error"]


def test_other_routes_are_answered(client: TestClient, registered: Path) -> None:
    assert client.get("/health").json() == client.get("/ping").json() == {"status": "ok"}
    assert client.get("/ready").json()["model"] == "models:/small/1"
    about = client.get("/model").json()
    assert about["model"] == "small" and about["attends"] and "## Scores" in about["card"]
    page = client.get("/")
    assert "<main>" in page.text and page.headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("look.css", "page.css", "heat.js", "page.js"):
        assert client.get(f"/static/{name}").status_code == 200 and f"/static/{name}" in page.text
    for path in ("/static/app.py", "/static/../app.py", "/docs", "/nothing"):
        assert client.get(path).status_code == 404
    assert client.get("/invocations").status_code == 405
    assert client.post("/caption", content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post("/invocations", content=b"x").status_code == 415
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    measured = client.get("/metrics").text
    assert 'attend_model{model="small",version="1"} 1.0' in measured and "attend_batch_pictures_bucket" in measured
    assert 'attend_requests_total{route="invocations",status="200"}' in measured


def test_pictures_that_wait_are_captioned_together_and_faults_stay_alone() -> None:
    sizes: list[int] = []
    begun, free = threading.Event(), threading.Event()

    async def until_waiting(number: int) -> None:
        while len(batcher) != number:
            await asyncio.sleep(0.01)

    def predict(batch: list[bytes], params: Params) -> list[CaptionRow]:
        begun.set()
        free.wait(10)
        if params.get("wrong"):
            raise RefusedError(400, "beam and temperature do not go together")
        if b"poison" in batch:
            raise RuntimeError("a bug")
        return [{**failed(""), "caption": item.decode(), "error": None} for item in batch]

    batcher = Batcher(predict, 4, 20, sizes.append)

    async def ask() -> list[Any]:
        first = asyncio.ensure_future(batcher.caption([b"first"], {}))
        await asyncio.to_thread(begun.wait)  # the model is captioning: what comes now waits
        others = [batcher.caption([f"{at}".encode()], {}) for at in range(6)]
        others += [batcher.caption([b"a", b"poison", b"b"], {"beam": 2}), batcher.caption([b"c"], {"wrong": 1})]
        waiting = [asyncio.ensure_future(other) for other in others]
        given_up = asyncio.ensure_future(batcher.caption([b"given up"], {}))
        await until_waiting(11)
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        with pytest.raises(RefusedError, match="busy"):
            await batcher.caption([b"x"] * 15, {})
        free.set()
        return list(await asyncio.gather(first, *waiting, return_exceptions=True))

    short = Batcher(lambda *_: [], 4, 20)
    assert "could not be captioned" in str(asyncio.run(short.caption([b"x"], {}))[0]["error"]) and short.alive
    answers = asyncio.run(ask())
    batcher.close()
    assert [answer[0]["caption"] for answer in answers[:7]] == ["first", "0", "1", "2", "3", "4", "5"]
    assert [row["caption"] for row in answers[7]] == ["a", "", "b"]
    assert "could not be captioned" in answers[7][1]["error"]
    assert isinstance(answers[8], RefusedError) and answers[8].why == "beam and temperature do not go together"
    assert sizes == [1, 4, 2, 3, 1]


@pytest.mark.slow
def test_another_champion_is_taken_up_and_a_lost_store_changes_nothing(
    registered: Path, tmp_path: Path, photographs: list[bytes]
) -> None:
    copy = tmp_path / "workspace"
    shutil.copytree(registered, copy)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{copy}/other.db"
    try:
        register_all(trained(copy))
        served = RegisteredModel("models:/small@champion", copy, 3600)
        register_all(trained(copy, training__seed=5, training__epochs=1))
        served.check_for_another()
        assert served.current.name == "models:/small/1"  # a challenger
        force_champion(copy, "models:/small/2")
        served.check_for_another()
        assert served.current.name == "models:/small/2" and served.failure is None
        assert served.current.predict(photographs[:1], {})[0]["caption"]
        client = tracking.connect(copy)
        client.delete_registered_model_alias("small", "champion")
        served.check_for_another()
        assert served.current.name == "models:/small/2" and served.failure is not None
    finally:
        del os.environ["MLFLOW_TRACKING_URI"]


@contextmanager
def serving(workspace: Path, *options: str) -> Iterator[int]:
    """`attend serve` in a process of its own, ready; it must end without a traceback."""
    found = free_port()
    command = [
        sys.executable,
        "-m",
        "flows.commands.cli",
        "serve",
        "--port",
        str(found),
        "--workspace",
        str(workspace),
        "--drain",
        "0",
        *options,
    ]
    process = subprocess.Popen(command, cwd=HERE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{found}/ready", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=60)
    assert "Traceback" not in text and f"at http://127.0.0.1:{found}" in text


@pytest.fixture(scope="module")
def port(registered: Path) -> Iterator[int]:
    with serving(registered) as found:
        yield found


def raw(port: int, data: bytes, seconds: float = 15) -> bytes:
    """What the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        answer = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


def test_a_thousand_connections_that_send_nothing_take_no_place(
    port: int, photographs: list[bytes], expected: list[str]
) -> None:
    head = b"POST /caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nConnection: close\r\n"
    good = head + b"Content-Length: %d\r\n\r\n%s" % (len(photographs[0]), photographs[0])
    with contextlib.ExitStack() as idle:
        for _ in range(1000):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        answer = raw(port, good)
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert json.loads(answer.rpartition(b"\r\n")[2])["caption"] == expected[0]


def test_tricks_with_headers_and_bodies(port: int, photographs: list[bytes], expected: list[str]) -> None:
    head = b"POST /caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nConnection: close\r\n"
    good = head + b"Content-Length: %d\r\n\r\n%s" % (len(photographs[0]), photographs[0])
    for data, status in (
        (good, b"200"),
        (b"NONSENSE\r\n\r\n", b"400"),
        (head + b"Content-Length: -5\r\n\r\n", b"400"),
        (head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"400"),
        (head + b"X-Long: " + b"a" * 2_000_000 + b"\r\n\r\n", b"400"),
        (head + b"Content-Length: 314572800\r\n\r\n", b"413"),
        (head.replace(b"localhost", b"evil.example") + b"Content-Length: 0\r\n\r\n", b"403"),
        (head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"200"),
        (head + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + bytes(2**20) + b"\r\n") * 33, b"413"),
        (good.replace(b"Host: localhost", b"Host: LOCALHOST"), b"200"),
        (good, b"200"),
    ):
        answer = raw(port, data)
        assert answer.startswith(b"HTTP/1.1 " + status), (data[:120], answer[:200])
        assert b"Traceback" not in answer
    # Bodies that are announced and do not come take nobody's place.
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    for place in waiting:
        place.sendall(head + b"Content-Length: 33554432\r\n\r\n")
    assert expected[0].encode() in raw(port, good)
    for place in waiting:
        place.close()


@pytest.mark.slow
def test_a_client_that_never_ends_its_head_is_left(port: int) -> None:
    begun = time.monotonic()
    assert raw(port, b"POST /caption HTTP/1.1\r\nHost: local", seconds=30) == b""
    assert 5 < time.monotonic() - begun < 25


@pytest.mark.slow
def test_a_client_that_was_answered_and_never_ends_its_body_is_left(port: int) -> None:
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionResetError):
            while True:
                connection.sendall(b"x")
                connection.settimeout(1)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(65536):
                        break
                assert time.monotonic() - begun < 25
    assert 5 < time.monotonic() - begun < 25


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1", {"localhost", "127.0.0.1", "[::1]"}),
        ("127.0.0.2", {"localhost", "127.0.0.1", "[::1]", "127.0.0.2"}),
        ("LOCALHOST", {"localhost", "127.0.0.1", "[::1]"}),
        ("0:0:0:0:0:0:0:1", {"localhost", "127.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]"}),
        ("0.0.0.0", None),
        ("192.0.2.7", None),
    ],
)
def test_on_loopback_only_its_own_names_are_answered(host: str, answered: set[str] | None) -> None:
    assert allowed_hosts(host) == answered


def wait_for_more(answers: list[int]) -> None:
    """Wait until twenty more requests were answered."""
    before, end = len(answers), time.monotonic() + 60
    while len(answers) < before + 20 and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.slow
def test_no_request_is_dropped_while_the_champion_changes(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    register_all(trained(workspace))
    register_all(trained(workspace, training__seed=5, training__epochs=1))
    answers: list[int] = []
    versions: list[str] = []
    ends = threading.Event()
    photograph = pictures(workspace)[0].read_bytes()
    with serving(workspace, "--refresh", "1") as port:

        def ask() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            while not ends.is_set():
                connection.request("POST", "/caption", photograph, {"Content-Type": "image/png"})
                response = connection.getresponse()
                answers.append(response.status if json.loads(response.read())["error"] is None else 0)

        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        wait_for_more(answers)
        force_champion(workspace, "models:/small/2")
        begun = time.monotonic()
        while versions[-1:] != ["2"] and time.monotonic() - begun < 60:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/model", timeout=60) as told:
                versions.append(json.load(told)["version"])
            time.sleep(0.1)
        wait_for_more(answers)
        ends.set()
        for asker in askers:
            asker.join()
    assert versions[-1] == "2" and len(answers) > 20 and set(answers) == {200}


def asked(port: int, path: str, body: bytes | None = None) -> tuple[int, str | None, Any]:
    """The status, the Connection header and the JSON of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Connection"), json.loads(answer.read())
    finally:
        connection.close()


# Hands a socket over as systemd does: as file 3, with its own process id in the environment, and becomes the server.
_HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def started(workspace: Path, port: int, *options: str, listener: socket.socket | None = None) -> subprocess.Popen[str]:
    """A server that is ready. listener: the socket that it is handed."""
    command = [sys.executable, "-m", "flows.commands.cli", "serve", "--port", str(port), "--workspace", str(workspace)]
    command += options
    given: list[int] = []
    if listener is not None:
        given = [listener.fileno()]
        command = [sys.executable, "-c", _HAND_OVER, str(listener.fileno()), *command]
    process = subprocess.Popen(command, cwd=HERE, stderr=subprocess.PIPE, text=True, pass_fds=given)
    assert process.stderr is not None
    while "serving" not in (line := process.stderr.readline()):
        assert line, "the server ended"
    return process


@pytest.mark.slow
def test_after_sigterm_it_answers_for_a_while_and_says_that_it_leaves(
    registered: Path, photographs: list[bytes], expected: list[str]
) -> None:
    port = free_port()
    process = started(registered, port, "--drain", "3")
    while True:
        with contextlib.suppress(OSError):
            assert asked(port, "/ready")[:2] == (200, None)
            break
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    status, connection, body = asked(port, "/ready")
    assert (status, connection, body["ready"]) == (503, "close", False)
    status, connection, row = asked(port, "/caption", photographs[0])
    assert (status, connection, row["caption"]) == (200, "close", expected[0])
    assert process.wait(30) == 0
    with pytest.raises(OSError):
        asked(port, "/ready")


_HELLO = """
import socket, sys
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from flows.serving.serve import run

async def hello(request):
    return PlainTextResponse("hello")

run(Starlette(routes=[Route("/", hello)]), socket.socket(fileno=int(sys.argv[1])))
"""


def test_a_request_that_is_on_its_way_when_the_server_stops_is_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-c", _HELLO, str(listener.fileno())]
        with subprocess.Popen(command, cwd=HERE, pass_fds=[listener.fileno()]) as process:
            connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(2)]
            connections[0].request("GET", "/")
            assert connections[0].getresponse().read() == b"hello"  # it has started
            connections[0].close()
            connections[1].connect()
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connections[1].request("GET", "/")
            assert connections[1].getresponse().read() == b"hello"
            connections[1].close()
            assert process.wait(30) == -signal.SIGTERM


@pytest.mark.slow
def test_a_restart_on_a_socket_that_is_handed_over_loses_no_request(
    registered: Path, photographs: list[bytes], expected: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        port = listener.getsockname()[1]
        process = started(registered, port, "--drain", "1", listener=listener)
        answers: list[tuple[int, str]] = []
        failures: list[BaseException] = []
        enough = threading.Event()

        def ask(number: int) -> None:
            while not enough.is_set():
                try:
                    status, _, row = asked(port, "/caption", photographs[number])
                    answers.append((status, row["caption"]))
                    assert row["caption"] == expected[number]
                except BaseException as error:
                    failures.append(error)

        clients = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for client in clients:
            client.start()
        for _ in range(2):
            successor = started(registered, port, "--drain", "1", listener=listener)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            process = successor
        count = len(answers)
        time.sleep(2)
        enough.set()
        for client in clients:
            client.join()
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert not failures, failures[:3]
    assert len(answers) > count and {status for status, _ in answers} == {200}


def test_the_description_names_every_route_and_parameter(client: TestClient, served: RegisteredModel) -> None:
    reply = client.get("/openapi.json").json()
    assert set(reply["paths"]) == {
        "/caption",
        "/invocations",
        "/health",
        "/ping",
        "/ready",
        "/model",
        "/version",
        "/metrics",
    }
    query = reply["paths"]["/caption"]["post"]["parameters"]
    assert {item["name"]: item["schema"]["type"] for item in query} == {
        name: {int: "integer", float: "number", bool: "boolean", str: "string"}[kind] for name, kind in TYPES.items()
    }
    assert client.request("TRACE", "/ready").headers["Allow"] and client.head("/health").status_code == 200
    text = json.dumps(reply)
    assert '"$ref": "#/components/schemas/Record"' in text
    for name in re.findall(r'"\$ref": "([^"]+)"', text):
        part = reply
        for step in name.removeprefix("#/").split("/"):
            part = part[step]


@pytest.mark.slow
def test_requests_made_from_the_description_are_answered_as_it_says(port: int, tmp_path: Path) -> None:
    """By schemathesis: every check but that what the description allows is taken: it cannot say which go together."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/openapi.json"]
    options = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "60"]
    # A request of too many pictures is too large, which schemathesis does not count among refusals.
    (tmp_path / "schemathesis.toml").write_text(
        "[checks.negative_data_rejection]\nexpected-statuses = [400, 403, 405, 413, 415]\n"
    )
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
