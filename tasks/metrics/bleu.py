"""Corpus BLEU-1 to BLEU-4 (Papineni et al. 2002), by NLTK, in percent."""

import warnings
from collections.abc import Sequence

from nltk.translate.bleu_score import corpus_bleu

from tasks.metrics import Scored

_WEIGHTS = [tuple(1 / n for _ in range(n)) for n in range(1, 5)]


def bleu(corpus: Sequence[Scored]) -> dict[str, float]:
    """BLEU-1..4 against all references of each picture, uniform weights, no smoothing."""
    with warnings.catch_warnings():
        # NLTK warns where no n-gram of an order matches; such a BLEU is 0, which is what we report.
        warnings.simplefilter("ignore")
        scores = corpus_bleu([item.references for item in corpus], [item.caption for item in corpus], weights=_WEIGHTS)
    return {f"bleu{n}": 100.0 * float(score) if score > 1e-12 else 0.0 for n, score in enumerate(scores, 1)}
