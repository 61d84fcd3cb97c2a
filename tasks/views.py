"""Stage `views`: the training pictures again, cropped and mirrored, so that training need not see the same grid twice.

Their grids are extracted once too, into a store of their own, under names DIGEST#NUMBER. What a view shows is a
function of that name and of `views.crop`, `flip` and `seed`: more views later leave the earlier ones as they are. The
artifact is as that of `extract`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
from torch import Tensor

from models.vocabulary import Vocabulary
from tasks.captions import CaptionedPicture
from tasks.config import GridsConfig, MachineConfig, ViewsConfig
from tasks.datasets.base import DatasetOptions
from tasks.extraction import Extracted
from tasks.features import INDEX, bring_up_to_date, whole_identity
from tasks.grid_reader import GridReader
from tasks.ledger import Outcome, Work, digest_of
from tasks.manifest import GENERATED, files_of, pictures_of
from tasks.shards import Spread
from tasks.stages import VIEWS

# A mirrored picture makes a lie of a caption with one of these words.
SIDED = frozenset({"left", "right", "leftmost", "rightmost", "left-hand", "right-hand", "lefthand", "righthand"})


def extract_views(
    grids: GridsConfig,
    views: ViewsConfig,
    data: DatasetOptions,
    machine: MachineConfig,
    work: Work,
    extracted: Extracted | None = None,
    spread: Spread | None = None,
) -> Outcome:
    """Extract the views of the training pictures that have a grid; its product is the digest of what they show."""
    manifest = work.upstream["ingest"].path
    files = files_of(manifest, data.image_folder(manifest / GENERATED))
    readable = set(pq.read_table(work.upstream["extract"].path / INDEX, columns=["digest"])["digest"].to_pylist())
    digests = sorted({picture.digest for picture in pictures_of(manifest, "train")} & readable)
    wanted = {name: files[digest] for digest in digests for name in names_of(digest, views)}
    mirrored = "odd ones mirrored" if views.flip else "none mirrored"
    shown = f"crop {views.crop}, {mirrored}, seed {views.seed}, version {VIEWS.version}"
    identity = replace(whole_identity(grids, work), view=shown)
    outcome = bring_up_to_date(wanted, identity, grids, machine, work, extracted, spread, partial(look, views=views))
    return replace(outcome, products={"views": digest_of([outcome.products["grids"], views.number])})


def names_of(digest: str, views: ViewsConfig) -> list[str]:
    """The names of a picture's views."""
    return [f"{digest}#{number}" for number in range(1, views.number + 1)]


def is_mirrored(name: str, views: ViewsConfig) -> bool:
    """Whether the view of this name shows its picture mirrored."""
    return views.flip and int(name.partition("#")[2]) % 2 == 1


def look(name: str, pixels: Tensor, views: ViewsConfig) -> Tensor:
    """What a view shows of a photograph, uint8 (3, H, W) -> (3, H', W')."""
    part = cropped(pixels, random.Random(f"{views.seed} {name}"), views.crop)
    return part.flip(2) if is_mirrored(name, views) else part


def cropped(pixels: Tensor, chance: random.Random, least: float) -> Tensor:
    """A part of a photograph (3, H, W), at random, at least `least` of each side."""
    height, width = (max(round(side * chance.uniform(least, 1.0)), 1) for side in pixels.shape[1:])
    top, left = chance.randint(0, pixels.shape[1] - height), chance.randint(0, pixels.shape[2] - width)
    return pixels[:, top : top + height, left : left + width]


def is_sided(picture: CaptionedPicture, vocabulary: Vocabulary) -> bool:
    """Whether a caption of the picture tells left from right."""
    return any(not SIDED.isdisjoint(vocabulary.decode(row)) for row in picture.tokens.tolist())


def choices(
    pictures: Sequence[CaptionedPicture], views: ViewsConfig, vocabulary: Vocabulary, there: GridReader
) -> dict[str, Sequence[str]]:
    """Digest -> the names of the grids that may stand for it in training: the picture's own, and its views'.

    there: the grids.
    """
    found: dict[str, Sequence[str]] = {}
    for picture in pictures:
        names = [name for name in names_of(picture.digest, views) if name in there]
        if is_sided(picture, vocabulary):
            names = [name for name in names if not is_mirrored(name, views)]
        found[picture.digest] = [picture.digest, *names]
    return found
