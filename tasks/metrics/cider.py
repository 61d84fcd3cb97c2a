"""`cider`: what the COCO caption toolkit calls CIDEr, which is CIDEr-D; `cider_plain`: CIDEr's first form.

Both in percent as papers print them: a hundred times the toolkit's figure. Document frequencies are the references'
own, as in the toolkit.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.metrics import Counts, Scored
from tasks.metrics.consensus import Frequencies, Ids, cider, cider_d

_ENTRIES = 2**19  # comparisons of words with words, at once; some 256 pictures of five references


def statistics(corpus: Sequence[Scored]) -> Counts:
    """(pictures, 3): the picture's two scores, and 1."""
    known: dict[str, int] = {}
    references = [_padded([_ids(words, known) for words in item.references]) for item in corpus]
    captions = [_padded([_ids(item.caption, known)]) for item in corpus]
    frequencies = Frequencies.of(references)
    scores = np.ones((len(corpus), 3))
    for part in _parts(
        [(len(true), max(true.shape[1], own.shape[1])) for true, own in zip(references, captions, strict=True)]
    ):
        own, true = _stacked(captions[part]), _stacked(references[part])
        for place, measure in enumerate((cider_d, cider)):
            scores[part, place] = measure(own, true, frequencies)[:, 0]
    return scores


def _parts(shapes: Sequence[tuple[int, int]]) -> Iterator[slice]:
    """Runs of pictures that are padded alike, by their references and the words of their longest text."""
    first, rows, words = 0, 0, 0
    for at, shape in enumerate(shapes):
        rows, words = max(rows, shape[0]), max(words, shape[1])
        if at > first and (at + 1 - first) * rows * words**2 > _ENTRIES:
            yield slice(first, at)
            first, (rows, words) = at, shape
    if shapes:
        yield slice(first, len(shapes))


def scores(sums: Counts) -> dict[str, Counts]:
    """The pictures' means."""
    return {"cider": 100.0 * sums[..., 0] / sums[..., 2], "cider_plain": 100.0 * sums[..., 1] / sums[..., 2]}


def _ids(words: list[str], known: dict[str, int]) -> list[int]:
    return [known.setdefault(word, len(known)) for word in words]


def _padded(rows: list[list[int]]) -> Ids:
    """(R, T), padded with -1."""
    out = np.full((len(rows), max(max(map(len, rows), default=0), 1)), -1, dtype=np.int64)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def _stacked(pictures: list[Ids]) -> Ids:
    """(N, R, T) of the pictures' (R, T), padded with -1."""
    rows, words = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    out = np.full((len(pictures), rows, words), -1, dtype=np.int64)
    for place, picture in enumerate(pictures):
        out[place, : picture.shape[0], : picture.shape[1]] = picture
    return out
