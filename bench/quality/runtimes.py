"""Scores of a registered version on each runtime, from photographs, and how large it is.

    python -m bench.quality.runtimes PRESET_OR_YAML [section.field=value ...]

Takes the version that the config's last run registered, and the held-out pictures that it was scored on.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import get_args

from bench.machine import describe
from flows.pipeline import build_pipeline
from models.options import Runtime
from tasks.config.schema import load
from tasks.data.caption_files import read_vocabulary
from tasks.evaluation.caption_and_score import read_predictions
from tasks.evaluation.rescore import rescore
from tasks.pipeline.plan import artifacts
from tasks.registry.logged_model import bundle_of, load_captioner
from tasks.registry.registration_record import read_registration
from tasks.registry.versions import find

_SCORES = {"bleu4": "BLEU-4", "meteor": "METEOR", "cider": "CIDEr"}


def main() -> None:
    config = load(sys.argv[1], sys.argv[2:])
    found = artifacts(build_pipeline(config))
    uri = read_registration(found["register"].path)["uri"]
    files = find(uri, config.workspace).files
    assert files is not None
    vocabulary = read_vocabulary(found["tensorise"].path)
    describe()
    print(f"\n| runtime | {' | '.join(_SCORES.values())} | captions as torch's | MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    in_torch = None
    for runtime in get_args(Runtime):
        folder = files / "artifacts" / bundle_of(runtime)
        if not folder.is_dir():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            predictions = Path(scratch) / "predictions.parquet"
            captioner = load_captioner(uri, files, runtime)
            record = rescore(
                captioner, runtime, found["ingest"], config.data, vocabulary, config.evaluation, predictions
            )
            captions = read_predictions(predictions)
        in_torch = in_torch or captions
        same = sum(captions[digest].caption == in_torch[digest].caption for digest in captions)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        scores = " | ".join(f"{record['scores'][name]:.2f}" for name in _SCORES)
        print(f"| {runtime} | {scores} | {same:,} of {len(captions):,} | {size:.1f} |", flush=True)


if __name__ == "__main__":
    main()
