"""`attend init`: folders as people have them are read without an edit, or refused in one clear line."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import tarfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import ExifTags, Image

from flows.commands.init_config import BACKBONES
from models.vocabulary import END, SPECIAL, START
from tasks.common.errors import AttendError
from tasks.config.schema import load
from tasks.data.manifest import sizes_in_words, valid_rows
from tasks.data.survey import Survey, survey
from tasks.datasets import ADAPTERS
from tasks.datasets.detection import detect
from tasks.datasets.sources import Sources
from tests.cli import attend, refused
from tests.photographs import picture
from tests.support import artifacts, run_stage

COUNT = 24
Capture = pytest.CaptureFixture[str]
Write = Callable[[Path], Path | None]


def rows(folder: Path, name: str = "a{}.png", inside: str = "") -> list[tuple[str, str]]:
    """Write pictures, and return (path in `folder`, caption) of each, with commas, quotes and letters beyond ASCII."""
    found = []
    for number in range(COUNT):
        path = f"{inside}{name.format(number)}"
        picture(folder / path, number)
        found.append((name.format(number), f'Straße {number}, a "red" ball; in a café'))
    return found


def table(path: Path, given: list[tuple[str, str]], delimiter: str, encoding: str, header: tuple[str, ...]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerows([header, *([*row, number][: len(header)] for number, row in enumerate(given))])
    path.write_bytes(out.getvalue().encode(encoding))


def semicolons(folder: Path) -> None:
    table(folder / "beschriftung.csv", rows(folder, inside="bilder/"), ";", "cp1252", ("Datei", "Text", "Nummer"))


def tabs(folder: Path) -> None:
    table(folder / "captions.csv", rows(folder), "\t", "utf-8", ("filename", "description"))


def utf_16(folder: Path) -> None:
    table(folder / "export.csv", rows(folder, inside="img/"), ",", "utf-16", ("Image", "Caption"))


def absolute_paths(folder: Path) -> None:
    lines = [(str(folder / "somewhere" / "else" / name), text) for name, text in rows(folder, inside="somewhere/else/")]
    table(folder / "list.csv", lines, ",", "utf-8", ("path", "caption"))


def of_exiftool(folder: Path) -> None:
    lines = [(f"photos/{name}", text) for name, text in rows(folder)]
    table(folder / "captions.csv", lines, ",", "utf-8", ("SourceFile", "Description"))


def of_windows(folder: Path) -> None:
    lines = [(name.replace("/", "\\"), text) for name, text in rows(folder, name="walks/a{}.png")]
    table(folder / "CAPTIONS.CSV", lines, ",", "utf-8", ("image", "caption"))


def with_dots(folder: Path) -> None:
    table(
        folder / "captions.csv", [(f"./{name}", text) for name, text in rows(folder)], ",", "utf-8", ("image", "text")
    )


def names_without_ending(folder: Path) -> None:
    lines = [(name.removesuffix(".png"), text) for name, text in rows(folder, inside="pics/")]
    table(folder / "ids.csv", lines, ",", "utf-8", ("id", "text"))


def metadata_csv_in_split_folders(folder: Path) -> None:
    for split in ("train", "validation", "test"):
        lines = [(name, text) for name, text in rows(folder / split, name=f"{split}{{}}.png")]
        table(folder / split / "metadata.csv", lines, ",", "utf-8", ("file_name", "caption"))


def train_and_test_only(folder: Path) -> None:
    for number, split in enumerate(["train"] * COUNT + ["test"] * 4):
        picture(folder / split / f"x{number}.png", number)
        (folder / split / f"x{number}.txt").write_text(f"picture {number}\nanother caption of {number}\n")


def text_beside_each(folder: Path) -> None:
    for name, text in rows(folder, inside="2026/11/"):
        (folder / "2026/11" / name).with_suffix(".txt").write_text(text)


def decomposed_names(folder: Path) -> None:
    lines = rows(folder, name=unicodedata.normalize("NFD", "café-münchen-{}.png"))
    lines = [(unicodedata.normalize("NFC", name), text) for name, text in lines]
    (folder / "metadata.jsonl").write_text("".join(json.dumps({"file_name": n, "text": t}) + "\n" for n, t in lines))


def json_list(folder: Path) -> None:
    records = [{"image": f"images/{name}", "caption": [text, "b c"]} for name, text in rows(folder, inside="images/")]
    (folder / "blip.json").write_text(json.dumps(records))


def long_captions(folder: Path) -> None:
    """Lists of long texts, which are no names of files."""
    records = [{"file_name": name, "text": [f"{text} {'and so on ' * 60}"] * 5} for name, text in rows(folder)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def one_table_named_train(folder: Path) -> None:
    (folder / "train.json").write_text(json.dumps([{"image": n, "caption": t} for n, t in rows(folder)]))


def coco_of_one_file(folder: Path) -> None:
    lines = rows(folder, inside="photos/")
    images = [{"id": number, "file_name": name} for number, (name, _) in enumerate(lines)]
    captions = [{"id": number, "image_id": number, "caption": text} for number, (_, text) in enumerate(lines)]
    (folder / "labels.json").write_text(json.dumps({"images": images, "annotations": captions}))


def tables_of_splits(folder: Path) -> None:
    lines = rows(folder)
    for split, part in (("train", lines[:16]), ("val", lines[16:20]), ("test", lines[20:])):
        pq.write_table(pa.Table.from_pylist([{"image": n, "caption": t} for n, t in part]), folder / f"{split}.parquet")


def tars(folder: Path) -> None:
    with tarfile.open(folder / "00000.tar", "w") as tar:
        for number in range(COUNT):
            picture(folder / "scratch.png", number)
            for suffix, data in (
                ("png", (folder / "scratch.png").read_bytes()),
                ("json", json.dumps({"caption": f"picture {number}", "key": str(number)}).encode()),
            ):
                info = tarfile.TarInfo(f"{number:05}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    (folder / "scratch.png").unlink()


READ = [
    semicolons,
    tabs,
    utf_16,
    absolute_paths,
    of_exiftool,
    of_windows,
    with_dots,
    names_without_ending,
    metadata_csv_in_split_folders,
    train_and_test_only,
    text_beside_each,
    decomposed_names,
    json_list,
    long_captions,
    one_table_named_train,
    coco_of_one_file,
    tables_of_splits,
    tars,
]


@pytest.mark.parametrize("write", READ, ids=[write.__name__ for write in READ])
def test_a_folder_is_read_without_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, write: Write
) -> None:
    folder = tmp_path / "my photographs"
    folder.mkdir()
    write(folder)
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "init", str(folder))
    assert code == 0, err
    assert "attend run my-photographs.yaml" in out and out.count("\n    ") == 3
    pictures = len(list(folder.rglob("*.png"))) or COUNT
    assert f"{pictures} pictures with" in out and "not valid" not in out
    config = load("my-photographs.yaml", [f"machine.workspace={tmp_path / 'workspace'}"])
    run_stage(config, "ingest")
    counts = artifacts(config, "ingest")["ingest"].ledger.counts
    assert counts["pictures"] == pictures and counts["train"] >= counts["dev"] > 0
    captions = pq.read_table(artifacts(config, "ingest")["ingest"].path / "manifest.parquet")["captions"].to_pylist()
    if write in (semicolons, utf_16):
        assert ['Straße 3, a "red" ball; in a café'] in captions
    # What was told is what a run reads.
    assert f"{counts['train']} train, {counts['dev']} dev" in out


def pictures_alone(folder: Path) -> None:
    rows(folder)


def exif(picture: Path, text: str) -> None:
    with Image.open(picture) as image:
        metadata = image.getexif()
        metadata[ExifTags.Base.ImageDescription] = text
        image.save(picture, exif=metadata)


def xmp(picture: Path, text: str) -> None:
    item = f"<rdf:li xml:lang='x-default'>{html.escape(text)}</rdf:li>"
    with Image.open(picture) as image:
        image.save(picture, xmp=f"<dc:description><rdf:Alt>{item}</rdf:Alt></dc:description>".encode())


def iptc(picture: Path, text: str) -> None:
    data = b"\x1c\x02\x78" + len(text).to_bytes(2, "big") + text.encode()
    block = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + len(data).to_bytes(4, "big") + data
    start, rest = picture.read_bytes()[:2], picture.read_bytes()[2:]
    picture.write_bytes(start + b"\xff\xed" + (len(block) + 2).to_bytes(2, "big") + block + rest)


def of_a_camera(picture: Path, text: str) -> None:
    exif(picture, "OLYMPUS DIGITAL CAMERA")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            exif,
            r"such as 'dog 0 & a cat': write them to a table: exiftool -csv -r -ImageDescription \S+ > \S+captions.csv",
        ),
        (xmp, r"such as 'dog 0 & a cat': .* -Description "),
        (iptc, r"such as 'dog 0 & a cat': .* -Caption-Abstract "),
        (of_a_camera, r"no captions: add a metadata.jsonl"),
    ],
)
def test_descriptions_in_the_pictures_own_metadata_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, write: Callable[[Path, str], None], message: str
) -> None:
    for number, (name, _) in enumerate(rows(tmp_path, name="a{}.jpg")):
        write(tmp_path / name, f"dog {number} & a cat")
    assert re.search(message, refused(monkeypatch, capsys, "init", str(tmp_path)))


def three_pictures(folder: Path) -> None:
    table(folder / "captions.csv", rows(folder)[:3], ",", "utf-8", ("image", "caption"))


def heic(folder: Path) -> None:
    for number in range(3):
        (folder / f"IMG_{number}.HEIC").write_bytes(b"ftypheic")


def addresses(folder: Path) -> None:
    table(folder / "captions.csv", [("https://a/b.jpg", "a dog runs")], ",", "utf-8", ("url", "caption"))


def one_level_up(folder: Path) -> None:
    (folder / "My project").mkdir()
    tabs(folder / "My project")


def nothing(folder: Path) -> None:
    (folder / "notes.md").write_text("nothing here")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (pictures_alone, r"has 24 pictures and no captions: add a metadata.jsonl"),
        (three_pictures, r"3 captioned pictures: too few"),
        (heic, r"IMG_0\.HEIC is not read \(and 2 more such files\): convert it to JPEG: heif-convert"),
        (addresses, r"none of its columns \(url, caption\) names pictures in .*https://a/b.jpg"),
        (one_level_up, r"holds no captions itself, but .*My project does: give that folder"),
        (nothing, r"holds neither pictures nor captions"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, write: Write, message: str
) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    write(folder)
    monkeypatch.chdir(tmp_path)
    assert re.search(message, refused(monkeypatch, capsys, "init", str(folder)))
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize("name", ["no", "true", "null"])
def test_a_folder_whose_name_means_something_in_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str
) -> None:
    (tmp_path / name).mkdir()
    tabs(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert refused(monkeypatch, capsys, "init", name, "--out", "nowhere/x.yaml").endswith(
        "there is no folder nowhere: make it first"
    )
    assert attend(monkeypatch, capsys, "init", name)[0] == 0
    assert load(f"{name}.yaml", []).name == name


def test_a_column_of_captions_that_is_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    lines = [(name, text, f"das gleiche auf Deutsch {text}") for name, text in rows(tmp_path / "photos")]
    path = tmp_path / "photos" / "captions.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "caption_en", "caption_de"), *lines])
    monkeypatch.chdir(tmp_path)
    code, out, _ = attend(monkeypatch, capsys, "init", "photos")
    # Each column of texts is shown with a sample of it, and the setting is named as the config has it.
    message = r"captions are read from its column caption_(en|de) \('.+'\), none from caption_(en|de) \('.+'\): "
    assert code == 0 and re.search(message, out) and "set data.sources.photos.caption_column" in out


@pytest.mark.parametrize(
    "command", [("init", "s3://bucket/photos"), ("check", "flickr8k", "data.path=s3://bucket/photos")]
)
def test_an_address_is_told_to_be_copied_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, out, err = attend(monkeypatch, capsys, *command)
    assert "s3://bucket/photos: is an address: pictures and captions are read from folders" in out + err


def test_a_config_that_is_there_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    tabs(folder)
    monkeypatch.chdir(tmp_path)
    assert attend(monkeypatch, capsys, "init", str(folder))[0] == 0
    (tmp_path / "photographs.yaml").write_text("mine")
    assert "photographs.yaml: already exists" in refused(monkeypatch, capsys, "init", str(folder))
    assert (tmp_path / "photographs.yaml").read_text() == "mine"
    assert attend(monkeypatch, capsys, "init", str(folder), "--force")[0] == 0


def test_the_written_paths_hold_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The data's are relative to the config, so that both may be moved; weights are where they are."""
    (tmp_path / "project" / "photographs").mkdir(parents=True)
    tabs(tmp_path / "project" / "photographs")
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    out = ["project/photographs", "--out", "project/mine.yaml"]
    assert "w2.safetensors: no such file" in refused(monkeypatch, capsys, "init", *out, "--weights", "w2.safetensors")
    code, _, err = attend(monkeypatch, capsys, "init", *out, "--weights", "w.safetensors")
    assert code == 0, err
    (tmp_path / "project").rename(tmp_path / "elsewhere")
    monkeypatch.chdir("/")
    config = load(str(tmp_path / "elsewhere" / "mine.yaml"))
    assert isinstance(config.data, Sources)
    photographs, answers = config.data.sources["photographs"], config.data.sources["answers"]
    assert photographs.path.parent == tmp_path / "elsewhere" / "photographs" and photographs.path.is_file()
    assert answers.path == tmp_path / "workspace" / "reviews.jsonl"  # of the workspace, which did not move
    assert answers.images == photographs.path.parent
    assert config.grids.weights == str(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], r"mine: no such preset; did you mean 'mine.yaml'\?"),
        (["mne.yaml"], r"mne.yaml: no such file; did you mean 'mine.yaml'\?"),
        (["mine.yaml", "epochs=3"], r"epochs: no such setting; did you mean 'training.epochs'\?"),
        (["mine.yaml", "training.epochs=two"], r"training.epochs: is no whole number \(given 'two'\)"),
        (["bad.yaml"], r"bad.yaml: line 2: is not YAML: mapping values are not allowed here: correct it"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("preset: demo\n")
    (tmp_path / "bad.yaml").write_text("preset: demo\n a: b: c\n")
    assert re.search(message, refused(monkeypatch, capsys, "status", *arguments))


def surveyed(folder: Path) -> Survey:
    options = detect(folder).options
    adapter = ADAPTERS[options["adapter"]]
    return survey(adapter.model_validate(options), folder / "pictures", folder.parent / "digests.sqlite")


def test_rows_at_fault_are_all_found_and_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    lines = rows(folder)
    table(folder / "captions.csv", [*lines, ("gone.png", "x"), (lines[0][0], " ")], ",", "utf-8", ("image", "caption"))
    assert [fault.split(": ", 1)[1][:40] for fault in surveyed(folder).faults] == [
        "caption: is empty; a text is needed",
        f"gone.png is captioned, but there is no such picture in {folder}"[:40],
    ]
    monkeypatch.chdir(tmp_path)
    code, out, _ = attend(monkeypatch, capsys, "init", str(folder))
    assert code == 0 and out.count("1 invalid row left out, such as: ") == 2
    config = load("photographs.yaml", [f"machine.workspace={tmp_path / 'workspace'}"])
    assert config.data.on_error == "skip"
    run_stage(config, "ingest")
    manifest = artifacts(config, "ingest")["ingest"]
    assert manifest.ledger.counts["left out"] == 2 and manifest.ledger.counts["pictures"] == COUNT
    assert len((manifest.path / "left_out.txt").read_text().splitlines()) == 2
    with pytest.raises(AttendError, match=r"captions.csv:27: caption: is empty"):
        run_stage(load("photographs.yaml", ["data.on_error=stop", f"machine.workspace={tmp_path / 'other'}"]), "ingest")


def test_a_relative_path_in_a_file_is_relative_to_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base.yaml").write_text("preset: flickr8k\nmachine: {workspace: ../store}\n")
    (tmp_path / "mine.yaml").write_text("preset: deep/base.yaml\ndata: {path: photos}\ngrids: {weights: w.pth}\n")
    monkeypatch.chdir("/")
    config = load(str(tmp_path / "mine.yaml"))
    assert config.data.path == tmp_path / "photos" and config.grids.weights == str(tmp_path / "w.pth")
    assert config.workspace.resolve() == tmp_path / "store"
    assert load(str(tmp_path / "mine.yaml"), ["data.path=other"]).data.path == Path("other")
    named = load(str(tmp_path / "mine.yaml"), ["grids.weights=torchvision:IMAGENET1K_V1"])
    assert named.grids.weights == "torchvision:IMAGENET1K_V1"


def test_coco_pt_and_arrays_of_grids_get_the_preset_of_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tensors").mkdir()
    words = [*SPECIAL, "it's", "red"]
    pixels = torch.arange(40).view(40, 1, 1, 1).expand(40, 3, 8, 8).to(torch.uint8)
    rows = torch.tensor([[START, 4, 5, END]] * 40)
    document = {"train_images": pixels[:30], "train_captions": rows[:30], "val_images": pixels[30:]}
    vocabulary = {"idx_to_token": words, "token_to_idx": {word: at for at, word in enumerate(words)}}
    torch.save({**document, "val_captions": rows[30:], "vocab": vocabulary}, tmp_path / "tensors" / "coco.pt")
    for given in ("tensors", "tensors/coco.pt"):
        code, _, err = attend(monkeypatch, capsys, "init", given, "--out", "coco.yaml", "--force")
        assert code == 0, err
        found = load("coco.yaml")
        assert (found.decoder.name, found.captions.vocabulary, found.data.adapter) == (
            "attention_lstm",
            "given",
            "coco_pt",
        )
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(
        folder / "train-data-svdfeatures.npy", np.random.default_rng(0).normal(size=(60, 8, 3, 3)).astype("float32")
    )
    texts = np.empty(60, dtype=object)
    for number in range(60):
        texts[number] = [f"Shape {number % 3}.", "It's one."]
    np.save(folder / "train-data-captions.npy", texts, allow_pickle=True)
    np.save(folder / "means.npy", np.zeros(8))
    for given in ("arrays", "arrays/train-data-captions.npy"):
        code, _, err = attend(monkeypatch, capsys, "init", given, "--out", "arrays.yaml", "--force")
        assert code == 0, err
    found = load("arrays.yaml", [f"machine.workspace={tmp_path / 'workspace'}"])
    assert (found.grids.backbone, found.decoder.pca_dim, found.captions.tokeniser) == ("imported", None, "whitespace")
    assert (found.training.epochs, found.evaluation.search, found.evaluation.split) == (100, "sample", "test")
    for stage in ("ingest", "extract", "tensorise"):
        run_stage(found, stage)
    assert artifacts(found, "tensorise")["extract"].ledger.counts["grids"] == 60
    assert "need no backbone: leave it out" in refused(
        monkeypatch, capsys, "init", "arrays", "--out", "x.yaml", "--weights", "x.pth"
    )
    np.save(folder / "others.npy", texts, allow_pickle=True)
    message = refused(monkeypatch, capsys, "init", "arrays", "--out", "x.yaml")
    assert "others.npy; train-data-svdfeatures.npy with train-data-captions.npy: leave one of each" in message


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_backbone_that_is_named_is_written_with_its_size_and_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, backbone: str
) -> None:
    (tmp_path / "photos").mkdir()
    tabs(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "init", "photos", "--backbone", backbone)
    assert code == 0, err
    assert "the backbone's weights are downloaded once" in out
    assert "a better backbone" not in out
    grids, preset = load("photos.yaml").grids, load(BACKBONES[backbone], ["data.path=."]).grids
    assert grids == preset and grids.weights == "timm:pretrained"


def test_few_pictures_are_advised_of_a_better_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "photos").mkdir()
    tabs(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "init", "photos")
    assert code == 0, err
    assert "attend init photos --from models:/NAME@champion" in out and "attend init photos --backbone lite2" in out


def test_an_unknown_backbone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "photos").mkdir()
    tabs(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, capsys, "init", "photos", "--backbone", "clips")
    assert "--backbone: clips: give one of lite2, clip, siglip, dinov2, convnext; did you mean 'clip'" in line


def test_files_that_only_look_like_a_known_form_are_no_traceback(tmp_path: Path) -> None:
    """A tar whose first .json is not valid, and a dataset_info.json that holds a list."""
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "00000.tar", "w") as tar:
        for name, content in (
            ("1.png", b"x"),
            ("1.json", b'{"caption": '),
            ("2.png", b"x"),
            ("2.json", b'{"text": "a dog"}'),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    assert detect(tmp_path / "tars").options == {
        "adapter": "webdataset",
        "path": tmp_path / "tars",
        "caption_field": "text",
    }
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("[]")
    for state in ("{}", '{"_data_files": [{"filename": 1.5}]}'):
        (tmp_path / "saved" / "state.json").write_text(state)
        with pytest.raises(AttendError, match=r"state\.json: _data_files: names no files of this folder"):
            detect(tmp_path / "saved")


def test_a_photograph_that_disappears_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    tabs(folder)

    def then_gone(rows: Any, *given: Any) -> Any:
        found = valid_rows(rows, *given)
        next(iter(sorted(folder.rglob("*.png")))).unlink()
        return found

    monkeypatch.setattr("tasks.data.survey.valid_rows", then_gone)
    with pytest.raises(AttendError, match=r"\.png: is gone since its folder was listed: run again$"):
        surveyed(folder)


def test_the_same_file_twice_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    tabs(folder)
    first, second = sorted(folder.rglob("*.png"))[:2]
    second.write_bytes(first.read_bytes())
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "init", str(folder))
    assert code == 0, err
    assert f"  {COUNT} pictures ({COUNT - 1} different: some are the same file twice) with" in out
    counts = {"pictures": 10, "captions": 20, "train": 8, "dev": 2, "test": 1}
    assert sizes_in_words(counts) == "10 pictures (8 train, 2 dev, 1 test; 1 of them in two splits) with 20 captions"


def test_of_few_training_pictures_more_become_dev_where_only_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    given = [(name, caption, "test" if at % 5 == 0 else "train") for at, (name, caption) in enumerate(rows(tmp_path))]
    with (tmp_path / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption", "split"), *given])
    monkeypatch.chdir(tmp_path)
    code, out, err = attend(monkeypatch, capsys, "init", "captions.csv")
    assert code == 0, err
    assert "(20% for dev, as they are few)" in out
    written = load(str(tmp_path / "captions.yaml")).data
    assert (written.dev_share, written.test_share) == (0.2, 0.1)


def of_one_colour(colour: tuple[int, int, int]) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(data, "PNG")
    return data.getvalue()


def test_the_splits_of_the_first_rows_are_not_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Only the first thousand rows of Parquet files are unpacked; here all of them are of the test split."""
    for at, (split, count) in enumerate((("test", 1010), ("train", 40), ("validation", 20))):
        colours = [(number % 256, number // 256, at) for number in range(count)]
        images = [{"bytes": of_one_colour(colour), "path": None} for colour in colours]
        rows = {"image": images, "caption": [f"{number} dogs run over a {split} field" for number in range(count)]}
        pq.write_table(pa.table(rows), tmp_path / f"{split}-0.parquet")
    monkeypatch.chdir(tmp_path)
    code, _, err = attend(monkeypatch, capsys, "init", ".", "--out", "own.yaml")
    assert code == 0, err
    assert "share" not in (tmp_path / "own.yaml").read_text()
