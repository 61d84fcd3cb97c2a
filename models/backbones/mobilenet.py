"""MobileNetV2 (Sandler et al. 2018): the last convolutional map, stride 32."""

from __future__ import annotations

from torchvision.models import mobilenetv2

from .base import Backbone, Declared


def mobilenet_v2() -> Backbone:
    """Build MobileNetV2: 1280 channels; 224 px -> 7x7, 417 px -> 14x14."""
    return Backbone(
        mobilenetv2.mobilenet_v2().features,
        Declared(1280),
        head=("classifier.",),
        prefix="features.",
        published="MobileNet_V2_Weights",
        blocks=tuple(tuple(f"{layer}." for layer in range(*bounds)) for bounds in ((2, 4), (4, 7), (7, 14), (14, 19))),
    )
