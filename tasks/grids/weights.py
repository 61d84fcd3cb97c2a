"""Load a backbone's weights: torchvision's or timm's by name, a local file, or random ones by seed. Never a fallback.

`grids.weights` is `torchvision:IMAGENET1K_V2`, `timm:pretrained`, `random:0`, `imported:NAME` for imported grids, the
path of a .safetensors, .pth or .pt file, or `captioner:FOLDER`, the backbone of a captioner.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.out_of_memory import is_out_of_memory
from tasks.common.errors import AttendError, reason_of
from tasks.config.machine import MachineConfig
from tasks.config.presets import CAPTIONER, WEIGHT_NAMES
from tasks.config.stages import GridsConfig
from tasks.pipeline.file_digests import Digests

if TYPE_CHECKING:
    from torch import Tensor
    from torchvision.models import WeightsEnum

    from models.backbones.base import Backbone
    from tasks.pipeline.ledger import Artifact

IMPORTED = "imported"  # the backbone of imported grids: see tasks/datasets/arrays.py
TUNED = "backbone.safetensors"  # the file of a `tune` artifact with the weights of the whole backbone
_SUFFIXES = (".safetensors", ".pth", ".pt")


def weight_digests(grids: GridsConfig, machine: MachineConfig) -> dict[str, str]:
    """Return the weights' identity as a stage's inputs: the SHA-256 of a file, or else `grids.weights` itself.

    Raises AttendError if `grids.weights` is not valid.
    """
    weights = grids.weights
    if (grids.backbone == IMPORTED) != weights.startswith("imported:"):
        raise AttendError("grids: backbone=imported and weights=imported:NAME belong together: set both or neither")
    if weights.startswith(CAPTIONER):
        folder = Path(weights.removeprefix(CAPTIONER))
        recorded = json.loads((folder / "config.json").read_text(encoding="utf-8"))["backbone"].get("weights")
        if recorded is not None:  # the same as for the captioner's own grids, so that these are reused
            return {"weights": str(recorded)}
        path = folder / TUNED
    elif weights_file(weights) is None:
        _checked_seed(weights)
        return {"weights": weights}
    else:
        path = _existing_file(weights)
    return {"weights": Digests(machine.folder / "digests.sqlite").of([path])[path]}


def check_backbone(grids: GridsConfig, first_block: int | None = None) -> int | None:
    """Return the size in bytes of a picture's grid; None if the backbone is not built.

    Raises AttendError if a run would fail on the backbone, the weights, the image size or the block to tune. Local
    weights are loaded as in a run. Nothing is downloaded: a request only checks that a server has the weights.
    first_block: the first of the backbone's blocks to fine-tune.
    """
    kind, _, name = grids.weights.partition(":")
    _checked_seed(grids.weights)
    if not check_needs_torch(grids):
        return None
    import torch

    if kind == "torchvision":
        backbone = random_backbone(grids)
        weights = _torchvision_weights(backbone, grids.backbone, name)
        if not (Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name).is_file():
            _check_server(weights.url, grids.weights)
    elif kind == "timm":
        backbone = random_backbone(grids)
        _check_timm_download(backbone, grids.backbone)
    else:
        backbone = load_backbone(grids)
    if first_block is not None:
        try:
            backbone.tunable(first_block, grids.image_size)
        except ValueError as error:
            raise AttendError(f"tuning.first_block: {grids.backbone} {error}") from None
    return 2 * math.prod(backbone.grid_shape(grids.image_size))


def check_needs_torch(grids: GridsConfig) -> bool:
    """Return whether `check_backbone` builds the backbone.

    It does not for imported grids, nor for this project's own backbones with random weights, which take pictures of any
    size and whose number of blocks the config knows.
    """
    is_own_and_random = grids.weights.startswith("random:") and ":" not in grids.backbone
    return grids.backbone != IMPORTED and not is_own_and_random


def backbone_fault(grids: GridsConfig, first_block: int | None) -> tuple[str, int | None]:
    """Return the error of `check_backbone` as text, which can be sent between processes, and its result.

    The text is empty if there is no error.
    """
    try:
        return "", check_backbone(grids, first_block)
    except AttendError as error:
        return str(error), None


def _check_timm_download(backbone: Backbone, architecture: str) -> None:
    """Raise AttendError if timm's weights are neither on this machine nor on their server.

    Raises it also if the backbone is not timm's or names no tag.
    """
    import huggingface_hub

    _timm_name(backbone, architecture)
    network: Any = backbone.features
    published = network.pretrained_cfg
    repository, url = published.get("hf_hub_id"), published.get("url")
    if not repository:
        if not url:
            raise AttendError(f"grids.weights: timm publishes no weights of {architecture}: give a file of weights")
        _check_server(url, architecture)
        return
    try:
        huggingface_hub.snapshot_download(repository, local_files_only=True)
    except Exception:  # not in the cache
        _check_server(huggingface_hub.hf_hub_url(repository, "config.json"), architecture)


def _check_server(url: str, weights: str) -> None:
    """Raise AttendError if a server does not respond for a URL. weights: the weights, for the message."""
    import urllib.request

    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=3).close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise AttendError(
            f"grids.weights: {weights} cannot be downloaded from {url} ({reason}): download it elsewhere, and set "
            "grids.weights to its path (in a YAML file: grids: {weights: FILE})"
        ) from None


def load_backbone(grids: GridsConfig, tuned: Artifact | None = None) -> Backbone:
    """Return the config's backbone with the weights of `grids.weights`, or of `tuned`, an artifact of stage `tune`.

    Raises AttendError if the network does not take pictures of that size, or if the weights do not fit the backbone or
    cannot be read or downloaded.
    """
    import safetensors.torch

    if grids.backbone == IMPORTED:
        raise AttendError("grids.backbone: imported grids come without a backbone, so photographs cannot be encoded")
    kind, _, name = grids.weights.partition(":")
    backbone = random_backbone(grids, _checked_seed(grids.weights) if kind == "random" else None)
    whole = Path(name) / TUNED if grids.weights.startswith(CAPTIONER) else None
    if tuned is not None:
        whole = tuned.path / TUNED
    if whole is not None:
        state = safetensors.torch.load_file(whole)
        if "projection" in state:
            backbone.project(state["projection"])
        backbone.load_state_dict(state)
        return backbone
    if kind == "random":
        return backbone
    if kind == "torchvision":
        state = _torchvision_state(backbone, grids.backbone, name)
    elif kind == "timm":
        state = _timm_state(backbone, grids.backbone)
    else:
        state = _file_state(grids.weights)
    try:
        backbone.load(state)
    except ValueError as error:
        raise AttendError(f"grids.weights: {grids.weights} for {grids.backbone}: {error}") from None
    return backbone


def random_backbone(grids: GridsConfig, seed: int | None = None) -> Backbone:
    """Return the config's backbone with random weights; AttendError if it does not exist or not for that size."""
    import models.backbones.base as backbones

    try:
        backbone = backbones.make(grids.backbone, grids.grid, seed, grids.layer)
    except ValueError as error:
        raise AttendError(f"grids.backbone: {error}") from None
    try:
        backbone.grid_shape(grids.image_size)
    except ValueError as error:
        raise AttendError(f"grids.image_size: {grids.backbone} {error}") from None
    return backbone


def _checked_seed(weights: str) -> int:
    """Return the seed of `random:SEED`, and 0 for other weights. Raises AttendError if the name is not valid."""
    kind, _, rest = weights.partition(":")
    if kind == "random" and not (rest.isascii() and rest.isdecimal()):
        raise AttendError(f"grids.weights: {weights}: a seed is a whole number, as in random:0")
    if kind == "timm" and rest != "pretrained":
        raise AttendError(f"grids.weights: {weights}: the only name for timm's weights is timm:pretrained")
    if kind == "torchvision" and rest in ("", "DEFAULT"):  # the meaning of DEFAULT changes with torchvision's versions
        raise AttendError(f"grids.weights: {weights}: name the weights, as in torchvision:IMAGENET1K_V1")
    return int(rest) if kind == "random" else 0


def weights_file(weights: str) -> Path | None:
    """Return the file that `grids.weights` names; None if it is not a path."""
    named = weights.startswith(WEIGHT_NAMES)
    return None if named else Path(weights).expanduser()


def _existing_file(weights: str) -> Path:
    """Return the path of a weights file. Raises AttendError if it has another suffix or does not exist."""
    path = Path(weights).expanduser()
    if path.suffix not in _SUFFIXES:
        raise AttendError(
            f"grids.weights: {weights}: give torchvision:NAME, timm:pretrained, random:SEED or a file ending in "
            + ", ".join(_SUFFIXES)
        )
    if not path.is_file():
        raise AttendError(f"grids.weights: {path}: no such file")
    return path


def _file_state(weights: str) -> dict[str, Tensor]:
    """Return the state dict in a weights file. Raises AttendError if it does not contain one."""
    import safetensors.torch
    import torch

    path = _existing_file(weights)
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler alone raises a dozen types for a damaged file
        if is_out_of_memory(error):
            raise
        raise AttendError(f"grids.weights: {path}: not readable as weights: {reason_of(error)}") from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise AttendError(f"grids.weights: {path}: holds no state dict (name -> tensor)")
    return state


def _torchvision_state(backbone: Backbone, architecture: str, name: str) -> dict[str, Tensor]:
    """Download the state dict of torchvision's weights `name`.

    Raises AttendError as `_torchvision_weights` does, and if the download fails.
    """
    from urllib.error import URLError

    weights = _torchvision_weights(backbone, architecture, name)
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (URLError, OSError, RuntimeError) as error:
        raise AttendError(
            f"grids.weights: torchvision:{name} cannot be downloaded ({error}): give a local file instead"
        ) from None


def _torchvision_weights(backbone: Backbone, architecture: str, name: str) -> WeightsEnum:
    """Return torchvision's weights `name` of a backbone, without downloading them.

    Raises AttendError if there are no such weights, or if they expect another preprocessing than the backbone's.
    """
    import torchvision.models

    from models.photographs import IMAGENET

    if backbone.published is None or backbone.published.startswith("timm:"):
        raise AttendError(f"grids.weights: torchvision has no weights for {architecture}")
    enum = getattr(torchvision.models, backbone.published)
    if name not in enum.__members__:
        listed_names = ", ".join(enum.__members__)
        raise AttendError(f"grids.weights: torchvision:{name}: {architecture} has no such weights, but: {listed_names}")
    transforms = enum[name].transforms()
    required = ((tuple(transforms.mean), tuple(transforms.std)), transforms.interpolation.value)
    # Torchvision's GoogLeNet takes pixels normalised by ImageNet's statistics, and converts them to the statistics that
    # its weights were trained with, which the backbone declares.
    statistics = IMAGENET if architecture == "googlenet" else backbone.declared.statistics
    if (statistics, backbone.declared.interpolation) != required:
        raise AttendError(
            f"grids.weights: torchvision:{name}: expects other statistics or interpolation than "
            f"{architecture} has here: choose other weights of it"
        )
    weights: WeightsEnum = enum[name]
    return weights


def _timm_state(backbone: Backbone, architecture: str) -> dict[str, Tensor]:
    """Download the state dict of timm's pretrained weights.

    Raises AttendError if the backbone is not timm's or names no tag, or if the download fails.
    """
    import timm

    name = _timm_name(backbone, architecture)
    try:
        return dict(timm.create_model(name, pretrained=True, num_classes=0).state_dict())
    except Exception as error:  # the hub's client, its HTTP library and sockets each raise other types
        raise AttendError(
            f"grids.weights: {architecture} cannot be downloaded ({reason_of(error)}): give a local file instead"
        ) from None


def _timm_name(backbone: Backbone, architecture: str) -> str:
    """Return the name of timm's model; AttendError if the backbone is not timm's, or names no tag."""
    if backbone.published is None or not backbone.published.startswith("timm:"):
        raise AttendError(f"grids.weights: timm:pretrained is for timm's models, and {architecture} is not one")
    name = backbone.published.removeprefix("timm:")
    if "." not in name:  # the meaning of a name without a tag changes with timm's versions
        raise AttendError(f"grids.backbone: {architecture}: name the weights' tag, as in timm:resnet18.a1_in1k")
    return name
