"""`rouge_l` (Lin 2004) in percent, as the COCO caption toolkit computes it.

It is the F-measure with beta = 1.2 of the best precision and the best recall against any reference, both from the
longest common subsequence.
"""

from collections.abc import Sequence

import numpy as np

from tasks.metrics import Counts, ScoredCaption

_BETA = 1.2


def statistics(corpus: Sequence[ScoredCaption]) -> Counts:
    """Return each picture's ROUGE-L in 0..1 and the number 1, shape (pictures, 2)."""
    return np.array([[_rouge_l(item), 1.0] for item in corpus])


def scores(sums: Counts) -> dict[str, Counts]:
    """Return `rouge_l`: the mean over the pictures, in percent."""
    return {"rouge_l": 100.0 * sums[..., 0] / sums[..., 1]}


def _rouge_l(item: ScoredCaption) -> float:
    lengths = [(longest_common(item.caption, reference), len(reference)) for reference in item.references if reference]
    precision = max((common for common, _ in lengths), default=0) / max(len(item.caption), 1)
    recall = max((common / total for common, total in lengths), default=0.0)
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two texts, in words."""
    row = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for column, other in enumerate(second, 1):
            above = row[column]
            row[column] = diagonal + 1 if word == other else max(above, row[column - 1])
            diagonal = above
    return row[-1]
