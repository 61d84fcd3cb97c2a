"""Two random convolutions: enough for generated scenes and for tests, in a millisecond a picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Backbone, Declared

_CHANNELS = 512
_CALIBRATION = 128
_statistics: dict[bytes, dict[str, Tensor]] = {}  # by the generator's state: half a second each to make, 4 KB to keep


def tiny() -> Backbone:
    """512 random features of 33 px patches, averaged over windows of 32 px; 96 px -> 3x3.

    Random features differ a hundredfold in scale. A last batch norm evens them out, with the statistics of
    random rectangles; like every weight here, they are a function of the seed.
    """
    drawn_from = torch.get_rng_state().numpy().tobytes()
    first = nn.Conv2d(3, 64, 9, stride=2, padding=4)
    second = nn.Conv2d(64, _CHANNELS, 5, stride=4, padding=2)
    for convolution in (first, second):
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        assert convolution.bias is not None
        nn.init.uniform_(convolution.bias, -0.5, 0.5)
    norm = nn.BatchNorm2d(_CHANNELS, affine=False, momentum=None)
    features = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AvgPool2d(4), norm)
    if drawn_from not in _statistics:
        with torch.no_grad():
            features.train()(_rectangles(_CALIBRATION))
        _statistics[drawn_from] = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.load_state_dict(_statistics[drawn_from])
    return Backbone(features, Declared(_CHANNELS), blocks=(("0.",), ("2.",)))


def _rectangles(count: int, side: int = 96) -> Tensor:
    """Pictures (count, 3, side, side) with a grey ground and four bright rectangles."""
    pictures = (torch.rand(count, 1, 1, 1) * 0.5 - 1.8).expand(-1, 3, side, side).clone()
    for picture in pictures:
        for _ in range(4):
            top, left = torch.randint(0, side - 16, (2,)).tolist()
            high, wide = torch.randint(6, 32, (2,)).tolist()
            picture[:, top : top + high, left : left + wide] = torch.rand(3, 1, 1) * 4.0 - 1.8
    return pictures
