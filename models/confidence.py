"""The confidence of a caption: the probability that it is acceptable, by a logistic regression that was fitted to
captions of held-out pictures.

What is known of a caption are four numbers: its log-probability, and the mean of it over its words; how much likelier
its words are for this picture than for the mean of the training pictures, which is what the decoder says without
looking; and how far the picture is from the training pictures, by nearest neighbours of pooled grids (Sun et al. 2022,
"Out-of-distribution detection with deep nearest neighbors"). The regression knows only pictures like those it was
fitted to: of pictures that are farther away than hardly any of those, the confidence falls as they get rarer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from .likelihood import log_probabilities, padded
from .vocabulary import NULL

FEATURES = ("log_probability", "mean_log_probability", "gain", "distance")
TAIL = 0.05  # share of the held-out pictures whose distances the tail is fitted to
_RARE = 0.02  # share of the held-out pictures that are as far away, below which the confidence falls
_NEIGHBOURS = 5
CONSTANTS = {"features": FEATURES, "tail": TAIL, "rare": _RARE, "neighbours": _NEIGHBOURS}  # for other runtimes


@dataclass(frozen=True)
class TrainingPictures:
    """Hold what is kept of the grids of training pictures.

    mean (h, w, C) float32: their mean. pooled (M, C) float32: the mean over the positions of some, scaled to length 1.
    """

    mean: Tensor
    pooled: Tensor

    def on(self, device: torch.device) -> Self:
        """Return it with its tensors on a device."""
        return replace(self, mean=self.mean.to(device), pooled=self.pooled.to(device))

    def distances(self, grid: Tensor) -> Tensor:
        """Return the mean distance of the pooled grids of (N, h, w, C) float to the nearest of `pooled`, (N,) float32.

        From 0 to 2, as all have length 1.
        """
        return self.distances_of(pool(grid))

    def distances_of(self, pooled: Tensor) -> Tensor:
        """Return the `distances` of pooled grids (N, C) float32 of length 1."""
        cosines = pooled @ self.pooled.T
        nearest = cosines.topk(min(_NEIGHBOURS, len(self.pooled)), dim=1).values
        return (2 - 2 * nearest.clamp(-1, 1)).sqrt().mean(dim=1)


@dataclass(frozen=True)
class Confidence:
    """A fitted confidence.

    training: the training pictures. means, scales, weights (F,), bias (1,) float32: the logistic regression of the
    scaled features. tail (2,) float32: the distance that the share `TAIL` of the held-out pictures exceed, and their
    mean excess.
    """

    training: TrainingPictures
    means: Tensor
    scales: Tensor
    weights: Tensor
    bias: Tensor
    tail: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return the probability that each caption is acceptable, (N,) float32. features (N, F): of `features_of`."""
        probability = torch.sigmoid(((features - self.means) / self.scales) @ self.weights + self.bias)
        threshold, excess = self.tail
        distances = features[:, FEATURES.index("distance")]
        # Above the threshold, distances fall off exponentially: peaks over threshold (Pickands 1975), of shape 0.
        as_far = TAIL * torch.exp(-(distances - threshold) / excess)
        return probability * (as_far / _RARE).clamp_max(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return all its tensors by name, to be saved."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "training"}
        return {**own, **{f"training.{name}": value for name, value in vars(self.training).items()}}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the confidence whose `tensors` these are."""
        own = {name: value for name, value in tensors.items() if "." not in name}
        return cls(TrainingPictures(tensors["training.mean"], tensors["training.pooled"]), **own)

    def on(self, device: torch.device) -> Self:
        """Return it with its tensors on a device."""
        return self.of_tensors({name: value.to(device) for name, value in self.tensors().items()})


def pool(grid: Tensor) -> Tensor:
    """Return the means of grids (N, h, w, C) over their positions, scaled to length 1: (N, C) float32."""
    return functional.normalize(grid.float().mean(dim=(1, 2)), dim=1)


@torch.inference_mode()
def features_of(
    decoder: Any, training: TrainingPictures, grid: Tensor, captions: Sequence[Sequence[int]], of_words: Tensor
) -> Tensor:
    """Return the `FEATURES` of a caption of each picture, (N, F) float32.

    decoder: in evaluation mode. grid (N, h, w, C) float. captions: the token ids of each, as `likelihood.with_end`
    returns them. of_words (N, T) float32: the log-probabilities of their words.
    """
    words = padded(captions).to(grid.device)
    lengths = (words[:, 1:] != NULL).sum(dim=1)
    totals = of_words.sum(dim=1)
    means = totals / lengths
    blind = log_probabilities(decoder, training.mean.unsqueeze(0), words.unsqueeze(0))[0]
    gain = means - blind.sum(dim=1) / lengths
    return torch.stack([totals, means, gain, training.distances(grid)], dim=1)
