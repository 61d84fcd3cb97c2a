"""Measure the cost of neighbours: looking up similar pictures, and ranking a beam by their captions.

    python -m bench.speed.neighbours [--pictures 6000 120000] [--captions 5] [--number 60]

The memory is random: vectors of 128 numbers, and captions of eleven words with the word frequencies of English. Times
are for one picture, alone and in a batch of 32, and do not depend on the values of the vectors.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.machine import describe
from models.matcher import Matcher
from models.neighbours import Memory, StoredCaptions
from models.ngrams import Frequencies, ngrams
from models.ranking import ANY_LENGTH, consult
from models.search import Caption
from models.vocabulary import END
from tasks.neighbours.fit_matcher import SIZE as MATCHER_SIZE

_SIZE, _WORDS, _VOCABULARY, _BEAM, _BATCH = 128, 11, 8000, 55, 32


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pictures", type=int, nargs="+", default=[6_000, 120_000])
    arguments.add_argument("--captions", type=int, default=5)
    arguments.add_argument("--number", type=int, default=60)
    args = arguments.parse_args()
    describe()
    print("\n| pictures | MB | look-up alone, ms | in a batch, ms | ranking, ms | with a copy, ms |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for pictures in args.pictures:
        memory = _memory(pictures, args.captions)
        with tempfile.TemporaryDirectory() as scratch:
            memory.save(Path(scratch))
            size = sum(path.stat().st_size for path in Path(scratch).iterdir())
        queries = memory.vectors[:_BATCH].astype(np.float32)
        near = memory.look_up(queries, args.number)
        stored = memory.captions
        assert stored is not None
        candidates = [_beam(stored, number) for number in range(_BATCH)]

        def ranked(lengths: range) -> Callable[[], object]:
            return lambda: consult(memory, near, candidates, 0.1, lengths)  # noqa: B023

        alone = _milliseconds(lambda: memory.look_up(queries[:1], args.number))  # noqa: B023
        together = _milliseconds(lambda: memory.look_up(queries, args.number)) / _BATCH  # noqa: B023
        plain, copied = (_milliseconds(ranked(lengths)) / _BATCH for lengths in (range(0), ANY_LENGTH))
        print(
            f"| {pictures:,} | {size / 1e6:.1f} | {alone:.2f} | {together:.2f} | {plain:.2f} | {copied:.2f} |",
            flush=True,
        )


def _memory(pictures: int, captions: int) -> Memory:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(pictures, _SIZE)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = generator.zipf(1.2, size=(pictures * captions, _WORDS + 1)) % _VOCABULARY + 4
    rows[:, -1] = END
    keys, counts = np.unique(
        np.concatenate([ngrams(rows, order)[0].ravel() for order in range(1, 5)]), return_counts=True
    )
    frequencies = Frequencies(keys[counts > 1], counts[counts > 1].astype(np.float64), pictures)
    stored = StoredCaptions.make(
        rows.ravel().astype(np.uint16), np.full(len(rows), _WORDS + 1), np.full(pictures, captions), frequencies
    )
    identity = np.eye(_SIZE, dtype=np.float32)
    shapes = [(_SIZE, MATCHER_SIZE), (MATCHER_SIZE,), (_VOCABULARY + 4, MATCHER_SIZE)]
    matcher = Matcher(*(generator.normal(size=shape).astype(np.float16) for shape in shapes))
    centre = np.zeros(_SIZE, np.float32)
    return Memory(centre[None, None], centre, identity, vectors.astype(np.float16), stored, matcher)


def _beam(stored: StoredCaptions, picture: int) -> list[Caption]:
    """Return captions of some pictures in the form that a search returns."""
    rows = stored.of(np.arange(_BEAM) + picture).tokens
    return [Caption(row[row > END].tolist(), -10.0, True) for row in rows[:_BEAM]]


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the milliseconds of the fastest of ten runs."""
    run()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return 1000 * min(seconds)


if __name__ == "__main__":
    main()
