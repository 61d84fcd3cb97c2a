"""Training objectives: the interface, and cross-entropy by teacher forcing.

Self-critical training, by the CIDEr-D of sampled captions, is in reinforce_decoder.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from models.decoders.ensemble import members_of
from models.vocabulary import END, UNK
from tasks.config.training import CrossEntropyConfig
from tasks.training.batches import Batch

_ROWS = 128  # rows of logits at once


class LossOutput(NamedTuple):
    """The result of an objective on a batch: scalars on the model's device.

    loss: the value to minimise, differentiable. total: the sum of the metric that the history reports. number: the
    number of tokens or captions summed over in `total`.
    """

    loss: Tensor
    total: Tensor
    number: Tensor


class Count(NamedTuple):
    """The numbers of pictures, captions and tokens over which a step's means are taken."""

    pictures: float
    captions: float
    tokens: float

    @classmethod
    def of(cls, batch: Batch) -> Count:
        """Return the numbers of a batch, or of a part of one."""
        captions, tokens = batch.valid.any(dim=2).sum(), batch.valid.sum()
        return cls(float(len(batch.tokens)), float(captions), float(tokens))


class Objective(Protocol):
    """An objective that training minimises.

    metric: the column of the history with the mean of `LossOutput.total`. rows: captions per picture that the model is
    trained on; None if they are the batch's.
    """

    metric: str

    @property
    def rows(self) -> int | None: ...

    def prepare(self, model: Any, batch: Batch, step: int) -> Batch:
        """Return the batch that a step trains on, given the next batch of the train split, on the model's device.

        step: the number of steps taken so far. Most objectives return the batch unchanged.
        """
        ...

    def __call__(self, model: Any, batch: Batch, whole: Count, done: float) -> LossOutput:
        """Return the loss of a model in training mode on a batch; any randomness is drawn from torch's generator.

        batch: prepared, on the model's device. whole: the count of the whole step. The batch may be a part of it: the
        parts' losses add up to the step's. done: the share of the whole training that is done, from 0 to 1.
        """
        ...


class CrossEntropy:
    """Teacher forcing: the cross-entropy in nats per token, plus the penalties that the config and the decoder add.

    With `loss_mean: captions` the loss is in nats per caption; the metric is still per token.
    """

    metric = "loss"
    rows = None

    def __init__(self, training: CrossEntropyConfig) -> None:
        self.training = training

    def prepare(self, model: Any, batch: Batch, step: int) -> Batch:
        return batch

    def __call__(self, model: Any, batch: Batch, whole: Count, done: float) -> LossOutput:
        """Return the loss; for an ensemble the sum of its members' losses, so that each is trained as if alone."""
        outputs = [self._of_one(member, batch, whole, done) for member in members_of(model)]
        return LossOutput(*(torch.stack(values).sum() for values in zip(*outputs, strict=True)))

    def _of_one(self, model: Any, batch: Batch, whole: Count, done: float) -> LossOutput:
        training, words, targets = self.training, batch.words, batch.next_words
        tokens = torch.tensor(float(len(targets)), device=targets.device)
        autocast = torch.autocast(words.device.type, torch.bfloat16, enabled=training.precision == "bfloat16")
        if training.scheduled_sampling:
            # In a separate autocast context: autocast caches the weights that it casts until the context ends, and
            # weights cast without gradients would have none in the training pass either.
            with autocast:
                words = replace_with_sampled(model, batch, done * training.scheduled_sampling)
        with autocast:
            logits, read = model(
                batch.pictures, replace_with_unknown(words, training.unknown_words), batch.token_indices
            )
        entropy = cross_entropy(logits, targets, training.label_smoothing)
        divisor = whole.tokens if training.loss_mean == "tokens" else whole.captions
        loss = entropy / divisor
        penalty = model.penalty(read, logits, targets, batch.token_indices)
        if penalty is not None:  # a mean over tokens
            loss = loss + penalty * (tokens / divisor)
        if training.doubly_stochastic:
            captions = batch.valid.any(dim=2).sum()
            weight = training.doubly_stochastic * captions / whole.captions
            loss = loss + weight * attention_penalty(read.alphas, batch.valid)
        return LossOutput(loss, entropy.detach(), tokens)


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the sum of the cross-entropy of logits (M, V) with targets (M,), float32, in nats.

    On a CPU it is computed for `_ROWS` rows at a time, so that they stay in its cache: with a vocabulary of 9,490 and
    bfloat16 a whole training step takes a tenth less time.
    """
    size = _ROWS if logits.device.type == "cpu" else max(len(logits), 1)
    parts = zip(logits.split(size), targets.split(size), strict=True)
    return torch.stack(
        [
            functional.cross_entropy(rows.float(), targets_of_part, label_smoothing=label_smoothing, reduction="sum")
            for rows, targets_of_part in parts
        ]
    ).sum()


def replace_with_unknown(words: Tensor, share: float) -> Tensor:
    """Return the words read, with a random share of them replaced by UNK; special tokens are not replaced."""
    if not share:
        return words
    chosen = torch.rand(words.shape, device=words.device) < share
    return words.masked_fill(chosen & (words > UNK), UNK)


@torch.no_grad()
def replace_with_sampled(model: Any, batch: Batch, share: float) -> Tensor:
    """Return the words read, (N, R, T), with a random share of them replaced by words that the model samples.

    This is scheduled sampling (Bengio et al. 2015) in parallel: each word is sampled from the model's distribution
    after the true words, in one pass over whole captions (Mihaylova and Martins 2019; Duckworth et al. 2019), instead
    of word by word after sampled words. START, END and NULL are not replaced, and no special token is sampled. share:
    the probability that a word is replaced.
    """
    words = batch.words
    logits, _ = model(batch.pictures, words, batch.token_indices)
    scores = logits.float()
    scores[:, : UNK + 1] = -torch.inf
    drawn = torch.multinomial(scores.softmax(dim=1), 1).squeeze(1)
    sampled = torch.zeros_like(words).flatten().index_copy(0, batch.token_indices, drawn).view(words.shape)
    shifted = functional.pad(sampled[:, :, :-1], (1, 0))  # a word predicted at step t is read at step t + 1
    replaced = (torch.rand(words.shape, device=words.device) < share) & (words > END) & (shifted > UNK)
    return torch.where(replaced, shifted, words)


def attention_penalty(alphas: Tensor, valid: Tensor) -> Tensor:
    """Return the doubly stochastic penalty of Xu et al. 2015, equation 14, a scalar without its factor lambda.

    It is the mean over captions of sum_i (1 - sum_t alpha_ti)^2, except that the sum over positions i is a mean here,
    so that lambda means the same on every grid. alphas (N, R, T, P), valid (N, R, T) bool. Only valid steps count, and
    only captions with a valid step.
    """
    attended = (alphas * valid.unsqueeze(-1)).sum(dim=2)  # (N, R, P)
    captions = valid.any(dim=2)
    squares = ((1 - attended) ** 2).mean(dim=-1)
    return squares.masked_fill(~captions, 0.0).sum() / captions.sum()
