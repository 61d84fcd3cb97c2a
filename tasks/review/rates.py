"""The results of people's answers: shares with intervals, words that they changed, and agreement."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

from tasks.datasets.corrections import Answer, latest, time_of
from tasks.metrics.bootstrap import interval_of_share

_JUDGED = ("accepted", "edited", "rejected")
_BINS = 5


class Rate(NamedTuple):
    """The share of captions that were accepted unchanged. low, high: of its 95 % interval."""

    of: str
    accepted: int
    judged: int
    share: float
    low: float
    high: float

    @property
    def counted(self) -> str:
        """Return the interval and the numbers: `55 to 69 %; 124 of 200`."""
        return f"{100 * self.low:.0f} to {100 * self.high:.0f} %; {self.accepted:,} of {self.judged:,}"


class ConfidenceBin(NamedTuple):
    """Captions of about the same confidence: their mean confidence, and the share of them that was accepted."""

    confidence: float
    rate: Rate


class AnswerSummary(NamedTuple):
    """The results of a file of answers.

    verdicts: the number of answers with each, the most frequent first. versions, weeks: rates of the pictures asked
    about at random, which alone represent all. chosen: rates by why the pictures were chosen. calibration: by
    confidence, over all of them. edits: (from, to) -> number of times that people replaced words by others; empty for
    words added or removed. agreement: of two people about one caption, whether it can stay unchanged; None if no
    caption was judged twice.
    """

    verdicts: dict[str, int]
    versions: list[Rate]
    weeks: list[Rate]
    chosen: list[Rate]
    calibration: list[ConfidenceBin]
    edits: list[tuple[str, str, int]]
    agreement: Rate | None


def summarise(answers: Iterable[Answer]) -> AnswerSummary:
    """Return the results of the last answer of each person about each caption. Skipped ones count in no rate."""
    last = latest(answers)
    judged = [answer for answer in last if answer["verdict"] in _JUDGED]
    random = [answer for answer in judged if answer["chosen"] == "at random"]
    return AnswerSummary(
        dict(Counter(answer["verdict"] for answer in last).most_common()),
        _rates(random, lambda answer: answer["model"]),
        _rates(random, _week),
        _rates(judged, lambda answer: answer["chosen"]),
        _calibration(judged),
        _edits(judged),
        _agreement(judged),
    )


def _rate(of: str, accepted: int, judged: int) -> Rate:
    return Rate(of, accepted, judged, accepted / judged, *interval_of_share(accepted, judged))


def _rates(answers: list[Answer], group: Callable[[Answer], str]) -> list[Rate]:
    """Return the rate of each group, ordered by its name."""
    judged = Counter(map(group, answers))
    accepted = Counter(group(answer) for answer in answers if answer["verdict"] == "accepted")
    return [_rate(name, accepted[name], judged[name]) for name in sorted(judged)]


def _week(answer: Answer) -> str:
    """Return the ISO week of an answer, `2026-W48`."""
    year, week, _ = time_of(answer).isocalendar()
    return f"{year}-W{week:02d}"


def _calibration(answers: list[Answer]) -> list[ConfidenceBin]:
    """Return the rates of captions with similar confidence."""
    bins: dict[int, list[Answer]] = {}
    for answer in answers:
        if answer["confidence"] is not None:
            bins.setdefault(min(int(_BINS * answer["confidence"]), _BINS - 1), []).append(answer)
    groups = []
    for at, members in sorted(bins.items()):
        mean = sum(answer["confidence"] or 0.0 for answer in members) / len(members)
        accepted = sum(answer["verdict"] == "accepted" for answer in members)
        groups.append(ConfidenceBin(mean, _rate(f"{at / _BINS:.1f} to {(at + 1) / _BINS:.1f}", accepted, len(members))))
    return groups


def _edits(answers: list[Answer]) -> list[tuple[str, str, int]]:
    """Return the words that people changed, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for answer in answers:
        if answer["verdict"] == "edited" and answer["given"] is not None:
            old, new = answer["shown"].lower().split(), answer["given"].lower().split()
            for kind, start, end, first, last in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
                if kind != "equal":
                    counts[" ".join(old[start:end]), " ".join(new[first:last])] += 1
    return [(before, after, number) for (before, after), number in counts.most_common()]


def _agreement(answers: list[Answer]) -> Rate | None:
    """Return how often pairs of people agree whether a caption can stay; None if no caption was judged twice."""
    by_caption: dict[tuple[str, str], list[bool]] = {}
    for answer in answers:
        by_caption.setdefault((answer["picture"], answer["shown"]), []).append(answer["verdict"] == "accepted")
    pairs = [pair for verdicts in by_caption.values() for pair in combinations(verdicts, 2)]
    return _rate("pairs of answers", sum(one == other for one, other in pairs), len(pairs)) if pairs else None
