"""Share of captions of which every stated fact is true, for data sets that keep their facts (`scenes`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.datasets.scenes import COLOURS, SHAPES, SIZES, relations
from tasks.metrics import Counts, Scored

_RELATIONS = {("left", "of"): "left of", ("right", "of"): "right of", ("above",): "above", ("below",): "below"}
_FILLER = {"a", "the", "there", "is", "in", "picture", "of", "and", "are", "shown", "only", "one", "with"}
Mention = dict[str, str]


def statistics(corpus: Sequence[Scored]) -> Counts:
    """(pictures, 2): whether the caption is true, and 1."""
    true = [item.facts is not None and is_true(item.caption, item.facts["things"]) for item in corpus]
    return np.array([[held, 1] for held in true], dtype=np.float64)


def scores(sums: Counts) -> dict[str, Counts]:
    """`truth`: percent of captions that state something and state nothing false."""
    return {"truth": 100.0 * sums[..., 0] / sums[..., 1]}


def is_true(words: list[str], things: list[dict[str, Any]]) -> bool:
    """Whether the caption names at least one shape and everything it states of the scene holds.

    Each shape named must stand for another thing of the scene. A caption with a word that states
    something unknown, or with an adjective that belongs to no shape, counts as false.
    """
    parsed = _parse(words)
    if parsed is None:
        return False
    mentions, links, alone = parsed
    if not mentions or (alone and len(things) != 1):
        return False
    return any(
        all(_fits(mention, thing) for mention, thing in zip(mentions, chosen, strict=True))
        and all(name in relations(chosen[first], chosen[second]) for first, name, second in links)
        for chosen in itertools.permutations(things, len(mentions))
    )


def _fits(mention: Mention, thing: dict[str, Any]) -> bool:
    return all(thing[name] == value for name, value in mention.items())


def _parse(words: list[str]) -> tuple[list[Mention], list[tuple[int, str, int]], bool] | None:
    """(shapes named, (first, relation, second) links, whether `only` was said)."""
    mentions: list[Mention] = []
    links: list[tuple[int, str, int]] = []
    adjectives: Mention = {}
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
            name = "colour" if word in COLOURS else "size"
            predicate = position > 0 and words[position - 1] == "is"
            holder = mentions[-1] if predicate and mentions else adjectives
            if name in holder:
                return None
            holder[name] = word
        elif word not in _FILLER:
            return None
        position += 1
    return None if adjectives or pending is not None else (mentions, links, "only" in words)
