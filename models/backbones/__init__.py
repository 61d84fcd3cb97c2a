"""Backbones: photographs (N, 3, H, W) -> annotation vectors on a grid (N, h, w, C).

Adding one: a file with a builder, and a line here. The registry imports nothing, so that configs are
checked without loading torch.
"""

# name -> (module of this package, builder in it)
BACKBONES: dict[str, tuple[str, str]] = {
    "resnet101": ("resnet", "resnet101"),
    "regnet_x_400mf": ("regnet", "regnet_x_400mf"),
    "mobilenet_v2": ("mobilenet", "mobilenet_v2"),
    "tiny": ("tiny", "tiny"),
}
