"""ResNet (He et al. 2016): the last convolutional map, stride 32."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn
from torchvision.models import resnet

from .base import Backbone, Declared


def resnet101() -> Backbone:
    """ResNet-101: 2048 channels; 448 px -> 14x14, 256 px -> 8x8 (the 14x14 of 256 px is that, pooled)."""
    full = resnet.resnet101()
    # By name, so that a state dict of torchvision's whole network fits.
    layers = OrderedDict((name, layer) for name, layer in full.named_children() if name not in ("avgpool", "fc"))
    return Backbone(
        nn.Sequential(layers),
        Declared(2048),
        head=("fc.",),
        published="ResNet101_Weights",
        blocks=(("layer1.",), ("layer2.",), ("layer3.",), ("layer4.",)),
    )
