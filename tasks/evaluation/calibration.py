"""The confidence of captions (models/confidence.py), fitted to captions of held-out pictures and evaluated on others.

A caption is acceptable if its CIDEr-D against the picture's references is at least `evaluation.acceptable`, or, in a
data set that records facts, if everything it states is true. If the scored split is dev, each half of dev is evaluated
with a confidence fitted to the other half, and the model's confidence is fitted to both. Otherwise the confidence is
fitted to dev and evaluated on the scored pictures.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from models.confidence import FEATURES, TAIL, Confidence
from tasks.evaluation.score_record import ConfidenceScores
from tasks.metrics import ScoredCaption, has_facts, qualities
from tasks.metrics.bootstrap import LEVEL, ROUNDS

_FEWEST = 15  # acceptable captions, and others, that are needed to fit it
_PENALISED = 0.01  # inverse strength of the penalty
_NORMAL_EXCESS = 0.42  # mean excess of a normal variable over its 95 % quantile, in standard deviations
_BINS = 10  # of the reliability diagram
_POINTS = 20  # of the risk-coverage curve

Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]


def is_acceptable(captions: Sequence[ScoredCaption], acceptable: float) -> Flags:
    """Return which captions are acceptable; acceptable: the least CIDEr-D, in percent, if no facts are recorded."""
    values = qualities(captions)
    return values > 0 if has_facts(captions) else 100.0 * values >= acceptable


def describe_acceptable(captions: Sequence[ScoredCaption], acceptable: float) -> str:
    """Return the definition of an acceptable caption, in words."""
    return "all that it states is true" if has_facts(captions) else f"its CIDEr-D is {acceptable:g} or more"


def halves(digests: Sequence[str]) -> Flags:
    """Return which pictures are in the first of two random halves; the draw depends on the digests alone."""
    ranked = sorted(digests)
    random.Random(0).shuffle(ranked)
    first = set(ranked[: len(ranked) // 2])
    return np.array([digest in first for digest in digests], np.bool_)


def why_not(acceptable: Flags) -> str | None:
    """Return why no confidence can be fitted to captions; None if one can be."""
    good, bad = int(acceptable.sum()), int((~acceptable).sum())
    if min(good, bad) >= _FEWEST:
        return None
    few, kind = (good, "acceptable") if good < bad else (bad, "not acceptable")
    return (
        f"{few:,} of {good + bad:,} captions that it would be fitted to are {kind}, {_FEWEST} are needed: more "
        "pictures in dev, or another evaluation.acceptable"
    )


def fit(features: Values, acceptable: Flags) -> Confidence:
    """Return the confidence fitted to captions. features (N, F): in the order of `FEATURES`.

    It uses the first feature, or the first two, and so on, whichever predicts best in cross-validation. With few
    captions, or if the log-probability is sufficient, more features would only add noise.
    """
    from sklearn.model_selection import RepeatedStratifiedKFold

    features = features.round(3)  # further digits depend on the machine
    means, scales = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    scaled = (features - means) / scales
    folds = list(RepeatedStratifiedKFold(n_splits=5, n_repeats=4, random_state=0).split(scaled, acceptable))
    losses = []
    for number in range(1, len(FEATURES) + 1):
        parts = [(_weights(scaled[fitted, :number], acceptable[fitted]), rest) for fitted, rest in folds]
        losses.append(np.mean([_loss(weights, scaled[rest, :number], acceptable[rest]) for weights, rest in parts]))
    *chosen, bias = _weights(scaled[:, : int(np.argmin(losses)) + 1], acceptable)
    weights = np.zeros(len(FEATURES))
    weights[: len(chosen)] = chosen
    distances = features[:, FEATURES.index("distance")]
    threshold = np.quantile(distances, 1 - TAIL)
    # No steeper than the tail of a normal distribution, because a few distances may look steeper by chance.
    excess = max(float(np.mean(distances[distances >= threshold] - threshold)), _NORMAL_EXCESS * distances.std(), 1e-6)
    fitted = (means, scales, weights, [bias], [threshold, excess])
    return Confidence(*(np.array(values, np.float32) for values in fitted))


def _weights(scaled: Values, acceptable: Flags) -> Values:
    """Return the weights of scaled features (N, F), followed by the bias, (F + 1,).

    The features are correlated, and there are only a few hundred captions. So their relative weights are fitted with a
    strong penalty, which makes them more alike, and then the slope and bias of their weighted sum with a mild one.
    """
    from sklearn.linear_model import LogisticRegression

    directions = LogisticRegression(C=_PENALISED, max_iter=1000).fit(scaled, acceptable).coef_[0]
    directions /= max(float((scaled @ directions).std()), 1e-6)
    line = LogisticRegression(max_iter=1000).fit(scaled @ directions[:, None], acceptable)
    return np.append(directions * line.coef_[0, 0], line.intercept_)


def _loss(weights: Values, scaled: Values, acceptable: Flags) -> float:
    """Return the mean negative log-likelihood of captions, in nats. weights: as `_weights` returns."""
    logits = scaled @ weights[:-1] + weights[-1]
    return float(np.logaddexp(0, np.where(acceptable, -logits, logits)).mean())


def evaluate_confidence(
    confidence: Values, log_probability: Values, acceptable: Flags, definition: str
) -> ConfidenceScores:
    """Return how well the confidence separates acceptable captions from others. definition: of acceptable, in words."""
    by_confidence, by_log_probability = _order(confidence), _order(log_probability)
    generator = np.random.default_rng(0)
    pictures = len(acceptable)
    taken_off = []
    for _ in range(ROUNDS):
        weights = np.bincount(generator.integers(pictures, size=pictures), minlength=pictures)
        areas = [_area(acceptable[order], weights[order]) for order in (by_confidence, by_log_probability)]
        taken_off.append(areas[1] - areas[0])
    share = float(acceptable.mean())
    bins = _bins(confidence, acceptable)
    error = sum(abs(mean - part) * number for mean, part, number in bins) / pictures
    ones = np.ones(pictures, np.int64)
    return {
        "acceptable": definition,
        "pictures": pictures,
        "share": _rounded(share),
        "calibration_error": _rounded(error),
        "ranking": {
            "confidence": _rounded(_area(acceptable[by_confidence], ones)),
            "log_probability": _rounded(_area(acceptable[by_log_probability], ones)),
            "random": _rounded(1 - share),
        },
        "gain": [_rounded(value) for value in np.quantile(taken_off, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])],
        "auroc": _rounded(_auroc(confidence, acceptable)),
        "bins": [[_rounded(mean), _rounded(part), number] for mean, part, number in bins],
        "curve": _curve(acceptable[by_confidence], acceptable[by_log_probability]),
    }


def _order(values: Values) -> npt.NDArray[np.int64]:
    """Return the indices that sort values from the greatest to the least."""
    return np.argsort(-values, kind="stable")


def _area(ranked: Flags, weights: npt.NDArray[np.int64]) -> float:
    """Return the area under the risk-coverage curve. ranked: acceptable or not, best first. weights: count of each."""
    taken = np.cumsum(weights)
    wrong = np.cumsum(weights * ~ranked)
    counts = weights > 0
    return float(np.average(wrong[counts] / taken[counts], weights=weights[counts]))


def _bins(confidence: Values, acceptable: Flags) -> list[tuple[float, float, int]]:
    """Return each bin's mean confidence, share of acceptable captions and number of captions, least confident first."""
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, _BINS) if len(part)]
    return [(float(confidence[part].mean()), float(acceptable[part].mean()), len(part)) for part in parts]


def _auroc(confidence: Values, acceptable: Flags) -> float:
    """Return the probability that an acceptable caption has a higher confidence than another; ties count half."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(acceptable, confidence)) if 0 < acceptable.sum() < len(acceptable) else 0.5


def _curve(by_confidence: Flags, by_log_probability: Flags) -> list[list[float]]:
    """Return points of the risk-coverage curves: coverage, and the share that is not acceptable in each order."""
    points = []
    for number in range(1, _POINTS + 1):
        taken = max(1, round(len(by_confidence) * number / _POINTS))
        risks = [float((~ranked[:taken]).mean()) for ranked in (by_confidence, by_log_probability)]
        points.append([_rounded(value) for value in (taken / len(by_confidence), *risks)])
    return points


def _rounded(value: float) -> float:
    """Return a value rounded to the digits that are the same on every machine."""
    return round(float(value), 6)
