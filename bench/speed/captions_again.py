"""Many pictures captioned again from cached grids, beside the same from photographs: the same captions, and how fast.

    python -m bench.speed.captions_again CONFIG PICTURES [--pictures 20000] [SECTION.FIELD=VALUE ...]

The config's captioner is brought up to date first. The folder is made of the photographs of PICTURES, each as often as
it takes, with a number after its last byte: another content, the same pixels. Its grids are extracted in the config's
workspace; `attend caption` then runs there, and from a workspace that has no grids. Ends with an error where a caption
or its log-probability differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.machine import describe
from flows.pipeline import build_pipeline
from tasks.config.schema import Config, load
from tasks.datasets.base import picture_files
from tasks.datasets.image_folder import ImageFolder
from tasks.pipeline.plan import up_to
from tasks.pipeline.run import run_stage
from tasks.registry import tracking
from tasks.registry.versions import resolve


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("config")
    arguments.add_argument("photographs", metavar="PICTURES", type=Path)
    arguments.add_argument("settings", nargs="*")
    arguments.add_argument("--pictures", type=int, default=20_000)
    given = arguments.parse_intermixed_args()
    describe()
    config = load(given.config, given.settings)
    run(config, "register")
    uri = resolve(f"models:/{config.registry.model}@champion", config.workspace)
    with tempfile.TemporaryDirectory(prefix="attend-captions-") as scratch:
        folder = Path(scratch) / "pictures"
        write_pictures(folder, picture_files(given.photographs), given.pictures)
        others = ImageFolder(path=folder)
        begun = time.perf_counter()
        run(config.model_copy(update={"name": "captions-again", "data": others}), "extract")
        extraction = given.pictures / (time.perf_counter() - begun)
        cached, fast = captions(folder, uri, config.workspace, config.workspace)
        photographs, slow = captions(folder, uri, Path(scratch) / "elsewhere", config.workspace)
    if cached != photographs:
        differ = [name for name, row in cached.items() if row != photographs[name]]
        raise SystemExit(f"{len(differ):,} captions differ, such as of {differ[0]}")
    print("\n| what | pictures/s | of those from photographs |\n| --- | --- | --- |")
    print(f"| captions from photographs | {given.pictures / slow:.0f} | |")
    print(f"| captions from cached grids | {given.pictures / fast:.0f} | {slow / fast:.1f} x |")
    print(f"| extraction of the grids, once | {extraction:.0f} | |")
    print(f"\n{given.pictures:,} captions and log-probabilities, the same from grids and from photographs")


def run(config: Config, last: str) -> None:
    """Bring the stages of a config up to date."""
    pipeline = up_to(build_pipeline(config), last)
    for stage in pipeline.names():
        run_stage(pipeline, stage)


def write_pictures(folder: Path, sources: list[Path], number: int) -> None:
    """Write so many photographs of different contents, as a data set of the format `imagefolder`."""
    folder.mkdir()
    rows = []
    for at in range(number):
        source = sources[at % len(sources)]
        name = f"{at:06d}{source.suffix}"
        (folder / name).write_bytes(source.read_bytes() + at.to_bytes(4, "big"))
        rows.append({"file_name": name, "text": "a picture", "split": "train"})
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def captions(folder: Path, uri: str, workspace: Path, store: Path) -> tuple[dict[str, Any], float]:
    """Return the caption of each picture by its name, and the seconds that it took, start-up and all.

    workspace: whose grids are used. store: the workspace with the model.
    """
    workspace.mkdir(exist_ok=True)
    out = folder.parent / f"{workspace.name}.parquet"
    words = ["caption", folder, "--out", out, "--model", uri, "--workspace", workspace]
    command = [str(Path(sys.executable).parent / "attend"), *map(str, words)]
    begun = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "MLFLOW_TRACKING_URI": tracking.tracking_uri(store)},
    )
    seconds = time.perf_counter() - begun
    rows = pq.read_table(out, columns=["file_name", "text", "log_probability"]).to_pylist()
    return {row["file_name"]: (row["text"], round(row["log_probability"], 4)) for row in rows}, seconds


if __name__ == "__main__":
    main()
