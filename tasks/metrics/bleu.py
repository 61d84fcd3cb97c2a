"""Corpus BLEU-1 to BLEU-4 (Papineni et al. 2002), in percent: uniform weights, as the COCO caption toolkit has them.

NLTK counts the n-grams that match. Where none does, BLEU is 0 (the toolkit's precision is 1e-15 over the n-grams and
1e-9 then, so that it gives a corpus of captions too short for an order up to a point).
"""

from collections.abc import Sequence

import numpy as np
from nltk.translate.bleu_score import SmoothingFunction, closest_ref_length, modified_precision, sentence_bleu

from tasks.metrics import Counts, Scored

_ORDERS = range(1, 5)


def statistics(corpus: Sequence[Scored]) -> Counts:
    """(pictures, 10): n-grams matched and proposed of orders 1 to 4, words, words of the closest reference."""
    rows = []
    for item in corpus:
        words = len(item.caption)
        # NLTK's fractions are not reduced: they keep the counts.
        matched = [modified_precision(item.references, item.caption, order).numerator for order in _ORDERS]
        proposed = [max(words - order + 1, 0) for order in _ORDERS]
        rows.append([*matched, *proposed, words, closest_ref_length(item.references, words)])
    return np.array(rows, dtype=np.float64)


def scores(sums: Counts) -> dict[str, Counts]:
    """`bleu1` to `bleu4`: the brevity penalty times the geometric mean of the precisions; 0 where one is 0."""
    matched, proposed, words, closest = sums[..., :4], sums[..., 4:8], sums[..., 8], sums[..., 9]
    with np.errstate(divide="ignore"):
        precisions = np.log(matched / np.maximum(proposed, 1.0))
    brevity = np.minimum(0.0, 1.0 - closest / np.maximum(words, 1e-9))
    means = np.cumsum(precisions, axis=-1) / np.array(_ORDERS)
    return {f"bleu{order}": 100.0 * np.exp(brevity + means[..., order - 1]) for order in _ORDERS}


def of_one(item: Scored) -> float:
    """Smoothed BLEU-4 of a single caption (Lin & Och 2004), by NLTK, in percent: to order captions, not to report."""
    return 100.0 * float(sentence_bleu(item.references, item.caption, smoothing_function=SmoothingFunction().method2))
