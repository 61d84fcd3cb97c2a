"""What rewards cost in a step of self-critical training: ours, all captions at once, beside dictionaries one by one.

    python -m bench.speed.rewards

16 pictures of 7x7x1280, five captions drawn of each and five references, a vocabulary of 2,550 words. Both give the
same rewards, or the script ends.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import torch

from bench.machine import describe, precisions, timed
from models.decoders.base import make
from models.ngrams import Frequencies, Ids
from models.options import Decoding
from models.torch_steps import decode
from models.vocabulary import END, NULL, START
from tasks.config.training import SelfCriticalConfig
from tasks.metrics.consensus import cider_d
from tasks.training.batches import Batch
from tasks.training.objectives import Count
from tasks.training.reinforce_decoder import SelfCritical, as_tokens
from tasks.training.rewards import Rewards

PICTURES, SAMPLES, VOCABULARY, WORDS, TRAINED_ON = 16, 5, 2550, 11, 2000
ROUNDS = 8


def main() -> None:
    describe()
    torch.manual_seed(0)
    references = _captions(TRAINED_ON)
    frequencies = Frequencies.from_references(list(references[:, :, 1:]))
    options = {"output": "deep", "dropout_words": 0.3, "dropout_grid": 0.3}
    decoder = make("show_attend_tell", 1280, VOCABULARY, options)
    optimiser = torch.optim.Adam(decoder.parameters(), 5e-5, fused=True)
    tokens = torch.from_numpy(references[:PICTURES])
    tokens = tokens.masked_fill(tokens < 0, NULL)
    batch = Batch.of(torch.randn(PICTURES, 7, 7, 1280).relu(), tokens)
    objective = SelfCritical(SelfCriticalConfig(samples=SAMPLES, precision=precisions()[-1]), Rewards(frequencies), 16)
    decoding = Decoding(search="sample", n_best=SAMPLES, max_length=16)
    drawn = as_tokens(decode(decoder.eval().for_inference(), batch.pictures, decoding)).numpy()
    candidates, true = np.where(drawn == NULL, -1, drawn)[:, :, 1:], references[:PICTURES, :, 1:]
    best: dict[str, float] = {}
    for step in range(ROUNDS):
        timed(best, "step", lambda step=step: _step(objective, decoder, optimiser, batch, step))  # type: ignore[misc]
        ours = timed(best, "rewards", lambda: cider_d(candidates, true, frequencies))
        theirs = timed(best, "dictionaries", lambda: by_dictionaries(candidates, true, frequencies))
        if not np.allclose(ours, theirs):
            raise SystemExit("the rewards are not the same")
    print("\n| what | ms | share of the step |\n| --- | --- | --- |")
    for name in ("step", "rewards", "dictionaries"):
        print(f"| {name} | {1000 * best[name]:.1f} | {best[name] / best['step']:.1%} |")


def _step(
    objective: SelfCritical, decoder: torch.nn.Module, optimiser: torch.optim.Optimizer, batch: Batch, step: int
) -> None:
    drawn = objective.prepare(decoder, batch, step)
    output = objective(decoder, drawn, Count.of(batch), 0.0)
    optimiser.zero_grad(set_to_none=True)
    output.loss.backward()
    optimiser.step()


def _captions(pictures: int) -> Ids:
    """(pictures, 5, T): START, words by Zipf's law, END, then -1."""
    chance = np.random.default_rng(0)
    shares = 1 / np.arange(4, VOCABULARY)
    rows = chance.choice(np.arange(4, VOCABULARY), (pictures, 5, WORDS + 2), p=shares / shares.sum())
    rows[:, :, 0] = START
    lengths = chance.integers(WORDS - 4, WORDS + 2, (pictures, 5, 1))
    places = np.arange(WORDS + 2)
    return np.asarray(np.where(places < lengths, rows, np.where(places == lengths, END, -1)), dtype=np.int64)


def by_dictionaries(
    candidates: Ids, references: Ids, frequencies: Frequencies
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """CIDEr-D caption by caption, n-gram by n-gram, as it is commonly written."""
    weights: dict[tuple[int, ...], float] = {}

    def weight(gram: tuple[int, ...]) -> float:
        if gram not in weights:
            from models.ngrams import ngrams

            keys, _ = ngrams(np.array([gram]), len(gram))
            weights[gram] = float(frequencies.weights(keys)[0, 0])
        return weights[gram]

    def vectors(row: list[int]) -> tuple[list[dict[tuple[int, ...], float]], list[float], int]:
        words = [word for word in row if word >= 0]
        counts = [Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1)) for n in (1, 2, 3, 4)]
        found = [{gram: count * weight(gram) for gram, count in each.items()} for each in counts]
        return found, [math.sqrt(sum(value**2 for value in each.values())) for each in found], len(words)

    scores = []
    for rows, others in zip(candidates.tolist(), references.tolist(), strict=True):
        true = [vectors(row) for row in others]
        for row in rows:
            ours, norms, length = vectors(row)
            total = 0.0
            for vector, norm, words in true:
                penalty = math.exp(-((length - words) ** 2) / 72)
                for a, b, x, y in zip(ours, vector, norms, norm, strict=True):
                    product = sum(min(value, b.get(gram, 0.0)) * b.get(gram, 0.0) for gram, value in a.items())
                    total += penalty * product / (x * y) if x and y else 0.0
            scores.append(10 * total / 4 / len(true))
    return np.array(scores).reshape(candidates.shape[:2])


if __name__ == "__main__":
    main()
