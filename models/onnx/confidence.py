"""The confidence of a caption in NumPy: what models/confidence.py computes, with what was fitted there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Confidence:
    """A fitted confidence; its arrays are those of `confidence.Confidence`, saved as one .npz file.

    The distances of pictures are an output of the graph that starts a caption.
    """

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], settings: dict[str, Any]) -> None:
        """settings: the constants of models/confidence.py."""
        self._arrays, self._settings = arrays, settings
        self.mean_grid: Floats = arrays["training.mean"]

    @classmethod
    def load(cls, file: Path, settings: dict[str, Any]) -> Confidence:
        """Return the confidence that was saved in a file."""
        with np.load(file, allow_pickle=False) as arrays:
            return cls(dict(arrays), settings)

    @property
    def needs_gain(self) -> bool:
        """Return whether it weighs how much likelier the words are than for the mean grid."""
        return bool(self._arrays["weights"][self._settings["features"].index("gain")])

    def __call__(self, distances: Floats, totals: Floats, lengths: npt.NDArray[np.int64], blind: Floats) -> Floats:
        """Return the probability that each caption is acceptable, (N,).

        distances (N,): of the pictures from the training pictures. totals, lengths (N,): the log-probability of each
        caption, and its words. blind (N,): its log-probability for the mean grid, which only counts where `needs_gain`
        is true.
        """
        means = totals / lengths
        features = np.stack([totals, means, means - blind / lengths, distances], axis=1)
        arrays = self._arrays
        scores = ((features - arrays["means"]) / arrays["scales"]) @ arrays["weights"] + arrays["bias"]
        threshold, excess = arrays["tail"]
        as_far = self._settings["tail"] * np.exp(-(distances - threshold) / excess)
        probability = 1 / (1 + np.exp(-scores)) * np.minimum(as_far / self._settings["rare"], 1)
        result: Floats = probability.astype(np.float32)
        return result
