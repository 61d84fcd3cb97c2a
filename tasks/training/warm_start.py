"""A warm start: a decoder starts from the weights of a captioner's decoder of the same shape, except its vocabulary.

A known word keeps its weights, even if its id has changed; new words are initialised as in any training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from models.decoders import DECODERS
from models.decoders.base import Decoder
from models.decoders.ensemble import Ensemble
from models.options import DecoderSpec
from models.vocabulary import SPECIAL, Vocabulary
from tasks.common.errors import AttendError
from tasks.common.log import log
from tasks.config.stages import GridsConfig
from tasks.grids.weights import IMPORTED, load_backbone

# The weights with one row per word of the vocabulary.
_OF_WORDS = ("embed.weight", "head.weight", "head.bias")
_FEW_KNOWN = 0.5  # warn if the share of known words is lower


@torch.no_grad()
def start_from(
    decoder: Decoder | Ensemble,
    shape: DecoderSpec,
    vocabulary: Vocabulary,
    bundle: Path,
    name: str,
    learnt: Sequence[int] = (),
) -> list[str]:
    """Copy the weights of the decoder in a bundle into `decoder`, and return messages about its words.

    shape: of `decoder`. bundle: the folder of a captioner. name: of that captioner, for messages. learnt: the token ids
    of the captions to be learnt, to warn if few are known. Raises AttendError if the two decoders differ in more than
    their vocabularies.
    """
    saved = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["decoder"]
    _check_alike(saved, shape, name)
    before = Vocabulary.from_json((bundle / "vocabulary.json").read_text(encoding="utf-8"))
    row_before = {word: row for row, word in enumerate((*SPECIAL, *before.words))}
    rows = [(row, row_before[word]) for row, word in enumerate((*SPECIAL, *vocabulary.words)) if word in row_before]
    rows_here, before_rows = torch.tensor(rows).T
    own_rows = set(rows_here.tolist())
    state = decoder.state_dict()
    theirs = safetensors.torch.load_file(bundle / "decoder.safetensors")
    if saved.get("members", 1) > 1 and not isinstance(decoder, Ensemble):  # starts from the first member
        theirs = {part.removeprefix("0."): value for part, value in theirs.items() if part.startswith("0.")}
    for part, value in theirs.items():
        if part.endswith(_OF_WORDS):  # in an ensemble, names begin with the member's number
            state[part][rows_here] = value[before_rows]
        else:
            state[part].copy_(value)
    new = len(vocabulary) - len(rows)
    messages = [f"starts from the weights of {name}; {new:,} of {len(vocabulary):,} tokens are new"]
    words = [token for token in learnt if token >= len(SPECIAL)]
    share = sum(token in own_rows for token in words) / max(len(words), 1)
    if words and share < _FEW_KNOWN:
        messages.append(
            f"{name} knows only {share:.0%} of the words of these captions: where they are in another language, or of "
            "another kind, a training from the beginning may be better (leave training.start_from out)"
        )
        log.warning(messages[-1])
    return messages


def check_backbone(bundle: Path, grids: GridsConfig, name: str) -> None:
    """Raise AttendError if a captioner's backbone is not the one that encodes these grids.

    Its decoder would start with grids unlike any that it was trained on. bundle: the folder of the captioner. name: of
    the captioner, for messages.
    """
    spec = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["backbone"]
    remedy = "leave start_from out, which trains from the beginning"
    if "shape" in spec or grids.backbone == IMPORTED:
        if "shape" not in spec or grids.backbone != IMPORTED:
            raise AttendError(f"training.start_from: the grids of {name} are of another kind: {remedy}")
        return
    for field in ("image_size", "fit", "layer", "grid"):
        value, ours = spec.get(field), getattr(grids, field)
        if value != ours:
            raise AttendError(f"training.start_from: {name} has grids.{field} {value}, this config {ours}: {remedy}")
    weights, theirs = load_backbone(grids).state_dict(), safetensors.torch.load_file(bundle / "backbone.safetensors")
    if weights.keys() != theirs.keys() or any(not torch.equal(weights[name], theirs[name]) for name in weights):
        raise AttendError(f"training.start_from: {name} has another backbone, or other weights of it: {remedy}")


def _check_alike(actual: Mapping[str, Any], shape: DecoderSpec, name: str) -> None:
    """Raise AttendError if a decoder of this shape cannot start from the captioner's decoder `actual`."""
    decoder = f"training.start_from: the decoder of {name}"
    remedy = "set it alike, or leave start_from out, which trains from the beginning"
    names = {"name": "decoder.name", "members": "decoder.members", "channels": "grids: channels"}
    for field, description in names.items():
        own, theirs = ({"members": 1, **one}[field] for one in (shape, actual))
        if own != theirs and not (field == "members" and own == 1):
            raise AttendError(f"{decoder} has {description} {theirs}, this config {own}: {remedy}")
    # An option that is newer than the champion has its default there.
    options = asdict(DECODERS[actual["name"]].options(**actual["options"]))
    for option, value in shape["options"].items():
        if options[option] != value and not option.startswith("dropout_"):
            raise AttendError(f"{decoder} has decoder.{option} {options[option]}, this config {value}: {remedy}")
