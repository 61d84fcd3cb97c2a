"""Send hostile requests to `attend serve`, mixed with valid ones.

    python -m bench.soak.hostile WORKSPACE PICTURES [--requests 10000] [--model models:/NAME@champion] [--seed 0]

Ends with an error if the server answers 5xx (except 503, which means that it is busy) or with a traceback, if it dies,
or if a valid request gets a different answer than when sent alone. Prints the answers and the server's memory.
"""

from __future__ import annotations

import argparse
import base64
import collections
import io
import json
import random
import socket
import struct
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from bench.machine import describe
from bench.speed.serving import running
from tasks.datasets.base import picture_files
from tasks.mlflow_store.versions import find

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO")
_AT_ONCE = 24


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("workspace", type=Path)
    arguments.add_argument("pictures", type=Path)
    arguments.add_argument("--requests", type=int, default=10_000)
    arguments.add_argument("--model")
    arguments.add_argument("--seed", type=int, default=0)
    args = arguments.parse_args()
    workspace = args.workspace.absolute()
    describe()
    uri = find(args.model, workspace).address
    files = picture_files(args.pictures)[:20]
    photographs = [file.read_bytes() for file in files]
    command = [str(Path(sys.executable).parent / "attend"), "serve", "--model", uri, "--workspace", str(workspace)]
    with running(command, workspace) as port:
        process = serving(port)
        expected = [caption_of(raw(port, good(photograph))) for photograph in photographs]
        before = memory(process)
        tally = Tally()

        def attack(number: int) -> None:
            draw = random.Random(args.seed * 10**9 + number)
            if number % 10 == 0:
                index = draw.randrange(len(photographs))
                answer = raw(port, good(photographs[index]))
                busy = answer.startswith(b"HTTP/1.1 503")
                with tally.lock:
                    tally.answered["good: 503" if busy else "good: captioned"] += 1
                    if not busy and expected[index].encode() not in answer:
                        tally.wrong.append(f"request {number}: {answer[:200]!r}")
                return
            kind, data = hostile(draw, photographs)
            answer = raw(port, data, 6 if kind == "slow" else 90, slowly=kind == "slow")
            tally.add(number, kind, answer)

        begun = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(attack, range(args.requests)))
        lasted = time.monotonic() - begun
        last = [caption_of(raw(port, good(photograph))) for photograph in photographs]
        print(f"\n{args.requests:,} requests in {lasted:.0f} s\n")
        tally.print()
        print(
            f"\nmemory: {before:,} MiB before, {memory(process, 'VmHWM'):,} MiB at most, {memory(process):,} MiB after"
        )
    if tally.wrong or last != expected:
        raise SystemExit("\n".join(["answered wrongly:", *tally.wrong[:20]]))
    print("no 5xx but busy, no traceback, no crash; every good request answered as when alone")


class Tally:
    """The answers: counts by kind of request and status, and the answers that are wrong."""

    def __init__(self) -> None:
        self.answered: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def add(self, number: int, kind: str, answer: bytes) -> None:
        """Count an answer to a hostile request. It is wrong if the server failed, but not if it was busy."""
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "closed"
        with self.lock:
            self.answered[f"{kind}: {status}"] += 1
            if (status.startswith("5") and status != "503") or b"Traceback" in answer:
                self.wrong.append(f"request {number}, {kind}: {answer[:300]!r}")

    def print(self) -> None:
        """Print the counts as a table."""
        print("| kind | answer | requests |\n| --- | --- | --- |")
        for name, count in sorted(self.answered.items()):
            kind, _, status = name.partition(": ")
            print(f"| {kind} | {status} | {count:,} |")


def hostile(draw: random.Random, photographs: list[bytes]) -> tuple[str, bytes]:
    """Return a kind of hostile request, and the bytes of such a request."""
    kinds = {
        "mutated picture": lambda: picture(mutated(draw, encoded(draw, photographs))),
        "truncated picture": lambda: picture(truncated(draw, encoded(draw, photographs))),
        "bomb": lambda: picture(bomb(draw)),
        "noise": lambda: picture(draw.randbytes(draw.randrange(2000))),
        "wrong types": lambda: document(wrong_types(draw, photographs)),
        "deep JSON": lambda: document(deep(draw)),
        "long table": lambda: _post(b"/invocations", b"text/csv", b"image\n" + b"a\n" * draw.randrange(4_000_000)),
        "slow JPEG": lambda: picture(slow_jpeg(draw, photographs)),
        "mutated JSON": lambda: document(mutated(draw, json_of(photographs[0]))),
        "large body": lambda: large(draw),
        "headers": lambda: headers(draw, photographs),
        "slow": lambda: good(photographs[0]),
    }
    weights = [30, 15, 8, 5, 12, 5, 1, 3, 10, 3, 11, 0.3]
    kind = draw.choices(list(kinds), weights)[0]
    return kind, kinds[kind]()


def encoded(draw: random.Random, photographs: list[bytes]) -> bytes:
    image = Image.open(io.BytesIO(draw.choice(photographs))).convert(draw.choice(["RGB", "L", "P", "1"]))
    kind = draw.choice(_FORMATS)
    file = io.BytesIO()
    try:
        image.save(file, kind)
    except (OSError, ValueError):  # not in that mode
        image.convert("RGB").save(file, kind)
    return file.getvalue()


def mutated(draw: random.Random, data: bytes) -> bytes:
    mutant = bytearray(data)
    for _ in range(draw.choice([1, 3, 10, 100])):
        index = draw.randrange(min(len(mutant), draw.choice([40, 400, len(mutant)])))
        action = draw.randrange(3)
        if action == 0:
            mutant[index] = draw.randrange(256)
        elif action == 1:
            del mutant[index : index + draw.randrange(1, 9)]
        else:
            mutant[index:index] = draw.randbytes(draw.randrange(1, 9))
        if not mutant:
            break
    return bytes(mutant)


def truncated(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def bomb(draw: random.Random) -> bytes:
    """Return a few bytes that declare a huge picture (a decompression bomb)."""
    side = draw.choice([7_000, 12_000, 30_000, 65_000])
    if draw.random() < 0.5:  # a PNG of zeros, compressed as far as it goes, or cut off
        rows = draw.choice([10, 3000])
        data = zlib.compress(bytes(rows * (side + 1)), 9)
        chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
        parts = (
            struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))
            for tag, body in chunks
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    if draw.random() < 0.5:
        return (
            b"GIF89a"
            + struct.pack("<HH", side, side)
            + b"\x80\x00\x00"
            + bytes(6)
            + b","
            + struct.pack("<HHHHB", 0, 0, side, side, 0)
            + b"\x08\x01\x00\x00;"
        )
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)


def slow_jpeg(draw: random.Random, photographs: list[bytes]) -> bytes:
    """Return a JPEG with very many scans or very many EXIF segments."""
    file = io.BytesIO()
    Image.open(io.BytesIO(draw.choice(photographs))).save(file, "JPEG", progressive=True)
    data, many = file.getvalue(), draw.choice([150, 5_000, 100_000])
    if draw.random() < 0.5:
        return data[:-2] + data[data.rindex(b"\xff\xda") : -2][:200] * many + data[-2:]
    return data[:2] + b"\xff\xe1\x00\x12Exif\x00\x00aaaaaaaaaa" * many + data[2:]


def wrong_types(draw: random.Random, photographs: list[bytes]) -> bytes:
    text = base64.b64encode(photographs[0]).decode()
    thing: Any = draw.choice(
        [
            None,
            1,
            -1,
            1e308,
            True,
            "",
            "../../etc/passwd",
            "file:///etc/passwd",
            "http://127.0.0.1/",
            [],
            {},
            [[]],
            {"image": {}},
        ]
    )
    odd: Any = draw.choice([10**9, -1, 0.5, "3", None, [], {}, True, 1e400, "\u0000", 10**400])
    name = draw.choice(
        ["beam_size", "max_length", "temperature", "top_p", "n_best", "return_attention", "seed", "path"]
    )
    return json.dumps(
        draw.choice(
            [
                thing,
                {"inputs": thing},
                {"inputs": [thing]},
                {"instances": [{"image": thing}]},
                {"dataframe_split": thing},
                {"dataframe_split": {"columns": thing, "data": thing}},
                {"dataframe_split": {"columns": ["image"], "data": [[thing]]}},
                {"dataframe_records": thing},
                {"inputs": [text], "params": thing},
                {"inputs": [text], "params": {name: odd}},
            ]
        )
    ).encode()


def deep(draw: random.Random) -> bytes:
    depth = draw.choice([500, 5_000, 50_000, 500_000])
    signs = draw.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"image":', b"}]")])
    inner = signs[0] * depth + b"1" + signs[1] * draw.choice([depth, 0])
    return draw.choice([inner, b'{"inputs":' + inner + b"}", b'{"inputs":["AA"],"params":' + inner + b"}"])


def json_of(photograph: bytes) -> bytes:
    return json.dumps({"inputs": [base64.b64encode(photograph).decode()], "params": {"beam_size": 3}}).encode()


def large(draw: random.Random) -> bytes:
    """Return a request that announces 300 MB, or sends them in chunks without announcing the size."""
    size = 300 * 2**20
    head = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if draw.random() < 0.5:
        return head + b"Content-Length: %d\r\n\r\n" % size + bytes(draw.choice([0, 2**20, 64 * 2**20]))
    part = b"100000\r\n" + b"A" * 2**20 + b"\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + part * draw.choice([2, 40, 100])


def headers(draw: random.Random, photographs: list[bytes]) -> bytes:
    body = photographs[0]
    length = b"Content-Length: %d\r\n" % len(body)
    host, kind = b"Host: localhost\r\n", b"Content-Type: image/jpeg\r\n"
    line = b"POST /caption HTTP/1.1\r\n"
    query = line.replace(b"/caption", b"/caption?beam_size=%ff&n_best=9e9&x=" + b"y" * 5000)
    return draw.choice(
        [
            line + host + kind + length + length.replace(b"1", b"2") + b"\r\n" + body,
            line + host + kind + b"Content-Length: -1\r\n\r\n" + body,
            line + host + kind + b"Content-Length: 99999999999999999999\r\n\r\n",
            line + host + kind + length + b"Transfer-Encoding: chunked\r\n\r\n" + body,
            line + host + length + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
            line + b"Host: evil.example\r\n" + kind + length + b"\r\n" + body,
            line + kind + length + b"\r\n" + body,
            line + host + host + kind + length + b"\r\n" + body,
            line + host + b"Content-Type: " + bytes(range(128, 256)) + b"\r\n" + length + b"\r\n" + body,
            query + host + kind + length + b"\r\n" + body,
            line.replace(b"/caption", b"/../../etc/passwd") + host + b"\r\n",
            b"GET /static/..%2f..%2fapp.py HTTP/1.1\r\n" + host + b"\r\n",
            b"GET / HTTP/9.9\r\n" + host + b"\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(100),
            line.replace(b"POST", b"BREW") + host + b"\r\n",
            b"OPTIONS * HTTP/1.1\r\n" + host + b"\r\n",
            line + host + b"Expect: 100-continue\r\n" + kind + length + b"\r\n" + body,
            line + host + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        ]
    )


def picture(data: bytes) -> bytes:
    return _post(b"/caption", b"image/jpeg", data)


def document(data: bytes) -> bytes:
    return _post(b"/invocations", b"application/json", data)


def good(photograph: bytes) -> bytes:
    return picture(photograph)


def _post(path: bytes, kind: bytes, body: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (path, kind, len(body)) + body


def raw(port: int, data: bytes, seconds: float = 90, slowly: bool = False) -> bytes:
    """Send these bytes and return the answer. slowly: send a few bytes at a time."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            if slowly:
                for at in range(0, 20):
                    connection.sendall(data[at : at + 1])
                    time.sleep(0.2)
            else:
                connection.sendall(data)
        except OSError:  # refused before it had all of it
            pass
        try:
            while part := connection.recv(65536):
                answer += part
        except OSError:
            pass
    return answer


def caption_of(answer: bytes) -> str:
    try:
        return str(json.loads(answer.partition(b"\r\n\r\n")[2])["caption"])
    except (ValueError, KeyError):
        raise SystemExit(f"a good request was answered: {answer[:300]!r}") from None


def serving(port: int) -> int:
    """Return the process that listens on a port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    inodes = {line[9] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"}  # LISTEN
    for folder in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if folder.readlink().name.removeprefix("socket:[").rstrip("]") in inodes:
                return int(folder.parts[2])
        except OSError:
            continue
    raise SystemExit(f"no process listens on {port}")


def memory(process: int, field: str = "VmRSS") -> int:
    """Return the memory of a process in MiB, current or peak (VmHWM)."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
