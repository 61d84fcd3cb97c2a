"""ResNet (He et al. 2016): the last convolutional map, stride 32."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn
from torchvision.models import resnet

from .base import Backbone, Declared


def resnet101() -> Backbone:
    """Build ResNet-101: 2048 channels; 448 px -> 14x14, 256 px -> 8x8.

    A 14x14 grid of a photograph of 256 px is that 8x8 map, pooled.
    """
    full = resnet.resnet101()
    # Layers keep their names, so that a state dict of torchvision's whole network can be loaded.
    layers = OrderedDict((name, layer) for name, layer in full.named_children() if name not in ("avgpool", "fc"))
    return Backbone(
        nn.Sequential(layers),
        Declared(2048),
        head=("fc.",),
        published="ResNet101_Weights",
        blocks=(("layer1.",), ("layer2.",), ("layer3.",), ("layer4.",)),
    )
