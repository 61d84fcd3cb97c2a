"""Captions to ids: byte pairs, unknown words, and word vectors to begin with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from models.vocabulary import SPECIAL, UNK, Vocabulary
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.config.stages import CaptionsConfig
from tasks.data.caption_files import build_vocabulary, read_vocabulary
from tasks.data.tokenisers import BytePairs, tokeniser
from tasks.data.word_vectors import load_word_vectors, vector_digests
from tasks.metrics import ScoredCaption, measure
from tasks.training import outputs as trained
from tests.support import artifacts, run_stage, small

TEXTS = [line.split() for line in ("the lowest of the low", "lower and lowest", "a newer low", "the newest and widest")]
SETTINGS = CaptionsConfig(units="bpe", merges=60, min_count=1)


def run(config: object, *names: str) -> None:
    for name in names:
        run_stage(config, name)  # type: ignore[arg-type]


def test_byte_pairs_come_back_as_the_words() -> None:
    pairs = BytePairs(TEXTS, SETTINGS)
    vocabulary = build_vocabulary([pairs(words) for words in TEXTS], SETTINGS, pairs.pairs())
    for words in TEXTS:
        ids = vocabulary.encode(pairs(words), 40)
        assert UNK not in ids
        assert vocabulary.decode(ids) == words
    assert len(vocabulary.words) <= SETTINGS.merges
    assert any(len(pairs([word])) == 1 for words in TEXTS for word in words)  # a frequent word is one pair
    assert vocabulary.decode(vocabulary.encode(pairs(["lowdest"]), 40)) == ["lowdest"]  # never seen, yet spelt


def test_byte_pairs_are_a_function_of_the_texts() -> None:
    """In other processes too, where hash maps are seeded otherwise: ties between merges are many in few words."""
    code = (
        "from types import SimpleNamespace; from tasks.data.tokenisers import BytePairs; "
        f"texts = {TEXTS}; pairs = BytePairs(texts, SimpleNamespace(merges=60, min_count=1, tokeniser=None)); "
        "print([pairs(words) for words in texts])"
    )
    told = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(6)}
    assert len(told) == 1
    assert b"</w>" in told.pop()


def test_an_unknown_pair_stands_for_itself() -> None:
    vocabulary = Vocabulary(("left</w>", "le", "ft</w>"), {"units": "bpe"})
    assert vocabulary.decode([UNK, 4, 5, 6]) == [SPECIAL[UNK], "left", "left"]


def test_a_captioner_of_byte_pairs_speaks_words(workspace: Path) -> None:
    config = small(workspace, captions__units="bpe", captions__merges=40, captions__max_tokens=60)
    run(config, "ingest", "extract", "tensorise", "train", "remember", "evaluate")
    vocabulary = read_vocabulary(artifacts(config)["tensorise"].path)
    assert vocabulary.settings["units"] == "bpe"
    captions = pq.read_table(artifacts(config)["evaluate"].path / "predictions.parquet").column("caption").to_pylist()
    assert any(captions)
    assert not any("</w>" in caption for caption in captions)


def test_the_unknown_word_is_no_word_and_never_a_hit() -> None:
    tokenise = tokeniser("treebank")
    words = tokenise("A <UNK> on a table.")
    assert words == ["a", SPECIAL[UNK], "on", "a", "table"]
    vocabulary = build_vocabulary([words] * 9, CaptionsConfig(min_count=1))
    assert set(vocabulary.words) == {"a", "on", "table"}
    assert vocabulary.encode(words, 9)[2] == UNK
    # A caption can never hold it, so a reference that does gives nothing to any caption.
    assert measure("bleu", [ScoredCaption(["a", "on"], [words])])["bleu1"] < 100
    assert Vocabulary(("a",)).decode([UNK]) == [SPECIAL[UNK]]


def word_digests(config: Config) -> dict[str, str]:
    return vector_digests(config.decoder, config.machine)


def vectors_file(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_word_vectors_are_where_training_begins(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("dog", "cat"))
    embeddings = torch.zeros(6, 3)
    load_word_vectors(
        vectors_file(tmp_path / "v.txt", "cat 1 2 3", "a b 4 5 6", "dog -1 0 1e-1"), vocabulary, embeddings
    )
    assert embeddings[4].tolist() == pytest.approx([-1, 0, 0.1])
    assert embeddings[5].tolist() == [1, 2, 3]
    assert not embeddings[:4].any()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("cat 1 2",), "line 1: has 2 numbers, decoder.embedding is 3"),
        (("the 1 2 3 4",), "set decoder.embedding=4"),
        (("dog 1 2 3", "cat 1 2"), "line 2: 2 numbers for 'cat', line 1 has 3"),
        (("dog 1 2 3", "cat 1 x 3"), "line 2: not all of 'cat''s values are numbers"),
        (("dog 1 2 3", "cat 1 nan 3"), "line 2: not all of 'cat''s values are numbers"),
        (("2 3", "dog 1 2 3"), "line 1: is not a word followed by its vector: .* without a header"),
        (("",), "line 1: is not a word followed by its vector"),
        (("bird 1 2 3",), "holds no word of the vocabulary"),
    ],
)
def test_word_vectors_that_do_not_fit_are_refused(tmp_path: Path, lines: tuple[str, ...], told: str) -> None:
    with pytest.raises(AttendError, match=told):
        load_word_vectors(vectors_file(tmp_path / "v.txt", *lines), Vocabulary(("dog", "cat")), torch.zeros(6, 3))


def test_training_starts_from_word_vectors(workspace: Path, tmp_path: Path) -> None:
    file = vectors_file(tmp_path / "v.txt", *(f"{word} {' '.join(['0.25'] * 16)}" for word in ("red", "blue", "a")))
    for rate, moves in ((1e-9, False), (8e-4, True)):
        changes = {"training__epochs": 1, "training__learning_rate": rate}
        config = small(workspace, decoder__word_vectors=str(file), **changes)
        run(config, "ingest", "extract", "tensorise", "train")
        found = artifacts(config)
        place = read_vocabulary(found["tensorise"].path).id_of("red")
        weights = safetensors.torch.load_file(found["train"].path / trained.WEIGHTS)["embed.weight"][place]
        assert torch.allclose(weights, torch.full((16,), 0.25), atol=1e-5) != moves


def test_another_file_of_word_vectors_is_another_training(workspace: Path, tmp_path: Path) -> None:
    file = vectors_file(tmp_path / "v.txt", "red 1")
    config = small(workspace, decoder__word_vectors=str(file))
    first = word_digests(config)
    moved = file.rename(tmp_path / "w.txt")
    assert word_digests(small(workspace, decoder__word_vectors=str(moved))) == first
    vectors_file(moved, "red 2")
    assert word_digests(small(workspace, decoder__word_vectors=str(moved))) != first
    with pytest.raises(AttendError, match=r"decoder\.word_vectors: .*: no such file"):
        word_digests(config)
