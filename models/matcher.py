"""How well the words of a caption match a picture, by a dual encoder of pictures and captions.

Pictures and captions are projected into one space, where the cosine of the two says how well they match (Frome et al.
2013, "DeViSE: A Deep Visual-Semantic Embedding Model"). The encoder is trained on the pictures and captions of a memory
(see neighbours.py). This file needs no torch: captioners of every runtime share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .decoding_rules import Floats
from .ngrams import Ids, Values

_EPSILON = 1e-12  # divisor


@dataclass(frozen=True)
class Matcher:
    """A dual encoder of pictures and captions.

    projection (D, E), bias (E,): of a picture's vector in the memory, whitened and of length 1. words (V, E): the
    vector of each word; that of a caption is their sum. All are float16.
    """

    projection: npt.NDArray[Any]
    bias: npt.NDArray[Any]
    words: npt.NDArray[Any]

    def matches(self, direction: Floats, captions: Ids) -> Values:
        """Return the cosine of a picture and each of K captions, (K,).

        direction (D,): the picture's vector. captions (K, T): token ids, padded with -1.
        """
        picture = direction @ self.projection.astype(np.float32) + self.bias
        vectors = np.where((captions >= 0)[:, :, None], self.words[captions], np.float16(0)).sum(
            axis=1, dtype=np.float32
        )
        cosines: Values = (unit(vectors) @ unit(picture)).astype(np.float64)
        return cosines


def unit(vectors: Floats) -> Floats:
    """Return vectors (..., D) scaled to length 1."""
    scaled: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), _EPSILON)
    return scaled
