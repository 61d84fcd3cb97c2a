"""Any timm model with a spatial map or patch tokens, named `timm:NAME`; timm is an optional dependency."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, fx, nn

from ..picture_formats import Interpolation
from .base import Backbone, Declared, folded_norms


class TimmBackbone(Backbone):
    """A timm model, whose `forward_features` may give a map, channels first or last, or patch tokens."""

    def fold(self) -> None:
        """Fold each batch norm into the convolution before it, where there are any, as `Backbone.fold` does.

        timm's batch norms contain their activation functions, which stay.
        """
        network: Any = self.features
        for name, module in list(network.named_modules()):
            if hasattr(module, "act") and isinstance(module, nn.BatchNorm2d):
                network.set_submodule(name, _without_activation(module))
        if any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
            folded: Any = folded_norms(_Features(network))
            folded.num_prefix_tokens = getattr(network, "num_prefix_tokens", 0)
            self.features = folded

    def maps(self, photographs: Tensor) -> Tensor:
        features: Any = self.features
        output: Tensor = (features if isinstance(features, fx.GraphModule) else features.forward_features)(photographs)
        if output.ndim == 3:  # tokens (N, prefix + patches, C)
            patches = output[:, getattr(features, "num_prefix_tokens", 0) :]
            side = math.isqrt(patches.shape[1])
            return patches.transpose(1, 2).reshape(patches.shape[0], -1, side, side)
        if output.shape[1] == output.shape[2] and output.shape[-1] == self.declared.channels:
            return output.permute(0, 3, 1, 2)  # from (N, h, w, C), the layout of timm's Swin models
        return output


class _Features(nn.Module):
    """A timm model up to its last map."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, photographs: Tensor) -> Tensor:
        """Return the map, (N, C, h, w)."""
        maps: Tensor = self.network.forward_features(photographs)
        return maps


def _without_activation(norm: Any) -> nn.Module:
    """Return a batch norm of timm's as an ordinary one, followed by what it does besides."""
    plain = nn.BatchNorm2d(norm.num_features, norm.eps)
    plain.load_state_dict(norm.state_dict())
    return nn.Sequential(plain, norm.drop, norm.act).eval().requires_grad_(False)


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
