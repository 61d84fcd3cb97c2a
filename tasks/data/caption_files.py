"""Captions as token ids: vocabulary.json, captions.parquet and document_frequencies.parquet.

captions.parquet has one row for each caption: the digest of its picture, its split, its tokens, int32, of length
`max_tokens` + 2 (START, the caption cut to `max_tokens`, END, then NULL), and `cut`: whether words were cut off.
Training reads captions with `read_captions`, which removes END from cut ones: otherwise a decoder would learn to end
its captions after "a" or "in". document_frequencies.parquet has each n-gram of these tokens (END counts as a word) that
occurs in the captions of more than one picture of the train split, and the number of those pictures: CIDEr-D rewards
are weighted with these document frequencies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from models.ngrams import ORDERS, Frequencies
from models.vocabulary import NULL, SPECIAL, Vocabulary
from tasks.config.stages import TOKENISERS, CaptionsConfig
from tasks.data.manifest import GIVEN_WORDS, read_pictures
from tasks.data.tokenisers import BytePairs, tokeniser
from tasks.datasets.base import SPLITS
from tasks.pipeline.ledger import Artifact, Outcome, digest_of

VOCABULARY, CAPTIONS, FREQUENCIES = "vocabulary.json", "captions.parquet", "document_frequencies.parquet"


@dataclass(frozen=True)
class CaptionedPicture:
    """A picture's content digest and its captions' token ids, int32 (captions, max_tokens + 2).

    The ids of a caption are START, its words, END and NULL; a cut caption has NULL in place of END.
    """

    digest: str
    tokens: npt.NDArray[np.int32]


def write_captions(captions: CaptionsConfig, manifest: Artifact, out: Path, joined: Sequence[str] = ()) -> Outcome:
    """Build the vocabulary from the train split, and write it, all splits' captions as token ids, and frequencies.

    manifest: the artifact of `ingest`. out: the folder to write to. joined: the words of the vocabulary to join, if
    `captions` requests this. The outcome's products are a digest for each split, `vocabulary` and `frequencies`.
    """
    split_words = tokeniser(captions.tokeniser)
    splits: list[str] = [split for split in SPLITS if split in manifest.products]
    words = {
        split: [
            (picture.digest, [split_words(text) for text in picture.captions])
            for picture in read_pictures(manifest.path, split)
        ]
        for split in splits
    }
    units: list[str] = []
    if captions.units == "bpe":
        pairs = BytePairs([text for _, texts in words["train"] for text in texts], captions)
        words = {
            split: [(digest, [pairs(text) for text in texts]) for digest, texts in words[split]] for split in splits
        }
        units = pairs.pairs()
    if captions.vocabulary == "given":
        units = json.loads((manifest.path / GIVEN_WORDS).read_text(encoding="utf-8"))
        vocabulary = Vocabulary(tuple(units), _settings(captions))
    else:
        texts = [text for _, texts in words["train"] for text in texts]
        vocabulary = build_vocabulary(texts, captions, units, joined if captions.vocabulary == "joined" else ())
    rows = [
        (digest, split, vocabulary.encode(text, captions.max_tokens), len(text) > captions.max_tokens)
        for split in splits
        for digest, texts in words[split]
        for text in texts
    ]
    (out / VOCABULARY).write_text(vocabulary.to_json(), encoding="utf-8")
    table = pa.table(
        {
            "digest": [digest for digest, *_ in rows],
            "split": [split for _, split, *_ in rows],
            "tokens": pa.array([ids for *_, ids, _ in rows], pa.list_(pa.int32(), captions.max_tokens + 2)),
            "cut": [cut for *_, cut in rows],
        }
    )
    pq.write_table(table, out / CAPTIONS)
    frequencies = _write_frequencies(read_captions(out, "train"), out / FREQUENCIES)
    products = {
        split: digest_of([(digest, ids, cut) for digest, row_split, ids, cut in rows if row_split == split])
        for split in splits
    }
    products["frequencies"] = frequencies
    products["vocabulary"] = digest_of(json.loads(vocabulary.to_json()))
    return Outcome(products, {"words": len(vocabulary.words), "captions": len(rows)})


def build_vocabulary(
    texts: list[list[str]], captions: CaptionsConfig, units: Sequence[str] = (), joined: Sequence[str] = ()
) -> Vocabulary:
    """Return the vocabulary of the texts, ordered by descending count, ties alphabetically.

    texts: captions as words, or as byte pairs. units: all byte pairs; if it is empty, the vocabulary consists of the
    words that occur at least `captions.min_count` times, and of those in `joined`.
    """
    counts = Counter(word for text in texts for word in text if word not in SPECIAL)
    entries = units or {*joined, *(word for word, count in counts.items() if count >= captions.min_count)}
    entries = sorted(entries, key=lambda word: (-counts[word], word))
    return Vocabulary(tuple(entries), _settings(captions))


def _settings(captions: CaptionsConfig) -> dict[str, Any]:
    """Return the settings stored in a vocabulary: how captions are split into its words."""
    settings: dict[str, Any] = {
        "tokeniser": captions.tokeniser,
        "lower": captions.tokeniser not in ("whitespace", "characters"),
        "units": captions.units,
        "max_tokens": captions.max_tokens,
    }
    joined = TOKENISERS[captions.tokeniser]
    return settings if joined == "spaces" else {**settings, "joined": joined}


def read_captions(folder: Path, split: str) -> list[CaptionedPicture]:
    """Return the pictures of a split, ordered by digest, each with its captions; cut captions have no END."""
    table = pq.read_table(folder / CAPTIONS, filters=[("split", "=", split)])
    tokens = table.column("tokens").combine_chunks()
    length = tokens.type.list_size
    ids = tokens.flatten().to_numpy().reshape(-1, length)
    cut = table.column("cut").to_numpy()
    if cut.any():
        ids = ids.copy()  # Parquet's arrays are read-only
        ids[cut, -1] = NULL
    row_indices: dict[str, list[int]] = {}
    for index, digest in enumerate(table.column("digest").to_pylist()):
        row_indices.setdefault(digest, []).append(index)
    return [CaptionedPicture(digest, ids[row_indices[digest]]) for digest in sorted(row_indices)]


def _write_frequencies(pictures: Sequence[CaptionedPicture], path: Path) -> str:
    """Write the document frequencies of the pictures' captions.

    Return the digest of the values, which, unlike the file's, does not depend on Parquet's encoding.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for picture in pictures:
        rows = [[token for token in row[1:] if token != NULL] for row in picture.tokens.tolist()]
        counts.update(
            {tuple(row[start : start + n]) for row in rows for n in ORDERS for start in range(len(row) - n + 1)}
        )
    shared = sorted(ngram for ngram, count in counts.items() if count > 1)
    table = pa.table(
        {
            "ngram": pa.array(shared, pa.list_(pa.int32())),
            "pictures": pa.array([counts[ngram] for ngram in shared], pa.int32()),
        }
    )
    pq.write_table(table.replace_schema_metadata({"pictures": str(len(pictures))}), path)
    return digest_of([len(pictures), *table.to_pydict().values()])


def read_frequencies(folder: Path) -> Frequencies:
    """Return the document frequencies of token-id n-grams in the train split, from a tensorise artifact's folder."""
    table = pq.read_table(folder / FREQUENCIES)
    pictures = int(table.schema.metadata[b"pictures"])
    return Frequencies.from_counts(table["ngram"].to_pylist(), table["pictures"].to_numpy(), pictures)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of a tensorise artifact, from its folder."""
    return Vocabulary.from_json((folder / VOCABULARY).read_text(encoding="utf-8"))
