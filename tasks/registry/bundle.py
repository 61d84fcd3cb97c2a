"""The registered captioner's files: weights, config, vocabulary, and a copy of models/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import models
from models.captioner import Captioner
from tasks.common.files import digest_of_file
from tasks.config.schema import EvaluationConfig, GridsConfig
from tasks.data.captions import read_vocabulary
from tasks.grids.weights import load_backbone
from tasks.pipeline.ledger import digest_of
from tasks.registry.made_from import MadeFrom
from tasks.training.outputs import load_ensemble

CODE = Path(models.__file__).parent


def make_captioner(grids: GridsConfig, evaluation: EvaluationConfig, made: MadeFrom) -> Captioner:
    """The captioner of a config's fresh artifacts, on the CPU."""
    decoder, shape = load_ensemble(made.decoder.path, evaluation.ensemble)
    config = {
        "backbone": {
            "name": grids.backbone,
            "image_size": grids.image_size,
            "fit": grids.fit,
            "grid": grids.grid,
            "precision": grids.precision,
        },
        "decoder": shape,
        "decoding": evaluation.decoding(),
    }
    return Captioner(config, read_vocabulary(made.captions.path), load_backbone(grids, made.tuned), decoder)


def write_bundle(captioner: Captioner, folder: Path, source: Path = CODE) -> str:
    """Save the captioner with the code it needs, `source`; returns the digest of all that is in the folder."""
    captioner.save(folder)
    shutil.copytree(source, folder / "models", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = digest_of([[path.relative_to(folder).as_posix(), digest_of_file(path)] for path in files])
    (folder / "bundle.json").write_text(json.dumps({"format": 1, "digest": digest}), encoding="utf-8")
    return digest
