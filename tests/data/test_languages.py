"""Captions in any script: what is cut into tokens is joined as it was written, and scored by its own units."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from flows.commands.init import init
from flows.preflight import verdict_of
from models.vocabulary import Vocabulary
from tasks.config.schema import load
from tasks.config.stages import CaptionsConfig
from tasks.data.caption_files import build_vocabulary
from tasks.data.tokenisers import BytePairs, tokeniser
from tasks.evaluation.caption_and_score import score_corpus
from tasks.evaluation.score_record import read_scores
from tasks.metrics import ScoredCaption
from tasks.metrics.ptb import tokenize
from tests.photographs import chinese_pictures
from tests.support import artifacts, pictures, run_all, small

# Who does what where: fifty sentences of each language; `{}` in German is for a capital and a full stop.
PARTS = {
    "Chinese": (
        ("一只狗", "两个孩子", "一位老人", "三只猫", "一个女孩"),
        ("在草地上", "在河边", "在公园里", "在雪地里", "在街上"),
        ("奔跑", "玩球"),
        "{}{}{}",
    ),
    "Japanese": (
        ("一匹の犬", "子どもたち", "おじいさん", "三匹のネコ", "女の子"),
        ("が芝生で", "が川辺で", "が公園で", "が雪の中で", "が通りで"),
        ("走っている", "ボールで遊んでいる"),
        "{}{}{}",
    ),
    "Thai": (
        ("สุนัขตัวหนึ่ง", "เด็กสองคน", "ชายชรา", "แมวสามตัว", "เด็กผู้หญิง"),
        ("วิ่ง", "เล่นลูกบอล"),
        ("บนสนามหญ้า", "ริมแม่น้ำ", "ในสวน", "ในหิมะ", "บนถนน"),
        "{} {}{}",
    ),
    "Arabic": (
        ("كلب واحد", "طفلان", "رجل عجوز", "ثلاث قطط", "فتاة صغيرة"),
        ("يجري", "يلعب بالكرة"),
        ("على العشب", "قرب النهر", "في الحديقة", "في الثلج", "في الشارع"),
        "{} {} {}",
    ),
    "German": (
        ("ein hund", "zwei mädchen", "ein älterer mann", "drei kätzchen", "eine frau"),
        ("läuft", "spielt ball"),
        ("über die wiese", "am fluß", "im park", "im tiefen schnee", "auf der straße"),
        "{} {} {}",
    ),
}
SENTENCES = {
    language: [form.format(*words) for words in product(first, second, third)]
    for language, (first, second, third, form) in PARTS.items()
}
STOPS = {"Chinese": "。", "Japanese": "。", "Thai": " ๆ", "Arabic": "؟", "German": "!"}


def again(vocabulary: Vocabulary, tokens: list[str]) -> str:
    """Return the text of a caption's ids."""
    return vocabulary.text(vocabulary.encode(tokens, 200))


@pytest.mark.parametrize("language", PARTS)
def test_words_and_characters_are_joined_as_they_were_written(language: str) -> None:
    assert len(set(SENTENCES[language])) == 50
    written = [f"{sentence.capitalize()}{STOPS[language]}" for sentence in SENTENCES[language]]
    for name, texts in (("unicode", SENTENCES[language]), ("characters", written), ("whitespace", written)):
        cut, settings = tokeniser(name), CaptionsConfig(tokeniser=name, min_count=1)
        vocabulary = build_vocabulary([cut(text) for text in texts], settings)
        for text in texts:
            assert len(cut(text)) > 1 or name == "whitespace"
            assert again(vocabulary, cut(text)) == text
            assert again(Vocabulary.from_json(vocabulary.to_json()), cut(text)) == text


@pytest.mark.parametrize("language", PARTS)
def test_byte_pairs_without_white_space_are_joined_as_they_were_written(language: str) -> None:
    """Learnt from whole captions: a pair may be a whole word, of which no white space says where it ends."""
    settings = CaptionsConfig(tokeniser="characters", units="bpe", merges=200, min_count=1)
    cut = tokeniser("characters")
    texts = [f"{sentence}{STOPS[language]}" for sentence in SENTENCES[language]] + ["a <UNK> b"]
    pairs = BytePairs([cut(text) for text in texts], settings)
    vocabulary = build_vocabulary([pairs(cut(text)) for text in texts], settings, pairs.pairs())
    for text in texts:
        assert again(vocabulary, pairs(cut(text))) == text
        assert len(pairs(cut(text))) < len(cut(text)) / 2 or "<UNK>" in text


def test_scripts_without_spaces_are_scored_by_characters() -> None:
    assert tokenize("一只狗，在 park 里。") == ["一", "只", "狗", "在", "park", "里"]  # noqa: RUF001
    assert tokenize("ネコが走る") == list("ネコが走る")
    assert tokenize("A man's dog") == ["a", "man", "'s", "dog"]
    assert len(tokenize("แมวสามตัว")) == 8  # of nine letters: a vowel below stays with its consonant


def test_vowel_signs_stay_with_their_letters() -> None:
    assert tokenize("नमस्ते दुनिया।") == ["नमस्ते", "दुनिया"]
    assert tokenize("cafe\u0301 olé") == ["café", "olé"]  # composed, as most write it
    with pytest.raises(ValueError, match="set tokeniser=characters"):
        CaptionsConfig(tokeniser="unicode", units="bpe")


def test_meteor_is_left_out_where_it_knows_nothing_of_the_language() -> None:
    chinese = [ScoredCaption(list("一只狗"), [list("一只黑狗")])]
    assert "meteor" not in score_corpus(chinese, ["bleu", "meteor"])["scores"]
    german = [ScoredCaption(["ein", "hund"], [["ein", "hund"]])]
    assert "meteor" in score_corpus(german, ["bleu", "meteor"])["scores"]


def test_a_captioner_of_chinese_is_trained_and_scored(tmp_path: Path) -> None:
    folder = chinese_pictures(tmp_path / "图片")
    config = small(
        tmp_path / "workspace",
        data={"adapter": "imagefolder", "path": str(folder)},
        captions={"tokeniser": "characters", "min_count": 1, "max_tokens": 20},
        training__epochs=30,
        training__patience=30,
        decoder__dropout_output=0.0,
        training__learning_rate=0.01,
        evaluation={"split": "dev", "metrics": ["bleu", "cider", "meteor"], "max_length": 21},
    )
    run_all(config)
    results = artifacts(config)
    scores = read_scores(results["evaluate"].path)["scores"]
    assert scores["bleu4"] > 40 and "meteor" not in scores
    assert not pictures(config.workspace)


def test_init_and_check_know_a_script_without_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = chinese_pictures(tmp_path / "pictures")
    init(folder, tmp_path / "chinese.yaml", "random:0", force=False)
    config = load(str(tmp_path / "chinese.yaml"))
    assert (config.captions.tokeniser, config.captions.min_count) == ("characters", 5)
    assert config.data.near_duplicates is None  # all are so alike that no dev split would be left
    assert "too many to keep these in one split" in capsys.readouterr().out
    verdict = verdict_of(str(tmp_path / "chinese.yaml"), ["evaluation.metrics=[bleu,cider,meteor]"], 10)
    told = [finding.message for finding in verdict.findings]
    assert "evaluation.metrics: meteor knows only languages in Latin letters, and is left out: remove it" in told
    assert not [message for message in told if "max_tokens" in message or "min_count" in message]
