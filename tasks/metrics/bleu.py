"""Corpus BLEU-1 to BLEU-4 (Papineni et al. 2002), in percent: uniform weights, as in the COCO caption toolkit.

NLTK counts the matching n-grams; it is imported where it is used, because its import takes up to 2 s. If no n-gram of
an order matches, BLEU is 0. (The toolkit then computes a precision of 1e-15 / (n-grams + 1e-9), so a corpus of captions
too short for an order gets a small score above 0.)
"""

from collections.abc import Sequence

import numpy as np

from tasks.metrics import Counts, ScoredCaption

_ORDERS = range(1, 5)


def statistics(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return the statistics of each picture, shape (pictures, 10).

    Columns: matched n-grams of orders 1 to 4, the caption's n-grams of orders 1 to 4, its length in words, and the
    length of the reference closest to it in length.
    """
    from nltk.translate.bleu_score import closest_ref_length, modified_precision

    rows = []
    for item in corpus:
        length = len(item.caption)
        # NLTK does not reduce its fractions, so the numerator is the number of matches.
        matched = [modified_precision(item.references, item.caption, order).numerator for order in _ORDERS]
        proposed = [max(length - order + 1, 0) for order in _ORDERS]
        rows.append([*matched, *proposed, length, closest_ref_length(item.references, length)])
    return np.array(rows, dtype=np.float64)


def scores(sums: Counts) -> dict[str, Counts]:
    """Return `bleu1` to `bleu4` in percent: the brevity penalty times the geometric mean of the n-gram precisions.

    A score is 0 if one of its precisions is 0.
    """
    matched, proposed, length, closest_length = sums[..., :4], sums[..., 4:8], sums[..., 8], sums[..., 9]
    with np.errstate(divide="ignore"):
        log_precisions = np.log(matched / np.maximum(proposed, 1.0))
    log_brevity = np.minimum(0.0, 1.0 - closest_length / np.maximum(length, 1e-9))
    log_means = np.cumsum(log_precisions, axis=-1) / np.array(_ORDERS)
    return {f"bleu{order}": 100.0 * np.exp(log_brevity + log_means[..., order - 1]) for order in _ORDERS}


def sentence_bleu4(item: ScoredCaption) -> float:
    """Return a single caption's smoothed BLEU-4 (Lin & Och 2004) in percent, computed by NLTK.

    It is for ranking captions, not for reports.
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    return 100.0 * float(sentence_bleu(item.references, item.caption, smoothing_function=SmoothingFunction().method2))
