"""A year of nightly runs in one workspace: what it holds after each, where old versions and old grids are removed.

    python -m bench.soak.year [--nights 365] [--keep-versions 10]

Every night a picture comes and the oldest goes; the whole pipeline runs, up to a version in MLflow, and then
`attend workspace prune --keep-versions N --yes` and `attend workspace compact --yes`. The script ends with an error
where a night's run fails, a version beyond the policy stays, the champion goes, the files take a tenth more at the end
of the year than after a month, or MLflow's database grows by more than 40 KiB a night: MLflow keeps the rows of deleted
runs until its own command `mlflow gc` removes them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import describe
from flows.commands.cli import app
from tasks.common.log import silence
from tasks.config.schema import Config
from tasks.datasets.scenes import captions_of, draw, place_objects
from tasks.registry import tracking
from tests.support import register_all, small

PICTURES = 60
MOST_ROWS = 0.04  # MiB a night
SHOWN = (0, 7, 30, 90, 180, 270)


@dataclasses.dataclass(frozen=True)
class Night:
    """What a workspace holds after a night, and how long the night took. Sizes in MiB."""

    whole: float
    grids: float
    artifacts: float
    models: float
    database: float
    versions: int
    champion: str
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--keep-versions", type=int, default=10)
    given = parser.parse_args()
    describe()
    silence()
    print(f"\n| {' | '.join(('night', *(field.name for field in dataclasses.fields(Night))))} |")
    print(f"|{' --- |' * (1 + len(dataclasses.fields(Night)))}")
    nights: list[Night] = []
    with tempfile.TemporaryDirectory(prefix="attend-year-") as folder:
        for night in range(given.nights):
            nights.append(live(Path(folder), night, given.keep_versions))
            if night in SHOWN or night == given.nights - 1:
                cells = [
                    f"{cell:,.1f}" if isinstance(cell, float) else str(cell) for cell in dataclasses.astuple(nights[-1])
                ]
                print(f"| {night} | {' | '.join(cells)} |", flush=True)
    month, year = nights[min(30, len(nights) - 1)], nights[-1]
    if year.whole - year.database > 1.1 * (month.whole - month.database):
        sys.exit("the workspace's files grew by more than a tenth since the first month")
    if year.database - month.database > MOST_ROWS * (len(nights) - 31):
        sys.exit(f"MLflow's database grew by more than {MOST_ROWS} MiB a night")


def live(folder: Path, night: int, keep_versions: int) -> Night:
    """Let a night pass: pictures come and go, the pipeline runs, and what is old is removed."""
    begun = time.monotonic()
    workspace = folder / "workspace"
    write_pictures(folder / "photographs", night)
    register_all(config_of(folder, night))
    place = ["--yes", "--workspace", str(workspace)]
    prune = ["workspace", "prune", "--keep-versions", str(keep_versions), "--keep-days", "0"]
    with contextlib.redirect_stdout(io.StringIO()):
        for command in (prune, ["workspace", "compact"]):
            app([*command, *place], standalone_mode=False)
    client = tracking.connect(workspace)
    aliases = {name: str(version) for name, version in client.get_registered_model("small").aliases.items()}
    versions = {str(version.version) for version in client.search_model_versions("name = 'small'")}
    if len(versions - set(aliases.values())) > keep_versions or not set(aliases.values()) <= versions:
        sys.exit(f"night {night}: versions {sorted(versions)}, of which {aliases} have an alias")
    return Night(
        whole=size(workspace),
        grids=size(workspace / "grids"),
        artifacts=size(workspace / "artifacts"),
        models=size(workspace / "mlartifacts"),
        database=size(workspace / "mlflow.db"),
        versions=len(versions),
        champion=aliases["champion"],
        seconds=time.monotonic() - begun,
    )


def size(path: Path) -> float:
    """Return what a file or the files below a folder take, in MiB."""
    paths = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in paths if file.is_file()) / 2**20


def config_of(folder: Path, night: int) -> Config:
    """Return the config of a night. Its seed makes another model of like pictures too."""
    return small(
        folder / "workspace",
        data={"adapter": "imagefolder", "path": str(folder / "photographs")},
        evaluation__metrics=["bleu"],
        training__seed=night,
        training__epochs=1,
    )


def write_pictures(folder: Path, night: int) -> None:
    """Write the pictures that there are on a night: the last PICTURES of those that came, one a night."""
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(night, night + PICTURES):
        name = f"scene-{number:05}.png"
        rng = random.Random(number)
        objects = place_objects(rng)
        if not (folder / name).exists():
            draw(objects, rng, 48).save(folder / name)
        # The split is the picture's own: by shares, one that goes would move others.
        split = ("train", "train", "train", "dev", "test")[number % 5]
        rows.append({"file_name": name, "text": captions_of(objects, random.Random(number)), "split": split})
    (folder / f"scene-{night - 1:05}.png").unlink(missing_ok=True)
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
