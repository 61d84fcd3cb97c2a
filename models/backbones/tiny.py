"""A few random convolutions: enough for generated scenes and for tests, in a millisecond a picture."""

from __future__ import annotations

from torch import nn

from .base import Backbone


def tiny() -> Backbone:
    """Three convolutions of stride 2 and a pooling: 256 channels, stride 16; 96 px -> 6x6."""
    widths = (3, 48, 96, 256)
    layers: list[nn.Module] = []
    for index, (taken, given) in enumerate(zip(widths, widths[1:], strict=False)):
        convolution = nn.Conv2d(taken, given, 7 if index == 0 else 5, stride=2, padding=3 if index == 0 else 2)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.uniform_(convolution.bias, -0.5, 0.5)
        layers += [convolution, nn.ReLU()]
    return Backbone(nn.Sequential(*layers, nn.MaxPool2d(2)), widths[-1])
