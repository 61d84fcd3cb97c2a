"""Compare decoders and recipes of other projects with ours, on the same cached grids for the same number of steps.

    python -m bench.quality.peers CONFIG [--steps 2250] [--rewarded 750] [--seed 0] [--threads 0] [PEER ...]

CONFIG is a config or preset with SECTION.FIELD=VALUE settings. All decoders use its grids, captions and evaluation, and
`ours` uses its decoder, training and self_critical. Each step has 16 pictures with all their captions. Each recipe is
reimplemented from its repository, with the same optimiser, learning rate, clipping and dropout. Every 375 steps, the
weights that are best on dev by greedy BLEU-4 (the tutorial) or CIDEr (the other decoders) are saved. The captions are
the likeliest of the config's beam, and those that neighbours choose from it, with settings fitted as in `evaluate`.
`ratio` is CIDEr divided by the CIDEr of `ours`.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional

from bench.machine import describe
from bench.pipelines import planned
from bench.quality.peer_decoders import AnnotatedTransformer, Att2in
from models.decoders.base import Decoder
from models.decoders.ensemble import Ensemble
from models.decoders.show_attend_tell import ShowAttendTell
from models.neighbours import Memory
from models.options import DecoderOptions, Decoding, ShowAttendTellOptions, TransformerOptions
from models.search import Caption
from models.torch_steps import decode
from models.vocabulary import END, FORBIDDEN, NULL, START, UNK
from tasks.config.devices import device_of
from tasks.config.schema import Config, load
from tasks.data.caption_files import read_frequencies, read_vocabulary
from tasks.data.manifest import read_pictures
from tasks.evaluation.evaluate_decoder import choose_neighbours
from tasks.evaluation.picture_search import PictureSearch, SearchResult
from tasks.metrics import ScoredCaption, measure
from tasks.metrics.ptb import tokenize
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.run import run_stage
from tasks.training.batches import Batch, GridBatches
from tasks.training.fit_decoder import DecoderInputs, prepare
from tasks.training.objectives import attention_penalty
from tasks.training.outputs import HISTORY, load_decoder
from tasks.training.precision import with_precision
from tasks.training.reinforce_decoder import as_tokens
from tasks.training.rewards import Rewards

_EPOCH = 375  # steps between two validations
_METRICS = (("bleu", "bleu4"), ("meteor", "meteor"), ("cider", "cider"))


@dataclass(frozen=True)
class Peer:
    """A decoder and its recipe.

    make: (channels, vocabulary) -> decoder. rate: (step, steps) -> learning rate. clip: value to which each gradient is
    clamped. best: dev score that chooses the weights. doubly_stochastic: weight of that term. sampled: largest share of
    scheduled sampling, which begins at a sixth of the steps and grows by 0.05 each sixth. rewarded: learning rate of
    self-critical training; None if the recipe has none.
    """

    make: Callable[[int, int], Decoder]
    rate: Callable[[int, int], float]
    clip: float
    best: str
    doubly_stochastic: float = 0.0
    sampled: float = 0.0
    rewarded: float | None = None


def _tutorial(channels: int, vocabulary: int) -> Decoder:
    options = ShowAttendTellOptions(attention="additive_relu", first_state="linear", dropout_output=0.5)
    return ShowAttendTell(channels, vocabulary, options)


def _att2in(channels: int, vocabulary: int) -> Decoder:
    return Att2in(channels, vocabulary, DecoderOptions(dropout_output=0.5))


def _transformer(channels: int, vocabulary: int) -> Decoder:
    return AnnotatedTransformer(channels, vocabulary, TransformerOptions(layers=6, encoder_layers=6))


def _decayed(step: int, steps: int) -> float:
    """Return 5e-4, times 0.8 after each tenth of the steps: every third of thirty epochs."""
    return 5e-4 * float(0.8 ** (10 * step // steps))


def _noam(step: int, steps: int) -> float:
    """Return the rate of Vaswani et al. 2017, section 5.3; its 20,000 steps of warm-up are 12 % of its recipe's."""
    warmup = max(0.12 * steps, 1)
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1))) / math.sqrt(512 * 20_000)


PEERS = {
    "soft attention (sgrvinod's tutorial)": Peer(_tutorial, lambda *_: 4e-4, 5.0, "dev_bleu4", doubly_stochastic=1.0),
    "att2in (ruotianluo)": Peer(_att2in, _decayed, 0.1, "dev_cider", sampled=0.25, rewarded=5e-5),
    "Transformer (ruotianluo)": Peer(_transformer, _noam, 0.1, "dev_cider", rewarded=1e-5),
}


def main() -> None:
    args, settings = _arguments()
    describe()
    config = load(args.config, [*settings, f"training.seed={args.seed}", f"machine.threads={args.threads}"])
    plan = planned(config, "evaluate")
    for stage in plan.stages[:-1]:  # `evaluate` itself is left out: `Bench.scores` does its work for every decoder
        run_stage(plan, stage.name)
    bench = Bench(config, plan.by_kind, args.seed)
    scores = "BLEU-4 | METEOR | CIDEr | ratio"
    print(f"\n| decoder and recipe | objective | steps | {scores} | ranked: {scores} | minutes |")
    print("| --- " * 12 + "|")
    rows = bench.ours()
    for row in rows:
        print(_line(row, rows[0]), flush=True)
    for name in args.peers or PEERS:
        for row in bench.train(name, PEERS[name], args.steps, args.rewarded):
            print(_line(row, rows[-1 if row.objective != "cross-entropy" else 0]), flush=True)


def _arguments() -> tuple[Any, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config")
    parser.add_argument("words", nargs="*", help="SECTION.FIELD=VALUE settings, and names of peers")
    parser.add_argument("--steps", type=int, default=2250)
    parser.add_argument("--rewarded", type=int, default=750)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_intermixed_args()
    settings = [word for word in args.words if "=" in word]
    args.peers = [word for word in args.words if "=" not in word]
    unknown = set(args.peers) - set(PEERS)
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are: {', '.join(PEERS)}")
    return args, settings


@dataclass(frozen=True)
class Row:
    """A row of the table. likeliest, ranked: scores of the likeliest captions, and of those that neighbours choose."""

    name: str
    objective: str
    steps: int
    likeliest: dict[str, float]
    ranked: dict[str, float]
    minutes: float


def _line(row: Row, ours: Row) -> str:
    cells = [row.name, row.objective, f"{row.steps:,}"]
    for scores, base in ((row.likeliest, ours.likeliest), (row.ranked, ours.ranked)):
        cells += [f"{scores[score]:.1f}" for _, score in _METRICS]
        cells.append(f"{scores['cider'] / base['cider']:.2f}")
    return f"| {' | '.join(cells)} | {row.minutes:.0f} |"


class Bench:
    """The common inputs: batches of the train split, dev, and the pictures that are scored."""

    def __init__(self, config: Config, artifacts: dict[str, Artifact], seed: int) -> None:
        self.config, self.seed, self._artifacts = config, seed, artifacts
        self._sources = DecoderInputs(artifacts["ingest"], artifacts["tensorise"], artifacts["extract"])
        self.device = device_of(config.machine)
        training = config.training.model_copy(update={"batch_pictures": 16, "captions_per_picture": None})
        self.training = with_precision(training, self.device)
        self.batches, self.dev = prepare("train", self.training, config.machine, self._sources)
        self.vocabulary = read_vocabulary(self._sources.captions.path)
        self.max_length = self.vocabulary.settings["max_tokens"] + 1
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.training.precision == "bfloat16")

    def ours(self) -> list[Row]:
        """Return the rows of the config's own decoder: trained by teacher forcing, and with rewards if configured."""
        rows = []
        kinds = [kind for kind in ("train", "self_critical") if kind in self._artifacts]
        for kind in kinds:
            history = pq.read_table(self._artifacts[kind].path / HISTORY).to_pylist()
            decoder, _ = load_decoder(self._artifacts[kind].path)
            objective = "cross-entropy" if kind == "train" else "then CIDEr-D"
            minutes = sum(row["seconds"] for row in history) / 60
            rows.append(Row("ours", objective, int(history[-1]["step"]), *self.scores(decoder), minutes))
        return rows

    def train(self, name: str, peer: Peer, steps: int, rewarded: int) -> Iterator[Row]:
        """Yield the rows of a peer: after teacher forcing, and after self-critical training if its recipe has that."""
        torch.manual_seed(self.seed)
        decoder = peer.make(self.batches.channels, len(self.vocabulary)).to(self.device)
        minutes = self._fit(decoder, peer, steps, self._teacher_forced, lambda step: peer.rate(step, steps))
        yield Row(name, "cross-entropy", steps, *self.scores(decoder), minutes)
        if peer.rewarded is not None and rewarded:
            rate = peer.rewarded
            frequencies = read_frequencies(self._artifacts["tensorise"].path)
            loss = SelfCritical(Rewards(frequencies), self.max_length)
            minutes = self._fit(decoder, peer, rewarded, lambda *given: loss(*given[:2]), lambda _: rate)
            yield Row(name, "then CIDEr-D", rewarded, *self.scores(decoder), minutes)

    def _fit(
        self, decoder: Decoder, peer: Peer, steps: int, loss_of: Callable[..., Tensor], rate: Callable[[int], float]
    ) -> float:
        """Train for `steps`, load the weights that are best on dev, and return the minutes of the steps."""
        optimiser = torch.optim.Adam(decoder.parameters(), rate(0))
        best, best_weights = float("-inf"), copy.deepcopy(decoder.state_dict())
        batches, seconds = _endless(self.batches), 0.0
        for step in range(steps):
            begun = time.monotonic()
            torch.manual_seed(self.seed * 1_000_003 + step)
            decoder.train()
            loss = loss_of(decoder, next(batches), peer, step / steps)
            for group in optimiser.param_groups:
                group["lr"] = rate(step)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_value_(decoder.parameters(), peer.clip)
            optimiser.step()
            seconds += time.monotonic() - begun
            if (step + 1) % _EPOCH == 0 or step + 1 == steps:
                score = self.dev.scores(decoder)[peer.best]
                if score > best:
                    best, best_weights = score, copy.deepcopy(decoder.state_dict())
        decoder.load_state_dict(best_weights)
        return seconds / 60

    def _teacher_forced(self, decoder: Decoder, batch: Batch, peer: Peer, done: float) -> Tensor:
        """Return the cross-entropy per token, with the doubly stochastic term if the peer has it."""
        share = min(peer.sampled, 0.05 * int(6 * done))
        with self.autocast:
            words = _scheduled(decoder, batch, share) if share else batch.words
            logits, states = decoder(batch.pictures.float(), words, batch.token_indices)
        loss = functional.cross_entropy(logits.float(), batch.next_words)
        if peer.doubly_stochastic:
            loss = loss + peer.doubly_stochastic * attention_penalty(states.alphas, batch.valid)
        return loss

    def scores(self, decoder: Decoder | Ensemble) -> tuple[dict[str, float], dict[str, float]]:
        """Return the scores in percent, on the evaluated split, of the likeliest captions and of the ranked ones."""
        evaluation, machine = self.config.evaluation, self.config.machine
        memory = Memory.load(self._artifacts["remember"].path)
        search = PictureSearch(evaluation, machine, self._artifacts["extract"], decoder, memory)
        found = search.find(read_pictures(self._artifacts["ingest"].path, evaluation.split))
        choice = choose_neighbours(evaluation, found, memory, self.vocabulary, is_scored=True)
        ranked = [item.captions[0] for item in choice.rank(search, found)]
        return self._scores(found, [captions[0] for captions in found.captions]), self._scores(found, ranked)

    def _scores(self, found: SearchResult, captions: Sequence[Caption]) -> dict[str, float]:
        corpus = [
            ScoredCaption(tokenize(self.vocabulary.text(caption.tokens)), [tokenize(text) for text in picture.captions])
            for picture, caption in zip(found.pictures, captions, strict=True)
        ]
        return {score: measure(metric, corpus)[score] for metric, score in _METRICS}


class SelfCritical:
    """Self-critical training with the greedy caption's reward as the baseline (Rennie et al. 2017)."""

    def __init__(self, rewards: Rewards, max_length: int, samples: int = 5) -> None:
        self._rewards, self._max_length, self._samples = rewards, max_length, samples

    def __call__(self, decoder: Decoder, batch: Batch) -> Tensor:
        """Return the loss. Its gradient estimates the negative gradient of the expected reward."""
        pictures = batch.pictures.float()
        decoder.eval()
        with torch.no_grad():
            first = decode(decoder, pictures, Decoding(beam=1, max_length=self._max_length))
        decoder.train()
        drawn, likelihoods = self._drawn(decoder, pictures)
        base = self._rewards(as_tokens(first)[:, :, 1:], batch.targets)
        advantages = (self._rewards(drawn, batch.targets) - base).float()
        is_word = drawn != NULL
        return -(advantages.unsqueeze(2) * likelihoods * is_word).sum() / is_word.sum()

    def _drawn(self, decoder: Decoder, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return captions (N, R, T) int64 drawn with dropout, END counted, and each token's log-probability (N, R, T).

        Both come from one pass, as in the repository. The rewards of the greedy baseline are above those of most drawn
        captions, so probabilities of a pass with different dropout would make all captions less likely.
        """
        state: Any = decoder.start(pictures).expand(self._samples)
        tokens = torch.full((len(pictures), self._samples), START)
        over = torch.zeros_like(tokens, dtype=torch.bool)
        drawn, likelihoods = [], []
        for _ in range(self._max_length):
            logits, state = decoder.step(state, tokens)
            allowed = logits.float().index_fill(-1, torch.tensor(FORBIDDEN), -torch.inf)
            tokens = torch.distributions.Categorical(logits=allowed.detach()).sample()
            likelihoods.append(-functional.cross_entropy(allowed.flatten(0, 1), tokens.flatten(), reduction="none"))
            drawn.append(tokens.masked_fill(over, NULL))
            over = over | (tokens == END)
            if over.all():
                break
        return torch.stack(drawn, dim=2), torch.stack([part.view_as(tokens) for part in likelihoods], dim=2)


def _scheduled(decoder: Decoder, batch: Batch, share: float) -> Tensor:
    """Return the input words. A share of them is drawn from the decoder, word by word, given the words before."""
    words = batch.words.clone()
    with torch.no_grad():
        state: Any = decoder.start(batch.pictures.float()).expand(words.shape[1])
        for step in range(words.shape[2] - 1):
            logits, state = decoder.step(state, words[:, :, step])
            scores = logits.float()
            scores[..., : UNK + 1] = -torch.inf
            drawn = torch.distributions.Categorical(logits=scores).sample()
            chosen = (torch.rand(drawn.shape) < share) & (words[:, :, step + 1] != NULL)
            words[:, :, step + 1] = torch.where(chosen, drawn, words[:, :, step + 1])
    return words


def _endless(batches: GridBatches) -> Iterator[Batch]:
    """Yield the batches of epoch after epoch."""
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


if __name__ == "__main__":
    main()
