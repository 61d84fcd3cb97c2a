"""The captioner: backbone, decoder and vocabulary together turn photographs into captions.

A captioner is saved as a folder of config.json, vocabulary.json, backbone.safetensors, decoder.safetensors and, where
its captions have a confidence, confidence.safetensors; nothing in it is pickled. A registered model is such a folder
with a copy of this package beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor

from .backbones import base as backbones
from .backbones.encoder import Encoder
from .captioned import NO_WORDS, BaseCaptioner, Captioned
from .confidence import FEATURES, Confidence, features_of
from .decoders import base as decoders
from .decoders.ensemble import Ensemble
from .given_grids import read_grid
from .likelihood import padded, read, with_end
from .options import Decoding
from .photographs import decode, resize, stack
from .search import Caption
from .torch_steps import decode as decode_captions
from .vocabulary import Vocabulary
from .weight_files import save_tensors

CONFIDENCE = "confidence.safetensors"


class Captioner(BaseCaptioner[Tensor, Tensor]):
    """A captioner in torch.

    config: as saved: `backbone` (name, image_size, fit, grid, precision, and `projected`, the channels of its
    projection, where it has one), `decoder` (the arguments of `make`, with the number of `members` for an ensemble) and
    `decoding` (the fields of options.Decoding). Without a backbone it takes grids in place of photographs, and
    `backbone` has their `shape` (h, w, C). confidence: None where its captions have none.
    """

    def __init__(
        self,
        config: dict[str, Any],
        vocabulary: Vocabulary,
        backbone: backbones.Backbone | None,
        decoder: decoders.Decoder | Ensemble,
        device: torch.device | str = "cpu",
        confidence: Confidence | None = None,
    ) -> None:
        super().__init__(config, vocabulary)
        self.device = torch.device(device)
        self.backbone = backbone
        self._encoder = None if backbone is None else Encoder(backbone, config["backbone"]["precision"], self.device)
        self.decoder = decoder.to(self.device).eval()
        self._stepper = self.decoder.for_inference()
        self.attends = decoder.attends
        self.confidence = None if confidence is None else confidence.on(self.device)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Captioner:
        """Return the captioner saved in a folder."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8"))
        backbone = None if "shape" in config["backbone"] else _load_backbone(config["backbone"], folder)
        decoder = make(config["decoder"])
        decoder.load_state_dict(safetensors.torch.load_file(folder / "decoder.safetensors"))
        fitted = folder / CONFIDENCE
        confidence = Confidence.of_tensors(safetensors.torch.load_file(fitted)) if fitted.is_file() else None
        return cls(config, vocabulary, backbone, decoder, device, confidence)

    def save(self, folder: Path) -> None:
        """Write the captioner into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1, sort_keys=True), encoding="utf-8")
        (folder / "vocabulary.json").write_text(self.vocabulary.to_json(), encoding="utf-8")
        for name, module in (("backbone", self.backbone), ("decoder", self.decoder)):
            if module is None:
                continue
            save_tensors(module.state_dict(), folder / f"{name}.safetensors")
        if self.confidence is not None:
            save_tensors(self.confidence.tensors(), folder / CONFIDENCE)

    def grids(self, photographs: Sequence[bytes]) -> Tensor:
        """Return the grids (N, h, w, C) float16 of encoded photographs; ValueError if one cannot be decoded."""
        return self.encode([self._picture(photograph) for photograph in photographs])

    def encode(self, pictures: list[Tensor]) -> Tensor:
        """Return the grids (N, h, w, C) float16 of resized pictures, uint8 (3, S, S) each, or of given grids."""
        return torch.stack(pictures) if self._encoder is None else self._encoder(stack(pictures))

    def _as_grids(self, grids: npt.NDArray[np.float16]) -> Tensor:
        return torch.from_numpy(grids)

    def _picture(self, photograph: bytes) -> Tensor:
        """Return the photograph decoded and resized, uint8 (3, S, S); ValueError if it cannot be decoded.

        Without a backbone, return the grid in a .npy file, float16 (h, w, C).
        """
        spec = self.config["backbone"]
        if self.backbone is None:
            return torch.from_numpy(read_grid(photograph, spec["shape"]))
        return resize(decode(photograph), spec["image_size"], spec["fit"], self.backbone.declared.interpolation)

    def _caption_grids(
        self, grid: Tensor, keys: Sequence[int] | None, attention: bool, settings: Decoding
    ) -> list[Captioned]:
        grid = grid.to(self.device).float()
        return self._results(grid, decode_captions(self._stepper, grid, settings, keys), attention)

    @torch.inference_mode()
    def likely_words(self, grid: Tensor, tokens: Sequence[str], number: int) -> list[list[tuple[str, float]]]:
        if not tokens:
            return []
        words = padded([[self.vocabulary.id_of(token) for token in tokens]]).to(self.device).unsqueeze(1)
        places = torch.arange(len(tokens), device=self.device)
        logits, _ = self.decoder(grid.to(self.device).float(), words[:, :, :-1].contiguous(), places)
        shortlist = min(number + len(NO_WORDS), len(self.vocabulary))
        values, ids = torch.softmax(logits.float(), dim=1).topk(shortlist)
        return [self._as_words(*place, number) for place in zip(ids.tolist(), values.tolist(), strict=True)]

    @torch.inference_mode()
    def _results(self, grid: Tensor, captions: Sequence[list[Caption]], attention: bool) -> list[Captioned]:
        """Return the result of each picture of grid (N, h, w, C) float, given its captions, best first.

        The best caption of each is read by the decoder once more (teacher forcing), which repeats the steps of the
        search, for its attention maps, the probabilities of its words and its confidence.
        """
        best = [with_end(n_best[0]) for n_best in captions]
        of_words, states = read(self.decoder, grid, padded(best).to(self.device).unsqueeze(1))
        of_words = of_words[:, 0]
        confidences: list[float | None] = [None] * len(best)
        distances: list[float | None] = [None] * len(best)
        if self.confidence is not None:
            features = features_of(self.decoder, self.confidence.training, grid, best, of_words)
            confidences = self.confidence(features).tolist()
            distances = features[:, FEATURES.index("distance")].tolist()
        maps = None
        if attention:
            sides = grid.shape[1:3] if self.decoder.attention_grid is None else (self.decoder.attention_grid,) * 2
            maps = states.alphas[:, 0].unflatten(-1, sides).cpu()
        probabilities = of_words.exp().tolist()
        results = []
        for row, n_best in enumerate(captions):
            length = len(n_best[0].tokens)
            texts = [(self.vocabulary.text(caption.tokens), caption.log_probability) for caption in n_best]
            results.append(
                Captioned(
                    caption=texts[0][0],
                    tokens=self.vocabulary.tokens(n_best[0].tokens),
                    token_probabilities=probabilities[row][:length],
                    log_probability=texts[0][1],
                    confidence=confidences[row],
                    distance=distances[row],
                    alternatives=texts[1:],
                    attention=None if maps is None else maps[row, :length].numpy(),
                )
            )
        return results


def _load_backbone(spec: Mapping[str, Any], folder: Path) -> backbones.Backbone:
    """Return the backbone that was saved in a folder. spec: the saved config's `backbone`."""
    backbone = backbones.make(spec["name"], spec["grid"])
    state = safetensors.torch.load_file(folder / "backbone.safetensors")
    if "projected" in spec:
        backbone.project(state["projection"])
    backbone.load_state_dict(state)
    return backbone


def make(shape: Mapping[str, Any]) -> decoders.Decoder | Ensemble:
    """Return the untrained decoder of a shape, or an ensemble of `members` such decoders if the shape has that key.

    shape: the arguments of `decoders.base.make`, and maybe `members`.
    """
    arguments = {name: value for name, value in shape.items() if name != "members"}
    if "members" not in shape:
        return decoders.make(**arguments)
    return Ensemble([decoders.make(**arguments) for _ in range(shape["members"])])
