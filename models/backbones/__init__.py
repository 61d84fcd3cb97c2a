"""Backbones: photographs (N, 3, H, W) -> annotation vectors on a grid (N, h, w, C).

Adding one: a file with a builder, and a line here. The registry imports nothing, so that configs are
checked without loading torch.
"""

from typing import NamedTuple


class Member(NamedTuple):
    """Where a backbone is built: a module of this package, or one with its package's name before it.

    blocks: how many it has that can be tuned.
    """

    module: str
    builder: str
    blocks: int = 4


BACKBONES: dict[str, Member] = {
    "resnet101": Member("resnet", "resnet101"),
    "vgg16": Member("vgg", "vgg16"),
    "vgg16_conv5": Member("vgg", "vgg16_conv5"),
    "googlenet": Member("googlenet", "googlenet"),
    "regnet_x_400mf": Member("regnet", "regnet_x_400mf"),
    "mobilenet_v2": Member("mobilenet", "mobilenet_v2"),
    "tiny": Member("tiny", "tiny", blocks=2),
}

# Whole libraries of classifiers, as `library:NAME`; the builder is given the name.
LIBRARIES: dict[str, Member] = {
    "torchvision": Member("torchvision_models", "torchvision_model"),
    "timm": Member("timm_models", "timm_model"),
}
