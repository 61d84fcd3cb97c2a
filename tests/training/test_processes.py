"""Two processes train, and caption, as one does: the same steps, the same checkpoints, the same captions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from models.decoders import DECODERS
from models.decoders.base import make
from models.vocabulary import NULL
from tasks.captioner.bundle import make_captioner
from tasks.config.schema import Config
from tasks.config.training import TrainingConfig
from tasks.data.manifest import read_pictures
from tasks.evaluation.caption_and_score import PREDICTIONS
from tasks.pipeline import distributed as processes
from tasks.training.batches import Batch
from tasks.training.loop import LossModule
from tasks.training.objectives import Count, CrossEntropy
from tasks.training.outputs import HISTORY, WEIGHTS
from tests.decoding import CHANNELS, LOOKING, VOCABULARY, example
from tests.support import artifacts, captioner_artifacts, free_port, plan, run_stage, small

# Nothing is drawn, so that what is left to differ is the order in which numbers are added. 49 pictures in batches of
# eight: the last one has a picture for one process only.
EXACT = {
    "data__pictures": 57,
    "decoder__dropout_output": 0.0,
    "training__epochs": 5,
    "training__learning_rate": 0.02,
    "training__averaging": 0.9,
    "training__doubly_stochastic": 1.0,
    "training__label_smoothing": 0.1,
    "self_critical": {"epochs": 2, "batch_pictures": 8, "samples": 3},
}


def _one(rank: int, number: int, port: int, config: Config, until: str, stop_after: int | None) -> None:
    where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in where.items()})
    torch.set_num_threads(1)
    with processes.process_group("cpu") as leads:
        if leads:
            _run(config, until, stop_after)
            processes.dismiss_followers()
            return
        try:
            processes.follow()
        except SystemExit as end:
            (config.workspace / "follower").write_text(str(end.code))
            raise


def _run(config: Config, until: str, stop_after: int | None = None) -> None:
    def stop(row: dict[str, float], _: Path | None) -> None:
        if row["epoch"] == stop_after:
            raise KeyboardInterrupt

    champion = config.workspace / "champion"
    of_train = {"epoch_done": stop, "champion": lambda: champion if champion.is_dir() else None}
    for status in plan(config, until):
        hooks: dict[str, Any] = of_train if status.stage.name == "train" else {}
        run_stage(config, status.stage.name, **hooks)


def in_two(config: Config, until: str, stop_after: int | None = None) -> None:
    """Bring a config up to date in two processes; stop_after: where the leader is interrupted, an epoch."""
    port = free_port()
    begun = spawn(_one, (2, port, config, until, stop_after), nprocs=2, join=False)
    for process in begun.processes:  # each by itself, also where the leader fails
        process.join()
    begun.join()


def told(config: Config, stage: str) -> tuple[list[dict[str, float]], dict[str, np.ndarray]]:
    """The history of a training, without its times, and its weights."""
    path = artifacts(config, stage)[stage].path
    rows = pq.read_table(path / HISTORY).to_pylist()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows], safetensors.numpy.load_file(
        path / WEIGHTS
    )


def assert_same(ours: Config, theirs: Config, stage: str, tolerance: float = 1e-5) -> None:
    (rows, weights), (others, their_weights) = told(ours, stage), told(theirs, stage)
    assert len(rows) == len(others)
    for row, other in zip(rows, others, strict=True):
        assert row == pytest.approx(other, rel=tolerance / 5, abs=tolerance, nan_ok=True)  # a perplexity is some tens
    for name, value in weights.items():
        difference = np.abs(value - their_weights[name])
        # A few may differ more: where a gradient is nearly 0, rounding decides in which direction Adam moves a weight.
        assert np.mean(difference > 20 * tolerance) < 1e-3, name
        assert np.sqrt(np.mean(difference**2)) < 20 * tolerance, name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = small(tmp_path_factory.mktemp("alone") / "workspace", **EXACT)
    _run(config, "evaluate")
    return config


@pytest.mark.slow
def test_two_processes_train_and_caption_as_one_does(alone: Config, workspace: Path) -> None:
    config = small(workspace, **EXACT)
    assert len(read_pictures(artifacts(alone, "ingest")["ingest"].path, "train")) % 8 == 1
    in_two(config, "evaluate")
    assert_same(config, alone, "train")
    assert_same(config, alone, "self_critical")
    ours, theirs = (pq.read_table(artifacts(c, "evaluate")["evaluate"].path / PREDICTIONS) for c in (config, alone))
    assert ours["digest"] == theirs["digest"] and ours["caption"] == theirs["caption"]


@pytest.mark.slow
def test_two_processes_start_from_a_champion_as_one_does(alone: Config, workspace: Path, tmp_path: Path) -> None:
    """The leader alone knows the champion, and all of them score it before they train."""
    configs = [small(place, **EXACT, training__start_from="champion") for place in (workspace, tmp_path / "other")]
    for config in configs:
        make_captioner(alone, captioner_artifacts(alone)).save(config.workspace / "champion")
    in_two(configs[0], "train")
    _run(configs[1], "train")
    assert_same(configs[0], configs[1], "train", 1e-4)
    assert told(configs[0], "train")[0][0]["epoch"] == 0


@pytest.mark.slow
def test_two_hundred_steps_have_one_curve(workspace: Path, tmp_path: Path) -> None:
    """An epoch is one step here, so that the history tells each.

    The rate is low: above it training amplifies what rounding leaves, in one process that adds in another order too.
    """
    one_a_step = {"training__epochs": 200, "training__patience": 200, "training__batch_pictures": 64}
    steps = EXACT | one_a_step | {"training__learning_rate": 2e-4, "training__warmup_steps": 100}
    ours, theirs = small(workspace, **steps), small(tmp_path / "other", **steps)
    in_two(ours, "train")
    _run(theirs, "train")
    mine, other = (np.array([row["loss"] for row in told(config, "train")[0]]) for config in (ours, theirs))
    print(f"\n200 steps: loss {mine[0]:.4f} to {mine[-1]:.4f}, greatest difference {np.abs(mine - other).max():.1e}")
    np.testing.assert_allclose(mine, other, atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_one_is_continued_by_two(alone: Config, workspace: Path) -> None:
    config = small(workspace, **EXACT)
    with pytest.raises(KeyboardInterrupt):
        _run(config, "train", stop_after=1)
    assert plan(config, "train")[-1].state == "interrupted"
    in_two(config, "train")
    assert_same(config, alone, "train")


@pytest.mark.slow
def test_a_checkpoint_of_two_is_continued_by_one(alone: Config, workspace: Path) -> None:
    config = small(workspace, **EXACT)
    with pytest.raises(Exception, match="terminated"):
        in_two(config, "train", stop_after=2)
    assert plan(config, "train")[-1].state == "interrupted"
    assert (workspace / "follower").read_text() == "1"  # and no traceback: the leader told why
    _run(config, "train")
    assert_same(config, alone, "train")


@pytest.mark.slow
def test_two_resume_where_nothing_is_left_but_to_write(alone: Config, workspace: Path) -> None:
    """The weights that are best are those of an epoch before the kill: one process alone has them."""
    config = small(workspace, **EXACT)
    with pytest.raises(KeyboardInterrupt):
        _run(config, "train", stop_after=5)
    in_two(config, "train")
    assert_same(config, alone, "train")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in DECODERS),
        *((name, {"first_state": "zeros"}) for name in LOOKING),
    ],
)
@pytest.mark.filterwarnings("error:find_unused_parameters")
def test_every_decoder_shares_its_gradient(name: str, changes: dict[str, object], tmp_path: Path) -> None:
    """No weight is left without one, for which the processes would wait: a group of one tells."""
    torch.manual_seed(0)
    options = {"embedding": 8, "hidden": 8, **({"heads": 2} if name == "transformer" else {}), **changes}
    decoder = make(name, CHANNELS, VOCABULARY, options)
    grid, tokens = example()
    batch = Batch.of(grid, tokens)
    store = distributed.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        module = DistributedDataParallel(LossModule(decoder, CrossEntropy(TrainingConfig())))
        for _ in range(3):
            module(batch, Count.of(batch), 0.0).loss.backward()
    finally:
        distributed.destroy_process_group()
    assert decoder.embed.weight.grad is not None


def test_a_step_in_parts_is_the_whole_step(alone: Config, workspace: Path) -> None:
    shutil.copytree(alone.workspace, workspace)
    shutil.rmtree(workspace / "artifacts" / "train")
    config = small(workspace, **EXACT, machine__accumulate=3)
    _run(config, "self_critical")
    assert_same(config, alone, "train")
    assert_same(config, alone, "self_critical")


def test_parts_are_the_batch() -> None:
    tokens = torch.arange(5 * 2 * 4).view(5, 2, 4) % 3 + NULL
    batch = Batch.of(torch.randn(5, 2, 2, 3), tokens)
    for number in (1, 2, 5, 9):
        parts = batch.parts(number)
        assert len(parts) == min(number, 5)
        for name in ("pictures", "tokens", "positions"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
