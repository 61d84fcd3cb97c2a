"""The files of a training stage, and how they are read: the best decoder, or the ensemble of the best epochs."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch

from models.decoders.base import Decoder, make
from models.decoders.ensemble import Ensemble
from models.options import DecoderSpec, EnsembleSpec
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.pipeline.ledger import digest_of

WEIGHTS, LAST, DECODER, HISTORY = "weights.safetensors", "last.safetensors", "decoder.json", "history.parquet"
NEXT_BEST = "weights-{}.safetensors"  # numbered from 2


def load_decoder(folder: Path) -> tuple[Decoder, DecoderSpec]:
    """Return the best decoder of a train artifact, on the CPU in evaluation mode, and its shape.

    The shape is the contents of decoder.json: the arguments of `make`.
    """
    shape: DecoderSpec = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    return _make_with_weights(shape, folder / WEIGHTS).eval(), shape


def load_ensemble(folder: Path, members: int) -> tuple[Decoder | Ensemble, DecoderSpec | EnsembleSpec]:
    """Return the ensemble of a train artifact's best `members`, on the CPU in evaluation mode, and its shape.

    With one member the decoder itself is returned. Raise AttendError where the artifact has fewer weights, because the
    training stopped early.
    """
    if members == 1:
        return load_decoder(folder)
    shape: DecoderSpec = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    paths = kept_weights(folder)
    if members > len(paths):
        raise AttendError(
            f"evaluation.ensemble: is {members}, but the training stopped early and kept the weights of {len(paths)} "
            f"epochs: set it to {len(paths)} or less"
        )
    ensemble = Ensemble([_make_with_weights(shape, path) for path in paths[:members]])
    return ensemble.eval(), EnsembleSpec(**shape, members=members)


def write_shape(shape: DecoderSpec, folder: Path) -> None:
    """Write a decoder's shape to decoder.json in a folder."""
    (folder / DECODER).write_text(json.dumps(shape, indent=1, sort_keys=True), encoding="utf-8")


def _make_with_weights(shape: DecoderSpec, weights: Path) -> Decoder:
    decoder = make(**shape)
    decoder.load_state_dict(safetensors.torch.load_file(weights))
    return decoder


def decoder_digest(folder: Path) -> str:
    """Return the digest of a train artifact's kept weights and of the decoder's shape."""
    shape: DecoderSpec = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    return digest_of([[digest_of_file(path) for path in kept_weights(folder)], shape])


def kept_weights(folder: Path) -> list[Path]:
    """Return the paths of a train artifact's kept weights, the best on dev first."""
    next_best = sorted(folder.glob(NEXT_BEST.format("*")), key=lambda path: int(path.stem.partition("-")[2]))
    return [folder / WEIGHTS, *next_best]
