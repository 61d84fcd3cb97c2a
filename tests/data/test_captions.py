"""Captions to ids: byte pairs, unknown words, and word vectors to begin with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from models.vocabulary import SPECIAL, UNK, Vocabulary
from tasks.config.stages import CaptionsConfig
from tasks.data.caption_files import build_vocabulary, read_vocabulary
from tasks.data.tokenisers import BytePairs, tokeniser
from tasks.metrics import ScoredCaption, measure
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
    text = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(6)}
    assert len(text) == 1
    assert b"</w>" in text.pop()


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
