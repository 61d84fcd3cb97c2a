"""The files of a registered captioner: weights, config, vocabulary, and a copy of models/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import models
from models.captioner import Captioner
from tasks.common.files import digest_of_file
from tasks.config.stages import EvaluationConfig, GridsConfig
from tasks.data.caption_files import read_vocabulary
from tasks.grids.weights import load_backbone
from tasks.pipeline.ledger import digest_of
from tasks.registry.captioner_artifacts import CaptionerArtifacts
from tasks.training.outputs import load_ensemble

CODE = Path(models.__file__).parent
_DIGEST = "bundle.json"


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
    digest = _digest_of_files(folder)
    (folder / _DIGEST).write_text(json.dumps({"format": 1, "digest": digest}), encoding="utf-8")
    return digest


def is_whole(folder: Path) -> bool:
    """Return whether a bundle's files match the digest in its bundle.json, as the model checks when it is loaded.

    Raises OSError where a file cannot be read.
    """
    try:
        return bool(json.loads((folder / _DIGEST).read_text(encoding="utf-8"))["digest"] == _digest_of_files(folder))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def _digest_of_files(folder: Path) -> str:
    """Return the digest of the names and contents of a bundle's files, but bundle.json and Python's caches."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    kept = [name for name in names if name.parts != (_DIGEST,) and "__pycache__" not in name.parts]
    return digest_of([[name.as_posix(), digest_of_file(folder / name)] for name in kept])
