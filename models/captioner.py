"""The captioner: backbone, decoder and vocabulary together turn photographs into captions.

A captioner is saved as a folder of config.json, vocabulary.json, backbone.safetensors, decoder.safetensors, memory.npz
and, if its captions have a confidence, confidence.npz; nothing in it is pickled. A registered model is such a folder
with a copy of this package next to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from .backbones import base as backbones
from .backbones.encoder import Encoder
from .captioned import BaseCaptioner, Grids, Picture
from .confidence import Confidence
from .decoders.base import Decoder
from .decoders.ensemble import Ensemble, make
from .neighbours import Memory
from .photographs import as_batch
from .torch_steps import TorchSteps
from .vocabulary import Vocabulary


class Captioner(BaseCaptioner):
    """A captioner in torch.

    config: as saved: `backbone` (name, image_size, fit, grid, precision, and `projected`, the channels of its
    projection, if it has one), `decoder` (the arguments of `decoders.ensemble.make`), `decoding` (the fields of
    options.Decoding) and `neighbours` (the fields of options.Neighbours, or None if they do not rank captions). Without
    a backbone it takes grids in place of photographs, and `backbone` has their `shape` (h, w, C). confidence: None if
    captions have none.
    """

    def __init__(
        self,
        config: dict[str, Any],
        vocabulary: Vocabulary,
        backbone: backbones.Backbone | None,
        decoder: Decoder | Ensemble,
        memory: Memory,
        device: torch.device | str = "cpu",
        confidence: Confidence | None = None,
    ) -> None:
        super().__init__(config, vocabulary, memory, confidence)
        self.device = torch.device(device)
        self.backbone = backbone
        self._encoder = None if backbone is None else Encoder(backbone, config["backbone"]["precision"], self.device)
        self.decoder = decoder.to(self.device).eval()
        self.steps = TorchSteps(self.decoder.for_inference(), self.device)
        self.attends, self.attention_grid = decoder.attends, decoder.attention_grid
        self.interpolation = "bilinear" if backbone is None else backbone.declared.interpolation

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Captioner:
        """Return the captioner saved in a folder."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8"))
        backbone = None if "shape" in config["backbone"] else _load_backbone(config["backbone"], folder)
        decoder = make(**config["decoder"])
        decoder.load_state_dict(safetensors.torch.load_file(folder / "decoder.safetensors"))
        return cls(config, vocabulary, backbone, decoder, Memory.load(folder), device, Confidence.load(folder))

    def save(self, folder: Path) -> None:
        """Write the captioner into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1, sort_keys=True), encoding="utf-8")
        (folder / "vocabulary.json").write_text(self.vocabulary.to_json(), encoding="utf-8")
        for name, module in (("backbone", self.backbone), ("decoder", self.decoder)):
            if module is not None:
                save_tensors(module.state_dict(), folder / f"{name}.safetensors")
        self.memory.save(folder)
        if self.confidence is not None:
            self.confidence.save(folder)

    def encode(self, pictures: list[Picture]) -> Grids:
        if self._encoder is None:
            return np.stack(pictures)
        grids: Grids = self._encoder(as_batch(pictures)).cpu().numpy()
        return grids


def _load_backbone(spec: Mapping[str, Any], folder: Path) -> backbones.Backbone:
    """Return the backbone that was saved in a folder. spec: the saved config's `backbone`."""
    backbone = backbones.make(spec["name"], spec["grid"], layer=spec.get("layer"))
    state = safetensors.torch.load_file(folder / "backbone.safetensors")
    if "projected" in spec:
        backbone.project(state["projection"])
    backbone.load_state_dict(state)
    return backbone


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a file that has the permissions of any new file.

    Safetensors' own `save_file` ignores the umask and writes files that only the owner can read.
    """
    path.write_bytes(safetensors.torch.save({name: value.contiguous().cpu() for name, value in tensors.items()}))
