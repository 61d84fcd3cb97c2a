"""`cider`, which is CIDEr-D and what the COCO caption toolkit calls CIDEr, and `cider_plain`, the first form of CIDEr.

Both are in percent as papers print them: a hundred times the toolkit's value. The document frequencies come from the
references that are scored against, as in the toolkit.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from models.ngrams import Frequencies, Ids, padded
from tasks.metrics import Counts, ScoredCaption
from tasks.metrics.consensus import cider, cider_d

_MAX_COMPARISONS = 2**19  # comparisons of words with words in a batch: about 256 pictures with five references each


def statistics(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return each picture's CIDEr-D and CIDEr and the number 1, shape (pictures, 3)."""
    vocabulary: dict[str, int] = {}
    references = [padded([_ids(words, vocabulary) for words in item.references]) for item in corpus]
    captions = [padded([_ids(item.caption, vocabulary)]) for item in corpus]
    frequencies = Frequencies.from_references(references)
    values = np.ones((len(corpus), 3))
    shapes = [
        (len(rows), max(rows.shape[1], caption.shape[1])) for rows, caption in zip(references, captions, strict=True)
    ]
    for batch in _batches(shapes):
        batch_captions, batch_references = _stacked(captions[batch]), _stacked(references[batch])
        for column, score in enumerate((cider_d, cider)):
            values[batch, column] = score(batch_captions, batch_references, frequencies)[:, 0]
    return values


def _batches(shapes: Sequence[tuple[int, int]]) -> Iterator[slice]:
    """Yield runs of pictures to be padded to one shape and scored together, each within `_MAX_COMPARISONS`.

    shapes: of each picture, (number of references, words of its longest text).
    """
    first, rows, words = 0, 0, 0
    for index, shape in enumerate(shapes):
        rows, words = max(rows, shape[0]), max(words, shape[1])
        if index > first and (index + 1 - first) * rows * words**2 > _MAX_COMPARISONS:
            yield slice(first, index)
            first, (rows, words) = index, shape
    if shapes:
        yield slice(first, len(shapes))


def scores(sums: Counts) -> dict[str, Counts]:
    """Return `cider` and `cider_plain`: the means over the pictures, in percent."""
    return {"cider": 100.0 * sums[..., 0] / sums[..., 2], "cider_plain": 100.0 * sums[..., 1] / sums[..., 2]}


def _ids(words: list[str], vocabulary: dict[str, int]) -> list[int]:
    """Return the ids of words; words that the vocabulary lacks are added to it."""
    return [vocabulary.setdefault(word, len(vocabulary)) for word in words]


def _stacked(pictures: list[Ids]) -> Ids:
    """Return the texts of N pictures, each of shape (R, T), as an array of shape (N, R, T), padded with -1."""
    rows, words = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    stacked = np.full((len(pictures), rows, words), -1, dtype=np.int64)
    for index, picture in enumerate(pictures):
        stacked[index, : picture.shape[0], : picture.shape[1]] = picture
    return stacked
