"""Stage `self_critical`: the trained decoder goes on, rewarded by the CIDEr-D of captions that it draws itself.

Self-critical sequence training (Rennie et al. 2017), with the mean reward of a picture's other draws as the baseline
(Luo 2020, "A Better Variant of Self-Critical Sequence Training"). It writes what `train` writes, and resumes as that
does; its history tells the mean reward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.search import FORBIDDEN, Caption, Decoding, sample
from models.vocabulary import END, NULL, START
from tasks.batches import Batch
from tasks.captions import read_frequencies, read_vocabulary
from tasks.config import DecoderConfig, MachineConfig, SelfCriticalConfig, ViewsConfig
from tasks.devices import device_of
from tasks.fitting import EpochDone, Fit
from tasks.ledger import Outcome, Work
from tasks.metrics.consensus import Frequencies, Ids, cider_d
from tasks.objectives import Count, Judged
from tasks.precision import with_precision
from tasks.trained import load_decoder
from tasks.training import finish, prepare


def self_critical(
    self_critical: SelfCriticalConfig,
    decoder: DecoderConfig,
    views: ViewsConfig | None,
    machine: MachineConfig,
    work: Work,
    epoch_done: EpochDone | None = None,
) -> Outcome:
    """Train on, keep the weights that are best on dev, and write them."""
    self_critical = with_precision(self_critical, device_of(machine), "self_critical")
    trained, shape = load_decoder(work.upstream["train"].path)
    trained.embed.weight.requires_grad_(not decoder.freeze_words)
    batches, dev = prepare(self_critical, views, machine, work, "self_critical")
    tokens = work.upstream["tensorise"].path
    longest = read_vocabulary(tokens).settings["max_tokens"] + 1
    objective = SelfCritical(self_critical, read_frequencies(tokens), longest)
    rates = {self_critical.learning_rate: list(trained.parameters())}
    fit = Fit(trained, rates, self_critical, machine, batches, work.out, objective, "self_critical")
    fit.run(dev, epoch_done)
    return finish(fit, shape, work)


class SelfCritical:
    """The expected reward's gradient, estimated from drawn captions.

    Captions are drawn without dropout, as they will be; the decoder that is to make the better ones likelier has the
    dropout that it was trained with, or it would learn the training pictures by heart. The loss is a mean over
    captions, over their greatest length: whatever a caption's own is, its words weigh the same.
    """

    figure = "reward"

    def __init__(self, config: SelfCriticalConfig, frequencies: Frequencies, max_length: int) -> None:
        """max_length: words and END of a drawn caption."""
        self.config, self.frequencies, self.max_length = config, frequencies, max_length
        self.rows = config.samples

    def __call__(self, model: Any, batch: Batch, whole: Count, step: int, done: float) -> Judged:
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
        return Judged(loss, float(rewards.sum()), rewards.size)


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
