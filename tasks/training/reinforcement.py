"""Training by rewards: the CIDEr-D of captions that the decoder draws itself.

Self-critical sequence training (Rennie et al. 2017), with the mean reward of a picture's other draws as the baseline
(Luo 2020, "A Better Variant of Self-Critical Sequence Training"). It writes what `train` writes, and resumes as that
does; its history tells the mean reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.options import Decoding
from models.search import FORBIDDEN, Caption, sample
from models.vocabulary import END, NULL, START
from tasks.config.devices import device_of
from tasks.config.schema import MachineConfig, SelfCriticalConfig
from tasks.data.captions import read_frequencies, read_vocabulary
from tasks.metrics.consensus import Frequencies, Ids, cider_d
from tasks.pipeline.ledger import Artifact, Outcome
from tasks.training.batches import Batch
from tasks.training.decoder import FitSources, finish, prepare
from tasks.training.loop import EpochDone, Fit
from tasks.training.objectives import Count, LossOutput
from tasks.training.outputs import load_decoder
from tasks.training.precision import with_precision


def reinforce_decoder(
    freeze_words: bool,
    training: SelfCriticalConfig,
    machine: MachineConfig,
    trained: Artifact,
    sources: FitSources,
    out: Path,
    epoch_done: EpochDone,
) -> Outcome:
    """Train a decoder on, keep the weights that are best on dev, and write them to `out`.

    freeze_words: keep the word embeddings as they are. trained: the artifact of the stage that made the decoder.
    """
    training = with_precision(training, device_of(machine), "self_critical")
    decoder, shape = load_decoder(trained.path)
    decoder.embed.weight.requires_grad_(not freeze_words)
    batches, dev = prepare("self_critical", training, machine, sources)
    tokens = sources.captions.path
    longest = read_vocabulary(tokens).settings["max_tokens"] + 1
    objective = SelfCritical(training, read_frequencies(tokens), longest)
    rates = {training.learning_rate: list(decoder.parameters())}
    fit = Fit(decoder, rates, training, machine, batches, out, objective, "self_critical")
    fit.run(dev, epoch_done)
    return finish(fit, shape, out)


class SelfCritical:
    """The expected reward's gradient, estimated from drawn captions.

    Captions are drawn without dropout, as they will be; the decoder that is to make the better ones likelier has the
    dropout that it was trained with, or it would learn the training pictures by heart. The loss is a mean over
    captions, over their greatest length: whatever a caption's own is, its words weigh the same.
    """

    metric = "reward"

    def __init__(self, config: SelfCriticalConfig, frequencies: Frequencies, max_length: int) -> None:
        """max_length: words and END of a drawn caption."""
        self.config, self.frequencies, self.max_length = config, frequencies, max_length
        self.rows = config.samples

    def __call__(self, model: Any, batch: Batch, whole: Count, step: int, done: float) -> LossOutput:
        model.eval()
        seed = self.config.seed * 1_000_003 + step
        decoding = Decoding(search="sample", n_best=self.config.samples, max_length=self.max_length, seed=seed)
        precise = torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")
        with torch.no_grad(), precise:
            drawn = sample(model, batch.pictures, decoding, batch.places.tolist())
        tokens = as_tokens(drawn).to(batch.tokens.device)
        rewards = cider_d(_ids(tokens[:, :, 1:]), _ids(batch.targets), self.frequencies)
        advantages = torch.from_numpy(rewards - others_mean(rewards)).to(tokens.device, torch.float32)
        words, targets = tokens[:, :, :-1], tokens[:, :, 1:]
        valid = targets != NULL
        model.train()
        with precise:
            logits, _ = model(batch.pictures, words, valid)
        likely = log_likelihood(logits, targets[valid])
        weights = advantages.unsqueeze(2).expand(valid.shape)[valid]
        loss = -(weights * likely).sum() / (whole.pictures * self.config.samples * self.max_length)
        return LossOutput(loss, float(rewards.sum()), rewards.size)


def as_tokens(drawn: list[list[Caption]]) -> Tensor:
    """Captions of N pictures, R each -> (N, R, T + 1): START, words, END where it came, NULL."""
    rows = [
        [START, *caption.tokens, *([END] if caption.finished else [])] for captions in drawn for caption in captions
    ]
    longest = max(map(len, rows))
    flat = torch.tensor([row + [NULL] * (longest - len(row)) for row in rows])
    return flat.view(len(drawn), -1, longest)


def others_mean(rewards: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(N, R) -> (N, R): the mean of the picture's other rewards."""
    return np.asarray((rewards.sum(axis=1, keepdims=True) - rewards) / (rewards.shape[1] - 1))


def log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """logits (M, V), targets (M,) -> (M,), float32: by the distribution that captions are drawn from."""
    allowed = logits.float().index_fill(1, torch.tensor(FORBIDDEN, device=logits.device), -torch.inf)
    return -functional.cross_entropy(allowed, targets, reduction="none")


def _ids(tokens: Tensor) -> Ids:
    """Token ids as n-grams are counted: END is a word, what is NULL is none."""
    return np.asarray(tokens.masked_fill(tokens == NULL, -1).cpu().numpy(), dtype=np.int64)
