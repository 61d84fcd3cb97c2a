"""Backbone + decoder + vocabulary: photograph in, caption out.

A captioner is saved as a folder: config.json, vocabulary.json, backbone.safetensors, decoder.safetensors;
nothing in it is pickled. A registered model is such a folder with a copy of this package beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from .backbones import base as backbones
from .backbones.encoder import Encoder
from .decoders import base as decoders
from .decoders.ensemble import Ensemble
from .options import Decoding
from .photographs import decode, resize, stack
from .search import Caption
from .search import decode as decode_captions
from .vocabulary import START, Vocabulary

_BATCH = 32


@dataclass(frozen=True)
class Captioned:
    """What the captioner says of one photograph.

    tokens: of the caption, its words or byte pairs. log_probability: natural logarithm, END counted. alternatives:
    (caption, log-probability) of the next best. attention: (tokens, h, w) float32, where it looked for each token,
    each map summing to 1; None where not asked for. error: why there is no caption, else None.
    """

    caption: str = ""
    tokens: list[str] = field(default_factory=list)
    log_probability: float = 0.0
    alternatives: list[tuple[str, float]] = field(default_factory=list)
    attention: Tensor | None = None
    error: str | None = None


class Captioner:
    """Captions encoded photographs. Holds no state between calls: threads may share it.

    config: `backbone` (name, image_size, fit, grid, precision), `decoder` (its shape, and how many `members` speak
    together where it is more than one) and `decoding` (the fields of search.Decoding) as saved.
    """

    def __init__(
        self,
        config: dict[str, Any],
        vocabulary: Vocabulary,
        backbone: backbones.Backbone,
        decoder: decoders.Decoder | Ensemble,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.decoding = Decoding(**config["decoding"])
        self.vocabulary = vocabulary
        self.device = torch.device(device)
        self.backbone = backbone
        self._encoder = Encoder(backbone, config["backbone"]["precision"], self.device)
        self.decoder = decoder.to(self.device).eval()
        self._speaking = self.decoder.for_inference()
        self.attends = decoder.attends

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Captioner:
        """The captioner saved in a folder."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text(encoding="utf-8"))
        backbone = backbones.make(config["backbone"]["name"], config["backbone"]["grid"])
        backbone.load_state_dict(safetensors.torch.load_file(folder / "backbone.safetensors"))
        decoder = make(config["decoder"])
        decoder.load_state_dict(safetensors.torch.load_file(folder / "decoder.safetensors"))
        return cls(config, vocabulary, backbone, decoder, device)

    def save(self, folder: Path) -> None:
        """Write the captioner into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1, sort_keys=True), encoding="utf-8")
        (folder / "vocabulary.json").write_text(self.vocabulary.to_json(), encoding="utf-8")
        for name, module in (("backbone", self.backbone), ("decoder", self.decoder)):
            state = {key: value.contiguous().cpu() for key, value in module.state_dict().items()}
            safetensors.torch.save_file(state, folder / f"{name}.safetensors")

    def caption(self, photographs: Sequence[bytes], **decoding: Any) -> list[Captioned]:
        """A caption for each encoded photograph (JPEG, PNG, WebP, ...), in order.

        decoding: as in `from_grid`. A photograph that cannot be decoded gets its reason as `error`, and the
        others their captions.
        """
        results: list[Captioned] = []
        for at in range(0, len(photographs), _BATCH):
            results += self._batch(photographs[at : at + _BATCH], decoding)
        return results

    def _batch(self, photographs: Sequence[bytes], decoding: dict[str, Any]) -> list[Captioned]:
        results: list[Captioned | None] = []
        pixels = []
        for photograph in photographs:
            try:
                pixels.append(self._pixels(photograph))
                results.append(None)
            except ValueError as error:
                results.append(Captioned(error=str(error)))
        if pixels:
            sound = [key_of(data) for data, result in zip(photographs, results, strict=True) if result is None]
            captions = iter(self.from_grid(self._encoded(pixels), sound, **decoding))
            results = [next(captions) if result is None else result for result in results]
        return [result for result in results if result is not None]

    def grids(self, photographs: Sequence[bytes]) -> Tensor:
        """The grids (N, h, w, C) float16 of encoded photographs; ValueError for one that cannot be decoded."""
        return self._encoded([self._pixels(photograph) for photograph in photographs])

    def _encoded(self, pixels: list[Tensor]) -> Tensor:
        return self._encoder(stack(pixels))

    def _pixels(self, photograph: bytes) -> Tensor:
        spec = self.config["backbone"]
        return resize(decode(photograph), spec["image_size"], spec["fit"], self.backbone.declared.interpolation)

    def from_grid(
        self, grid: Tensor, keys: Sequence[int] | None = None, attention: bool = False, **decoding: Any
    ) -> list[Captioned]:
        """A caption for each cached grid of (N, h, w, C) float16.

        keys: `key_of` each photograph, which sampling draws by. attention: also where it looked; ValueError for a
        decoder that does not attend. decoding: fields of search.Decoding; what is not given, or None, is as the model
        was evaluated, but that a beam is searched where one is given, and words are drawn where a temperature, top_k or
        top_p is. ValueError for what does not go together.
        """
        given = {name: value for name, value in decoding.items() if value is not None}
        drawn = [name for name in ("temperature", "top_k", "top_p") if name in given]
        if "search" not in given and drawn and "beam" in given:
            raise ValueError(f"beam and {drawn[0]} do not go together: a beam is searched, or words are drawn")
        if drawn or "beam" in given:
            given.setdefault("search", "sample" if drawn else "beam")
        # Of what the model was evaluated with, as much as the search that was asked for has room for.
        if "n_best" not in given and "beam" in given:
            given["n_best"] = min(self.decoding.n_best, given["beam"])
        if "min_length" not in given and "max_length" in given:
            given["min_length"] = min(self.decoding.min_length, given["max_length"] - 1)
        chosen = replace(self.decoding, **given)
        values = grid.to(self.device).float()
        found = decode_captions(self._speaking, values, chosen, keys)
        maps = self.attention(values, [best[0] for best in found]) if attention else [None] * len(found)
        return [self._told(best, alphas) for best, alphas in zip(found, maps, strict=True)]

    @torch.inference_mode()
    def attention(self, grid: Tensor, captions: Sequence[Caption]) -> list[Tensor]:
        """Where the decoder looked for each token of each caption: (tokens, h, w) float32 a caption.

        The captions are read back by teacher forcing, which repeats the search's own steps. ValueError for a
        decoder that does not attend to the grid.
        """
        if not self.attends:
            raise ValueError(f"{self.config['decoder']['name']} has no attention: there are no maps of it")
        longest = max(len(caption.tokens) for caption in captions)
        words = torch.full((len(captions), 1, longest + 1), START, device=self.device)
        for row, caption in enumerate(captions):
            words[row, 0, 1 : len(caption.tokens) + 1] = torch.tensor(caption.tokens, device=self.device)
        nothing = torch.zeros_like(words, dtype=torch.bool)
        _, read = self.decoder(grid, words, nothing)
        side = grid.shape[1:3] if self.decoder.attention_grid is None else (self.decoder.attention_grid,) * 2
        maps = read.alphas[:, 0].unflatten(-1, side).cpu()
        return [maps[row, : len(caption.tokens)] for row, caption in enumerate(captions)]

    def _told(self, found: list[Caption], attention: Tensor | None) -> Captioned:
        texts = [" ".join(self.vocabulary.decode(caption.tokens)) for caption in found]
        others = [(text, caption.log_probability) for text, caption in zip(texts[1:], found[1:], strict=True)]
        tokens = self.vocabulary.tokens(found[0].tokens)
        return Captioned(texts[0], tokens, found[0].log_probability, others, attention)


def make(shape: dict[str, Any]) -> decoders.Decoder | Ensemble:
    """The untrained decoder of a shape, or the ensemble of its `members`."""
    alone = {name: value for name, value in shape.items() if name != "members"}
    if "members" not in shape:
        return decoders.make(**alone)
    return Ensemble([decoders.make(**alone) for _ in range(shape["members"])])


def key_of(photograph: bytes) -> int:
    """The number that stands for a photograph in sampling: of its content, so that no run or batch changes it."""
    return key_of_digest(hashlib.sha256(photograph).hexdigest())


def key_of_digest(digest: str) -> int:
    """`key_of` a photograph whose SHA-256 (hex) is known."""
    return int(digest[:12], 16)
