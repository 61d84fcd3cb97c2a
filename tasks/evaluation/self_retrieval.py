"""Self-retrieval: whether a caption is likelier for its own picture than for others, by the decoder that wrote it.

A decoder whose captions do not depend on the picture is right for one in N of N pictures (Vinyals et al. 2015, section
4.3.5, rank pictures by captions in this way).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.likelihood import log_probabilities, padded
from models.vocabulary import END, NULL
from tasks.common.progress import in_parts
from tasks.grids.reader import GridReader

OTHERS = 100  # other pictures that a caption is compared with
_LOGITS = 1 << 25  # most logits computed at once


@torch.inference_mode()
def self_retrieval(
    decoder: Any, grids: GridReader, captions: Sequence[tuple[str, Sequence[int]]], device: torch.device
) -> npt.NDArray[np.bool_]:
    """Return whether each drawn caption is likelier for its own picture than for each of `OTHERS` others, (C,) bool.

    decoder: in evaluation mode, on the device. captions: each picture's digest and its caption's token ids, of at least
    two pictures. If there are fewer pictures than `OTHERS`, all are compared. The draw depends on the digests alone.
    """
    drawn = random.Random(0).sample(sorted(captions), min(len(captions), OTHERS + 1))
    scores = _log_probabilities(decoder, grids, drawn, device)
    own_scores = scores.diagonal().clone()
    scores.fill_diagonal_(-torch.inf)
    is_retrieved: npt.NDArray[np.bool_] = (own_scores > scores.max(dim=0).values).numpy()
    return is_retrieved


def _log_probabilities(
    decoder: Any, grids: GridReader, drawn: Sequence[tuple[str, Sequence[int]]], device: torch.device
) -> Tensor:
    """Return the log-probability of each caption for each of the pictures, (pictures, captions) float32."""
    words = padded([[*tokens, END] for _, tokens in drawn]).to(device)
    vocabulary = decoder.step(decoder.start(_read(grids, [drawn[0][0]], device)), words[:1, :1])[0].shape[-1]
    at_once = max(1, _LOGITS // (int((words[:, 1:] != NULL).sum()) * vocabulary))
    scores = []
    for part in in_parts(drawn, at_once, "pictures told by their captions"):
        digests = [digest for digest, _ in part]
        values = log_probabilities(decoder, _read(grids, digests, device), words.expand(len(digests), -1, -1))
        scores.append(values.sum(dim=2).cpu())
    return torch.cat(scores)


def _read(grids: GridReader, digests: list[str], device: torch.device) -> Tensor:
    """Return the grids of these pictures on the device, float32."""
    return torch.from_numpy(grids.read(digests)).to(device).float()
