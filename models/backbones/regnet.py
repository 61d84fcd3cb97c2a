"""RegNet (Radosavovic et al. 2020): the last convolutional map, stride 32."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn
from torchvision.models import regnet

from .base import Backbone, Declared


def regnet_x_400mf() -> Backbone:
    """Build RegNetX-400MF: 400 channels; 112 px -> 4x4."""
    full = regnet.regnet_x_400mf()
    layers = OrderedDict((name, layer) for name, layer in full.named_children() if name not in ("avgpool", "fc"))
    return Backbone(
        nn.Sequential(layers),
        Declared(400),
        head=("fc.",),
        published="RegNet_X_400MF_Weights",
        blocks=tuple((f"trunk_output.block{block}.",) for block in (1, 2, 3, 4)),
    )
