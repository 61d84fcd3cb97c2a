"""The encoder of a captioner trained on imported grids: none, or the one that computed these grids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tasks.common.errors import AttendError, reason_of
from tasks.config.schema import Config
from tasks.config.stages import EncoderConfig
from tasks.data.manifest import read_pictures
from tasks.datasets.base import SPLITS, picture_files
from tasks.grids.index import open_grids
from tasks.grids.weights import load_backbone
from tasks.pipeline.ledger import Artifact

if TYPE_CHECKING:
    from models.backbones.base import Backbone
    from models.captioner import Captioner
    from tasks.captioner.captioner_artifacts import CaptionerArtifacts

_COMPARED = 32  # most photographs that an encoder is checked on
_TOLERANCE = 0.05  # largest relative difference (L2) between its grid of an example and the given one


def load_encoder(encoder: EncoderConfig, channels: int) -> Backbone:
    """Return an encoder's backbone, with its projection to `channels`; AttendError if the projection does not fit."""
    backbone = load_backbone(encoder.as_grids())
    if encoder.projection is None:
        return backbone
    path = encoder.projection.expanduser()
    try:
        matrix = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise AttendError(f"encoder.projection: {path}: cannot be read: {reason_of(error)}") from None
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or channels not in matrix.shape or not np.isfinite(matrix).all():
        raise AttendError(
            f"encoder.projection: {path}: is {matrix.shape} {matrix.dtype}: a matrix of floats that gives {channels} "
            "channels is needed, and no NaN in it"
        )
    native = backbone.declared.channels or max(matrix.shape)
    if (channels, native) not in (matrix.shape, matrix.shape[::-1]):
        raise AttendError(
            f"encoder.projection: {path}: is {matrix.shape}, but {encoder.backbone} has {native} channels: give the "
            "matrix that made the grids"
        )
    matrix = matrix if matrix.shape == (channels, native) else matrix.T
    projection = torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32))
    backbone.project(projection)
    return backbone


def check_encoder(captioner: Captioner, config: Config, artifacts: CaptionerArtifacts) -> None:
    """Raise AttendError if an encoder's grids of its examples differ from the given ones, or if there is no example.

    Grids differ if their relative difference is above `_TOLERANCE`.
    """
    encoder = config.encoder
    assert encoder is not None
    grids = open_grids(artifacts.grids, config.machine)
    examples = _examples(encoder, artifacts.manifest)
    worst, name = 0.0, ""
    for path, digest in examples[:_COMPARED]:
        try:
            encoded = torch.from_numpy(captioner.grids([path.read_bytes()])[0]).float()
        except ValueError as error:
            raise AttendError(f"encoder.examples: {path}: {error}") from None
        difference = _relative(encoded, torch.from_numpy(grids.read([digest])[0]).float())
        if not difference <= worst:  # also true for NaN
            worst, name = difference, str(path)
    if not worst <= _TOLERANCE:
        raise AttendError(
            f"encoder: its grid of {name} differs from the given one by {worst:.0%} (the limit is "
            f"{_TOLERANCE:.0%}): another backbone, weights, image_size or projection made the grids: name "
            "those, or leave encoder out to register a model that takes grids"
        )


def _examples(encoder: EncoderConfig, manifest: Artifact) -> list[tuple[Path, str]]:
    """Return the example photographs with the digests of their pictures; AttendError if there are none."""
    assert encoder.examples is not None
    folder = encoder.examples.expanduser()
    if not folder.is_dir():
        raise AttendError(f"encoder.examples: {folder}: no such folder")
    digest_by_row = {
        int(Path(picture.name).stem): picture.digest
        for split in SPLITS
        for picture in read_pictures(manifest.path, split)
    }
    examples = [
        (path, digest_by_row[int(path.stem)])
        for path in picture_files(folder)
        if path.stem.isascii() and path.stem.isdecimal() and int(path.stem) in digest_by_row
    ]
    if not examples:
        raise AttendError(
            f"encoder.examples: {folder}: no photograph there is named by the number of a grid, such as 0.jpg, 17.jpg"
        )
    return examples


def _relative(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected|; infinite if the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-9))
