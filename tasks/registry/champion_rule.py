"""The rule by which a new version becomes champion: one function, independent of MLflow and files.

docs/champions.md explains it to users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tasks.common.wording import counted
from tasks.config.stages import RegistryConfig
from tasks.metrics.bootstrap import LEVEL, ScoreComparison
from tasks.registry.comparison import ModelComparison


@dataclass(frozen=True)
class Candidate:
    """A version that may become champion.

    name: in messages, such as `version 2`. failed_gates: a sentence for each gate that it fails. trained_on_scored:
    whether it is scored on pictures that it was trained on. rolled_back: whether a person withdrew this training.
    """

    name: str
    failed_gates: Sequence[str] = ()
    trained_on_scored: bool = False
    rolled_back: bool = False

    def objections(self) -> list[str]:
        """Return the reasons against the version that hold whatever its scores are."""
        objections = list(self.failed_gates)
        if self.trained_on_scored:
            objections.append("its scores are of pictures it was trained on: set evaluation.split to dev or test")
        return objections


@dataclass(frozen=True)
class Match:
    """The champion, compared with a candidate.

    champion: its name in messages. comparison: the champion (first) with the candidate (second), each with the search
    that it captions with. grown: how much more the candidate was trained on, in words; None if its training data are
    not a proper superset of the champion's.
    """

    champion: str
    comparison: ModelComparison
    grown: str | None


class Decision(NamedTuple):
    """The alias that a version gets, the reason as a sentence, and warnings."""

    alias: Literal["champion", "challenger"]
    why: str
    warnings: Sequence[str] = ()


def decide(
    rule: RegistryConfig, candidate: Candidate, match: Match | None, why_first: str = "it is the first"
) -> Decision:
    """Return whether a version becomes champion.

    match: None if there is no champion with intact files. why_first: why the version then needs no match.
    """
    objections = candidate.objections()
    if match is None:
        although = f", although {'; '.join(objections)}" if objections else ""
        return Decision("champion", f"{candidate.name} is champion: {why_first}{although}", objections)
    if candidate.rolled_back:
        objections = ["it was champion and was rolled back: `attend models promote` makes it champion again"]
    obstacle = "; ".join(objections) or _undecidable(rule, match)
    wins, why = (False, obstacle) if obstacle is not None else _outcome(rule, match)
    alias: Literal["champion", "challenger"] = "champion" if wins else "challenger"
    return Decision(alias, f"{candidate.name} is {alias}: {why}")


def _outcome(rule: RegistryConfig, match: Match) -> tuple[bool, str]:
    """Return whether a candidate's scores let it replace the champion, and why."""
    compared, pictures = _scores(match)[rule.promote_on], len(match.comparison.captions)
    difference = f"{match.champion}: {_describe(compared)}"
    if compared.second > compared.first and compared.better >= rule.certainty:
        return True, f"it beats {difference}"
    if match.grown is None or pictures >= rule.few_pictures:
        return False, f"it does not beat {difference}; {rule.certainty:.1%} is required"
    allowed = rule.max_loss * compared.first
    limit = f"with {counted(pictures, 'picture')}, registry.max_loss allows a loss of {allowed:.2f}"
    if compared.interval[0] > -allowed:
        return True, f"it was trained on {match.grown} and is not worse than {difference}; {limit}"
    return False, f"it was trained on {match.grown}, but may be worse than {difference}; {limit}"


def grown(before: Mapping[str, int] | None, now: Mapping[str, int] | None) -> str | None:
    """Return how much more training data there are than before, in words.

    Return None if pictures or captions are missing, or if none were added. before, now: the digest of each training
    picture -> the number of its captions; None if that is not known.
    """
    if before is None or now is None or not before.keys() <= now.keys():
        return None
    pictures, captions = len(now) - len(before), sum(now.values()) - sum(before.values())
    if captions <= 0 or any(now[digest] < captions_before for digest, captions_before in before.items()):
        return None
    return f"{counted(pictures, 'more picture')}" if pictures else f"{counted(captions, 'more caption')}"


def _undecidable(rule: RegistryConfig, match: Match) -> str | None:
    """Return why the comparison cannot decide; None if it can."""
    scores, pictures = _scores(match), len(match.comparison.captions)
    if pictures < rule.min_pictures:
        left_out = match.comparison.left_out
        unfit = f" ({left_out:,} more are left out: one of the two versions was trained on them)" if left_out else ""
        return (
            f"{counted(pictures, 'picture')} cannot decide{unfit}, {rule.min_pictures} are required "
            "(registry.min_pictures): hold out more (data.test_share), or `attend models promote --force`"
        )
    if rule.promote_on not in scores:
        return (
            f"{rule.promote_on} does not apply to these captions: set registry.promote_on to another score "
            f"({', '.join(scores)})"
        )
    if scores[rule.promote_on].first == scores[rule.promote_on].second == 0:
        differing = [name for name, item in scores.items() if item.first != item.second]
        remedy = f": set registry.promote_on to a score that differs ({', '.join(differing)})" if differing else ""
        return f"{rule.promote_on} is 0 for both and cannot decide{remedy}"
    return None


def _scores(match: Match) -> dict[str, ScoreComparison]:
    return {item.score: item for item in match.comparison.scores}


def _describe(compared: ScoreComparison) -> str:
    """Return a comparison in words."""
    low, high = compared.interval
    return (
        f"{compared.score} {compared.second:.2f} against {compared.first:.2f}, {compared.second - compared.first:+.2f} "
        f"({low:+.2f} to {high:+.2f} at {LEVEL:.0%}), better in {compared.better:.1%} of resamples"
    )
