"""`rouge_l` (Lin 2004) in percent, as the COCO caption toolkit computes it.

F with beta = 1.2 of the best precision and the best recall that any reference gives, by the longest common subsequence.
"""

from collections.abc import Sequence

import numpy as np

from tasks.metrics import Counts, Scored

_BETA = 1.2


def statistics(corpus: Sequence[Scored]) -> Counts:
    """(pictures, 2): the picture's score, and 1."""
    return np.array([[_of_one(item), 1.0] for item in corpus])


def scores(sums: Counts) -> dict[str, Counts]:
    """The pictures' mean."""
    return {"rouge_l": 100.0 * sums[..., 0] / sums[..., 1]}


def _of_one(item: Scored) -> float:
    common = [(longest_common(item.caption, reference), len(reference)) for reference in item.references if reference]
    precision = max((length for length, _ in common), default=0) / max(len(item.caption), 1)
    recall = max((length / words for length, words in common), default=0.0)
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        corner = 0
        for place, other in enumerate(second, 1):
            corner, row[place] = row[place], corner + 1 if word == other else max(row[place], row[place - 1])
    return row[-1]
