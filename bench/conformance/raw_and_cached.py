"""Captions from raw photographs through the registered model, beside those from the cached grids.

    python -m bench.conformance.raw_and_cached PRESET_OR_YAML [section.field=value ...]

Takes the first 200 pictures of the evaluated split. Each difference is shown with how far the two grids lie apart, in
units of float16's last place, and how close the two captions' log-probabilities are: a tie, or a fault.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow.parquet as pq
import torch

from flows.pipeline import build_pipeline
from models.captioned import key_of_digest
from tasks.config.schema import load
from tasks.data.manifest import files_by_digest
from tasks.grids.index import open_grids
from tasks.pipeline.plan import artifact, artifacts
from tasks.registry import tracking
from tasks.registry.logged_model import load_captioner
from tasks.registry.registration_record import read_registration

PICTURES = 200


def main() -> None:
    config = load(sys.argv[1], sys.argv[2:])
    found = artifacts(build_pipeline(config))
    registered = read_registration(artifact(build_pipeline(config)).path)
    tracking.connect(config.workspace)
    captioner = load_captioner(registered["uri"], runtime="torch")
    grids = open_grids(found["extract"], config.machine)
    files = files_by_digest(found["ingest"].path, config.data)
    rows = pq.read_table(found["evaluate"].path / "predictions.parquet").column("digest").to_pylist()
    digests = rows[:PICTURES]

    raw = captioner.caption([files[digest].read_bytes() for digest in digests])
    cached = captioner.from_grid(torch.from_numpy(grids.read(digests)), [key_of_digest(digest) for digest in digests])
    same = 0
    for digest, one, other in zip(digests, raw, cached, strict=True):
        if one.tokens == other.tokens:
            same += 1
            continue
        again = captioner.grids([files[digest].read_bytes()])[0].cpu().numpy()
        kept = grids.read([digest])[0]
        apart = np.abs(again.view(np.int16).astype(int) - kept.view(np.int16).astype(int)).max()
        print(f"{digest[:12]}: grids at most {apart} last places apart")
        for name, item in (("raw", one), ("cached", other)):
            print(f"    {name:<6} {item.log_probability:.5f}  {item.caption}")
    print(f"{same} of {len(digests)} captions are identical ({100 * same / len(digests):.1f} %)")


if __name__ == "__main__":
    main()
