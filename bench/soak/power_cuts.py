"""Simulate power cuts of `attend run` at random times: damaged files are never used, and the next run resumes.

    python -m bench.soak.power_cuts [--cuts 100] [--seed 0] [--defect weights|artifacts]

A small run is recorded with strace, call by call. For each cut, its calls are replayed up to a random time, and data
that was not flushed by then is lost as described in bench/soak/disk.py. The program then plans a run on the remaining
files: no file of a stage that it considers fresh may be damaged, and no file of the registered model. The run continues
in this process up to the scores and, after a tenth of the cuts, as a separate program up to the registered model. The
results must be those of the undisturbed run, otherwise the exit code is 1. Needs strace.

--defect: make the recorded run skip flushing the weights that training keeps of its epochs, or any weights. The
benchmark must find this.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from bench.machine import describe
from bench.pipelines import run_until
from bench.soak.disk import Call, Disk, Left, write_out
from bench.soak.kills import CONFIG, check, contents
from bench.soak.recording import read, record
from flows.pipeline import build_pipeline
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file
from tasks.common.log import silence
from tasks.config.schema import Config, load
from tasks.pipeline.plan import Plan
from tasks.pipeline.sessions import session

SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"pictures": 60, "side": 32},
    "grids": {"image_size": 32},
    "training": {"epochs": 6, "learning_rate": 0.02, "patience": 6},
    "machine": {"shard_rows": 16, "checkpoint_seconds": 0.1},
}
DEFECTS = {"weights": ".epoch-", "artifacts": ".safetensors"}  # -> what is in the names of the files not flushed
SCORES = "evaluate"  # the last stage whose results tell no times or ids
# The rows of the table -> whether they count failures.
ROWS = {
    "cuts": False,
    "plans that failed": True,
    "stages found fresh": False,
    "files that the cuts damaged": False,
    "of them files of artifacts and shards": False,
    "damaged and called fresh": True,
    "damaged files of the registered model, called fresh": True,
    "weights called fresh that are zero or not finite": True,
    "went on to the scores, results equal": False,
    "went on to the scores, other results": True,
    "ran to the end, results equal": False,
    "ran to the end, other results": True,
}
# Where only the program itself writes: what is left there is not looked at by the stages up to the scores.
_PROGRAMS_OWN = ("artifacts/register", "mlartifacts", "mlflow.db", "prefect", "runs", "the end")


@dataclass(frozen=True)
class Alone:
    """The undisturbed run: its calls, the digests of its files by path, and its results, up to the scores and all."""

    calls: list[Call]
    digests: dict[Path, str]
    scores: dict[str, str]
    results: dict[str, str]


@dataclass(frozen=True)
class Cut:
    """A power cut: the number of the last call before it, and the location of that call."""

    after: int
    place: str


def main() -> None:
    """Record a run, simulate power cuts, and print the outcomes."""
    args = _arguments()
    chance = random.Random(args.seed)
    describe()
    silence()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="attend-power-") as place:
        folder = Path(place) / "run"
        alone = _run_alone(folder, args.defect)
        print(f"recorded {len(alone.calls):,} calls", flush=True)
        cuts = _cuts(alone.calls, folder, args.cuts, chance)
        own = [number for number, cut in enumerate(cuts, 1) if cut.place in _PROGRAMS_OWN]
        to_the_end = chance.sample(own, min(len(own), -(-args.cuts // 10)))
        for number, (cut, left) in enumerate(_lost(alone.calls, cuts, chance), 1):
            shutil.rmtree(folder)
            write_out(left.files, folder)
            _write_config(folder)
            where = f"cut {number}, after call {cut.after:,} ({cut.place})"
            counts += looked_at(folder, left, alone, where)
            counts += _gone_on(folder, alone, number in to_the_end, where)
            if number % 10 == 0:
                print(f"{number} cuts: {_failures(counts)} failures", flush=True)
    _print_table(counts, Counter(cut.place for cut in cuts))
    sys.exit(1 if _failures(counts) else 0)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defect", choices=list(DEFECTS))
    return parser.parse_args()


def _failures(counts: Counter[str]) -> int:
    return sum(counts[what] for what, failed in ROWS.items() if failed)


def _print_table(counts: Counter[str], places: Counter[str]) -> None:
    print("\n| what | count |\n| --- | --- |")
    for what in ROWS:
        print(f"| {what} | {counts[what]:,} |")
    print("\n| the last call before the cut | cuts |\n| --- | --- |")
    for place, count in sorted(places.items()):
        print(f"| {place} | {count} |")


def _write_config(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    changed = {**CONFIG, "machine": {**CONFIG["machine"], "workspace": str(folder / "workspace")}}  # type: ignore[dict-item]
    config = changed | {name: {**changed[name], **values} for name, values in SETTINGS.items()}  # type: ignore[dict-item]
    (folder / "killed.yaml").write_text(json.dumps(config), encoding="utf-8")


def _config(folder: Path) -> Config:
    return load(str(folder / "killed.yaml"))


def _program(folder: Path, defect: str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the command of a run, with a defect if one is given, and its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    module = ["flows.commands.cli"] if defect is None else ["bench.soak.unflushed", DEFECTS[defect]]
    command = [sys.executable, "-m", *module, "run", str(folder / "killed.yaml")]
    return command, environment | {"TMPDIR": str(folder)}


def _run_alone(folder: Path, defect: str | None) -> Alone:
    """Run the program undisturbed. Raises SystemExit if its recorded calls do not reproduce its files."""
    _write_config(folder)
    command, environment = _program(folder, defect)
    log = folder.with_name("calls")
    done = record(command, log, environment)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    (folder / "killed.yaml").unlink()
    calls, disk = read(log, folder)
    log.unlink()
    real = {str(path): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}
    replayed = {path: None if node.folder else bytes(node.data) for path, node in disk.names.items()}
    wrong = [path for path in real.keys() | replayed.keys() if real.get(path, b"") != replayed.get(path, b"")]
    wrong = [path for path in wrong if not path.endswith("-shm")]
    if wrong:
        raise SystemExit(f"the recorded calls do not lead to these files: {sorted(wrong)}")
    digests = {path: digest_of_file(path) for path in folder.rglob("*") if path.is_file()}
    _write_config(folder)
    return Alone(calls, digests, contents(folder, SCORES), contents(folder))


def _cuts(calls: Sequence[Call], folder: Path, count: int, chance: random.Random) -> list[Cut]:
    """Return cuts in order of time, spread over all parts of the workspace and the end of the run."""
    by_place: dict[str, list[int]] = {"the end": [len(calls)]}
    for number, call in enumerate(calls, 1):
        by_place.setdefault(_place(Path(call.path).relative_to(folder)), []).append(number)
    places = [*sorted(by_place), "artifacts/train", "artifacts/train"]  # there most can be lost, and most is resumed
    chosen = [places[number % len(places)] for number in range(count)]
    return sorted((Cut(chance.choice(by_place[place]), place) for place in chosen), key=lambda cut: cut.after)


def _place(path: Path) -> str:
    """Return the part of the workspace that a file belongs to."""
    if path.parts[0] != "workspace" or path.parts[1:] in ((), ("artifacts",)):
        return "other files"
    if path.parts[1] == "artifacts":
        return f"artifacts/{path.parts[2]}"
    return re.sub(r"^\.(.*)\.\d+\.tmp", r"\1", path.parts[1]).removesuffix("-journal").removesuffix("-wal")


def _lost(calls: Sequence[Call], cuts: Sequence[Cut], chance: random.Random) -> Iterator[tuple[Cut, Left]]:
    """Yield what remains after each cut. cuts: in order of time."""
    disk, done = Disk(), 0
    for cut in cuts:
        for call in calls[done : cut.after]:
            disk.apply(call)
        done = cut.after
        yield cut, disk.cut(chance)


def looked_at(folder: Path, left: Left, alone: Alone, where: str) -> Counter[str]:
    """Count what a run finds if it starts on the remaining files, and which of these the program misjudges."""
    plan = Plan(build_pipeline(_config(folder)), read="suspects")
    root = plan.workspace.root
    counts = Counter({"cuts": 1, "files that the cuts damaged": len(left.damaged)})
    published = [path for path in alone.digests if {root / "artifacts", root / "grids"} & set(path.parents)]
    counts["of them files of artifacts and shards"] = sum(str(path) in left.damaged for path in published)
    try:
        with session(plan.workspace, "look"):  # which notices a crash
            plan.update()
    except Exception as error:
        print(f"{where}: {type(error).__name__}: {error}", flush=True)
        return counts + Counter(["plans that failed"])
    for status in plan.statuses:
        if status.artifact is not None:
            files = [path for path, _ in status.artifact.files(root)]
            counts += _of_fresh(status.stage.kind, files, alone, where)
    return counts


def _of_fresh(stage: str, files: Sequence[Path], alone: Alone, where: str) -> Counter[str]:
    """Count the damaged files of a stage that is considered fresh. files: those of its artifact and its shards."""
    damaged = _damaged(files, alone, f"{where}: {stage}")
    counts = Counter({"stages found fresh": 1, "damaged and called fresh": len(damaged)})
    if stage == "register":
        logged = [path for path in alone.digests if "mlartifacts" in path.parts]
        lost = _damaged(logged, alone, f"{where}: {stage}")
        counts["damaged files of the registered model, called fresh"] = len(lost)
    weights = [path for path in files if path.suffix == ".safetensors" and path not in damaged]
    counts["weights called fresh that are zero or not finite"] = sum(not _is_sound(path) for path in weights)
    return counts


def _damaged(files: Iterable[Path], alone: Alone, where: str) -> list[Path]:
    """Return the files that are missing or not those of the undisturbed run; print a message if there are any."""
    damaged = [path for path in files if not path.is_file() or digest_of_file(path) != alone.digests.get(path)]
    if damaged:
        print(f"{where} is called fresh, but {len(damaged)} files are damaged, such as {damaged[0]}", flush=True)
    return damaged


def _is_sound(path: Path) -> bool:
    weights = safetensors.torch.load_file(path).values()
    return all(bool(torch.isfinite(weight).all()) for weight in weights) and any(bool(w.any()) for w in weights)


def _gone_on(folder: Path, alone: Alone, to_the_end: bool, where: str) -> Counter[str]:
    """Run on the remaining files, and count whether the results are those of the undisturbed run."""
    go: Callable[[Path, Alone], None] = _run_to_the_end if to_the_end else _run_to_the_scores
    how = "ran to the end" if to_the_end else "went on to the scores"
    try:
        go(folder, alone)
    except (Exception, SystemExit) as error:
        text = str(error)  # the whole log of a program that failed
        excerpt = text if len(text) < 1500 else f"{text[:300]} ... {text[-1200:]}"
        print(f"{where}: {how}: {type(error).__name__}: {excerpt}", flush=True)
        return Counter([f"{how}, other results"])
    return Counter([f"{how}, results equal"])


def _run_to_the_scores(folder: Path, alone: Alone) -> None:
    """Run all stages up to the scores in this process. Raises AttendError if the results differ."""
    run_until(_config(folder), SCORES)
    after = contents(folder, SCORES)
    other = sorted(name for name in alone.scores.keys() | after.keys() if alone.scores.get(name) != after.get(name))
    if other:
        raise AttendError("; ".join(other))


def _run_to_the_end(folder: Path, alone: Alone) -> None:
    """Run the program. Raises SystemExit if it fails, or if its files differ from those of the undisturbed run."""
    command, environment = _program(folder)
    with (folder / "log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit((folder / "log").read_text(encoding="utf-8"))
    check(folder, alone.results)
    models = [_registered(files, folder) for files in (alone.digests, _digests(folder / "workspace" / "mlartifacts"))]
    if models[0] != models[1]:
        raise SystemExit("the registered model is another one")


def _digests(folder: Path) -> dict[Path, str]:
    return {path: digest_of_file(path) for path in folder.rglob("*") if path.is_file()}


def _registered(digests: dict[Path, str], folder: Path) -> dict[str, str]:
    """Return the files of the registered captioner by name."""
    names = {path: path.relative_to(folder).as_posix().partition("/bundle/")[2] for path in digests}
    return {name: digests[path] for path, name in names.items() if name}


if __name__ == "__main__":
    main()
