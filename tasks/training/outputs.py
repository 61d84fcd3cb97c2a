"""The files of a stage that trains a decoder, and how to read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from models.options import DecoderSpec
from tasks.common.files import digest_of_file
from tasks.pipeline.ledger import digest_of

if TYPE_CHECKING:
    from models.decoders.base import Decoder
    from models.decoders.ensemble import Ensemble

WEIGHTS, LAST, DECODER, HISTORY = "weights.safetensors", "last.safetensors", "decoder.json", "history.parquet"


def load_decoder(folder: Path) -> tuple[Decoder | Ensemble, DecoderSpec]:
    """Return the best decoder of a train artifact, on the CPU in evaluation mode, and its shape.

    The shape is the contents of decoder.json: the arguments of `make`.
    """
    import safetensors.torch

    from models.decoders.ensemble import make

    shape: DecoderSpec = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    decoder = make(**shape)
    decoder.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    return decoder.eval(), shape


def write_shape(shape: DecoderSpec, folder: Path) -> None:
    """Write a decoder's shape to decoder.json in a folder."""
    (folder / DECODER).write_text(json.dumps(shape, indent=1, sort_keys=True), encoding="utf-8")


def decoder_digest(folder: Path) -> str:
    """Return the digest of a train artifact's best weights and of the decoder's shape."""
    shape: DecoderSpec = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    return digest_of([digest_of_file(folder / WEIGHTS), shape])
