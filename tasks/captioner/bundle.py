"""The files of a registered captioner: weights, config, vocabulary, a copy of models/, and the code that loads them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
from models.backbones.base import Backbone
from models.captioner import Captioner
from models.confidence import Confidence
from models.neighbours import Memory
from tasks.captioner import copied_loader
from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.captioner.given_grids import check_encoder, load_encoder
from tasks.captioner.load_bundle import FORMAT, LOADER
from tasks.config.schema import Config
from tasks.data.caption_files import read_vocabulary
from tasks.evaluation.score_record import read_scores
from tasks.grids.index import open_grids, read_identity
from tasks.grids.weights import IMPORTED, load_backbone
from tasks.training.outputs import load_decoder

CODE = Path(models.__file__).parent


def make_captioner(config: Config, artifacts: CaptionerArtifacts) -> Captioner:
    """Return the captioner built from a config's fresh artifacts, on the CPU.

    If it was trained on imported grids, it takes grids, or photographs if the config names the encoder of these grids.
    Raises AttendError if the encoder gives other grids.
    """
    decoder, decoder_shape = load_decoder(artifacts.decoder.path)
    memory, fitted = Memory.load(artifacts.memory.path), read_scores(artifacts.scores.path)["neighbours"]
    neighbours = None if isinstance(fitted, str) else fitted
    if neighbours is None:
        memory = replace(memory, captions=None, matcher=None)
    elif not neighbours["match"]:
        memory = replace(memory, matcher=None)
    decoding = {**vars(config.evaluation.decoding()), "neighbours": neighbours is not None}
    parts: dict[str, Any] = {"format": FORMAT, "decoder": decoder_shape, "decoding": decoding, "neighbours": neighbours}
    if config.starting_point is not None:
        parts["started_from"] = config.starting_point.origin()
    vocabulary = read_vocabulary(artifacts.captions.path)
    confidence = Confidence.load(artifacts.scores.path)

    def captioner_of(backbone_spec: dict[str, Any], backbone: Backbone | None) -> Captioner:
        return Captioner(
            {"backbone": backbone_spec, **parts}, vocabulary, backbone, decoder, memory, confidence=confidence
        )

    if config.encoding is None:
        shape = open_grids(artifacts.grids, config.machine).shape
        return captioner_of({"name": IMPORTED, "shape": list(shape)}, None)
    spec: dict[str, Any] = {
        "name": config.encoding.backbone,
        "image_size": config.encoding.image_size,
        "fit": config.encoding.fit,
        "layer": config.encoding.layer,
        "grid": config.encoding.grid,
        "precision": config.encoding.precision,
    }
    if config.encoder is None:
        spec["weights"] = read_identity(artifacts.grids).weights
        return captioner_of(spec, load_backbone(config.grids, artifacts.tuned))
    channels = open_grids(artifacts.grids, config.machine).shape[2]
    if config.encoder.projection is not None:
        spec["projected"] = channels
    captioner = captioner_of(spec, load_encoder(config.encoder, channels))
    check_encoder(captioner, config, artifacts)
    return captioner


def write_bundle(captioner: Captioner, folder: Path, source: Path = CODE) -> str:
    """Save a captioner with the code that it needs, and return the digest of all files written to the folder.

    source: the package folder to copy as `models`.
    """
    captioner.save(folder)
    shutil.copytree(source, folder / "models", ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "py.typed"))
    return seal(folder)


def seal(folder: Path) -> str:
    """Add the code that loads a bundle to its folder, and return the digest of all its files.

    bundle.json, with the digest, is written last and is not part of it.
    """
    shutil.copyfile(copied_loader.__file__, folder / LOADER)
    digest = copied_loader.digest_of_files(folder)
    (folder / copied_loader.DIGEST).write_text(json.dumps({"digest": digest}), encoding="utf-8")
    return digest
