"""How often the rule for champions is right: simulated nights, with few and with many held-out pictures.

    python -m bench.quality.champions DATA WEIGHTS [--histories 1000] [--workspace workspace]

DATA is Flickr8k's folder, WEIGHTS MobileNetV2's weights. A version is a captioner that needs no training: among the
captions of the nearest training pictures it copies the one most like the others, so it improves with more pictures as a
decoder does, and hundreds of versions are there in minutes. A history is a champion and three nights, each with a
version trained on all that the champion was trained on and more, and with held-out pictures drawn from dev that grow
from 40 to 60. All three versions of a history are truly better than its champion, or truly worse, by all of dev's 1,000
pictures. Before: a version wins only by
more than chance (`registry.few_pictures=0`). After: the default.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer

from bench.machine import describe
from flows.pipeline import build_pipeline
from models.neighbours import pool
from tasks.common.progress import Bar
from tasks.config.schema import validate
from tasks.config.stages import RegistryConfig
from tasks.data.manifest import read_pictures
from tasks.grids.index import open_grids
from tasks.grids.reader import GridReader
from tasks.metrics import Counts, ScoredCaption, cider
from tasks.metrics.bootstrap import compare
from tasks.metrics.ptb import tokenize
from tasks.pipeline.plan import artifacts, up_to
from tasks.pipeline.run import run_stage
from tasks.registry.champion_rule import Candidate, Match, PromotionRule, decide
from tasks.registry.comparison import ModelComparison

WORLDS, SIZES = 20, (200, 400)  # random orders of the training pictures, and how many the champion has
NEIGHBOURS, CAPTIONS_EACH = 20, 2
NIGHTS = 3
# How many pictures the nights' versions have, as multiples of the champion's, and the share of captions that belong to
# another picture.
SITUATIONS = {
    "twice the pictures": ((2.0, 2.1, 2.2), 0.0),
    "a quarter more pictures": ((1.2, 1.25, 1.3), 0.0),
    "a third of all captions swapped": ((1.1, 1.15, 1.2), 1 / 3),
}


class Copier:
    """Flickr8k's pictures, and captions copied from the nearest of a part of its training pictures."""

    def __init__(self, given: Any) -> None:
        config = validate(
            {
                "name": "champions",
                "data": {"adapter": "flickr8k", "path": str(given.data)},
                "grids": {"backbone": "mobilenet_v2", "weights": str(given.weights), "image_size": 224},
                "decoder": {"name": "show_attend_tell"},
                "machine": {"workspace": str(given.workspace)},
            },
            "champions",
        )
        pipeline = up_to(build_pipeline(config), "extract")
        for stage in pipeline.names():
            run_stage(pipeline, stage)
        made = artifacts(pipeline)
        self.train, self.dev = (read_pictures(made["ingest"].path, split) for split in ("train", "dev"))
        grids = open_grids(made["extract"], config.machine)
        train, dev = (_pooled(grids, [item.digest for item in items]) for items in (self.train, self.dev))
        train, dev = train - train.mean(axis=0), dev - train.mean(axis=0)
        self.likeness = (dev / np.linalg.norm(dev, axis=1, keepdims=True)) @ (
            train / np.linalg.norm(train, axis=1, keepdims=True)
        ).T
        self.texts = [" ".join(tokenize(text)) for item in self.train for text in item.captions[:CAPTIONS_EACH]]
        self.words = TfidfVectorizer(ngram_range=(1, 2), dtype=np.float32).fit_transform(self.texts)
        self.references = [[tokenize(text) for text in item.captions] for item in self.dev]

    @cache  # noqa: B019 - as long as the process
    def version(self, world: int, size: int, swapped: float) -> list[ScoredCaption]:
        """Return the captions of dev's pictures by a version of a world's first `size` training pictures."""
        chance = random.Random(world)
        order = chance.sample(range(len(self.train)), len(self.train))[:size]
        owner = dict(zip(order, order, strict=True))
        wrong = chance.sample(order, int(swapped * size))
        owner |= dict(zip(wrong, wrong[1:] + wrong[:1], strict=True))
        pool = np.array(order)
        nearest = np.argpartition(-self.likeness[:, pool], NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        captions = []
        for row, references in zip(nearest, self.references, strict=True):
            texts = [owner[index] * CAPTIONS_EACH + k for index in pool[row] for k in range(CAPTIONS_EACH)]
            vectors = self.words[texts]
            best = int(np.argmax(vectors @ np.asarray(vectors.sum(axis=0)).ravel()))
            captions.append(ScoredCaption(self.texts[texts[best]].split(), references))
        return captions

    @cache  # noqa: B019
    def true_score(self, world: int, size: int, swapped: float) -> float:
        """Return a version's CIDEr on all of dev."""
        return float(cider.scores(self.statistics(world, size, swapped).sum(axis=0))["cider"])

    @cache  # noqa: B019
    def statistics(self, world: int, size: int, swapped: float) -> Counts:
        return cider.statistics(self.version(world, size, swapped))


def _pooled(grids: GridReader, digests: list[str]) -> npt.NDArray[np.float32]:
    """Return the mean annotation vector of each picture, shape (pictures, C)."""
    parts = [digests[start : start + 256] for start in range(0, len(digests), 256)]
    pooled = np.concatenate([pool(grids.read(part)) for part in parts])
    scaled: npt.NDArray[np.float32] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return scaled


class Remembered:
    """CIDEr, whose statistics on all of dev are counted once for each version."""

    def __init__(self, known: dict[int, Counts]) -> None:
        self.known = known

    def statistics(self, corpus: Sequence[ScoredCaption]) -> Counts:
        return self.known[id(corpus)] if id(corpus) in self.known else cider.statistics(corpus)

    scores = staticmethod(cider.scores)


def main() -> None:
    given = _arguments()
    describe()
    copier = Copier(given)
    after = PromotionRule.of(RegistryConfig(model="champions", promote_on="cider"))
    rules = {"before": replace(after, few_pictures=0), "after": after}
    print("\n| held-out pictures | the nights' versions have | histories | CIDEr, truly | before | after |")
    print("| --- " * 6 + "|", flush=True)
    for held_out in ((40, 50, 60), (len(copier.dev),) * NIGHTS):
        for number, (situation, (sizes, swapped)) in enumerate(SITUATIONS.items()):
            histories = range(number, given.histories, len(SITUATIONS))
            taken = dict.fromkeys(rules, 0)
            differences = []
            with Bar(len(histories), situation, "histories") as bar:
                for seed in histories:
                    chance = random.Random(seed)
                    while True:  # until the three versions are truly better, or truly worse
                        world, size = chance.randrange(WORLDS), chance.choice(SIZES)
                        versions = [(world, int(size * more), swapped) for more in sizes]
                        before = copier.true_score(world, size, 0.0)
                        truly = [copier.true_score(*version) / before - 1 for version in versions]
                        if all((difference < 0) == bool(swapped) for difference in truly):
                            break
                    for name in _winners(rules, copier, (world, size, 0.0), versions, held_out, chance):
                        taken[name] += 1
                    differences += truly
                    bar.advance(1)
            shares = " | ".join(f"{count / len(histories):.0%}" for count in taken.values())
            shown = f"{min(held_out)} to {max(held_out)}" if len({*held_out}) > 1 else f"{held_out[0]:,}"
            spread = f"{np.mean(differences):+.0%} ({min(differences):+.0%} to {max(differences):+.0%})"
            print(f"| {shown} | {situation} | {len(histories):,} | {spread} | {shares} |", flush=True)


def _winners(
    rules: dict[str, PromotionRule],
    copier: Copier,
    champion: tuple[int, int, float],
    versions: Sequence[tuple[int, int, float]],
    held_out: Sequence[int],
    chance: random.Random,
) -> set[str]:
    """Return the rules by which one of the nights' versions takes over."""
    order = chance.sample(range(len(copier.dev)), len(copier.dev))
    winners: set[str] = set()
    for version, pictures in zip(versions, held_out, strict=True):
        corpora = [copier.version(*champion), copier.version(*version)]
        known = {}
        if pictures == len(copier.dev):
            known = {id(corpora[0]): copier.statistics(*champion), id(corpora[1]): copier.statistics(*version)}
        else:
            corpora = [[corpus[index] for index in order[:pictures]] for corpus in corpora]
        scores = compare(Remembered(known), *corpora)
        pairs = {str(index): pair for index, pair in enumerate(zip(*corpora, strict=True))}
        match = Match("the champion", ModelComparison(pairs, scores), "more pictures")
        winners |= {
            name for name, rule in rules.items() if decide(rule, Candidate("the version"), match).alias == "champion"
        }
        if len(winners) == len(rules):
            break
    return winners


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--workspace", type=Path, default=Path("workspace"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
