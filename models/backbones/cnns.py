"""torchvision's CNNs up to their last convolutional map, with their blocks; stride 32 unless stated otherwise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from torch import nn
from torchvision.models import GoogLeNet, mobilenetv2, regnet, resnet, vgg

from ..photographs import HALVES
from .base import Backbone, BackboneProperties

# Indices of VGG-16's convolutions in blocks conv2 to conv5; conv1 is the stem.
_VGG_BLOCKS = ((5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))


def resnet101() -> Backbone:
    """Build ResNet-101 (He et al. 2016): 2048 channels; 448 px -> 14x14, 256 px -> 8x8.

    A 14x14 grid of a photograph of 256 px is that 8x8 map, pooled.
    """
    return Backbone(
        _without_layers(resnet.resnet101(), "avgpool", "fc"),
        BackboneProperties(2048),
        head=("fc.",),
        published="ResNet101_Weights",
        blocks=(("layer1.",), ("layer2.",), ("layer3.",), ("layer4.",)),
    )


def regnet_x_400mf() -> Backbone:
    """Build RegNetX-400MF (Radosavovic et al. 2020): 400 channels; 112 px -> 4x4."""
    return Backbone(
        _without_layers(regnet.regnet_x_400mf(), "avgpool", "fc"),
        BackboneProperties(400),
        head=("fc.",),
        published="RegNet_X_400MF_Weights",
        blocks=tuple((f"trunk_output.block{block}.",) for block in (1, 2, 3, 4)),
    )


def googlenet() -> Backbone:
    """Build GoogLeNet (Szegedy et al. 2015) up to inception 5b: 1024 channels; 192 px -> 6x6, 224 px -> 7x7.

    Its published weights come from TensorFlow and expect pixels in [-1, 1], not ImageNet's statistics.
    """
    full = GoogLeNet(aux_logits=False, init_weights=False)
    return Backbone(
        _without_layers(full, "aux1", "aux2", "avgpool", "dropout", "fc"),
        BackboneProperties(1024, statistics=HALVES),
        head=("aux1.", "aux2.", "fc."),
        published="GoogLeNet_Weights",
        blocks=(("conv2.", "conv3."), ("inception3",), ("inception4",), ("inception5",)),
    )


def mobilenet_v2() -> Backbone:
    """Build MobileNetV2 (Sandler et al. 2018): 1280 channels; 224 px -> 7x7, 417 px -> 14x14."""
    return Backbone(
        mobilenetv2.mobilenet_v2().features,
        BackboneProperties(1280),
        head=("classifier.",),
        prefix="features.",
        published="MobileNet_V2_Weights",
        blocks=tuple(_layers(range(*bounds)) for bounds in ((2, 4), (4, 7), (7, 14), (14, 19))),
    )


def vgg16() -> Backbone:
    """Build VGG-16 (Simonyan and Zisserman 2015) up to its last max-pooling: 512 channels; 224 px -> 7x7."""
    return _vgg16(vgg.vgg16(init_weights=False).features, stride=32)


def vgg16_conv5() -> Backbone:
    """Build VGG-16 up to conv5_3, as in Xu et al. 2015: stride 16, 512 channels; 224 px -> 14x14."""
    return _vgg16(vgg.vgg16(init_weights=False).features[:-1], stride=16)


def _vgg16(features: nn.Module, stride: int) -> Backbone:
    return Backbone(
        features,
        BackboneProperties(512, stride),
        head=("classifier.",),
        prefix="features.",
        published="VGG16_Weights",
        blocks=tuple(map(_layers, _VGG_BLOCKS)),
    )


def _without_layers(full: nn.Module, *names: str) -> nn.Module:
    """Return a network without the layers of these names.

    The others keep their names, so that a state dict of torchvision's whole network can be loaded.
    """
    return nn.Sequential(OrderedDict((name, layer) for name, layer in full.named_children() if name not in names))


def _layers(numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the prefixes of the names of layers' weights."""
    return tuple(f"{number}." for number in numbers)
