"""A warm start: a decoder begins with the weights of one that was registered, of the same shape but for its words.

A word keeps the weights that it had, whatever its id is now; words that are new begin as in any training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from models.decoders import DECODERS
from models.decoders.base import Decoder
from models.options import DecoderSpec
from models.vocabulary import SPECIAL, Vocabulary
from tasks.common.errors import AttendError
from tasks.config.stages import GridsConfig
from tasks.grids.weights import IMPORTED, load_backbone

# The weights that have a row for each word of the vocabulary.
_OF_WORDS = ("embed.weight", "head.weight", "head.bias", "head.words.weight", "head.words.bias")
_FIELD = "training.start_from: the champion's decoder"


@torch.no_grad()
def start_from(decoder: Decoder, shape: DecoderSpec, vocabulary: Vocabulary, bundle: Path) -> str:
    """Give a decoder the weights of the one in a bundle, and return how many of its words are new, as a message.

    shape: of `decoder`. bundle: the folder of a registered captioner. Raises AttendError where the two decoders differ
    in more than their vocabularies.
    """
    given = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["decoder"]
    _check_alike(given, shape)
    before = Vocabulary.from_json((bundle / "vocabulary.json").read_text(encoding="utf-8"))
    known = {word: row for row, word in enumerate((*SPECIAL, *before.words))}
    rows = [(row, known[word]) for row, word in enumerate((*SPECIAL, *vocabulary.words)) if word in known]
    own, kept = torch.tensor(rows).T
    state = decoder.state_dict()
    for name, value in safetensors.torch.load_file(bundle / "decoder.safetensors").items():
        if name in _OF_WORDS:
            state[name][own] = value[kept]
        else:
            state[name].copy_(value)
    new = len(vocabulary) - len(rows)
    return f"goes on from the champion's weights; {new:,} of {len(vocabulary):,} tokens are new"


def check_backbone(bundle: Path, grids: GridsConfig) -> None:
    """Raise AttendError where a registered captioner has another backbone than the one that makes these grids.

    Its decoder would begin with grids that it never saw the like of. bundle: the folder of the captioner.
    """
    spec = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["backbone"]
    remedy = "leave start_from out, which trains from the beginning"
    if "shape" in spec or grids.backbone == IMPORTED:
        if "shape" not in spec or grids.backbone != IMPORTED:
            raise AttendError(f"training.start_from: the champion's grids are of another kind: {remedy}")
        return
    for field in ("image_size", "fit", "grid"):
        if spec[field] != getattr(grids, field):
            raise AttendError(
                f"training.start_from: the champion has grids.{field} {spec[field]}, this config "
                f"{getattr(grids, field)}: {remedy}"
            )
    own, given = load_backbone(grids).state_dict(), safetensors.torch.load_file(bundle / "backbone.safetensors")
    if own.keys() != given.keys() or any(not torch.equal(own[name], given[name]) for name in own):
        raise AttendError(f"training.start_from: the champion has another backbone, or other weights of it: {remedy}")


def _check_alike(given: Mapping[str, Any], shape: DecoderSpec) -> None:
    """Raise AttendError where a registered decoder, `given`, cannot be gone on from by one of this shape."""
    remedy = "set it alike, or leave start_from out, which trains from the beginning"
    if "members" in given:
        raise AttendError(f"{_FIELD} is an ensemble: leave start_from out, which trains from the beginning")
    if shape["options"]["head"] == "adaptive":
        raise AttendError(
            "training.start_from: the layers of an adaptive head depend on the words' ranks, which change: set "
            "decoder.head=full, or leave start_from out"
        )
    for field in ("name", "channels"):
        if given[field] != shape[field]:
            what = "decoder.name" if field == "name" else "grids: channels"
            raise AttendError(f"{_FIELD} has {what} {given[field]}, this config {shape[field]}: {remedy}")
    # An option that came after the champion has its default in it.
    options = asdict(DECODERS[given["name"]].options(**given["options"]))
    for option, value in shape["options"].items():
        if options[option] != value and not option.startswith("dropout_"):
            raise AttendError(f"{_FIELD} has decoder.{option} {options[option]}, this config {value}: {remedy}")
