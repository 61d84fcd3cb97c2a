"""The files of a registered captioner: weights, config, vocabulary, a copy of models/, and the code that loads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import models
from models.captioner import Captioner
from tasks.config.stages import EvaluationConfig, GridsConfig
from tasks.data.caption_files import read_vocabulary
from tasks.grids.weights import load_backbone
from tasks.registry import bundle_loader
from tasks.registry.captioner_artifacts import CaptionerArtifacts
from tasks.registry.logged_model import LOADER
from tasks.training.outputs import load_ensemble

CODE = Path(models.__file__).parent


def make_captioner(grids: GridsConfig, evaluation: EvaluationConfig, artifacts: CaptionerArtifacts) -> Captioner:
    """Return the captioner that a config's fresh artifacts make up, on the CPU."""
    decoder, shape = load_ensemble(artifacts.decoder.path, evaluation.ensemble)
    config = {
        "backbone": {
            "name": grids.backbone,
            "image_size": grids.image_size,
            "fit": grids.fit,
            "grid": grids.grid,
            "precision": grids.precision,
        },
        "decoder": shape,
        "decoding": vars(evaluation.decoding()),
    }
    vocabulary = read_vocabulary(artifacts.captions.path)
    return Captioner(config, vocabulary, load_backbone(grids, artifacts.tuned), decoder)


def write_bundle(captioner: Captioner, folder: Path, source: Path = CODE) -> str:
    """Save a captioner with the code that it needs, and return the digest of all files written to the folder.

    source: the package folder to copy as `models`. bundle.json, with the digest, is written last and is not part of it.
    """
    captioner.save(folder)
    shutil.copytree(source, folder / "models", ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "py.typed"))
    shutil.copyfile(bundle_loader.__file__, folder / LOADER)
    digest = bundle_loader.digest_of_files(folder)
    (folder / bundle_loader.DIGEST).write_text(json.dumps({"format": 1, "digest": digest}), encoding="utf-8")
    return digest


def is_whole(folder: Path) -> bool:
    """Return whether a bundle's files match the digest in its bundle.json, as the model checks when it is loaded.

    Raises OSError where a file cannot be read.
    """
    try:
        kept = json.loads((folder / bundle_loader.DIGEST).read_text(encoding="utf-8"))["digest"]
        return bool(kept == bundle_loader.digest_of_files(folder))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
