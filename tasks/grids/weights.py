"""Where a backbone's weights come from: torchvision by name, a local file, or a seed. Never a fallback.

`torchvision:IMAGENET1K_V2`, `timm:pretrained`, `random:0`, or the path of a .safetensors, .pth or .pt file.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.errors import AttendError
from tasks.config.schema import GridsConfig, MachineConfig
from tasks.pipeline.file_digests import Digests

if TYPE_CHECKING:
    from torch import Tensor

    from models.backbones.base import Backbone
    from tasks.pipeline.ledger import Artifact

IMPORTED = "imported"  # the backbone of grids that others extracted: see flows/commands/import_grids.py
TUNED = "backbone.safetensors"  # in a tune artifact: the whole backbone
_SUFFIXES = (".safetensors", ".pth", ".pt")


def weight_digests(grids: GridsConfig, machine: MachineConfig) -> dict[str, str]:
    """What identifies the weights: a file's SHA-256, torchvision's name for them, or the seed."""
    weights = grids.weights
    if (grids.backbone == IMPORTED) != weights.startswith("imported:"):
        raise AttendError("grids: imported grids have backbone=imported and weights=imported:NAME, both or neither")
    if weights.startswith("imported:"):
        return {"weights": weights, "grids": _imported_digest(grids, machine)}
    if weights_file(weights) is None:
        _check(weights)
        return {"weights": weights}
    digests = Digests(machine.folder / "digests.sqlite")
    path = _sound_file(weights)
    return {"weights": digests.of([path])[path]}


def _imported_digest(grids: GridsConfig, machine: MachineConfig) -> str:
    """Of what has been imported so far: more grids are a new state of the world."""
    from tasks.grids.identity import identity_of
    from tasks.grids.store import GridStore
    from tasks.pipeline.ledger import digest_of
    from tasks.pipeline.workspace import Workspace

    store = GridStore(Workspace(machine.folder).grids, identity_of(grids, grids.weights))
    if store.remote is not None:
        store.open()
    indexes = sorted(store.folder.glob("shard-*.parquet"))
    digests = Digests(machine.folder / "digests.sqlite").of(indexes)
    return digest_of([[path.name, digests[path]] for path in indexes])


def load_backbone(grids: GridsConfig, tuned: Artifact | None = None) -> Backbone:
    """The backbone of the config with its weights, or with those that the stage `tune` made.

    AttendError where they do not fit or cannot be had.
    """
    import safetensors.torch

    import models.backbones.base as backbones

    if grids.backbone == IMPORTED:
        raise AttendError("grids.backbone: imported grids have no backbone that could make one of a photograph")
    kind, _, name = grids.weights.partition(":")
    seed = _check(grids.weights) if kind == "random" else None
    try:
        backbone = backbones.make(grids.backbone, grids.grid, seed)
    except ValueError as error:
        raise AttendError(f"grids.backbone: {error}") from None
    if tuned is not None:
        backbone.load_state_dict(safetensors.torch.load_file(tuned.path / TUNED))
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


def _check(weights: str) -> int:
    kind, _, rest = weights.partition(":")
    if kind == "random" and not (rest.isascii() and rest.isdecimal()):
        raise AttendError(f"grids.weights: {weights}: a seed is a whole number, as in random:0")
    if kind == "timm" and rest != "pretrained":
        raise AttendError(f"grids.weights: {weights}: timm's own weights are `timm:pretrained`")
    if kind == "torchvision" and rest in ("", "DEFAULT"):  # what DEFAULT means changes with torchvision
        raise AttendError(f"grids.weights: {weights}: name the weights, as in torchvision:IMAGENET1K_V1")
    return int(rest) if kind == "random" else 0


def weights_file(weights: str) -> Path | None:
    """The file that `grids.weights` names; None where it names none."""
    named = weights.startswith(("torchvision:", "random:", "timm:", "imported:"))
    return None if named else Path(weights).expanduser()


def _sound_file(weights: str) -> Path:
    path = Path(weights).expanduser()
    if path.suffix not in _SUFFIXES:
        raise AttendError(
            f"grids.weights: {weights}: give torchvision:NAME, random:SEED or a file ending in {', '.join(_SUFFIXES)}"
        )
    if not path.is_file():
        raise AttendError(f"grids.weights: {path}: no such file")
    return path


def _file_state(weights: str) -> dict[str, Tensor]:
    import safetensors
    import safetensors.torch
    import torch

    path = _sound_file(weights)
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise AttendError(f"grids.weights: {path}: not readable as weights: {reason}") from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise AttendError(f"grids.weights: {path}: holds no state dict (name -> tensor)")
    return state


def _torchvision_state(backbone: Backbone, architecture: str, name: str) -> dict[str, Tensor]:
    from urllib.error import URLError

    import torchvision.models

    from models.photographs import IMAGENET

    if backbone.published is None or backbone.published.startswith("timm:"):
        raise AttendError(f"grids.weights: torchvision has no weights for {architecture}")
    enum = getattr(torchvision.models, backbone.published)
    if name not in enum.__members__:
        raise AttendError(f"grids.weights: torchvision:{name}: {architecture} has {', '.join(enum.__members__)}")
    wanted = enum[name].transforms()
    statistics = (tuple(wanted.mean), tuple(wanted.std))
    given = (backbone.declared.statistics, backbone.declared.interpolation)
    # Torchvision's GoogLeNet turns ImageNet's statistics into those of its weights itself: there they are the weights'.
    own = (IMAGENET if architecture == "googlenet" else given[0], given[1])
    if own != (statistics, wanted.interpolation.value):
        raise AttendError(
            f"grids.weights: torchvision:{name}: expects other statistics or interpolation than "
            f"{architecture} is given here: take others of its weights"
        )
    try:
        return dict(enum[name].get_state_dict(progress=False, check_hash=True))
    except (URLError, OSError, RuntimeError) as error:
        raise AttendError(
            f"grids.weights: torchvision:{name} cannot be downloaded ({error}): give a local file instead"
        ) from None


def _timm_state(backbone: Backbone, architecture: str) -> dict[str, Tensor]:
    if backbone.published is None or not backbone.published.startswith("timm:"):
        raise AttendError(f"grids.weights: timm:pretrained is for timm's models, {architecture} is none")
    name = backbone.published.removeprefix("timm:")
    if "." not in name:  # what a name without a tag means changes with timm
        raise AttendError(f"grids.backbone: {architecture}: name the weights' tag, as in timm:resnet18.a1_in1k")
    import timm

    try:
        return dict(timm.create_model(name, pretrained=True, num_classes=0).state_dict())
    except Exception as error:  # the hub's client, its HTTP library and the sockets below raise their own
        raise AttendError(
            f"grids.weights: {architecture} cannot be downloaded ({' '.join(str(error).split())[:120]}): "
            "give a local file instead"
        ) from None
