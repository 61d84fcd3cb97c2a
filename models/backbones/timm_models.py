"""Any timm model with a spatial map or patch tokens, by name: `timm:NAME`. timm is an optional extra."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from ..photographs import Interpolation
from .base import Backbone, Declared


class TimmBackbone(Backbone):
    """A timm model's `forward_features`, whichever of its layouts it has."""

    def fold(self) -> None:
        """Nothing: timm's batch norms have their activations in them."""

    def maps(self, photographs: Tensor) -> Tensor:
        found: Tensor = self.features.forward_features(photographs)  # type: ignore[operator]
        if found.ndim == 3:  # (N, prefix + patches, C)
            found = found[:, getattr(self.features, "num_prefix_tokens", 0) :]
            side = math.isqrt(found.shape[1])
            return found.transpose(1, 2).reshape(len(found), -1, side, side)
        if found.shape[1] == found.shape[2] and found.shape[-1] == getattr(self.features, "num_features", None):
            return found.permute(0, 3, 1, 2)  # (N, h, w, C), as timm's Swins give it
        return found


def timm_model(name: str) -> Backbone:
    """The model `name` of timm, such as `resnet18.a1_in1k`, with random weights; ValueError where timm has none."""
    try:
        import timm
        import timm.data
    except ImportError:
        raise ValueError(f"timm:{name}: timm is not installed: uv pip install timm") from None
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise ValueError(f"unknown backbone 'timm:{name}': {' '.join(str(error).split())[:120]}") from None
    wanted: dict[str, Any] = timm.data.resolve_data_config(model=network)  # type: ignore[attr-defined,no-untyped-call]
    interpolation: Interpolation = "bicubic" if wanted["interpolation"] == "bicubic" else "bilinear"
    reduction = network.feature_info[-1]["reduction"]  # type: ignore[index]
    declared = Declared(
        int(network.num_features),  # type: ignore[arg-type]
        int(reduction),
        statistics=(tuple(wanted["mean"]), tuple(wanted["std"])),
        interpolation=interpolation,
    )
    head = tuple(f"{part}." for part in ("fc", "classifier", "head.fc", "head", "head_drop"))
    return TimmBackbone(network, declared, head, published=f"timm:{name}")
