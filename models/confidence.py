"""The confidence of a caption: the probability that it is acceptable, by a logistic regression that was fitted to
captions of held-out pictures.

Its features are five numbers: the log-probability of the caption; its mean per word; the similarity to the captions of
similar training pictures; the gain, which is how much likelier the words are for this picture than for the mean grid of
the training pictures (what the decoder says without looking); and the picture's distance from the training pictures, by
nearest neighbours (Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors"). The regression holds
only for pictures like those it was fitted to. For pictures that are farther away than nearly all of those, the
confidence is therefore reduced, in proportion to how rare such distances are.

This file needs no torch: captioners of every runtime share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from .decoding_rules import Floats
from .search import Caption, State, Steps, teacher_force

FEATURES = ("log_probability", "mean_log_probability", "similarity", "gain", "distance")
TAIL = 0.05  # share of the held-out pictures whose distances the tail is fitted to
_RARE = 0.02  # the confidence is reduced if a smaller share of the held-out pictures is as far away
_FILE = "confidence.npz"


@dataclass(frozen=True)
class Confidence:
    """A fitted confidence.

    means, scales, weights (F,), bias (1,) float32: the logistic regression of the scaled features. tail (2,) float32:
    the distance that the share `TAIL` of the held-out pictures exceeds, and their mean excess.
    """

    means: Floats
    scales: Floats
    weights: Floats
    bias: Floats
    tail: Floats

    def __call__(self, features: Floats) -> Floats:
        """Return the probability that each caption is acceptable, (N,) float32. features (N, F): of `FEATURES`."""
        scores = ((features - self.means) / self.scales) @ self.weights + self.bias
        threshold, excess = self.tail
        distances = features[:, FEATURES.index("distance")]
        # Above the threshold, distances fall off exponentially: peaks over threshold (Pickands 1975), of shape 0.
        as_far = TAIL * np.exp(-(distances - threshold) / excess)
        probability: Floats = 1 / (1 + np.exp(-scores)) * np.minimum(as_far / _RARE, 1)
        return probability.astype(np.float32)

    @property
    def needs_gain(self) -> bool:
        """Return whether the gain has a weight other than zero."""
        return bool(self.weights[FEATURES.index("gain")])

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        np.savez(folder / _FILE, **vars(self))

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the confidence that was saved in a folder; None if there is none."""
        if not (folder / _FILE).is_file():
            return None
        with np.load(folder / _FILE, allow_pickle=False) as saved:
            return cls(**saved)


def features_of(
    decoder: Steps, blind: State | None, distances: Floats, similarities: Floats, captions: Sequence[Caption]
) -> Floats:
    """Return the `FEATURES` of one caption per picture, (N, F) float32.

    blind: the state before the first word for the training pictures' mean grid; None if the gain is not needed, which
    is then 0. distances (N,): of the pictures. similarities (N,): of the captions to those of similar training
    pictures; 0 if these are not consulted.
    """
    lengths = np.array([max(len(caption.token_log_probabilities), 1) for caption in captions], np.float32)
    totals = np.array([caption.token_log_probabilities.sum() for caption in captions], np.float32)
    gains = np.zeros_like(totals)
    if blind is not None:
        unseen, _ = teacher_force(decoder, blind, [[caption.with_end for caption in captions]])
        gains = (totals - unseen[0].sum(axis=1)) / lengths
    return np.stack([totals, totals / lengths, similarities, gains, distances], axis=1)
