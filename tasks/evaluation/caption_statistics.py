"""Statistics of a model's captions and of the references: length, variety, and novelty."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tasks.metrics import ScoredCaption

# Name of a statistic -> its description in reports.
DESCRIPTIONS = {
    "words": "words a caption",
    "reference_words": "words a reference",
    "different": "different captions of all captions",
    "distinct_1": "different words of all words said",
    "distinct_2": "different pairs of words of all pairs said (Li et al. 2016)",
    "vocabulary": "different words said",
    "novel": "share of captions that no training caption is",
    "unknown": "share of the references' words that the vocabulary lacks",
}


def caption_statistics(
    corpus: Sequence[ScoredCaption], seen: Collection[str] | None = None, known: Collection[str] | None = None
) -> dict[str, float]:
    """Return the statistics of `DESCRIPTIONS` by name; shares are from 0 to 1.

    seen: the training captions, as words joined by spaces; if None, `novel` is left out. known: the vocabulary's words;
    if None, `unknown` is left out.
    """
    captions = [" ".join(item.caption) for item in corpus]
    words = [word for item in corpus for word in item.caption]
    pairs = [pair for item in corpus for pair in zip(item.caption, item.caption[1:], strict=False)]
    references = [reference for item in corpus for reference in item.references]
    reference_words = [word for reference in references for word in reference]
    statistics = {
        "words": len(words) / max(len(corpus), 1),
        "reference_words": len(reference_words) / max(len(references), 1),
        "different": len(set(captions)) / max(len(corpus), 1),
        "distinct_1": len(set(words)) / max(len(words), 1),
        "distinct_2": len(set(pairs)) / max(len(pairs), 1),
        "vocabulary": float(len(set(words))),
    }
    if seen is not None:
        statistics["novel"] = sum(caption not in seen for caption in captions) / max(len(corpus), 1)
    if known is not None:
        statistics["unknown"] = sum(word not in known for word in reference_words) / max(len(reference_words), 1)
    return statistics
