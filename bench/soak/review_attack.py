"""Who may not answer on the review page, tries; between them two people who may.

    python -m bench.soak.review_attack WORKSPACE PICTURES [--requests 10000] [--seed 0]

WORKSPACE has a registered model, PICTURES are a hundred photographs or more. Ends with an error where an answer of
somebody who may not is in the file, an answer of those who may is missing or there twice, or a request is answered 5xx
(but 503, which says it is busy). Prints what was answered, and the server's memory.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.machine import describe
from bench.soak.hostile import Tally, memory, mutated, raw, serving
from bench.speed.serving import running
from tasks.datasets.corrections import read_answers

_AT_ONCE = 24
_TOKEN = "the-token-of-this-bench"  # of no other server
_GOOD = {"Host": "127.0.0.1", "Content-Type": "application/json", "Authorization": f"Bearer {_TOKEN}"}
_KINDS = ("other origin", "forged token", "no token", "form", "other host", "wrong body", "large", "method")
_FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
_PATHS = ("/next", "/answer", "/undo")


def request(path: str, body: bytes, headers: dict[str, str], method: str = "POST") -> bytes:
    lines = [f"{name}: {value}" for name, value in {**headers, "Connection": "close"}.items()]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode("utf-8", "replace") + body


class People:
    """Two people who answer what they are asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.said: list[str] = []

    def answer(self, person: str) -> bool:
        """Answer a question; return whether there was one."""
        asked = self._sent("/next", {"person": person})["question"]
        if asked is None:
            return False
        number = f"{random.getrandbits(128):032x}"
        fields = {"person": person, "number": number, "picture": asked["picture"], "shown": asked["shown"]}
        self._sent("/answer", {**fields, "verdict": "edited", "given": f"answer {number}", "who": "bench"})
        self.said.append(number)
        return True

    def _sent(self, path: str, fields: dict[str, Any]) -> Any:
        while True:
            told = raw(self.port, request(path, json.dumps(fields).encode(), _GOOD))
            if not told.startswith(b"HTTP/1.1 503"):
                break
            time.sleep(0.1)
        if not told.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a person who may was answered: {told[:300]!r}")
        return json.loads(told.partition(b"\r\n\r\n")[2])


def hostile(draw: random.Random, picture: str, shown: str) -> tuple[str, bytes]:
    """A kind, and the bytes of a request of it. picture, shown: of a question that is open, or was."""
    number = f"{draw.getrandbits(128):032x}"
    fields: dict[str, Any] = {"person": f"{draw.getrandbits(128):032x}"}
    path = draw.choice(_PATHS)
    if path != "/next":
        fields["number"] = number
    if path == "/answer":
        fields |= {"picture": picture, "shown": shown, "verdict": "edited", "given": "forged"}
        fields["who"] = None
    body = json.dumps(fields).encode()
    kind = draw.choice(_KINDS)
    headers = dict(_GOOD)
    if kind == "other origin":
        origin = draw.choice(("http://evil.example", "null", "http://127.0.0.1.evil.example", "https://127.0.0.1:1"))
        headers |= draw.choice(({"Origin": origin}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}))
        if draw.random() < 0.3:
            return kind, request(f"/photograph/{picture}", b"", headers, "GET")
    elif kind == "forged token":
        forged = draw.choice((_TOKEN[:-1], f"{_TOKEN}x", _TOKEN.upper(), "", "\u00e9" * 40, "x" * 8000))
        headers["Authorization"] = draw.choice(("Bearer ", "bearer ", "Basic ", "")) + forged
    elif kind == "no token":
        del headers["Authorization"]
    elif kind == "form":
        headers["Content-Type"] = draw.choice(_FORMS)
    elif kind == "other host":
        headers["Host"] = draw.choice(("evil.example", "127.0.0.1.evil.example", "", "[::1"))
    elif kind == "wrong body":
        if path == "/answer":
            fields["picture"] = "f" * 64  # of no question
        fields[draw.choice(list(fields))] = draw.choice((None, 1, [], {}, "\ud800", "x" * 2000, True, 1e999))
        bodies = (
            json.dumps(fields).encode(),
            b"[" * 20_000,
            b"",
            b"\xff\xfe",
            b"null",
            mutated(draw, b'{"person": 1}'),
        )
        body = draw.choice(bodies)
    elif kind == "large":
        body = b" " * draw.randrange(40_000, 400_000)
    else:
        return kind, request(path, body, headers, draw.choice(("GET", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD")))
    return kind, request(path, body, headers)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("workspace", type=Path)
    arguments.add_argument("pictures", type=Path)
    arguments.add_argument("--requests", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    describe()
    os.environ["ATTEND_REVIEW_TOKEN"] = _TOKEN
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "reviews.jsonl"
        workspace = given.workspace.absolute()
        command = [str(Path(sys.executable).parent / "attend"), "review", "serve", str(given.pictures.absolute())]
        command += ["--workspace", str(workspace), "--answers", str(answers)]
        with running(command, workspace) as port:
            process = serving(port)
            people, before = People(port), memory(process)
            first = people._sent("/next", {"person": "0" * 32})["question"]
            tally, turns = Tally(), (threading.Lock(), threading.Lock())

            def attack(at: int) -> None:
                if at % (given.requests // 90) == 0:
                    person = at // (given.requests // 90) % 2
                    with turns[person]:
                        people.answer(f"{person:032x}")
                    return
                kind, data = hostile(random.Random(given.seed * 10**9 + at), first["picture"], first["shown"])
                tally.add(at, kind, raw(port, data))

            begun = time.monotonic()
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(attack, range(given.requests)))
            print(f"\n{given.requests:,} requests in {time.monotonic() - begun:.0f} s\n")
            tally.print()
            print(f"\nmemory: {before:,} MiB before, {memory(process, 'VmHWM'):,} MiB at most")
        written = [answer for _, answer in read_answers(answers)]
    if collections.Counter(answer["source"].split()[-1] for answer in written) != dict.fromkeys(people.said, 1):
        tally.wrong.append(f"{len(written)} answers in the file, {len(people.said)} of people who may")
    if len({answer["picture"] for answer in written}) != len(written):
        tally.wrong.append("a picture was asked about twice")
    if tally.wrong:
        raise SystemExit("\n".join(["answered wrongly:", *tally.wrong[:20]]))
    print(f"{len(written)} answers of two people who may, each once; none of anybody else; no 5xx but busy")


if __name__ == "__main__":
    main()
