"""`truth`: the share of captions whose every statement is true, for data sets that record facts (`scenes`)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tasks.datasets.scenes import COLOURS, SHAPES, SIZES, SceneObject, relations
from tasks.metrics import Counts, ScoredCaption

_RELATIONS = {("left", "of"): "left of", ("right", "of"): "right of", ("above",): "above", ("below",): "below"}
_FILLER = {"a", "the", "there", "is", "in", "picture", "of", "and", "are", "shown", "only", "one", "with"}
_Mention = dict[str, str]  # an object that a caption names: attribute (size, colour, shape) -> value


def statistics(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return whether each picture's caption is true (1 or 0) and the number 1, shape (pictures, 2)."""
    verdicts = [item.facts is not None and is_true(item.caption, item.facts["things"]) for item in corpus]
    return np.array([[verdict, 1] for verdict in verdicts], dtype=np.float64)


def scores(sums: Counts) -> dict[str, Counts]:
    """Return `truth`: the percentage of captions that state something and state nothing false."""
    return {"truth": 100.0 * sums[..., 0] / sums[..., 1]}


def is_true(words: list[str], objects: list[SceneObject]) -> bool:
    """Return whether a caption names at least one shape and everything it states about the scene is true.

    Each shape that the caption names must stand for a different object of the scene. A caption with an unknown word, or
    with an adjective that belongs to no shape, counts as false.
    """
    parsed = _parse(words)
    if parsed is None:
        return False
    mentions, links, says_only = parsed
    if not mentions or (says_only and len(objects) != 1):
        return False
    return any(
        all(_matches(mention, candidate) for mention, candidate in zip(mentions, candidates, strict=True))
        and all(relation in relations(candidates[first], candidates[second]) for first, relation, second in links)
        for candidates in itertools.permutations(objects, len(mentions))
    )


def _matches(mention: _Mention, candidate: Mapping[str, object]) -> bool:
    return all(candidate[attribute] == value for attribute, value in mention.items())


def _parse(words: list[str]) -> tuple[list[_Mention], list[tuple[int, str, int]], bool] | None:
    """Parse a caption into the mentioned objects, their relations, and whether it says `only`; None if that fails.

    A relation is (first mention, relation, second mention), with mentions by index.
    """
    mentions: list[_Mention] = []
    links: list[tuple[int, str, int]] = []
    adjectives: _Mention = {}
    pending, position = None, 0
    words = [word for word in words if word.isalpha()]
    while position < len(words):
        word = words[position]
        relation = next(
            (name for span, name in _RELATIONS.items() if tuple(words[position : position + len(span)]) == span), None
        )
        if relation is not None:
            if adjectives or not mentions or pending is not None:
                return None
            pending = relation
            position += len(relation.split())
            continue
        if word in SHAPES:
            mentions.append({**adjectives, "shape": word})
            adjectives = {}
            if pending is not None:
                links.append((len(mentions) - 2, pending, len(mentions) - 1))
                pending = None
        elif word in COLOURS or word in SIZES:
            attribute = "colour" if word in COLOURS else "size"
            is_predicate = position > 0 and words[position - 1] == "is"
            described = mentions[-1] if is_predicate and mentions else adjectives
            if attribute in described:
                return None
            described[attribute] = word
        elif word not in _FILLER:
            return None
        position += 1
    return None if adjectives or pending is not None else (mentions, links, "only" in words)
