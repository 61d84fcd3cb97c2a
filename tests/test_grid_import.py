"""Grids that others extracted: every format and layout gives the same grids, and what does not fit is refused."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from flows.commands.import_grids import import_grids
from flows.commands.workspace_contents import planned_compactions, prune, usage
from flows.unregistered import log_evaluation
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.data.manifest import read_pictures
from tasks.grids import foreign_hdf5
from tasks.grids.foreign_hdf5 import foreign_arrays
from tasks.grids.index import open_grids
from tasks.pipeline.workspace import Workspace
from tasks.registry import tracking
from tasks.registry.logged_model import load_captioner
from tasks.registry.versions import find
from tests.support import artifacts, give_store, run_stage, small

COUNT = 60


def imported(workspace: Path, name: str = "theirs") -> Config:
    return small(
        workspace,
        grids={"backbone": "imported", "weights": f"imported:{name}", "image_size": 96},
        data={"adapter": "scenes", "pictures": COUNT, "side": 48},
    )


def grids(channels: int = 5) -> np.ndarray[Any, Any]:
    """(N, 3, 3, C), row n full of values that tell n."""
    chance = np.random.default_rng(0)
    values: np.ndarray[Any, Any] = chance.normal(size=(COUNT, 3, 3, channels)).astype(np.float32)
    return values


def names() -> list[str]:
    return [f"scene_{number:06d}" for number in range(COUNT)]


def write(path: Path, layout: str) -> Path | None:
    """The grids as a file of each kind; returns a file of ids where the format has none."""
    values = grids() if layout == "nhwc" else np.ascontiguousarray(grids().transpose(0, 3, 1, 2))
    if path.suffix == ".npz":
        np.savez(path, features=values, ids=np.array(names()))
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["features"] = values
            file["ids"] = [name.encode() for name in names()]
    else:
        np.save(path, values)
        ids = path.with_name("ids.json")
        ids.write_text(json.dumps(list(range(COUNT))))  # the numbers that the names end in
        return ids
    return None


@pytest.mark.parametrize(
    ("signal_", "message"),
    [(signal.SIGKILL, "the HDF5 library crashed"), (signal.SIGSTOP, "found no end in 1 s")],
)
def test_an_hdf5_library_that_crashes_or_hangs_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_: signal.Signals, message: str
) -> None:
    path = tmp_path / "grids.h5"
    write(path, "nhwc")
    with foreign_arrays(path) as arrays:
        np.testing.assert_array_equal(arrays["features"][2], grids()[2])
        (reader,) = multiprocessing.active_children()
        os.kill(reader.pid or 0, signal_)
        monkeypatch.setattr(foreign_hdf5, "PATIENCE", 1.0)
        with pytest.raises(OSError, match=message):
            arrays["features"][3]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_every_format_gives_the_same_grids(workspace: Path, tmp_path: Path, suffix: str, layout: str) -> None:
    config = imported(workspace)
    path = tmp_path / f"grids{suffix}"
    ids = write(path, layout)
    assert import_grids(config, path, ids) == COUNT
    run_stage(config, "extract")
    found = artifacts(config)
    assert found["extract"].ledger.counts["grids"] == COUNT
    reader = open_grids(found["extract"], config.machine)
    for split in ("train", "dev"):
        for picture in read_pictures(found["ingest"].path, split):
            number = int(Path(picture.name).stem[-6:])
            np.testing.assert_array_equal(reader.read([picture.digest])[0], grids()[number].astype(np.float16))


def test_a_decoder_trains_on_imported_grids_and_is_registered_for_grids(workspace: Path, tmp_path: Path) -> None:
    config = imported(workspace)
    write(tmp_path / "grids.npz", "nhwc")
    import_grids(config, tmp_path / "grids.npz")
    for stage in ("extract", "tensorise", "train", "remember", "evaluate"):
        run_stage(config, stage)

    give_store(workspace)
    log_evaluation(config)  # scores and weights; without photographs there is no report
    client = tracking.connect(workspace)
    (found,) = client.search_experiments(filter_string="name = 'small'")
    runs = client.search_runs([found.experiment_id])
    assert any(run.data.metrics.get("bleu4") is not None for run in runs) and len(runs) == 2

    run_stage(config, "register")
    assert load_captioner(*find(None, workspace)).backbone is None


def test_pictures_without_an_imported_grid_are_told(workspace: Path, tmp_path: Path) -> None:
    config = imported(workspace)
    np.savez(tmp_path / "part.npz", grids=grids()[:30], ids=np.array(names()[:30]))
    assert import_grids(config, tmp_path / "part.npz") == 30
    with pytest.raises(AttendError, match=r"30 of 60 pictures cannot be read.*is not among the imported grids"):
        run_stage(config, "extract")
    np.savez(tmp_path / "rest.npz", grids=grids()[30:], ids=np.array(names()[30:]))
    assert import_grids(config, tmp_path / "rest.npz") == 30
    run_stage(config, "extract")
    assert import_grids(config, tmp_path / "rest.npz") == 30  # a cut import goes on: what is there stays
    assert artifacts(config)["extract"].ledger.counts["shards"] == 4
    np.savez(tmp_path / "other.npz", grids=grids()[30:] + 1, ids=np.array(names()[30:]))
    np.savez(tmp_path / "wide.npz", grids=np.zeros((1, 7, 7, 5), np.float32), ids=np.array(names()[:1]))
    for name, message in (("other", "holds another grid of a picture"), ("wide", r"holds grids of \(3, 3, 5\)")):
        with pytest.raises(AttendError, match=message):
            import_grids(config, tmp_path / f"{name}.npz")


def test_more_grids_are_taken_up_by_a_run_that_had_fewer(workspace: Path, tmp_path: Path) -> None:
    config = imported(workspace)
    config = config.model_copy(update={"grids": config.grids.model_copy(update={"max_failed": 0.6})})
    for begin in (0, 30):
        part = slice(begin, begin + 30)
        np.savez(tmp_path / "part.npz", grids=grids()[part], ids=np.array(names()[part]))
        import_grids(config, tmp_path / "part.npz")
        run_stage(config, "extract")
        assert artifacts(config)["extract"].ledger.counts["grids"] == begin + 30


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"grids": grids()}, "holds no `ids`: give them with --ids"),
        ({"grids": grids(), "ids": np.array(names()[:9])}, "9 ids for 60 grids"),
        ({"grids": grids(3), "ids": np.array(names())}, "add --layout nchw or nhwc"),
        ({"grids": grids()[0], "ids": np.array(names())}, "one array of four dimensions is needed; there are: none"),
        ({"grids": grids() * np.nan, "ids": np.array(names())}, "scene_000000: holds values that are not finite"),
        ({"grids": grids(), "ids": np.array(["x"] * COUNT)}, "none of its 60 ids .* names a picture"),
        ({"grids": grids(), "ids": np.array(["scene_000001"] * COUNT)}, "scene_000001 is the id of two grids"),
        ({"grids": grids().astype(int), "ids": np.array(names())}, "floats are needed"),
    ],
)
def test_what_does_not_fit_is_refused(workspace: Path, tmp_path: Path, held: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "grids.npz", **held)
    with pytest.raises(AttendError, match=message):
        import_grids(imported(workspace), tmp_path / "grids.npz")


def test_other_configs_and_files_are_refused(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(AttendError, match=r"set grids\.backbone=imported"):
        import_grids(small(workspace), tmp_path / "grids.npz")
    with pytest.raises(AttendError, match="no such file"):
        import_grids(imported(workspace), tmp_path / "grids.npz")
    (tmp_path / "grids.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(AttendError, match="not readable"):
        import_grids(imported(workspace), tmp_path / "grids.npz")
    with pytest.raises(AttendError, match="both or neither"):
        run_stage(small(workspace, grids__weights="imported:x"), "extract")


def test_imported_grids_are_kept_until_someone_names_them(workspace: Path, tmp_path: Path) -> None:
    """No run has indexed them yet, and they could not be made again."""
    config = imported(workspace)
    ids = write(tmp_path / "grids.npy", "nhwc")
    import_grids(config, tmp_path / "grids.npy", ids)
    opened = Workspace(workspace)
    assert not [item for item in usage(opened) if item.path.suffix == ".h5" and not item.needed_by]
    assert not planned_compactions(opened)
    freed = [item for item in usage(opened, ["imported:theirs"]) if not item.needed_by]
    assert {item.path.suffix for item in freed} == {".h5"}
    prune(opened, freed, ["imported:theirs"])
    assert not list(workspace.glob("grids/*/shard-*"))
