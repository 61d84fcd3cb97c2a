"""What people's answers bring: nights that ask about the least sure captions, and nights that ask at random.

    python -m bench.quality.answered_nights DATA WEIGHTS [--nights 10] [--asked 100] [--anew 5 10] [--threads 0]

DATA is Flickr8k's folder, WEIGHTS MobileNetV2's. A thousand photographs have their captions from the start, two
thousand more come without: half of them before the first night, the others by the hundred. Each night the champion
captions those that were not answered, `attend review queue` picks whom to ask about, a simulated person gives one of
the picture's own references, and the pipeline runs: warm from the champion, and on the nights of `--anew` from the
beginning too. `nobody` has the same nights without an answer, which tells what more epochs alone bring. The script ends
where a picture was extracted a second time.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.machine import describe
from flows.pipeline import build_pipeline
from flows.registered.review_queue import QueueOptions, write_queue
from tasks.common.files import digest_of_file
from tasks.config.schema import Config, validate
from tasks.data.manifest import read_pictures
from tasks.datasets.corrections import add_answers, read_answers
from tasks.pipeline.plan import artifacts
from tasks.pipeline.run import run_stage
from tasks.pipeline.stage import Hooks
from tasks.registry.versions import champion_bundle
from tasks.review.queue import Shares

KNOWN, WAITING, DEV = 1000, 1000, 1000
CHOSEN = ("least sure", "at random", "nobody")
TRAINING = {"label_smoothing": 0.1, "unknown_words": 0.1, "averaging": 0.99, "select": "cider"}
COLD = {**TRAINING, "epochs": 10}
WARM = {**TRAINING, "epochs": 1, "learning_rate": 1e-4, "warmup_steps": 0, "start_from": "champion"}


class Pictures:
    """Flickr8k's training photographs in a random order, those of dev, and the captions of both."""

    def __init__(self, data: Path, seed: int) -> None:
        self.folder = data / "images"
        self.references: dict[str, list[str]] = {}
        for line in (data / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
            name, caption = line.split("\t")
            self.references.setdefault(name.partition("#")[0], []).append(caption)
        self.train = (data / "Flickr_8k.trainImages.txt").read_text().split()
        random.Random(seed).shuffle(self.train)
        self.dev = (data / "Flickr_8k.devImages.txt").read_text().split()[:DEV]

    def write_known(self, folder: Path) -> None:
        """Write the data set that is there from the start."""
        rows = [{"file_name": name, "text": self.references[name], "split": "train"} for name in self.train[:KNOWN]]
        rows += [{"file_name": name, "text": self.references[name], "split": "dev"} for name in self.dev]
        self.put([*self.train[:KNOWN], *self.dev], folder)
        (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def put(self, names: list[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(self.folder / name, folder / name)


class Month:
    """The workspace of all ways, which share grids and the first training, and what was extracted in it."""

    def __init__(self, folder: Path, pictures: Pictures, given: Any) -> None:
        self.folder, self.pictures, self.given = folder, pictures, given
        self.known, self.inbox, self.workspace = folder / "known", folder / "inbox", folder / "workspace"
        self.extracted: dict[str, int] = {}  # key of an artifact -> pictures that were extracted for it
        self.needed: set[str] = set()  # digests of all pictures of all runs
        pictures.write_known(self.known)
        pictures.put(pictures.train[KNOWN : KNOWN + WAITING], self.inbox)

    def come(self, night: int) -> None:
        """Add the photographs of a night to those that wait."""
        first = KNOWN + WAITING + 100 * (night - 1)
        self.pictures.put(self.pictures.train[first : first + 100], self.inbox)

    def run(self, training: dict[str, Any], name: str, answers: Path) -> float:
        """Run the whole pipeline, and return CIDEr on dev."""
        pipeline = build_pipeline(self._config(training, name, answers))
        with tempfile.TemporaryDirectory() as scratch:
            hooks = Hooks(champion=partial(champion_bundle, self.workspace, name, Path(scratch)))
            for stage in pipeline.names():
                run_stage(pipeline, stage, hooks=hooks)
        found = artifacts(pipeline)
        extracted = found["extract"].ledger
        self.extracted[extracted.key] = int(extracted.counts["extracted"])
        self.needed |= {
            picture.digest for split in ("train", "dev") for picture in read_pictures(found["ingest"].path, split)
        }
        if sum(self.extracted.values()) != len(self.needed):
            raise SystemExit(f"{sum(self.extracted.values()):,} extracted of {len(self.needed):,} pictures")
        told = json.loads((found["evaluate"].path / "scores.json").read_text(encoding="utf-8"))
        return float(told["scores"]["cider"])

    def _config(self, training: dict[str, Any], name: str, answers: Path) -> Config:
        sources: dict[str, Any] = {"known": {"adapter": "imagefolder", "path": str(self.known)}}
        if answers.exists():
            sources["people"] = {"adapter": "corrections", "path": str(answers), "images": str(self.inbox)}
        return validate(
            {
                "name": name,
                "data": {"adapter": "sources", "sources": sources},
                "grids": {"backbone": "mobilenet_v2", "weights": str(self.given.weights), "image_size": 224},
                "captions": {"max_tokens": 20, "min_count": 2},
                "decoder": {"name": "show_attend_tell", "output": "deep", "dropout_words": 0.3, "dropout_grid": 0.3},
                "training": training,
                "evaluation": {"split": "dev", "beam": 3, "no_repeat": 3, "metrics": ["bleu", "cider"]},
                "registry": {"promote_on": "cider", "certainty": 0.5, "runtimes": ["torch"]},
                "machine": {"workspace": str(self.workspace), "threads": self.given.threads, "device": "cpu"},
            },
            "answered nights",
        )


class Way:
    """A way to choose whom to ask about, with its own answers and its own registered model."""

    def __init__(self, chosen: str, month: Month) -> None:
        self.chosen, self.month = chosen, month
        self.name = chosen.replace(" ", "-")
        self.answers = month.folder / f"{self.name}.jsonl"

    def night(self, number: int) -> float:
        """Ask, answer, and train from the champion; return CIDEr. Nobody's nights go on with another seed."""
        if self.chosen == "nobody":
            return self.month.run({**WARM, "seed": number}, self.name, self.answers)
        self._answer(number)
        return self.month.run(WARM, self.name, self.answers)

    def anew(self) -> float:
        """Train from the beginning with the answers that are there, and return CIDEr."""
        return self.month.run(COLD, f"{self.name}-anew", self.answers)

    def _answer(self, night: int) -> None:
        """Have a person give one of a picture's references, for each picture that is asked about tonight."""
        chance = random.Random(night)
        asked = self._least_sure() if self.chosen == "least sure" else self._at_random(chance)
        fixed = {
            "verdict": "edited",
            "chosen": "least sure",  # an answer to what was asked at random would be test
            "who": "simulated",
            "when": f"2026-01-{night:02d}T08:00:00+00:00",
        }
        answers: list[Any] = [
            {**data, "given": chance.choice(self.month.pictures.references[data["name"]]), **fixed} for data in asked
        ]
        add_answers(self.answers, answers)

    def _least_sure(self) -> list[dict[str, Any]]:
        month, tasks = self.month, self.month.folder / "tasks.json"
        model = f"models:/{self.name}@champion"
        wanted = QueueOptions(month.inbox, model, month.given.asked, Shares(0.0), self.answers, month.workspace)
        write_queue(tasks, wanted, "")
        fields = ("picture", "name", "shown", "model", "confidence")
        return [{field: task["data"][field] for field in fields} for task in json.loads(tasks.read_text("utf-8"))]

    def _at_random(self, chance: random.Random) -> list[dict[str, Any]]:
        known = {answer["name"] for _, answer in read_answers(self.answers)} if self.answers.exists() else set()
        waiting = sorted(path.name for path in self.month.inbox.glob("*.jpg") if path.name not in known)
        fixed = {"shown": "not looked at", "model": f"models:/{self.name}/1", "confidence": None}
        return [
            {"picture": digest_of_file(self.month.inbox / name), "name": name, **fixed}
            for name in chance.sample(waiting, self.month.given.asked)
        ]


def main() -> None:
    given = _arguments()
    describe()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        month = Month(Path(folder), Pictures(given.data, given.seed), given)
        ways = [Way(chosen, month) for chosen in CHOSEN]
        print(
            "\n| night | answers | least sure | at random | nobody | least sure, anew | at random, anew |", flush=True
        )
        print("| --- " * 7 + "|")
        begun = " | ".join(f"{month.run(COLD, way.name, way.answers):.1f}" for way in ways)
        print(f"| 0 | 0 | {begun} | | |", flush=True)
        for number in range(1, given.nights + 1):
            month.come(number)
            found = [f"{way.night(number):.1f}" for way in ways]
            found += [f"{way.anew():.1f}" if number in given.anew else "" for way in ways[:2]]
            print(f"| {number} | {number * given.asked:,} | {' | '.join(found)} |", flush=True)
        print(f"\n{sum(month.extracted.values()):,} extracted for {len(month.needed):,} pictures: none a second time")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--nights", type=int, default=10)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--anew", type=int, nargs="*", default=[5, 10], metavar="NIGHT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the workspaces are made; by default the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
