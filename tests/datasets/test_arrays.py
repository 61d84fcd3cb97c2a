"""Grids that others made, without their photographs: from two arrays to a registered model."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import mlflow
import numpy as np
import pytest
import torch

from flows.commands.story import print_end
from models.backbones.base import make
from models.backbones.encoder import Encoder
from models.encoded_pictures import decode, resize
from models.photographs import as_batch
from tasks.common.errors import AttendError
from tasks.config.schema import Config, load
from tasks.data.manifest import read_pictures
from tasks.datasets import foreign_hdf5
from tasks.datasets.foreign_hdf5 import foreign_arrays
from tasks.datasets.object_array import read_texts
from tasks.grids.index import open_grids
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import find
from tests.cli import attend
from tests.photographs import COLOURS, chinese_pictures
from tests.support import artifacts, plan, register_all, run_stage, small

CHANNELS = 24  # of the projected grids


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what others leave: projected grids, captions as an array of objects, and the matrix."""
    folder = tmp_path_factory.mktemp("given")
    names = sorted(chinese_pictures(folder / "photographs").glob("*.png"), key=lambda path: int(path.stem))
    pixels = as_batch([resize(decode(path.read_bytes()), 64, "squash", "bilinear") for path in names])
    grids = Encoder(make("tiny", seed=0))(pixels).float()  # (160, 2, 2, 512)
    _, _, axes = torch.linalg.svd(grids.flatten(0, 2), full_matrices=False)
    np.save(folder / "svd.npy", axes[:CHANNELS].numpy())
    projected = (grids @ axes[:CHANNELS].T).numpy()
    np.save(folder / "svdfeatures.npy", projected)
    np.save(folder / "flat.npy", projected.reshape(160, 4, CHANNELS).transpose(0, 2, 1))  # N x C x (W*H)
    said = np.empty(160, dtype=object)
    for number in range(160):
        colour = list(COLOURS.values())[number // 4 % 4]
        said[number] = [f"a {colour} shape", f"the shape is {colour}", f"one {colour} thing", "a shape", f"{colour}"]
    np.save(folder / "captions.npy", said, allow_pickle=True)
    return folder


def config_of(given: Path, workspace: Path, file: str = "svdfeatures.npy", **changes: object) -> Config:
    values: dict[str, object] = {
        "data": {"adapter": "arrays", "path": str(given / file), "captions": str(given / "captions.npy")},
        "grids": {"backbone": "imported", "weights": "imported:svd", "image_size": 64},
        "training__epochs": 12,
        "training__learning_rate": 0.01,
        "decoder__dropout_output": 0.0,
    }
    return small(workspace, **{**values, **changes})


@pytest.fixture(scope="module")
def registered(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("arrays") / "workspace"
    register_all(config_of(given, workspace))
    return workspace


def npy(path: Path, grid: Any) -> Path:
    np.save(path, grid)
    return path


def test_two_arrays_become_a_registered_model_that_captions_grids(
    given: Path, registered: Path, tmp_path: Path
) -> None:
    config = config_of(given, registered)
    assert all(status.fresh for status in plan(config))
    counts = artifacts(config)["extract"].ledger.counts
    assert (counts["grids"], counts["failed"]) == (160, 0)
    grids = np.load(given / "svdfeatures.npy")
    files = [npy(tmp_path / f"{number}.npy", grids[number]) for number in (0, 5, 10, 15)]
    captioner = load_captioner(*find(None, registered))
    captions = [item.caption for item in captioner.caption([path.read_bytes() for path in files])]
    assert len(set(captions)) > 1  # it tells the colours apart
    tracking.connect(registered)
    model = mlflow.pyfunc.load_model("models:/small@champion")
    assert [column.name for column in model.metadata.get_input_schema()] == ["grid"]
    rows = model.predict({"grid": [path.read_bytes() for path in files]})
    assert [row["caption"] for row in rows] == captions
    (refused,) = model.predict({"grid": [npy(tmp_path / "x.npy", grids[:2]).read_bytes()]})
    assert "not a grid of floats of shape (2, 2, 24)" in refused["error"]
    card = tracking.connect(registered).get_model_version("small", "1").description
    assert card is not None and "Captions grids that another program made" in card


def test_a_model_of_grids_has_a_report_and_says_what_it_takes(
    given: Path, registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace, out = ("--workspace", str(registered)), tmp_path / "report.html"
    code, _, err = attend(monkeypatch, capsys, "models", "report", "models:/small/1", "--out", str(out), *workspace)
    assert code == 0, err
    page = out.read_text(encoding="utf-8")
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["cards"] and data["shows"] is False
    cells = [len(base64.b64decode(card["maps"])) for card in data["cards"].values()]
    assert all(count == 4 * len(card["tokens"]) for count, card in zip(cells, data["cards"].values(), strict=True))
    photograph = str(given / "photographs" / "0.png")
    code, _, err = attend(monkeypatch, capsys, "caption", photograph, *workspace)
    assert code == 1 and "is no .npy file: this model takes grids of floats of shape (2, 2, 24), not photographs" in err
    print_end(config_of(given, registered), artifacts(config_of(given, registered)), "attend run")
    assert "caption GRID.npy" in capsys.readouterr().out


def test_other_orders_of_the_axes_give_the_same_grids(given: Path, tmp_path: Path) -> None:
    results = []
    for name in ("svdfeatures.npy", "flat.npy"):
        config = config_of(given, tmp_path / name, name)
        for stage in ("ingest", "extract"):
            run_stage(config, stage)
        results.append(artifacts(config, "extract")["extract"].ledger.products["grids"])
    assert results[0] == results[1]
    unclear = tmp_path / "unclear.npy"
    np.save(unclear, np.zeros((160, 4, 4, 4), np.float32))
    with pytest.raises(AttendError, match=r"are not clear: set data\.layout to nhwc or nchw"):
        run_stage(config_of(given, tmp_path / "w", str(unclear)), "ingest")
    for shape in ((160, 36, 16), (160, 16, 36)):  # 16 positions or 36
        np.save(unclear, np.zeros(shape, np.float32))
        with pytest.raises(AttendError, match=r"are not clear: set data\.layout to ncp or npc"):
            run_stage(config_of(given, tmp_path / "w", str(unclear)), "ingest")
    np.save(unclear, np.zeros((160, 17, 64), np.float32))  # a ViT's tokens with that of the class: not 8 x 8 positions
    with pytest.raises(AttendError, match=r"not clear: set data\.layout to ncp or npc; tokens that are no pos"):
        run_stage(config_of(given, tmp_path / "w", str(unclear)), "ingest")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_other_files_give_the_same_grids(given: Path, tmp_path: Path, suffix: str) -> None:
    grids, path = np.load(given / "svdfeatures.npy"), tmp_path / f"grids{suffix}"
    if suffix == ".npz":
        np.savez(path, features=grids, ids=np.arange(160))
    else:
        with h5py.File(path, "w") as file:
            file["features"], file["ids"] = grids, np.arange(160)
    config = config_of(given, tmp_path / "w", str(path))
    for stage in ("ingest", "extract"):
        run_stage(config, stage)
    found = artifacts(config, "extract")
    reader = open_grids(found["extract"], config.machine)
    for picture in read_pictures(found["ingest"].path, "train"):
        expected = grids[int(Path(picture.name).stem)].astype(np.float16)
        np.testing.assert_array_equal(reader.read([picture.digest])[0], expected)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"a": np.zeros((160, 2, 2, 3)), "b": np.zeros((160, 2, 2, 3))}, "one array .* is needed; there are: a, b"),
        ({"a": np.zeros(3), "b": np.zeros(3)}, "one array .* is needed; there are: none"),
        ({"a": np.zeros((9, 2, 2, 3))}, r"has 160 rows, but .* has 9 grids"),
        ({"a": np.zeros((160, 2, 2, 3), int)}, "floats, .* are needed"),
        ({"a": np.full((160, 2, 2, 3), np.nan)}, r"grids\.npz\[0\]: holds values that are not finite"),
    ],
)
def test_files_of_other_things_are_refused(given: Path, tmp_path: Path, held: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "grids.npz", **held)
    with pytest.raises(AttendError, match=message):
        run_stage(config_of(given, tmp_path / "w", str(tmp_path / "grids.npz")), "ingest")


@pytest.mark.parametrize("name", ["grids.npz", "grids.npy", "grids.h5"])
def test_damaged_files_are_refused(given: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(AttendError, match="cannot be read as an array"):
        run_stage(config_of(given, tmp_path / "w", str(tmp_path / name)), "ingest")


@pytest.mark.parametrize(
    ("signal_", "message"),
    [(signal.SIGKILL, "the HDF5 library crashed"), (signal.SIGSTOP, "found no end in 1 s")],
)
def test_an_hdf5_library_that_crashes_or_hangs_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_: signal.Signals, message: str
) -> None:
    grids = np.arange(24.0).reshape(6, 1, 1, 4)
    with h5py.File(tmp_path / "grids.h5", "w") as file:
        file["features"] = grids
    with foreign_arrays(tmp_path / "grids.h5") as arrays:
        np.testing.assert_array_equal(arrays["features"][2], grids[2])
        (reader,) = multiprocessing.active_children()
        os.kill(reader.pid or 0, signal_)
        monkeypatch.setattr(foreign_hdf5, "PATIENCE", 1.0)
        with pytest.raises(OSError, match=message):
            arrays["features"][3]
    assert not multiprocessing.active_children()


def encoder(given: Path, **changes: object) -> dict[str, object]:
    examples = given / "examples"
    examples.mkdir(exist_ok=True)
    for number in (0, 7, 33, 80):
        target = examples / f"{number}.png"
        target.write_bytes((given / "photographs" / f"{number}.png").read_bytes())
    values = {"backbone": "tiny", "weights": "random:0", "image_size": 64}
    return {**values, "projection": str(given / "svd.npy"), "examples": str(examples), **changes}


def test_with_the_encoder_that_made_the_grids_it_captions_photographs(given: Path, registered: Path) -> None:
    """As it captions their grids: the photographs are encoded and projected as they were."""
    config = config_of(given, registered, encoder=encoder(given))
    assert [status.stage.name for status in plan(config) if not status.fresh] == ["register"]
    run_stage(config, "register")
    captioner, of_grids = load_captioner("models:/small/2"), load_captioner("models:/small/1")
    grids = np.load(given / "svdfeatures.npy")
    photographs = [(given / "photographs" / f"{number}.png").read_bytes() for number in range(0, 160, 10)]
    expected = of_grids.from_grid(torch.from_numpy(grids[::10]).half())
    assert [item.caption for item in captioner.caption(photographs)] == [item.caption for item in expected]


WRONG: dict[str, tuple[Callable[[Path, Path], dict[str, object]], str]] = {
    "projection": (
        lambda _, folder: {"projection": str(npy(folder / "m.npy", np.eye(CHANNELS, 512, dtype=np.float32)))},
        r"differs from the given one by .*%",
    ),
    "weights": (lambda *_: {"weights": "random:1"}, r"differs from the given one by .*%"),
    "size": (lambda *_: {"image_size": 96}, "differs from the given one by inf%"),
    "no projection": (lambda *_: {"projection": None}, "differs from the given one by inf%"),
    "another shape": (
        lambda _, folder: {"projection": str(npy(folder / "m.npy", np.eye(CHANNELS, 100)))},
        "but tiny has 512 channels",
    ),
    "names": (
        lambda given, _: {"examples": str(given / "photographs" / "..")},
        "no photograph there is named by the number of a grid",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_encoder_that_makes_other_grids_is_refused(given: Path, registered: Path, tmp_path: Path, what: str) -> None:
    changes, message = WRONG[what]
    if what == "names":
        (tmp_path / "holiday.png").write_bytes((given / "photographs" / "0.png").read_bytes())
        wrong = encoder(given, examples=str(tmp_path), fit="crop")  # another key: examples are not in it
    else:
        wrong = encoder(given, **changes(given, tmp_path))
    before = len(tracking.connect(registered).search_model_versions("name = 'small'"))
    with pytest.raises(AttendError, match=message):
        run_stage(config_of(given, registered, encoder=wrong), "register")
    assert len(tracking.connect(registered).search_model_versions("name = 'small'")) == before


def test_settings_that_contradict_given_grids_are_refused(given: Path, tmp_path: Path) -> None:
    with pytest.raises(AttendError, match=r"has grids and no photographs: set grids\.backbone=imported"):
        config_of(given, tmp_path, grids={"backbone": "tiny", "weights": "random:0", "image_size": 64})
    with pytest.raises(AttendError, match=r"encoder\.examples: name a folder of photographs"):
        config_of(given, tmp_path, encoder=encoder(given, examples=None))
    with pytest.raises(AttendError, match=r"imported grids come with data\.adapter=arrays"):
        small(tmp_path, grids={"backbone": "imported", "weights": "imported:x", "image_size": 64})
    with pytest.raises(AttendError, match="both or neither"):
        run_stage(small(tmp_path, grids__weights="imported:x"), "extract")
    with pytest.raises(AttendError, match="encoder: is for imported grids alone"):
        small(tmp_path, encoder=encoder(given))
    overrides = [f"data.path={given}/svdfeatures.npy", f"data.captions={given}/captions.npy", "data.adapter=arrays"]
    preset = load("googlenet", [*overrides, "grids.backbone=imported", "grids.weights=imported:svd"])
    assert preset.data.has_grids


class Calls:
    """An object whose unpickling calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def refusal(path: Path) -> AttendError:
    with pytest.raises(AttendError) as refused:
        read_texts(path)
    return refused.value


def test_arrays_of_objects_of_other_forms_are_read(tmp_path: Path) -> None:
    """As NumPy makes them of lists of the same length, by columns, and of its own texts."""
    lists = [["a dog", "two dogs"], ["a cat", "no cat"], ["it", "is"]]
    nested = np.empty(3, dtype=object)
    for number, texts in enumerate(lists):
        nested[number] = np.array(texts)
    scalars = np.empty(3, dtype=object)
    for number, texts in enumerate(lists):
        scalars[number] = [np.str_(text) for text in texts]
    for array in (np.array(lists, dtype=object), np.asfortranarray(np.array(lists, dtype=object)), nested, scalars):
        np.save(tmp_path / "o.npy", array, allow_pickle=True)
        assert read_texts(tmp_path / "o.npy") == lists


def object_file(path: Path, content: bytes) -> Path:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        file.write(content)
    return path


def test_an_array_of_objects_is_read_and_nothing_in_it_is_executed(given: Path, tmp_path: Path) -> None:
    expected = np.load(given / "captions.npy", allow_pickle=True)
    assert read_texts(given / "captions.npy") == [list(texts) for texts in expected]
    np.save(tmp_path / "texts.npy", np.array(["a dog", "eine Straße"]))
    assert read_texts(tmp_path / "texts.npy") == [["a dog"], ["eine Straße"]]
    mark = tmp_path / "mark"
    for content in (
        pickle.dumps(Calls(os.mkdir, str(mark))),
        pickle.dumps([Calls(exec, f"import os; os.mkdir({str(mark)!r})")]),
        pickle.dumps(Calls(np.ndarray.__new__, np.ndarray, (0,), b"b"))[:-1] + b"\x85R.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__init__\n(tR.",
        b"\x80\x04Pwho\n.",
        b"",
    ):
        with pytest.raises(AttendError, match=r"o\.npy: (cannot be read as an array|holds no rows)"):
            read_texts(object_file(tmp_path / "o.npy", content))
    assert not mark.exists()
    bomb = b"\x80\x04]r" + (2**31 - 1).to_bytes(4, "little") + b"."  # a number by which C's unpickler sets memory aside
    assert "holds no rows" in str(refusal(object_file(tmp_path / "o.npy", bomb)))
    twice = [["a dog"] * 50] * 3_000
    again = np.empty(len(twice), dtype=object)
    again[:] = twice
    np.save(tmp_path / "again.npy", again, allow_pickle=True)
    assert "has more texts than bytes" in str(refusal(tmp_path / "again.npy"))
    wrong = np.empty(2, dtype=object)
    wrong[0], wrong[1] = ["a dog"], 7
    np.save(tmp_path / "wrong.npy", wrong, allow_pickle=True)
    with pytest.raises(AttendError, match=r"wrong\.npy\[1\]: is 7: a list of texts is needed"):
        read_texts(tmp_path / "wrong.npy")
