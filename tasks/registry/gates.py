"""Gates: limits that a version's captions must meet, regardless of their scores, before it may be champion.

Each gate compares a share of the pictures with a limit in the config's `registry`. It refuses the version if the whole
95 % interval of the share lies beyond the limit, so that a few pictures refuse nothing by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.config.stages import RegistryConfig
from tasks.evaluation.self_retrieval import OTHERS
from tasks.evaluation.slices import Sources, slice_loss
from tasks.metrics import ScoredCaption, cider
from tasks.metrics.bootstrap import interval_of_ratio, interval_of_share
from tasks.metrics.meteor import stem


@dataclass(frozen=True)
class GateResult:
    """The result of a gate.

    name: of its setting. value: the share, from 0 to 1. interval: its 95 % interval. limit: the setting. refused:
    whether the interval lies beyond the limit. why: the meaning of the share, as a sentence.
    """

    name: str
    value: float
    interval: tuple[float, float]
    limit: float
    refused: bool
    why: str

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.why} ({low:.1%} to {high:.1%} at 95 %; registry.{self.name} is {self.limit:g})"


def gate_results(
    registry: RegistryConfig,
    captions: Mapping[str, ScoredCaption],
    champion: Mapping[str, tuple[ScoredCaption, ScoredCaption]] | None,
    retrieved: Callable[[], npt.NDArray[np.bool_]],
    sources: Sources,
    copied: Mapping[str, ScoredCaption] | None = None,
) -> list[GateResult]:
    """Return the results of the gates that the config sets. captions: by the digest of their pictures.

    champion: the captions of the champion (first) and of the version for the same pictures; None if there is no
    champion to compare with. retrieved: returns which captions find their picture among others; called only if that is
    a gate. sources: the source of each picture, if the data set has several. copied: captions of similar training
    pictures; None if they are not a gate.
    """
    corpus = list(captions.values())
    results = []
    if registry.max_same_caption is not None:
        results.append(_same_caption(corpus, registry.max_same_caption))
    if registry.max_overused_word is not None:
        results.append(_overused_word(corpus, registry.max_overused_word))
    if registry.min_retrieved is not None:
        results.append(_retrieved(retrieved(), registry.min_retrieved))
    if registry.max_slice_loss is not None and champion is not None:
        results.append(_slice_loss(champion, registry.max_slice_loss, sources))
    if registry.min_over_copied is not None and copied is not None:
        results.append(_over_copied(corpus, list(copied.values()), registry.min_over_copied))
    return results


def _same_caption(corpus: Sequence[ScoredCaption], limit: float) -> GateResult:
    """Return the share of the pictures that have the most frequent caption."""
    texts = [" ".join(item.caption) for item in corpus]
    text, times = Counter(texts).most_common(1)[0]
    interval = interval_of_share(times, len(texts))
    why = f"{times:,} of {len(texts):,} pictures have the same caption, {_quoted(text)}"
    return GateResult("max_same_caption", times / len(texts), interval, limit, interval[0] > limit, why)


def _overused_word(corpus: Sequence[ScoredCaption], limit: float) -> GateResult:
    """Find the word whose count in captions most exceeds that in references; return the excess as a share of pictures.

    Words with the same stem are one word. A thing that no reference names is probably not in the picture: CHAIR
    (Rohrbach et al. 2018) counts this for annotated objects.
    """
    said_words = [{stem(word) for word in item.caption} for item in corpus]
    named = [{stem(word) for reference in item.references for word in reference} for item in corpus]
    in_captions, in_references = (Counter(word for words in texts for word in words) for texts in (said_words, named))
    if not in_captions:
        return GateResult("max_overused_word", 0.0, (0.0, 0.0), limit, False, "no caption has a word")
    word = max(sorted(in_captions), key=lambda word: in_captions[word] - in_references[word])
    beyond = [[(word in own) - (word in true), 1] for own, true in zip(said_words, named, strict=True)]
    share, interval = interval_of_ratio(np.array(beyond, dtype=np.float64))
    whole = Counter(whole for item in corpus for whole in item.caption if stem(whole) == word).most_common(1)[0][0]
    why = (
        f"{_quoted(whole)} is said of {in_captions[word]:,} of {len(corpus):,} pictures, and people mention it in the "
        f"captions of {in_references[word]:,}"
    )
    return GateResult("max_overused_word", share, interval, limit, interval[0] > limit, why)


def _retrieved(retrieved: npt.NDArray[np.bool_], limit: float) -> GateResult:
    """Return the share of captions that are likelier for their own picture than for others."""
    number, drawn = int(retrieved.sum()), len(retrieved)
    interval = interval_of_share(number, drawn)
    why = (
        f"{number:,} of {drawn:,} captions are likelier for their own picture than for each of "
        f"{min(OTHERS, drawn - 1):,} others"
    )
    return GateResult("min_retrieved", number / drawn, interval, limit, interval[1] < limit, why)


def _slice_loss(pairs: Mapping[str, tuple[ScoredCaption, ScoredCaption]], limit: float, sources: Sources) -> GateResult:
    """Return the loss of CIDEr-D as a share of the champion's, in the slice with the most certain loss."""
    losses = []
    for name, columns in slice_loss(pairs, sources).items():
        ratio, (low, high) = interval_of_ratio(columns)
        losses.append((1 - ratio, (1 - high, 1 - low), name, len(columns)))
    if not losses:
        return GateResult("max_slice_loss", 0.0, (0.0, 0.0), limit, False, "no slice has enough pictures")
    # By the lower bound of the interval: the slice with the largest loss may be a less certain one.
    share, interval, name, pictures = max(losses, key=lambda loss: loss[1][0])
    change = "loses" if share >= 0 else "gains"
    why = f"CIDEr {change} {abs(share):.1%} of the champion's on {pictures:,} pictures, {_quoted(name)}"
    return GateResult("max_slice_loss", share, interval, limit, interval[0] > limit, why)


def _over_copied(corpus: Sequence[ScoredCaption], copied: Sequence[ScoredCaption], limit: float) -> GateResult:
    """Return the ratio of CIDEr-D to that of captions copied from similar training pictures."""
    statistics = np.stack([cider.statistics(captions)[:, 0] for captions in (corpus, copied)], axis=1)
    ratio, interval = interval_of_ratio(statistics)
    own, other = 100 * statistics.mean(axis=0)
    why = f"CIDEr is {own:.1f}, and {other:.1f} by copying captions of similar training pictures"
    return GateResult("min_over_copied", ratio, interval, limit, interval[1] < limit, why)


def _quoted(text: str) -> str:
    """Return a text in quotation marks, shortened if it is long."""
    return f'"{text if len(text) <= 80 else text[:77] + "..."}"'
