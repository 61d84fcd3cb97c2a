"""What a training stage leaves behind, read again: the best decoder, or the ensemble of the best epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch

from models.decoders.base import Decoder, make
from models.decoders.ensemble import Ensemble
from tasks.common.errors import AttendError

WEIGHTS, LAST, DECODER, HISTORY = "weights.safetensors", "last.safetensors", "decoder.json", "history.parquet"
NEXT_BEST = "weights-{}.safetensors"  # from 2 on


def load_decoder(folder: Path) -> tuple[Decoder, dict[str, Any]]:
    """The best decoder of a train artifact, on the CPU in evaluation mode, and its shape."""
    shape = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    return _loaded(shape, folder / WEIGHTS).eval(), shape


def load_ensemble(folder: Path, members: int) -> tuple[Decoder | Ensemble, dict[str, Any]]:
    """The ensemble of a train artifact's best `members`, on the CPU in evaluation mode, and its shape; one is itself.

    AttendError where it keeps fewer: it stopped before so many epochs.
    """
    if members == 1:
        return load_decoder(folder)
    shape = json.loads((folder / DECODER).read_text(encoding="utf-8"))
    kept = kept_weights(folder)
    if members > len(kept):
        raise AttendError(
            f"evaluation.ensemble: {members} cannot speak together: training ended with {len(kept)} epochs"
        )
    together = Ensemble([_loaded(shape, path) for path in kept[:members]])
    return together.eval(), {**shape, "members": members}


def _loaded(shape: dict[str, Any], weights: Path) -> Decoder:
    decoder = make(**shape)
    decoder.load_state_dict(safetensors.torch.load_file(weights))
    return decoder


def kept_weights(folder: Path) -> list[Path]:
    """The weights of a train artifact, the best on dev first."""
    others = sorted(folder.glob(NEXT_BEST.format("*")), key=lambda path: int(path.stem.partition("-")[2]))
    return [folder / WEIGHTS, *others]
