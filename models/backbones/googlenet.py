"""GoogLeNet (Szegedy et al. 2015): the map of inception 5b, stride 32."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn
from torchvision.models import GoogLeNet

from ..photographs import HALVES
from .base import Backbone, Declared

_HEAD = ("aux1", "aux2", "avgpool", "dropout", "fc")


def googlenet() -> Backbone:
    """Build GoogLeNet: 1024 channels; 192 px -> 6x6, 224 px -> 7x7.

    Its published weights come from TensorFlow and expect pixels in [-1, 1], not ImageNet's statistics.
    """
    full = GoogLeNet(aux_logits=False, init_weights=False)
    layers = OrderedDict((name, layer) for name, layer in full.named_children() if name not in _HEAD)
    return Backbone(
        nn.Sequential(layers),
        Declared(1024, statistics=HALVES),
        head=("aux1.", "aux2.", "fc."),
        published="GoogLeNet_Weights",
        blocks=(("conv2.", "conv3."), ("inception3",), ("inception4",), ("inception5",)),
    )
