"""How captions are ranked by their neighbours, fitted to the captions of held-out pictures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from models.neighbours import Memory, NearestPictures
from models.options import Neighbours
from models.ranking import NeighbourOpinion, consult
from models.search import Caption
from models.vocabulary import Vocabulary
from tasks.common.progress import Bar
from tasks.data.manifest import Picture
from tasks.metrics import ScoredCaption, has_facts, qualities
from tasks.metrics.ptb import tokenize

FITTED_TO = 2000  # pictures of dev, at most
_TEMPERATURES, _FACTORS, _MATCHES = (0.05, 0.1, 0.2), (8.0, 16.0, 32.0, 64.0), (0.0, 1.0, 2.0, 4.0)
_COPIES = (None, 1.0, 1.25, 1.5, 2.0)

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Fit:
    """The result of a fit.

    neighbours: None if they do not help. gain: mean gain in the captions' quality over pictures.
    """

    neighbours: Neighbours | None
    gain: float


class Candidates:
    """The captions that neighbours may choose for pictures, and the quality of each.

    The quality is the CIDEr-D against the picture's references or, in a data set that records facts, whether everything
    that the caption states is true.
    """

    def __init__(
        self,
        candidates: Sequence[Sequence[Caption]],
        nearest: NearestPictures,
        pictures: Sequence[Picture],
        memory: Memory,
        vocabulary: Vocabulary,
        lengths: range,
    ) -> None:
        """Consult the memory for each temperature.

        candidates: the captions of each picture. nearest: the pictures similar to each. memory: one with captions.
        lengths: allowed lengths of a copy, including END.
        """
        self._candidates, self._has_matcher = candidates, memory.matcher is not None
        self._opinions: dict[float, list[NeighbourOpinion]] = {}
        with Bar(len(candidates) * len(_TEMPERATURES), "neighbours consulted", "pictures") as bar:
            for temperature in _TEMPERATURES:
                opinions = consult(memory, nearest, candidates, temperature, lengths)
                self._opinions[temperature] = opinions
                bar.advance(len(candidates))
        texts = [[vocabulary.text(caption.tokens) for caption in captions] for captions in candidates]
        for opinions in self._opinions.values():
            for own, one in zip(texts, opinions, strict=True):
                own.append("" if one.copy is None else vocabulary.text(one.copy.tokens))
        corpus = []
        for own, picture in zip(texts, pictures, strict=True):
            references = [tokenize(text) for text in picture.captions]
            corpus += [ScoredCaption(tokenize(text), references, picture.facts) for text in own]
        self.measure = "the truth" if has_facts(corpus) else "CIDEr-D"
        self._qualities = np.split(qualities(corpus), np.cumsum([len(own) for own in texts])[:-1])

    def fit(self, selected: Flags) -> Fit:
        """Return the best settings for some of the pictures.

        The default is chosen unless the best settings are better by more than twice the standard error of the
        difference, because with few pictures one of so many settings looks best by chance. Neighbours are left out only
        if the gain plus twice its standard error is not above zero, because they nearly always help, and few pictures
        may suggest otherwise by chance.
        """
        if not selected.any():
            return Fit(None, 0.0)
        plain = np.array([own[0] for own in self._qualities])[selected]
        usual = Neighbours() if self._has_matcher else Neighbours(match=0.0)
        default = self._chosen(usual, self._best(usual))[selected]
        best, values = usual, default
        matches = _MATCHES if self._has_matcher else (0.0,)
        for temperature, factor, match in itertools.product(_TEMPERATURES, _FACTORS, matches):
            neighbours = Neighbours(temperature=temperature, factor=factor, match=match)
            first = self._best(neighbours)
            for copies in _COPIES:
                neighbours = replace(neighbours, copies=copies)
                own = self._chosen(neighbours, first)[selected]
                if own.mean() > values.mean():
                    best, values = neighbours, own
        if (values - default).mean() <= 2 * _standard_error(values - default):
            best, values = usual, default
        gain, error = float((values - plain).mean()), _standard_error(values - plain)
        return Fit(best if gain + 2 * error > 0 else None, gain)

    def _best(self, neighbours: Neighbours) -> list[int]:
        """Return the index of each picture's best caption, copies aside."""
        opinions = self._opinions[neighbours.temperature]
        return [own.order(captions, neighbours)[0] for captions, own in zip(self._candidates, opinions, strict=True)]

    def _chosen(self, neighbours: Neighbours, best: Sequence[int]) -> Values:
        """Return the quality of the captions that neighbours choose. best: as `_best` returns."""
        index = _TEMPERATURES.index(neighbours.temperature)
        opinions = self._opinions[neighbours.temperature]
        chosen = []
        for own, values, first in zip(opinions, self._qualities, best, strict=True):
            copied = own.copy_instead(first, neighbours.copies) is not None
            chosen.append(values[len(own.similarities) + index if copied else first])
        return np.array(chosen)


def copied(memory: Memory, nearest: NearestPictures, vocabulary: Vocabulary) -> list[str]:
    """Return a caption copied from similar training pictures for each picture.

    It is the caption of the most similar pictures that is most similar to their others, which needs no training (Devlin
    et al. 2015, "Exploring Nearest Neighbor Approaches for Image Captioning"). It is empty if they have no whole
    caption without unknown words.
    """
    opinions = consult(memory, nearest, [[]] * len(nearest.pictures), Neighbours.temperature)
    return ["" if one.copy is None else vocabulary.text(one.copy.tokens) for one in opinions]


def _standard_error(values: Values) -> float:
    return float(values.std() / max(len(values), 1) ** 0.5)
