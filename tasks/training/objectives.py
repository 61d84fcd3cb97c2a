"""What a training step lowers: cross-entropy by teacher forcing here, CIDEr-D of drawn captions in reinforcement.py."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from models.cross_entropy import cross_entropy
from models.vocabulary import END, NULL, START, UNK
from tasks.config.schema import CrossEntropyConfig
from tasks.training.batches import Batch


class LossOutput(NamedTuple):
    """What an objective returns for a batch.

    loss: a scalar to be lowered, with its gradient. total: the sum of what the history reports. number: of the tokens
    or captions that it is the sum of.
    """

    loss: Tensor
    total: float
    number: int


class Count(NamedTuple):
    """What a step's means are taken over."""

    pictures: float
    captions: float
    tokens: float


class Objective(Protocol):
    """What a training lowers.

    metric: column of the history with the mean of `LossOutput.total`. rows: captions a picture; None for the batch's.
    """

    metric: str

    @property
    def rows(self) -> int | None: ...

    def __call__(self, model: Any, batch: Batch, whole: Count, step: int, done: float) -> LossOutput:
        """The loss of a model in training mode, on a batch; what is random in it follows torch's seed.

        whole: of all that the step takes, of which the batch may be a part: the parts' losses add up to the step's.
        step: steps taken before. done: the share of the training that they are.
        """
        ...


def count(batch: Batch) -> Count:
    """Of a batch, or of a part of one."""
    return Count(len(batch.tokens), float(batch.valid.any(dim=2).sum()), float(batch.valid.sum()))


class CrossEntropy:
    """Teacher forcing: the cross-entropy in nats a token, and what the config adds to it."""

    metric = "loss"
    rows = None

    def __init__(self, training: CrossEntropyConfig) -> None:
        self.training = training

    def __call__(self, model: Any, batch: Batch, whole: Count, step: int, done: float) -> LossOutput:
        training, words, valid = self.training, batch.words, batch.valid
        own = count(batch)
        precise = torch.autocast(words.device.type, torch.bfloat16, enabled=training.precision == "bfloat16")
        if training.scheduled_sampling:
            # A context of its own: autocast keeps what it cast, and what it cast without gradients has none.
            with precise:
                words = own_words(model, batch, done * training.scheduled_sampling)
        with precise:
            logits, read = model(batch.pictures, with_unknown(words, training.unknown_words), valid)
        targets = batch.targets[valid]
        entropy = cross_entropy(logits, targets, training.label_smoothing)
        loss = entropy
        penalty = model.penalty(read, logits, targets, valid)
        if penalty is not None:
            loss = loss + penalty
        loss = loss * (own.tokens / whole.tokens)
        if training.doubly_stochastic:
            weight = training.doubly_stochastic * own.captions / whole.captions
            loss = loss + weight * attention_penalty(read.alphas, valid)
        return LossOutput(loss, float(entropy.detach()) * own.tokens, int(own.tokens))


def with_unknown(words: Tensor, share: float) -> Tensor:
    """A share of the words read replaced by UNK, START and NULL left alone."""
    if not share:
        return words
    chosen = torch.rand(words.shape, device=words.device) < share
    return words.masked_fill(chosen & (words > UNK), UNK)


@torch.no_grad()
def own_words(model: Any, batch: Batch, share: float) -> Tensor:
    """A share of the words read replaced by what the model itself would have said there; (N, R, T).

    Scheduled sampling (Bengio et al. 2015), in parallel: drawn from what it says after the true words, in one pass over
    whole captions (Mihaylova and Martins 2019; Duckworth et al. 2019), not word by word after its own.
    """
    words, valid = batch.words, batch.valid
    logits, _ = model(batch.pictures, words, valid)
    scores = logits.float()
    scores[:, [NULL, START, END, UNK]] = -torch.inf
    said = torch.zeros_like(words).masked_scatter(valid, torch.multinomial(scores.softmax(dim=1), 1).squeeze(1))
    before = torch.nn.functional.pad(said[:, :, :-1], (1, 0))  # what it said is read one place further
    chosen = (torch.rand(words.shape, device=words.device) < share) & (words > END) & (before > UNK)
    return torch.where(chosen, before, words)


def attention_penalty(alphas: Tensor, valid: Tensor) -> Tensor:
    """The doubly stochastic term of Xu et al. 2015, equation 14: mean over captions of sum_i (1 - sum_t alpha_ti)^2.

    alphas (N, R, T, P), valid (N, R, T). Only valid steps count, and only captions that have any. The sum
    over positions is a mean here, so that lambda means the same on every grid.
    """
    attended = (alphas * valid.unsqueeze(-1)).sum(dim=2)  # (N, R, P)
    captions = valid.any(dim=2)
    return ((1 - attended) ** 2).mean(dim=-1)[captions].mean()
