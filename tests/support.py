"""What several test files share: configs that run in seconds, and their pipelines, by config."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import random
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.pipeline import build_pipeline
from tasks.captioner.captioner_artifacts import CaptionerArtifacts
from tasks.config.schema import Config, validate
from tasks.data.manifest import GENERATED_FOLDER
from tasks.grids.extraction import ExtractHooks
from tasks.grids.identity import Identity
from tasks.grids.store import Grids, GridStore
from tasks.mlflow_store import tracking
from tasks.mlflow_store.embedded_store import DATABASE, VERSION
from tasks.neighbours import make_memory
from tasks.pipeline import run as running
from tasks.pipeline.ledger import Artifact
from tasks.pipeline.plan import Inputs, Plan, Read, Status
from tasks.registry.register import Register
from tasks.training.train import DecoderHooks

STAGES = (
    "ingest",
    "extract",
    "tensorise",
    "train",
    "remember",
    "evaluate",
    "register",
)  # of a config without optional ones
WITHOUT_MLFLOW = STAGES[:-1]
HERE = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """Return a TCP port that nobody uses, below the range from which the system takes the ports of connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def planned(config: Config, until: str = "register", inputs: Inputs | None = None, read: Read = "none") -> Plan:
    """Return the plan of a config's pipeline up to a stage. inputs: digests read earlier, in place of today's."""
    plan = Plan(build_pipeline(config), until, read)
    plan.inputs = inputs or plan.inputs
    return plan.update()


def plan(config: Config, until: str = "register", inputs: Inputs | None = None, read: Read = "none") -> list[Status]:
    """Return the statuses of a config's stages up to one of them."""
    return planned(config, until, inputs, read).statuses


def artifacts(config: Config, until: str = "register", inputs: Inputs | None = None) -> dict[str, Artifact]:
    """Return the fresh artifacts of a pipeline up to a stage, by kind."""
    return planned(config, until, inputs).by_kind


def inputs_of(config: Config, until: str = "register") -> Inputs:
    """Return the digests of what comes to a config's stages from outside."""
    return Plan(build_pipeline(config), until).inputs


def verify(config: Config, until: str = "register") -> list[Status]:
    """Return the statuses, with every digest read."""
    return Plan(build_pipeline(config), until).verify().statuses


def run_stage(config: Config, name: str, inputs: Inputs | None = None, **hooks: Any) -> Status:
    """Bring one stage of a config up to date; hooks: fields of the hooks of extraction, or of a decoder's training."""
    kinds: dict[str, Any] = {"extract": ExtractHooks, "train": DecoderHooks}
    given = kinds[name](**hooks) if hooks and name in kinds else None
    return running.run_stage(planned(config, name, inputs, "suspects"), name, given)


def names_of(config: Config) -> list[str]:
    """Return the names of a config's stages, in order."""
    return build_pipeline(config).names()


def raise_version(monkeypatch: pytest.MonkeyPatch, config: Config, name: str) -> None:
    """Have a stage compute something else from now on."""
    (stage,) = (item for item in build_pipeline(config).stages if item.name == name)
    monkeypatch.setattr(type(stage), "version", 99)
    if name == "extract":
        monkeypatch.setattr("tasks.grids.identity.EXTRACT_VERSION", 99)


def captioner_artifacts(config: Config) -> CaptionerArtifacts:
    """Return the artifacts that a config's captioner is made from."""
    registration = build_pipeline(config).last
    assert isinstance(registration, Register)
    by_name = {stage.name: artifact for stage, artifact in planned(config, "evaluate").artifacts.items()}
    stages = registration.all_upstream()
    return CaptionerArtifacts.of(registration.scores, {stage: by_name[stage.name] for stage in stages})


def small(workspace: Path, **changes: object) -> Config:
    """A whole config that runs in seconds; `changes` are dotted names with `__` for the dot."""
    values: dict[str, dict[str, object] | str] = {
        "name": "small",
        "data": {"adapter": "scenes", "pictures": 60, "side": 48},
        "grids": {"backbone": "tiny", "weights": "random:0", "image_size": 64},
        "captions": {"min_count": 1},
        "decoder": {"name": "show_attend_tell", "embedding": 16, "hidden": 24, "attention_size": 16},
        "training": {
            "epochs": 2,
            "batch_pictures": 8,
            "learning_rate": 0.005,
            "warmup_steps": 2,
            "precision": "float32",
        },
        "evaluation": {"split": "test", "beam": 2, "metrics": ["bleu", "truth"]},
        "registry": {"min_pictures": 1},
        "machine": {"workspace": str(workspace), "shard_rows": 16, "device": "cpu"},
    }
    for name, value in changes.items():
        if "__" not in name:
            values[name] = value  # type: ignore[assignment]
            continue
        section, field = name.split("__")
        inner = values.setdefault(section, {})
        assert isinstance(inner, dict)
        inner[field] = value
    data = values["data"]
    assert isinstance(data, dict)
    if data["adapter"] != "scenes" and "evaluation__metrics" not in changes and "evaluation" not in changes:
        values["evaluation"]["metrics"] = ["bleu"]  # type: ignore[index]
    return validate(values, "test")


def run_all(config: Config) -> dict[str, str]:
    """Run every stage but register; stage -> its state before."""
    return {name: run_stage(config, name).state for name in WITHOUT_MLFLOW}


def train_any_matcher(patch: pytest.MonkeyPatch) -> None:
    """Train a matcher on however few pictures and captions."""
    patch.setattr(make_memory, "MIN_PICTURES", 1)
    patch.setattr(make_memory, "MIN_CAPTIONS", 1)


def trained(workspace: Path, **changes: object) -> Config:
    """A config whose captions say something."""
    training = {"training__epochs": 20, "training__patience": 20, "training__learning_rate": 0.01}
    return small(workspace, **{"data__pictures": 120, "decoder__dropout_output": 0.0, **training, **changes})


@functools.cache
def empty_store() -> Path:
    """Return a folder with an MLflow database without runs: it takes seconds to make, and nothing to copy."""
    folder = tempfile.TemporaryDirectory(prefix="attend-store-")
    atexit.register(folder.cleanup)
    tracking.connect(Path(folder.name))
    return Path(folder.name)


def give_store(workspace: Path) -> None:
    """Put an MLflow database into the workspace, where it has none."""
    if not (workspace / DATABASE).exists():
        workspace.mkdir(parents=True, exist_ok=True)
        for name in (DATABASE, VERSION):
            shutil.copyfile(empty_store() / name, workspace / name)


def register_all(config: Config) -> dict[str, str]:
    """Run every stage; stage -> its state before."""
    give_store(config.workspace)
    return {name: run_stage(config, name).state for name in names_of(config)}


def write_shard(
    store: GridStore, slabs: Sequence[Grids], digests: Sequence[str], sizes: Sequence[tuple[int, int]]
) -> None:
    """Write and publish a shard of grids with the next number."""
    store.publish(store.draft(slabs, digests, sizes, store.next_number()))


def pictures(workspace: Path) -> list[Path]:
    """Its generated pictures."""
    return sorted(workspace.glob(f"artifacts/ingest/*/{GENERATED_FOLDER}/*.png"))


def states(config: Config) -> dict[str, Status]:
    return {status.stage.name: status for status in plan(config)}


class Killed(BaseException):
    """As abrupt as a signal: nothing in the program catches it."""


IDENTITY = Identity("tiny", "random:0", 64, "squash", None, "float32", 1)


def store_with(folder: Path, shards: int = 2, rows: int = 3) -> tuple[GridStore, dict[str, np.ndarray]]:
    store = GridStore(folder, IDENTITY)
    store.open()
    generator = np.random.default_rng(0)
    grids: dict[str, np.ndarray] = {}
    for shard in range(shards):
        values = generator.normal(size=(rows, 2, 3, 512)).astype(np.float16)
        digests = [f"{shard}-{row}" for row in range(rows)]
        write_shard(store, [values[:1], values[1:]], digests, [(10, 20)] * rows)
        grids |= dict(zip(digests, values, strict=True))
    return store, grids


def ask(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    for _ in range(20):
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # Its database is busy for a moment: Prefect's own client asks again then.
            if error.code != 503:
                raise
            time.sleep(1)
    raise AssertionError(f"{url} is busy for 20 s")


def run_of(api: str, deployment: str) -> dict[str, Any]:
    """A run of a deployment, when it has ended."""
    made = ask(f"{api}/deployments/{deployment}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    end = time.monotonic() + 300
    while time.monotonic() < end:
        (run,) = ask(f"{api}/flow_runs/filter", {"flow_runs": {"id": {"any_": [made["id"]]}}})
        if run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return dict(run)
        time.sleep(1)
    raise AssertionError(run["state"])
