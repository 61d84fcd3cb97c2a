"""Training of the matcher, the dual encoder that says how well a caption matches a picture, on a memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.decoding_rules import Floats
from models.matcher import Matcher
from models.neighbours import StoredCaptions
from models.ngrams import Ids
from tasks.common.progress import Bar

SIZE = 256  # dimensions of the space of pictures and captions
MIN_PICTURES, MIN_CAPTIONS = 1000, 5000  # with fewer, ranking by it made captions worse (docs/measured.md)
_BATCH, _EPOCHS, _MIN_STEPS, _MAX_STEPS = 256, 6, 700, 5000
_LEARNING_RATE, _WARMUP, _WEIGHT_DECAY, _DROPOUT = 1e-3, 50, 0.01, 0.2


class DualEncoder(nn.Module):
    """The matcher in training: pictures (N, D) and captions -> the logits of all their pairs, (N, N)."""

    def __init__(self, directions: int, words: int) -> None:
        """directions: D. words: the size of the vocabulary."""
        super().__init__()
        self.dropout = nn.Dropout(_DROPOUT)
        self.projection = nn.Linear(directions, SIZE)
        self.words = nn.EmbeddingBag(words + 1, SIZE, mode="sum", padding_idx=words)
        nn.init.normal_(self.words.weight, std=0.1)
        self.log_scale = nn.Parameter(torch.tensor(3.0))  # exp of it is the inverse of the softmax's temperature

    def forward(self, directions: Tensor, tokens: Tensor) -> Tensor:
        """Return the scaled cosine of each picture with each caption.

        directions (N, D): the pictures' vectors. tokens (N, T): of N captions, padded with the number of words.
        """
        pictures = functional.normalize(self.projection(self.dropout(directions)), dim=1)
        captions = functional.normalize(self.words(tokens), dim=1)
        return pictures @ captions.T * self.log_scale.exp()


def fit_matcher(directions: Floats, stored: StoredCaptions, words: int, device: torch.device) -> Matcher:
    """Return the matcher of M pictures, trained to tell each one's caption from the others' of a batch, and back.

    directions (M, D): the pictures' whitened vectors. words: the size of the vocabulary; the vectors of those that no
    caption has are zero. The loss is the symmetric cross-entropy of Radford et al. 2021, "Learning Transferable Visual
    Models From Natural Language Supervision".
    """
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    encoder = DualEncoder(directions.shape[1], words).to(device)
    optimiser = torch.optim.AdamW(encoder.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    pictures = torch.from_numpy(directions).to(device)
    steps = min(max(_MIN_STEPS, _EPOCHS * len(stored.lengths) // _BATCH), _MAX_STEPS)
    order: Ids = np.zeros(0, np.int64)
    with Bar(steps, "matcher of pictures and captions", "steps") as bar:
        for step in range(steps):
            if len(order) < _BATCH:
                order = generator.permutation(len(directions))
            batch, order = order[:_BATCH], order[_BATCH:]
            tokens = stored.draw(batch, generator)
            logits = encoder(pictures[batch], torch.from_numpy(np.where(tokens < 0, words, tokens)).to(device))
            own = torch.arange(len(batch), device=device)
            loss = functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)
            for group in optimiser.param_groups:
                group["lr"] = _LEARNING_RATE * min(1, step / _WARMUP) * (1 - step / steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            bar.advance(1)
    weights = (encoder.projection.weight.T, encoder.projection.bias, encoder.words.weight[:words])
    matcher = Matcher(*(weight.detach().cpu().numpy().astype(np.float16) for weight in weights))
    matcher.words[np.setdiff1d(np.arange(words), stored.tokens)] = 0
    return matcher
