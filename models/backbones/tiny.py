"""Two random convolutions, enough for generated scenes and for tests: a millisecond per picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Backbone, BackboneProperties

_CHANNELS = 512
_CALIBRATION_PICTURES = 128
# Batch norm statistics by the state of the random generator: cached because they take half a second to compute and
# only 4 KB each.
_statistics_cache: dict[bytes, dict[str, Tensor]] = {}


def tiny() -> Backbone:
    """Build a network of 512 random features of 33 px patches, averaged over windows of 32 px; 96 px -> 3x3.

    The scales of random features differ a hundredfold. A final batch norm evens them out, with statistics measured on
    random rectangles; like all weights of this network, the statistics depend on the seed alone.
    """
    random_state = torch.get_rng_state().numpy().tobytes()
    first = nn.Conv2d(3, 64, 9, stride=2, padding=4)
    second = nn.Conv2d(64, _CHANNELS, 5, stride=4, padding=2)
    for convolution in (first, second):
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        assert convolution.bias is not None
        nn.init.uniform_(convolution.bias, -0.5, 0.5)
    norm = nn.BatchNorm2d(_CHANNELS, affine=False, momentum=None)
    features = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AvgPool2d(4), norm)
    if random_state not in _statistics_cache:
        with torch.no_grad():
            features.train()(_rectangles(_CALIBRATION_PICTURES))
        _statistics_cache[random_state] = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.load_state_dict(_statistics_cache[random_state])
    return Backbone(features, BackboneProperties(_CHANNELS), blocks=(("0.",), ("2.",)))


def _rectangles(count: int, side: int = 96) -> Tensor:
    """Return random pictures (count, 3, side, side), each with a grey background and four bright rectangles."""
    pictures = (torch.rand(count, 1, 1, 1) * 0.5 - 1.8).expand(-1, 3, side, side).clone()
    for picture in pictures:
        for _ in range(4):
            top, left = torch.randint(0, side - 16, (2,)).tolist()
            height, width = torch.randint(6, 32, (2,)).tolist()
            picture[:, top : top + height, left : left + width] = torch.rand(3, 1, 1) * 4.0 - 1.8
    return pictures
