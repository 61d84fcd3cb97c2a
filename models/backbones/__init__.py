"""Photographs -> grids of annotation vectors.

To add a backbone, write a file with a builder function and add a line to `BACKBONES`. This registry imports no
backbone, so that configs are checked without loading torch.
"""

from typing import NamedTuple


class Member(NamedTuple):
    """A registry entry: the function that builds a backbone.

    module: a module of this package, or a full dotted name. builder: the function's name. blocks: how many blocks of
    the backbone can be tuned.
    """

    module: str
    builder: str
    blocks: int = 4


BACKBONES: dict[str, Member] = {
    "resnet101": Member("cnns", "resnet101"),
    "vgg16": Member("cnns", "vgg16"),
    "vgg16_conv5": Member("cnns", "vgg16_conv5"),
    "googlenet": Member("cnns", "googlenet"),
    "regnet_x_400mf": Member("cnns", "regnet_x_400mf"),
    "mobilenet_v2": Member("cnns", "mobilenet_v2"),
    "tiny": Member("tiny", "tiny", blocks=2),
}

# Libraries of classifiers: a backbone is named `library:NAME`, and the builder takes NAME.
LIBRARIES: dict[str, Member] = {
    "torchvision": Member("torchvision_models", "torchvision_model"),
    "timm": Member("timm_models", "timm_model"),
}
