"""`cider`: CIDEr-D (Vedantam et al. 2015), which is what the COCO caption toolkit calls CIDEr.

It is in percent as papers print it: a hundred times the toolkit's value. As in the toolkit, the document frequencies
come from the references of the scored pictures.
"""

from collections.abc import Sequence

import numpy as np

from models.ngrams import Frequencies, Ids, NGrams, Values, padded, weighted_similarities
from tasks.metrics import Counts, ScoredCaption


def statistics(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return each picture's CIDEr-D and the number 1, shape (pictures, 2)."""
    vocabulary: dict[str, int] = {}
    references = [padded([_ids(words, vocabulary) for words in item.references]) for item in corpus]
    frequencies = Frequencies.from_references(references)
    values = np.ones((len(corpus), 2))
    for row, item, own in zip(values, corpus, references, strict=True):
        (row[0],) = cider_d(padded([_ids(item.caption, vocabulary)]), own, frequencies)
    return values


def scores(sums: Counts) -> dict[str, Counts]:
    """Return `cider`: the mean over the pictures, in percent."""
    return {"cider": 100.0 * sums[..., 0] / sums[..., 1]}


def cider_d(candidates: Ids, references: Ids, frequencies: Frequencies) -> Values:
    """Return CIDEr-D, from 0 to 10, of R candidates (R, T) against the references (R', T') of one picture: (R,).

    It is equations 3 and 4 with the clipping and the Gaussian penalty of section 6. Captions are rows of word ids,
    padded with -1; references without a word are left out.
    """
    present = references[(references >= 0).any(axis=1)]
    grams = NGrams.of(present)
    norms = grams.norms(frequencies.weights(grams.keys) ** 2)
    shares = np.full(len(present), 10.0 / max(len(present), 1))
    return weighted_similarities(NGrams.of(candidates), grams, norms, shares, frequencies)


def _ids(words: list[str], vocabulary: dict[str, int]) -> list[int]:
    """Return the ids of words; words that the vocabulary lacks are added to it."""
    return [vocabulary.setdefault(word, len(vocabulary)) for word in words]
