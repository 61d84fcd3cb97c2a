"""The inspection of a data set with the model that was trained on it, to find what is worth a look.

findings.parquet has a row for each finding: `kind` (`doubtful caption`, `look-alike`, `unusual caption`, `unlike the
rest`), `digest`, `name` and `split` of the picture, its `caption` if the finding is about one, `other` (the name of the
other picture of a pair), `score` (by which a kind is sorted, the most striking row first), and `why` in words.
inspection.json has the numbers of examined captions and pictures, and whether the new pictures drifted.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional

from models.neighbours import Memory, pool
from tasks.common.progress import in_parts
from tasks.config.devices import device_of
from tasks.config.schema import Config
from tasks.data.caption_files import CaptionedPicture, read_captions, read_vocabulary
from tasks.data.manifest import Picture, read_pictures
from tasks.datasets.base import SPLITS
from tasks.grids.index import open_grids
from tasks.grids.reader import GridReader
from tasks.inspection.doubtful_captions import doubts
from tasks.inspection.drift import FEWEST, measure_drift
from tasks.inspection.look_alikes import look_alikes
from tasks.inspection.record import (
    ALIKE,
    DOUBTFUL,
    FINDINGS,
    INSPECTION,
    UNLIKE,
    UNUSUAL,
    DriftRecord,
    InspectionRecord,
)
from tasks.inspection.unusual_captions import unusual_captions
from tasks.pipeline.ledger import Artifact
from tasks.training.fit_decoder import DecoderInputs
from tasks.training.outputs import load_decoder

DOUBT = 0.6  # least nats per word for a caption to be a finding
_INSPECTED = 5_000  # captions that the model compares with their pictures, at most
_MOST_ROWS = 200  # of a kind
_MOST_UNLIKE = 24
_MOST_KNOWN, _NEIGHBOURS = 4096, 5
_ITSELF = 1e-3  # distance below which two pooled grids are of the same picture
_MOST_POOLED = 30_000  # pictures compared with each other, at most
_READ_AT_ONCE = 64
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("kind", "digest", "name", "split", "caption", "other")),
        ("score", pa.float64()),
        ("why", pa.string()),
    ]
)


def inspect_data(
    config: Config, trained: Artifact, remembered: Artifact, sources: DecoderInputs, known: Set[str] | None, out: Path
) -> InspectionRecord:
    """Write findings.parquet and inspection.json to `out`, and return the contents of the second.

    trained, remembered: the artifacts of the decoder and of the memory of its training pictures. known: digests of the
    pictures of the champion's data set; None if there is no champion, or if they are not known. If there are more than
    `_INSPECTED` captions, those of new pictures are examined first.
    """
    pictures = {split: read_pictures(sources.manifest.path, split) for split in SPLITS if split in _splits(sources)}
    grids = open_grids(sources.grids, config.machine)
    by_digest = {picture.digest: (split, picture) for split, own in pictures.items() for picture in own}
    order = _new_first([digest for digest in by_digest if digest in grids], known)
    mean = torch.from_numpy(Memory.load(remembered.path).grid)
    findings = _Findings(by_digest)

    looked_at = _doubtful(config, trained, sources, grids, mean, order, findings)
    captions = {digest: list(dict.fromkeys(picture.captions)) for digest, (_, picture) in by_digest.items()}
    for item in unusual_captions(captions):
        findings.add(UNUSUAL, item.digest, item.score, item.why, caption=item.caption)
    compared = _some_of_both(order, known)
    pooled = _pooled(grids, compared)
    alike, total = look_alikes(pooled, _MOST_ROWS)
    for pair in alike:
        first, second = compared[pair.first], compared[pair.second]
        why = f"{pair.distance:.2f} of the usual distance to the nearest picture"
        splits = {by_digest[digest][0] for digest in (first, second)}
        why += f"; one in {' and one in '.join(sorted(splits))}" if len(splits) > 1 else ""
        findings.add(ALIKE, first, pair.distance, why, other=by_digest[second][1].name)
    is_training = torch.tensor([by_digest[digest][0] == "train" for digest in compared])
    drift = _drift(pooled[is_training], pooled, compared, known, findings)

    record: InspectionRecord = {
        "captions": looked_at,
        "pictures": len(compared),
        "counts": {**findings.counts(), **({ALIKE: total} if total else {})},
        "drift": drift,
    }
    findings.write(out / FINDINGS)
    (out / INSPECTION).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    return record


def _splits(sources: DecoderInputs) -> list[str]:
    """Return the splits of a manifest that have pictures."""
    return [split for split in SPLITS if split in sources.manifest.products]


def _new_first(digests: Sequence[str], known: Set[str] | None) -> list[str]:
    """Return digests in the order of examination: unknown ones first, each part in random order."""
    drawn = sorted(digests)
    random.Random(0).shuffle(drawn)
    return sorted(drawn, key=lambda digest: known is not None and digest in known)


def _some_of_both(order: Sequence[str], known: Set[str] | None) -> list[str]:
    """Return at most `_MOST_POOLED` pictures from `order`; half of them are known ones, if there are enough."""
    before = [digest for digest in order if known is not None and digest in known]
    new = order[: len(order) - len(before)]
    known_count = max(_MOST_POOLED // 2, _MOST_POOLED - len(new))
    return [*new[: _MOST_POOLED - min(known_count, len(before))], *before[:known_count]]


class _Findings:
    """The rows of findings.parquet while they are collected, by kind."""

    def __init__(self, by_digest: dict[str, tuple[str, Picture]]) -> None:
        self._by_digest = by_digest
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def add(
        self, kind: str, digest: str, score: float, why: str, caption: str | None = None, other: str | None = None
    ) -> None:
        split, picture = self._by_digest[digest]
        row = {"kind": kind, "digest": digest, "name": picture.name, "split": split, "caption": caption, "other": other}
        self._rows.setdefault(kind, []).append({**row, "score": round(score, 4), "why": why})

    def caption(self, digest: str, index: int) -> str:
        """Return a picture's caption by its place."""
        return self._by_digest[digest][1].captions[index]

    def counts(self) -> dict[str, int]:
        return {kind: len(rows) for kind, rows in self._rows.items()}

    def write(self, path: Path) -> None:
        rows = [row for own in self._rows.values() for row in own[:_MOST_ROWS]]
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)


def _doubtful(
    config: Config,
    trained: Artifact,
    sources: DecoderInputs,
    grids: GridReader,
    mean: Tensor,
    order: Sequence[str],
    findings: _Findings,
) -> int:
    """Add the captions that probably belong to another picture, most doubtful first; return how many were examined.

    mean (h, w, C): of the training pictures' grids.
    """
    captioned = {
        picture.digest: picture for split in _splits(sources) for picture in read_captions(sources.captions.path, split)
    }
    chosen, number = [], 0
    indices: list[list[int]] = []  # of distinct captions: a source's weight repeats those of its pictures
    for digest in order:
        if number >= _INSPECTED:
            break
        if digest in captioned:
            tokens = captioned[digest].tokens
            indices.append(sorted(np.unique(tokens, axis=0, return_index=True)[1].tolist()))
            chosen.append(CaptionedPicture(digest, tokens[indices[-1]]))
            number += len(indices[-1])
    if not chosen:
        return 0
    device = device_of(config.machine)
    decoder, _ = load_decoder(trained.path)
    vocabulary = read_vocabulary(sources.captions.path)
    values = doubts(decoder.to(device).eval(), mean, grids, chosen, device, len(vocabulary))
    ranked = [
        (float(value), picture.digest, index)
        for picture, own, at in zip(chosen, values, indices, strict=True)
        for value, index in zip(own, at, strict=False)  # if there are many captions, only the first were examined
        if value > DOUBT
    ]
    for value, digest, index in sorted(ranked, reverse=True):
        why = f"its words are {value:.1f} nats less likely here than they should be, each"
        findings.add(DOUBTFUL, digest, value, why, caption=findings.caption(digest, index))
    return sum(len(own) for own in values)


def _pooled(grids: GridReader, digests: Sequence[str]) -> Tensor:
    """Return the pooled grids of pictures, (N, C) float32 of length 1."""
    parts = []
    for part in in_parts(digests, _READ_AT_ONCE, "pictures compared"):
        parts.append(functional.normalize(torch.from_numpy(pool(grids.read(part)))))
    return torch.cat(parts)


def _drift(
    training: Tensor, pooled: Tensor, digests: Sequence[str], known: Set[str] | None, findings: _Findings
) -> DriftRecord | str:
    """Return whether the unknown pictures drifted, and add those least like the training pictures.

    training (M, C), pooled (N, C): the pooled grids of the training pictures, and of all. If all pictures are known, or
    it is not known which are, the added ones are from all splits.
    """
    is_known = torch.tensor([known is not None and digest in known for digest in digests])
    candidates = ~is_known if known is not None and not is_known.all() else torch.ones_like(is_known)
    numbers = candidates.nonzero().squeeze(1)
    known_pooled = pooled[is_known] if is_known.any() and known is not None else training
    distances = _distances_to_others(pooled[numbers], known_pooled)
    for index in distances.argsort(descending=True)[:_MOST_UNLIKE].tolist():
        value = float(distances[index])
        why = f"distance {value:.2f} from the nearest training pictures, where the median is {distances.median():.2f}"
        findings.add(UNLIKE, digests[int(numbers[index])], value, why)
    if known is None:
        return "there is no champion, or it is not known which pictures it knew"
    counts = int(is_known.sum()), int((~is_known).sum())
    if min(counts) < FEWEST:
        few = "pictures arrived" if counts[1] < FEWEST else "pictures of before are left"
        return f"{min(counts):,} {few} since the champion was trained: {FEWEST} are needed to tell"
    return measure_drift(pooled[is_known], pooled[~is_known])


def _distances_to_others(pooled: Tensor, reference: Tensor) -> Tensor:
    """Return the mean distance of each pooled grid (N, C) to the nearest known ones (M, C) except itself, (N,).

    Only the first `_MOST_KNOWN` known ones are used.
    """
    distances = (2 - 2 * (pooled @ reference[:_MOST_KNOWN].T)).clamp_min(0).sqrt()
    distances = distances.masked_fill(distances < _ITSELF, torch.inf)
    nearest = distances.topk(min(_NEIGHBOURS, distances.shape[1]), dim=1, largest=False).values
    return nearest.masked_fill(nearest.isinf(), 0.0).mean(dim=1)
