"""Any timm model with a spatial map or patch tokens, named `timm:NAME`; timm is an optional dependency."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..picture_formats import Interpolation
from .base import Backbone, BackboneProperties, fold_norms


class TimmBackbone(Backbone):
    """A timm model, whose map may be channels first or last, or patch tokens.

    layer_index: of the layer whose output is the map, in timm's `forward_intermediates`; None for the output of
    `forward_features`, the last layer's after the final norm.
    """

    layer_index: int | None = None

    def fold(self) -> None:
        """Fold each batch norm, if there are any, into the convolution before it, as `Backbone.fold` does.

        timm's batch norms contain their activation functions, which stay. A network cut at an earlier layer stays
        unchanged.
        """
        network: Any = self.features
        if self.layer_index is not None:
            return
        for name, module in list(network.named_modules()):
            if hasattr(module, "act") and isinstance(module, nn.BatchNorm2d):
                network.set_submodule(name, _without_activation(module))
        if any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
            folded: Any = fold_norms(_Features(network))
            folded.num_prefix_tokens = getattr(network, "num_prefix_tokens", 0)
            self.features = folded

    def fix_size(self, size: int) -> None:
        """Resample the position embeddings to photographs of `size` px, as `Backbone.fix_size` describes."""
        network: Any = self.features
        if getattr(network, "dynamic_img_size", False) and getattr(network, "pos_embed", None) is not None:
            network.set_input_size(img_size=(size, size))

    def maps(self, photographs: Tensor) -> Tensor:
        features: Any = self.features
        if self.layer_index is not None:
            (maps,) = features.forward_intermediates(
                photographs, indices=[self.layer_index], norm=False, output_fmt="NCHW", intermediates_only=True
            )
            output: Tensor = maps
            return output
        output = (features if isinstance(features, fx.GraphModule) else features.forward_features)(photographs)
        if output.ndim == 3:  # tokens (N, prefix + patches, C): class and register tokens come first
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
    """Return a timm batch norm as an ordinary one, followed by its drop layer and activation."""
    plain = nn.BatchNorm2d(norm.num_features, norm.eps)
    plain.load_state_dict(norm.state_dict())
    return nn.Sequential(plain, norm.drop, norm.act).eval().requires_grad_(False)


def timm_model(name: str, layer: int | None = None) -> Backbone:
    """Build the timm model `name`, such as `resnet18.a1_in1k`, with random weights.

    layer: the layer whose output is the map, counted from the end: -2 is the second to last, without the final norm.
    None for the last, after the final norm. Raises ValueError if timm is not installed, or has no such model or layer.
    """
    try:
        import timm
        import timm.data
    except ImportError:
        raise ValueError(f"timm:{name}: timm is not installed: run `uv pip install timm`") from None
    _check_activation(name)
    try:
        network: Any = _create_model(name)
    except RuntimeError as error:
        raise ValueError(f"unknown backbone 'timm:{name}': {' '.join(str(error).split())[:120]}") from None
    layers, layer = network.feature_info, -1 if layer is None else layer
    if layer < -1 and not hasattr(network, "prune_intermediate_layers"):
        raise ValueError(f"timm:{name} gives the output of its last layer alone: leave layer out")
    if not -len(layers) <= layer <= -1:
        raise ValueError(f"timm:{name} has {len(layers)} layers: give a layer from -2 to {-len(layers)}")
    config: dict[str, Any] = timm.data.resolve_data_config(model=network)  # type: ignore[attr-defined,no-untyped-call]
    interpolation: Interpolation = "bicubic" if config["interpolation"] == "bicubic" else "bilinear"
    layer_info = layers[layer]
    declared = BackboneProperties(
        int(network.num_features if layer == -1 else layer_info["num_chs"]),
        int(layer_info["reduction"]),
        statistics=(tuple(config["mean"]), tuple(config["std"])),
        interpolation=interpolation,
    )
    head = tuple(f"{part}." for part in ("fc", "classifier", "head.fc", "head", "head_drop"))
    all_weights = set(network.state_dict())
    layer_index = None
    if layer < -1:
        (layer_index,) = network.prune_intermediate_layers([len(layers) + layer], prune_norm=True, prune_head=True)
    _remove_unused(network, name, layer)
    unused = tuple(sorted(all_weights - set(network.state_dict())))
    backbone = TimmBackbone(network, declared, (*head, *unused), published=f"timm:{name}", blocks=_blocks(network))
    backbone.layer_index = layer_index
    return backbone


def _check_activation(name: str) -> None:
    """Raise ValueError for a model built with GELU if the weights of its tag were trained with QuickGELU.

    OpenAI's CLIP and some other weights were. timm has separate models with QuickGELU for them.
    """
    import timm.models

    quickgelu_name = name.replace("_clip_", "_clip_quickgelu_", 1)
    if "." in name and quickgelu_name != name and timm.models.is_model_pretrained(quickgelu_name):
        raise ValueError(f"timm:{name} was trained with QuickGELU, and is built with GELU: use timm:{quickgelu_name}")


def _create_model(name: str) -> Any:
    """Return a timm model without a classifier, for photographs of any size if it supports that."""
    import timm

    try:
        return timm.create_model(name, pretrained=False, num_classes=0, dynamic_img_size=True)
    except TypeError:  # a network without position embeddings, or with embeddings of one size
        return timm.create_model(name, pretrained=False, num_classes=0)


def _remove_unused(network: Any, name: str, layer: int) -> None:
    """Remove the parts whose weights the map does not depend on, such as attention pooling.

    Their weights get no gradient from the map. This is computed on a copy of the network on the device `meta`; if the
    network cannot run there, nothing is removed.
    """
    try:
        with torch.device("meta"):
            probe = _create_model(name).eval()
            size = probe.default_cfg["input_size"][-1]
            photographs = torch.empty(1, 3, size, size)
            if layer == -1:
                output = probe.forward_features(photographs)
            else:
                index = [len(probe.feature_info) + layer]
                (output,) = probe.forward_intermediates(photographs, indices=index, norm=False, intermediates_only=True)
            weights = dict(probe.named_parameters())
            gradients = torch.autograd.grad(output.sum(), list(weights.values()), allow_unused=True)
    except Exception:  # networks that read values, and thus need some, raise various errors
        return
    used = {weight for weight, gradient in zip(weights, gradients, strict=True) if gradient is not None}
    for part, child in network.named_children():
        names = {f"{part}.{weight}" for weight, _ in child.named_parameters()}
        if names and names.isdisjoint(used):
            setattr(network, part, nn.Identity())


def _blocks(network: Any) -> tuple[tuple[str, ...], ...]:
    """Return the names of each block's weights, in order, by timm's own grouping, whose first group is the stem.

    A network without timm groups has no blocks.
    """
    from timm.models import group_parameters

    if not hasattr(network, "group_matcher"):
        return ()
    groups: dict[int, list[str]] = group_parameters(network, network.group_matcher(coarse=True))
    return tuple(tuple(groups[number]) for number in sorted(groups)[1:])
