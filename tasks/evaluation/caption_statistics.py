"""What a model's captions are like beside the references: how long, how varied, how much of it new."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tasks.metrics import Scored

TOLD = {
    "words": "words a caption",
    "reference_words": "words a reference",
    "different": "different captions of all captions",
    "distinct_1": "different words of all words said",
    "distinct_2": "different pairs of words of all pairs said (Li et al. 2016)",
    "vocabulary": "different words said",
    "novel": "share of captions that no training caption is",
    "unknown": "share of the references' words that the vocabulary lacks",
}


def language(
    corpus: Sequence[Scored], seen: Collection[str] | None = None, known: Collection[str] | None = None
) -> dict[str, float]:
    """The figures of `TOLD`, shares from 0 to 1.

    seen: the training captions, words joined by spaces; `novel` is left out without. known: the vocabulary's words;
    `unknown` is left out without.
    """
    captions = [" ".join(item.caption) for item in corpus]
    said = [word for item in corpus for word in item.caption]
    pairs = [pair for item in corpus for pair in zip(item.caption, item.caption[1:], strict=False)]
    written = [words for item in corpus for words in item.references]
    every = [word for words in written for word in words]
    found = {
        "words": len(said) / max(len(corpus), 1),
        "reference_words": len(every) / max(len(written), 1),
        "different": len(set(captions)) / max(len(corpus), 1),
        "distinct_1": len(set(said)) / max(len(said), 1),
        "distinct_2": len(set(pairs)) / max(len(pairs), 1),
        "vocabulary": float(len(set(said))),
    }
    if seen is not None:
        found["novel"] = sum(caption not in seen for caption in captions) / max(len(corpus), 1)
    if known is not None:
        found["unknown"] = sum(word not in known for word in every) / max(len(every), 1)
    return found
