"""VGG (Simonyan and Zisserman 2015): the last convolutional map before or after its pooling."""

from __future__ import annotations

from torchvision.models import vgg

from .base import Backbone, Declared

# Indices of the convolutions in blocks conv2 to conv5; conv1 is the stem.
_BLOCKS = tuple(tuple(f"{layer}." for layer in layers) for layers in ((5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28)))


def vgg16() -> Backbone:
    """Build VGG-16 up to its last max-pooling: 512 channels; 224 px -> 7x7."""
    return Backbone(
        vgg.vgg16(init_weights=False).features,
        Declared(512, stride=32),
        head=("classifier.",),
        prefix="features.",
        published="VGG16_Weights",
        blocks=_BLOCKS,
    )


def vgg16_conv5() -> Backbone:
    """Build VGG-16 up to conv5_3, as in Xu et al. 2015: 512 channels; 224 px -> 14x14."""
    return Backbone(
        vgg.vgg16(init_weights=False).features[:-1],
        Declared(512, stride=16),
        head=("classifier.",),
        prefix="features.",
        published="VGG16_Weights",
        blocks=_BLOCKS,
    )
