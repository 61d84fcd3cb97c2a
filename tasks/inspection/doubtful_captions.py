"""Doubtful captions: those that probably belong to another picture, according to the decoder trained on them.

A caption's gain is how much likelier its words are for its picture than for the mean of the training pictures, per
word. Captions of the right picture gain; a caption without a gain is doubtful if the picture's others have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.likelihood import log_probabilities
from models.vocabulary import NULL
from tasks.common.progress import in_parts
from tasks.data.caption_files import CaptionedPicture
from tasks.grids.reader import GridReader

_PICTURES_AT_ONCE = 32
_MOST_CAPTIONS = 16  # of a picture
_LOGITS = 1 << 25  # the maximum number computed at once

Doubts = npt.NDArray[np.float64]


@torch.inference_mode()
def doubts(
    decoder: Any,
    mean: torch.Tensor,
    grids: GridReader,
    pictures: Sequence[CaptionedPicture],
    device: torch.device,
    vocabulary: int,
) -> list[Doubts]:
    """Return how doubtful each caption of each picture is, in nats per word; greater is more doubtful.

    decoder: in evaluation mode, on the device. mean (h, w, C) float32: the mean of the training pictures' grids. Only
    the first `_MOST_CAPTIONS` captions of a picture are examined. vocabulary: V, number of the words.
    """
    if not pictures:
        return []
    rows_at_most = min(_MOST_CAPTIONS, max(len(picture.tokens) for picture in pictures))
    at_once = max(1, min(_PICTURES_AT_ONCE, _LOGITS // (rows_at_most * pictures[0].tokens.shape[1] * vocabulary)))
    all_doubts: list[Doubts] = []
    mean = mean.to(device).unsqueeze(0)
    for part in in_parts(pictures, at_once, "captions compared with their pictures"):
        rows = [picture.tokens[:_MOST_CAPTIONS] for picture in part]
        words = np.full((len(part), max(map(len, rows)), rows[0].shape[1]), NULL, np.int64)
        for number, tokens in enumerate(rows):
            words[number, : len(tokens)] = tokens
        on_device = torch.from_numpy(words).to(device)
        grid = torch.from_numpy(grids.read([picture.digest for picture in part])).to(device).float()
        seen = log_probabilities(decoder, grid, on_device).sum(dim=2)
        blind = log_probabilities(decoder, mean, on_device.flatten(0, 1).unsqueeze(0))[0].sum(dim=1)
        lengths = (on_device[:, :, 1:] != NULL).sum(dim=2)
        gains = ((seen - blind.view_as(seen)) / lengths.clamp_min(1)).double().cpu().numpy()
        all_doubts += [doubts_of(gains[number, : len(tokens)]) for number, tokens in enumerate(rows)]
    return all_doubts


def doubts_of(gains: Doubts) -> Doubts:
    """Return how doubtful a picture's captions are: half the mean gain of the other captions, minus their own gain.

    Half, because if all captions of a picture gain much, the decoder knows it well. One alone is compared with no gain.
    """
    if len(gains) == 1:
        return -gains
    mean_of_others: Doubts = (gains.sum() - gains) / (len(gains) - 1)
    return mean_of_others / 2 - gains
