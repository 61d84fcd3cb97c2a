"""Any timm model with a spatial map or patch tokens, named `timm:NAME`; timm is an optional dependency."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from ..picture_formats import Interpolation
from .base import Backbone, Declared


class TimmBackbone(Backbone):
    """A timm model, whose `forward_features` may give a map, channels first or last, or patch tokens."""

    def fold(self) -> None:
        """Do nothing: timm's batch norms contain their activation functions and cannot be folded."""

    def maps(self, photographs: Tensor) -> Tensor:
        output: Tensor = self.features.forward_features(photographs)  # type: ignore[operator]
        if output.ndim == 3:  # tokens (N, prefix + patches, C)
            patches = output[:, getattr(self.features, "num_prefix_tokens", 0) :]
            side = math.isqrt(patches.shape[1])
            return patches.transpose(1, 2).reshape(patches.shape[0], -1, side, side)
        if output.shape[1] == output.shape[2] and output.shape[-1] == getattr(self.features, "num_features", None):
            return output.permute(0, 3, 1, 2)  # from (N, h, w, C), the layout of timm's Swin models
        return output


def timm_model(name: str) -> Backbone:
    """Build the timm model `name`, such as `resnet18.a1_in1k`, with random weights.

    Raises ValueError if timm is not installed or has no such model.
    """
    try:
        import timm
        import timm.data
    except ImportError:
        raise ValueError(f"timm:{name}: timm is not installed: run `uv pip install timm`") from None
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise ValueError(f"unknown backbone 'timm:{name}': {' '.join(str(error).split())[:120]}") from None
    config: dict[str, Any] = timm.data.resolve_data_config(model=network)  # type: ignore[attr-defined,no-untyped-call]
    interpolation: Interpolation = "bicubic" if config["interpolation"] == "bicubic" else "bilinear"
    reduction = network.feature_info[-1]["reduction"]  # type: ignore[index]
    declared = Declared(
        int(network.num_features),  # type: ignore[arg-type]
        int(reduction),
        statistics=(tuple(config["mean"]), tuple(config["std"])),
        interpolation=interpolation,
    )
    head = tuple(f"{part}." for part in ("fc", "classifier", "head.fc", "head", "head_drop"))
    return TimmBackbone(network, declared, head, published=f"timm:{name}", blocks=_blocks(network))


def _blocks(network: Any) -> tuple[tuple[str, ...], ...]:
    """Return the names of the weights of each block, in order, by timm's own grouping, whose first group is the stem.

    A network of which timm tells no groups has no blocks.
    """
    from timm.models import group_parameters

    if not hasattr(network, "group_matcher"):
        return ()
    groups: dict[int, list[str]] = group_parameters(network, network.group_matcher(coarse=True))
    return tuple(tuple(groups[number]) for number in sorted(groups)[1:])
