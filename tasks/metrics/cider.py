"""`cider`: what the COCO caption toolkit calls CIDEr, which is CIDEr-D; `cider_plain`: CIDEr's first form.

Both in percent as papers print them: a hundred times the toolkit's figure. Document frequencies are the references'
own, as in the toolkit.
"""

from collections.abc import Sequence

import numpy as np

from tasks.metrics import Counts, Scored
from tasks.metrics.consensus import Frequencies, Ids, cider, cider_d


def statistics(corpus: Sequence[Scored]) -> Counts:
    """(pictures, 3): the picture's two scores, and 1."""
    known: dict[str, int] = {}
    references = [_padded([_ids(words, known) for words in item.references]) for item in corpus]
    captions = _stacked([_padded([_ids(item.caption, known)]) for item in corpus])
    frequencies, true = Frequencies.of(references), _stacked(references)
    scores = [measure(captions, true, frequencies)[:, 0] for measure in (cider_d, cider)]
    return np.stack([*scores, np.ones(len(corpus))], axis=1)


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
