"""Any torchvision classifier with a spatial map, named `torchvision:NAME`.

torchvision's feature extraction cuts the classifier off after that map.
"""

from __future__ import annotations

import math
import warnings

import torchvision.models
from torch import Tensor
from torchvision.models import feature_extraction

from ..photographs import HALVES, IMAGENET
from ..picture_formats import Interpolation
from .base import Backbone, BackboneProperties

# Prefix of a model's name -> the graph node of its last spatial map. `encoder` gives tokens, not a map.
_NODES = {
    "convnext": "features",
    "densenet": "relu",
    "efficientnet": "features",
    "maxvit": "blocks",
    "mnasnet": "layers",
    "mobilenet_v": "features",
    "regnet": "trunk_output",
    "resnet": "layer4",
    "resnext": "layer4",
    "shufflenet": "conv5",
    "swin_": "permute",
    "vgg": "features",
    "vit_": "encoder",
    "wide_resnet": "layer4",
}
# Prefixes of the models whose published weights were trained on pictures resized by bicubic interpolation.
_BICUBIC = ("swin_", "efficientnet_b", "efficientnet_v2_l", "maxvit")


class TruncatedClassifier(Backbone):
    """A classifier that ends at its last spatial map; a vision transformer's patch tokens are laid out as a map."""

    def maps(self, photographs: Tensor) -> Tensor:
        output: Tensor = self.features(photographs)["maps"]
        if output.ndim == 3:  # (N, 1 + patches, C), the class token first
            side = math.isqrt(output.shape[1] - 1)
            return output[:, 1:].transpose(1, 2).reshape(output.shape[0], -1, side, side)
        return output


def torchvision_model(name: str) -> Backbone:
    """Build torchvision's classifier `name` up to its last spatial map, with random weights.

    Raises ValueError if torchvision has no such classifier or its family is not in `_NODES`.
    """
    family = next((family for family in sorted(_NODES, key=len, reverse=True) if name.startswith(family)), None)
    if family is None or name not in torchvision.models.list_models(module=torchvision.models):
        raise ValueError(
            f"unknown backbone 'torchvision:{name}': torchvision's classifiers of these families are known: "
            f"{', '.join(family.rstrip('_') for family in _NODES)}"
        )
    full = torchvision.models.get_model(name, weights=None).eval()
    with warnings.catch_warnings():
        # torchvision warns that training mode has other graph nodes; a backbone is never in training mode.
        warnings.simplefilter("ignore", UserWarning)
        extractor = feature_extraction.create_feature_extractor(full, {_NODES[family]: "maps"})
    head = tuple(sorted(set(full.state_dict()) - set(extractor.state_dict())))
    stride = int(full.patch_size) if family == "vit_" else 32
    interpolation: Interpolation = "bicubic" if name.startswith(_BICUBIC) else "bilinear"
    statistics = HALVES if name == "efficientnet_v2_l" else IMAGENET
    declared = BackboneProperties(None, stride, statistics=statistics, interpolation=interpolation)
    return TruncatedClassifier(extractor, declared, head, published=torchvision.models.get_model_weights(name).__name__)
