"""Training with rewards, such as the CIDEr-D, of sampled captions.

Self-critical sequence training (Rennie et al. 2017), with the mean reward of a picture's other samples as the
baseline (Luo 2020, "A Better Variant of Self-Critical Sequence Training"). It writes the same files as `train` and
resumes in the same way; its history has the mean reward. If no epoch has a better dev score than the decoder that it
started from, that decoder's weights are kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models.likelihood import padded
from models.options import Decoding
from models.search import Caption
from models.torch_steps import decode
from models.vocabulary import FORBIDDEN
from tasks.config.devices import device_of
from tasks.config.machine import MachineConfig
from tasks.config.training import SelfCriticalConfig
from tasks.data.caption_files import read_frequencies, read_vocabulary
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.training.batches import Batch
from tasks.training.fit_decoder import DecoderInputs, finish, prepare
from tasks.training.loop import EpochDone, TrainingLoop, WeightGroup
from tasks.training.objectives import Count, LossOutput
from tasks.training.outputs import load_decoder
from tasks.training.precision import with_precision
from tasks.training.rewards import Rewards


def reinforce_decoder(
    training: SelfCriticalConfig,
    machine: MachineConfig,
    trained: Artifact,
    sources: DecoderInputs,
    out: Path,
    epoch_done: EpochDone,
) -> Outcome:
    """Continue to train a decoder, keep the weights with the best dev score, and write them to `out`.

    trained: the artifact of the stage that trained the decoder.
    """
    training = with_precision(training, device_of(machine))
    decoder, shape = load_decoder(trained.path)
    batches, dev = prepare("self_critical", training, machine, sources)
    captions = sources.captions.path
    vocabulary = read_vocabulary(captions)
    rewards = Rewards(read_frequencies(captions), vocabulary, training.meteor or 0.0)
    max_length = vocabulary.settings["max_tokens"] + 1
    objective = SelfCriticalLoss(training, rewards, max_length)
    groups = [WeightGroup(training.learning_rate, decoder.parameters())]
    fit = TrainingLoop(decoder, groups, training, machine, batches, out, objective, "self_critical", was_trained=True)
    fit.run(dev, epoch_done)
    return finish(fit, shape, out)


class SelfCriticalLoss:
    """The self-critical objective: the expected reward's gradient, estimated from sampled captions.

    Captions are sampled without dropout, as at inference. The pass that computes their gradient has the dropout of
    ordinary training; otherwise the decoder would memorise the training pictures. The loss is a mean over captions,
    divided by the maximum length, so that a word weighs the same in a short caption as in a long one.
    """

    metric = "reward"

    def __init__(self, config: SelfCriticalConfig, rewards: Rewards, max_length: int) -> None:
        """Keep the settings and the rewards. max_length: of a caption, in tokens, END included."""
        self.config, self.rewards, self.max_length = config, rewards, max_length
        self.rows = config.samples

    def prepare(self, model: Any, batch: Batch, step: int) -> Batch:
        """Return the batch with captions that the model samples, and their rewards."""
        model.eval()
        seed = self.config.seed * 1_000_003 + step
        decoding = Decoding(search="sample", n_best=self.config.samples, max_length=self.max_length, seed=seed)
        device = batch.pictures.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            sampled = decode(model, batch.pictures, decoding, batch.positions.tolist())
        model.train()
        tokens = as_tokens(sampled)
        rewards = self.rewards(tokens[:, :, 1:], batch.targets.cpu())
        return replace(Batch.of(batch.pictures, tokens).to(device), rewards=rewards.to(device))

    def __call__(self, model: Any, batch: Batch, whole: Count, done: float) -> LossOutput:
        advantages = (batch.rewards - others_mean(batch.rewards)).float()
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            logits, _ = model(batch.pictures, batch.words, batch.token_indices)
        weights = advantages.flatten().index_select(0, batch.token_indices // batch.words.shape[2])
        loss = -(weights * log_likelihood(logits, batch.next_words)).sum()
        number = torch.ones_like(batch.rewards).sum()
        loss = loss / (whole.pictures * (self.config.samples * self.max_length))
        return LossOutput(loss, batch.rewards.sum(), number)


def as_tokens(drawn: list[list[Caption]]) -> Tensor:
    """Return R captions of each of N pictures as token ids, (N, R, T + 1) int64: START, words, END, NULL.

    END is left out if the caption was cut off at the maximum length.
    """
    flat = padded([caption.with_end for captions in drawn for caption in captions])
    return flat.view(len(drawn), -1, flat.shape[1])


def others_mean(rewards: Tensor) -> Tensor:
    """Return, for each reward (N, R), the mean of the same picture's other rewards, (N, R)."""
    return (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)


def log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the targets' log-probabilities, (M,) float32, under the distribution that captions are sampled from.

    logits (M, V), targets (M,). Captions never contain NULL, START or UNK, so these have probability 0.
    """
    allowed = logits.float().clone()
    for token in FORBIDDEN:
        allowed[:, token] = -torch.inf
    return -functional.cross_entropy(allowed, targets, reduction="none")
