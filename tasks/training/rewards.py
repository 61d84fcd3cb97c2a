"""The reward of a sampled caption: its CIDEr-D against the picture's captions, and a share of its METEOR."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.ngrams import Frequencies, Ids
from models.vocabulary import NULL, Vocabulary
from tasks.metrics import ScoredCaption, meteor
from tasks.metrics.cider import cider_d
from tasks.metrics.ptb import tokenize


class Rewards:
    """The rewards of the sampled captions of a batch.

    CIDEr-D (from 0 to 10) alone prefers captions of the few words that all people use, and so shortens captions. METEOR
    (from 0 to 1) penalises omissions more than additions.
    """

    def __init__(self, frequencies: Frequencies, vocabulary: Vocabulary | None = None, weight: float = 0.0) -> None:
        """Keep the inputs of the rewards.

        frequencies: the n-grams' document frequencies. weight: of METEOR; above 0, it needs the vocabulary.
        """
        self._frequencies, self._vocabulary, self._weight = frequencies, vocabulary, weight

    def __call__(self, sampled: Tensor, references: Tensor) -> Tensor:
        """Return the rewards (N, R), float64, of sampled captions (N, R, T) against their pictures' own (N, R', T').

        Captions are token ids without START, up to END.
        """
        rewards = np.stack(
            [
                cider_d(captions, own, self._frequencies)
                for captions, own in zip(_ids(sampled), _ids(references), strict=True)
            ]
        )
        if self._weight:
            rewards = rewards + self._weight * self._meteor(sampled, references)
        return torch.from_numpy(rewards)

    def _meteor(self, sampled: Tensor, references: Tensor) -> np.ndarray:
        """Return the METEOR of sampled captions, (N, R), from 0 to 1."""
        rows = []
        for captions, own in zip(sampled.tolist(), references.tolist(), strict=True):
            words = [self._words(row) for row in own if any(row)]
            scored = [ScoredCaption(self._words(row), words) for row in captions]
            rows.append(meteor.scores(meteor.statistics(scored))["meteor"] / 100)
        return np.stack(rows)

    def _words(self, ids: list[int]) -> list[str]:
        """Return the words of a caption, tokenised as for metrics."""
        assert self._vocabulary is not None
        return tokenize(self._vocabulary.text(ids))


def _ids(tokens: Tensor) -> Ids:
    """Return token ids for counting n-grams in `cider_d`: END counts as a word, and NULL becomes -1, no word."""
    return np.asarray(tokens.masked_fill(tokens == NULL, -1).numpy(), dtype=np.int64)
