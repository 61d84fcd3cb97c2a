"""Fuzz every reader with corrupted inputs: data set files, configs, pictures, grids, weights, captions, requests.

    python -m bench.soak.fuzz [--inputs 100000] [--seed 0] [--reader NAME] [--planted]

The expected outcomes are in tests/fuzzing.py: a value, or a refusal in one line. Worker processes with limited memory
feed the readers. A worker that does not answer for a minute is killed, and its input is counted as a hang. The script
prints the outcomes of the inputs and the distinct findings. The exit code is 1 if there are any findings.

`--planted` adds three bugs to the readers first, and ends with an error unless all three are found.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import multiprocessing
import os
import pickle
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from unittest import mock

_WORKERS = 2
_BATCH = 250  # inputs that a worker is asked for at once
_SILENCE = 60.0  # seconds, after which a worker is taken to hang in code that no signal interrupts
_MEMORY = 6 * 2**30  # bytes of a worker's data, with its libraries
_PLANTED = {
    "KeyError": "karpathy",
    "hang": "captions",
    "UnicodeEncodeError": "request",
}


class Finding(NamedTuple):
    """A distinct finding: the reader, the kind, the exception's type or another name for it, and its location."""

    reader: str
    kind: str
    what: str
    where: str


class Batch(NamedTuple):
    """Inputs for a worker."""

    reader: str
    inputs: int
    seed: int


@dataclass
class Tally:
    """The outcomes of the inputs."""

    outcomes: dict[str, collections.Counter[str]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    findings: collections.Counter[Finding] = field(default_factory=collections.Counter)
    details: dict[Finding, str] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)  # process -> bytes

    def add(self, reader: str, outcome: str, finding: Finding | None = None, details: str = "") -> None:
        """Count one input."""
        self.outcomes[reader][outcome] += 1
        if finding is not None:
            self.findings[finding] += 1
            self.details.setdefault(finding, details)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--inputs", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--minutes", type=float, default=60, help="after which no more are fed")
    arguments.add_argument("--reader", action="append", help="only this reader; may be given several times")
    arguments.add_argument("--planted", action="store_true", help="plant three bugs, and show that they are found")
    args = arguments.parse_args()
    from bench.machine import describe
    from tests.fuzzing import BY_NAME

    unknown = set(args.reader or ()) - set(BY_NAME)
    if unknown:
        arguments.error(f"no such reader: {', '.join(sorted(unknown))}; there are: {', '.join(BY_NAME)}")
    describe()
    names = args.reader or (sorted(_PLANTED.values()) if args.planted else list(BY_NAME))
    begun = time.monotonic()
    tally = run(names, args.inputs, args.seed, args.planted, args.minutes)
    print_table(tally, names, time.monotonic() - begun)
    if args.planted:
        lost = [
            what
            for what, reader in _PLANTED.items()
            if not any((reader, what) == (f.reader, f.kind if f.kind == "hang" else f.what) for f in tally.findings)
        ]
        print(f"\nplanted: {len(_PLANTED)}; found: {len(_PLANTED) - len(lost)}")
        sys.exit(f"not found: {', '.join(lost)}" if lost else 0)
    sys.exit(1 if tally.findings else 0)


def run(names: list[str], inputs: int, seed: int, planted: bool, minutes: float) -> Tally:
    """Feed `inputs` inputs (fewer if the time runs out) evenly to the readers, and return the outcomes."""
    tally, end = Tally(), time.monotonic() + 60 * minutes
    batches: SimpleQueue[Batch] = SimpleQueue()
    shares = {name: inputs // len(names) + (number < inputs % len(names)) for number, name in enumerate(names)}
    for begin in range(0, max(shares.values()), _BATCH):
        for name, share in shares.items():
            if begin < share:
                batches.put(Batch(name, min(_BATCH, share - begin), seed * 10**6 + begin))
    with ThreadPoolExecutor(_WORKERS) as pool:
        for done in [pool.submit(_attend, batches, tally, planted, end) for _ in range(_WORKERS)]:
            done.result()
    return tally


def _attend(batches: SimpleQueue[Batch], tally: Tally, planted: bool, end: float) -> None:
    """Feed the remaining batches with a worker. If it hangs or dies, start another one."""
    worker: _Worker | None = None
    while True:
        try:
            batch: Batch | None = batches.get_nowait()
        except Empty:
            batch = None
        if batch is None or time.monotonic() > end:
            if worker is not None:
                worker.stop()
            return
        worker = worker or _Worker(planted)
        left = worker.feed(batch, tally)
        if left is not None:
            worker = None
            if left.inputs:
                batches.put(left)


class _Worker:
    """A process that feeds readers, as seen from its parent process."""

    def __init__(self, planted: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._current = Path(tempfile.mkstemp(prefix="fuzz-", suffix=".pickle")[1])
        self._process = context.Process(target=_work, args=(theirs, self._current, planted))
        self._process.start()
        theirs.close()
        self._pipe.recv()  # its imports are done

    def feed(self, batch: Batch, tally: Tally) -> Batch | None:
        """Feed a batch. Return None if the worker survives, otherwise the remaining part of the batch."""
        self._pipe.send(batch)
        fed = 0
        try:
            while self._pipe.poll(_SILENCE):
                answer = self._pipe.recv()
                if isinstance(answer, int):
                    tally.peaks[self._process.pid or 0] = answer
                    return None
                fed += 1
                tally.add(batch.reader, *answer)
            what = "killed after a minute"
        except EOFError:
            what = "the process died"
        self._process.kill()
        self._process.join()
        errors = self._current.with_suffix(".err")
        details = errors.read_text(encoding="utf-8", errors="replace")
        errors.unlink()
        saved = self._current.rename(
            self._current.with_name(f"{batch.reader.replace(' ', '-')}-{os.getpid()}-{fed}.pickle")
        )
        tally.add(batch.reader, "hang", Finding(batch.reader, "hang", what, f"its input is in {saved}"), details)
        return Batch(batch.reader, max(batch.inputs - fed - 1, 0), batch.seed + 1)

    def stop(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()
        for path in (self._current, self._current.with_suffix(".err")):
            path.unlink(missing_ok=True)


def _work(pipe: Connection, current: Path, planted: bool) -> None:
    """Feed batches until there are no more. Send the outcome of each input, and finally the peak memory."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from tests.fuzzing import BY_NAME, Finding, feed

    if planted:
        plant()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    errors = current.with_suffix(".err").open("w", encoding="utf-8")
    faulthandler.enable(errors)
    os.dup2(errors.fileno(), 2)  # libraries' warnings, too
    pipe.send("ready")
    while (batch := pipe.recv()) is not None:
        reader, fed = BY_NAME[batch.reader], 0

        def law(value: Any) -> None:
            nonlocal fed
            if fed == batch.inputs:
                return
            fed += 1
            current.write_bytes(pickle.dumps(value))
            try:
                pipe.send((feed(reader, value),))  # noqa: B023
            except Finding as error:
                finding = Finding(reader.name, error.kind, error.what, error.where)  # noqa: B023
                pipe.send((error.kind, finding, f"{error}\n{value!r:.600}"))

        again = 0
        while fed < batch.inputs:
            options = settings(
                max_examples=batch.inputs - fed,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            seed(batch.seed + again)(options(given(reader.inputs)(law)))()
            again += 10**9
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def plant() -> None:
    """Add three bugs: a rare value missing from a table, time quadratic in a word's length, and a strict encoding."""
    from flows.serving import requests
    from tasks.common import errors
    from tasks.data import tokenisers
    from tasks.datasets import base, karpathy

    parse_split, suggestion = base.parse_split, errors.suggestion

    def without_testing(value: str, where: str) -> str:
        if value == "testing":
            raise KeyError(value)
        return parse_split(value, where)

    class SlowPairs(tokenisers.BytePairs):
        def __call__(self, words: list[str]) -> list[str]:
            for word in words:
                for end in range(len(word)):
                    sum(letter == "x" for letter in word[:end])
            return super().__call__(words)

    def encoding(word: str, known: Any) -> str:
        word.encode()
        return suggestion(word, known)

    mock.patch.object(karpathy, "parse_split", without_testing).start()
    mock.patch.object(tokenisers, "BytePairs", SlowPairs).start()
    mock.patch.object(requests, "suggestion", encoding).start()


def print_table(tally: Tally, names: list[str], seconds: float) -> None:
    """Print the outcomes of the inputs for each reader, and the distinct findings."""
    inputs = sum(counts.total() for counts in tally.outcomes.values())
    print(f"\n{inputs:,} inputs in {seconds:.0f} s\n")
    print(
        "| reader | inputs | values | refused | tracebacks | slower than 5 s |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name in names:
        counts = tally.outcomes[name]
        tracebacks = counts["traceback"] + counts["message"] + counts["memory"]
        cells = (counts.total(), counts["value"], counts["refused"], tracebacks, counts["hang"])
        print(f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    print(f"\npeak memory: {max(tally.peaks.values(), default=0) / 2**20:,.0f} MiB of one worker, of {_WORKERS}")
    for finding, count in tally.findings.most_common():
        print(f"\n{count:,} times: {finding.reader}: {finding.kind}: {finding.what} in {finding.where}")
        print("    " + "\n    ".join(tally.details[finding].splitlines()[-7:]))


if __name__ == "__main__":
    main()
