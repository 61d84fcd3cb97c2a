"""Adapters on small files of the true shape; what is malformed is refused with file, line and field."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from models.vocabulary import SPECIAL
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.data.caption_files import read_vocabulary
from tasks.data.inputs import digests_of
from tasks.data.manifest import read_pictures, write_manifest
from tasks.data.splits import hashed_split
from tasks.datasets import ADAPTERS
from tasks.datasets.base import Row, find_pictures
from tasks.datasets.faults import Faults
from tasks.datasets.records import listed_texts
from tests.photographs import flickr8k, tabled, tar_of
from tests.support import artifacts, run_stage, small


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade % 256, shade // 256, 90)).save(path)


def rows_of(adapter: str, path: Path, **options: object) -> list[Row]:
    return list(ADAPTERS[adapter].model_validate({"path": path, **options}).rows(path / "generated"))


def test_flickr8k(tmp_path: Path) -> None:
    rows = rows_of("flickr8k", flickr8k(tmp_path))
    assert [row.split for row in rows] == ["train"] * 4 + ["dev", "test"]
    assert rows[0].captions == tuple(f"A dog {k} , on grass ." for k in range(5))


def test_flickr8k_without_split_files_has_no_splits(tmp_path: Path) -> None:
    assert {row.split for row in rows_of("flickr8k", flickr8k(tmp_path, splits=False))} == {None}


def test_flickr30k(tmp_path: Path) -> None:
    (tmp_path / "results_20130124.token").write_text("1.jpg#0\tTwo men .\n1.jpg#1\tMen .\n2.jpg#0\tA cat .\n")
    rows = rows_of("flickr30k", tmp_path)
    assert [(row.name, row.captions, row.split) for row in rows] == [
        ("1.jpg", ("Two men .", "Men ."), None),
        ("2.jpg", ("A cat .",), None),
    ]


def karpathy(folder: Path) -> Path:
    def image(name: str, split: str, **more: str) -> dict[str, object]:
        sentences = [{"raw": f"{name} is here.", "tokens": [name, "is", "here"], "sentid": 1, "imgid": 0}]
        return {"filename": name, "split": split, "sentences": sentences, "sentids": [1], "imgid": 0, **more}

    images = [
        image("a.jpg", "train", filepath="train2014"),
        image("b.jpg", "restval", filepath="val2014"),
        image("c.jpg", "val", filepath="val2014"),
        image("d.jpg", "test"),
    ]
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    for name in ("train2014/a.jpg", "val2014/b.jpg", "val2014/c.jpg", "d.jpg"):
        picture(folder / name)
    return folder


def test_karpathy_restval_joins_train(tmp_path: Path) -> None:
    rows = rows_of("karpathy", karpathy(tmp_path))
    assert [(row.name, row.split) for row in rows] == [
        ("train2014/a.jpg", "train"),
        ("val2014/b.jpg", "train"),
        ("val2014/c.jpg", "dev"),
        ("d.jpg", "test"),
    ]


def coco(folder: Path) -> Path:
    for split, identifier in (("train2017", 9), ("val2017", 7)):
        name = f"{identifier:012d}.jpg"
        document = {
            "info": {},
            "images": [{"id": identifier, "file_name": name, "height": 8, "width": 8}],
            "annotations": [
                {"image_id": identifier, "id": 50, "caption": "second"},
                {"image_id": identifier, "id": 40, "caption": "first\n"},
            ],
        }
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / f"captions_{split}.json").write_text(json.dumps(document))
        picture(folder / split / name, identifier)
    return folder


def test_coco(tmp_path: Path) -> None:
    rows = rows_of("coco", coco(tmp_path))
    assert [(row.name, row.split, row.captions) for row in rows] == [
        ("train2017/000000000009.jpg", "train", ("first", "second")),
        ("val2017/000000000007.jpg", "dev", ("first", "second")),
    ]


def test_captions_of_an_id_that_two_pictures_have_are_of_neither(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    names = {"a.jpg": 1, "b.jpg": 2, "c.jpg": 1}  # two files of COCO's form, whose ids both begin with 1
    images = [{"id": number, "file_name": name} for name, number in names.items()]
    captions = [
        {"id": at, "image_id": number, "caption": f"of {name}"} for at, (name, number) in enumerate(names.items())
    ]
    path.write_text(json.dumps({"images": images, "annotations": captions}))
    for at, name in enumerate(names):
        picture(tmp_path / name, at)
    faults = Faults(gather=True)
    rows = list(ADAPTERS["coco"].model_validate({"path": path}).rows(tmp_path, faults))
    assert [(row.name, row.captions) for row in rows] == [("b.jpg", ("of b.jpg",))]
    said = ["images[2].id: 1 is already the id of", *(f"annotations[{at}].image_id: 1 is the id of" for at in (0, 2))]
    assert len(faults.found) == 3 and all(part in fault for part, fault in zip(said, faults.found, strict=True))


RECORDS = [
    {"image": "a.jpg", "caption": "one, two", "split": "train"},
    {"image": "b.jpg", "caption": 'says "hi"', "split": "validation"},
    {"image": "a.jpg", "caption": "three", "split": "train"},
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".parquet"])
def test_table(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"captions{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(RECORDS), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(RECORDS[0]), delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(RECORDS)
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / name)
    rows = rows_of("table", path)
    assert [(row.name, row.captions, row.split) for row in rows] == [
        ("a.jpg", ("one, two", "three"), "train"),
        ("b.jpg", ('says "hi"',), "dev"),
    ]


def test_kaggles_captions_txt(tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text('image,caption\n1.jpg,A child .\n1.jpg,"A girl , running ."\n')
    picture(tmp_path / "1.jpg")
    (row,) = rows_of("table", tmp_path / "captions.txt")
    assert (row.captions, row.split) == (("A child .", "A girl , running ."), None)


def test_metadata_jsonl(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"file_name": "x.png", "text": "one"},
        {"file_name": "y.png", "text": ["two", "three"], "split": "test"},
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for line in lines:
        picture(tmp_path / str(line["file_name"]))
    rows = rows_of("imagefolder", tmp_path)
    assert [(row.name, row.captions, row.split) for row in rows] == [
        ("x.png", ("one",), None),
        ("y.png", ("two", "three"), "test"),
    ]


def encoded(shade: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 90)).save(data, "PNG")
    return data.getvalue()


def webdataset(folder: Path) -> Path:
    """As img2dataset writes them: picture, .txt and .json side by side, keys of nine digits."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        members = {}
        for number in range(3):
            key = f"{shard:05d}{number:04d}"
            members[f"{key}.png"] = encoded(10 * shard + number)
            members[f"{key}.txt"] = f"a dog {number}".encode()
            members[f"{key}.json"] = json.dumps({"caption": f"a cat {number}", "status": "success"}).encode()
        tar_of(folder / f"{shard:05d}.tar", members)
    return folder


def test_webdataset(tmp_path: Path) -> None:
    folder = webdataset(tmp_path / "tars")
    rows = rows_of("webdataset", folder)
    assert [row.captions for row in rows] == [(f"a dog {number}",) for number in (0, 1, 2)] * 2
    assert (folder / "generated" / rows[4].name).read_bytes() == encoded(11)
    told = rows_of("webdataset", folder, caption_field="caption")
    assert [row.captions for row in told][:3] == [("a cat 0",), ("a cat 1",), ("a cat 2",)]


def test_pictures_of_two_tars_are_never_taken_for_one(tmp_path: Path) -> None:
    """Their names have dots, or their keys folders: a picture would have the captions of another."""
    for month in ("01", "02"):
        members = {"1.png": encoded(int(month)), "1.txt": f"month {month}".encode()}
        tar_of(tmp_path / f"2024.{month}.tar", members)
    rows = rows_of("webdataset", tmp_path)
    assert [(row.captions, (tmp_path / "generated" / row.name).read_bytes()) for row in rows] == [
        ((f"month 0{month}",), encoded(month)) for month in (1, 2)
    ]
    of_one = ADAPTERS["webdataset"].model_validate({"path": tmp_path / "2024.02.tar"})
    (alone,) = of_one.rows(tmp_path / "one")
    assert alone.captions == ("month 02",)
    files = {"png": encoded(1), "txt": b"a dog"}
    tar_of(tmp_path / "2.tar", {f"{key}.{end}": file for key in ("a/1", "a-1") for end, file in files.items()})
    with pytest.raises(AttendError, match=r"2\.tar: a-1: 2-a-1\.png is another sample's too: rename one of them"):
        list(ADAPTERS["webdataset"].model_validate({"path": tmp_path / "2.tar"}).rows(tmp_path / "two"))


def test_a_folder_named_as_a_split_is_one_whatever_the_names_are(tmp_path: Path) -> None:
    """Numbers, lists, or a column `split` that is blank: no test picture is trained on."""
    rows: dict[str, list[dict[str, object]]] = {
        "train": [{"file_name": ["1.png"]}, {"file_name": "2.png", "split": None}],
        "test": [{"file_name": "3.png", "split": ""}],
    }
    for split, records in rows.items():
        (tmp_path / split).mkdir()
        for number in (1, 2, 3):
            picture(tmp_path / split / f"{number}.png", number)
        lines = (json.dumps({"text": "a dog", **record}) for record in records)
        (tmp_path / split / "metadata.jsonl").write_text("\n".join(lines))
    found = ADAPTERS["imagefolder"].model_validate({"path": tmp_path}).rows(tmp_path)
    assert {row.name: row.split for row in found} == {
        "train/1.png": "train",
        "train/2.png": "train",
        "test/3.png": "test",
    }


@pytest.mark.parametrize(
    ("cell", "captions"),
    [
        ("""["a sign says 'stop' 'go'"]""", ["a sign says 'stop' 'go'"]),
        ("""['a sign says "stop" "go"', 'x']""", ['a sign says "stop" "go"', "x"]),
        ("""['a dog' "it's"\n 'a cat']""", ["a dog", "it's", "a cat"]),  # as NumPy prints an array
    ],
)
def test_a_list_in_a_cell_keeps_its_captions_as_they_are(cell: str, captions: list[str]) -> None:
    assert listed_texts(cell, "json", "t.csv:2") == captions


def test_hugging_face_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"photo": datasets.Image(), "texts": datasets.Sequence(datasets.Value("string"))})
    splits = {
        name: datasets.Dataset.from_dict(
            {
                "photo": [{"bytes": encoded(base + n), "path": None} for n in range(2)],
                "texts": [[f"a dog {n}", "a dog"] for n in range(2)],
            },
            features=features,
        )
        for name, base in (("train", 0), ("validation", 50))
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    rows = rows_of("huggingface", tmp_path / "set", image_column="photo", caption_column="texts")
    assert [row.split for row in rows] == ["train", "train", "dev", "dev"]
    assert rows[1].captions == ("a dog 1", "a dog")
    assert (tmp_path / "set" / "generated" / rows[2].name).read_bytes() == encoded(50)
    with pytest.raises(AttendError, match="no column 'image'; there are: photo, texts"):
        rows_of("huggingface", tmp_path / "set")


@pytest.mark.parametrize(("name", "damaged"), [(b"path", b"p\xe5th"), (b"caption", b"captio\x80")])
def test_a_saved_folder_with_a_damaged_name_is_refused(tmp_path: Path, name: bytes, damaged: bytes) -> None:
    table = pa.table({"image": [{"bytes": encoded(0), "path": "a"}], "caption": ["a dog"]})
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    stored = (tmp_path / "data.arrow").read_bytes()
    (tmp_path / "data.arrow").write_bytes(stored.replace(name, damaged))
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with pytest.raises(AttendError, match=r"data\.arrow: is damaged: it has names that are not UTF-8"):
        rows_of("huggingface", tmp_path)


def coco_pt(path: Path, **changes: object) -> Path:
    words = [*SPECIAL, "a", "dog", "red"]
    document = {
        "train_images": torch.arange(3 * 3 * 8 * 8, dtype=torch.uint8).view(3, 3, 8, 8),
        "train_captions": torch.tensor([[1, 4, 5, 2, 0], [1, 4, 3, 5, 2], [1, 6, 5, 2, 0]]),
        "val_images": torch.full((1, 3, 8, 8), 7, dtype=torch.uint8),
        "val_captions": torch.tensor([[1, 5, 2, 0, 0]]),
        "vocab": {"idx_to_token": words, "token_to_idx": {word: n for n, word in enumerate(words)}},
    }
    torch.save({**document, **changes}, path)
    return path


def test_coco_pt(tmp_path: Path) -> None:
    path = coco_pt(tmp_path / "coco.pt")
    rows = list(ADAPTERS["coco_pt"].model_validate({"path": path}).rows(tmp_path / "out"))
    assert [(row.captions, row.split) for row in rows] == [
        (("a dog",), "train"),
        (("a <UNK> dog",), "train"),
        (("red dog",), "train"),
        (("dog",), "dev"),
    ]
    pixels = np.asarray(Image.open(tmp_path / "out" / rows[1].name))
    expected = torch.load(path, weights_only=True)["train_images"][1].permute(1, 2, 0).numpy()
    assert (pixels == expected).all()


def test_a_given_vocabulary_is_kept_ids_and_all(tmp_path: Path) -> None:
    path = coco_pt(tmp_path / "coco.pt")
    data = {"adapter": "coco_pt", "path": str(path)}
    given = {"vocabulary": "given", "tokeniser": "whitespace", "max_tokens": 3}
    config = small(tmp_path / "workspace", data=data, captions=given)
    for stage in ("ingest", "tensorise"):
        run_stage(config, stage)
    folder = artifacts(config, "tensorise")["tensorise"].path
    assert [*SPECIAL, *read_vocabulary(folder).words] == torch.load(path, weights_only=True)["vocab"]["idx_to_token"]
    tokens = sorted(row["tokens"] for row in pq.read_table(folder / "captions.parquet").to_pylist())
    assert tokens == [[1, 4, 3, 5, 2], [1, 4, 5, 2, 0], [1, 5, 2, 0, 0], [1, 6, 5, 2, 0]]
    run_stage(small(tmp_path / "workspace"), "ingest")
    with pytest.raises(
        AttendError, match=r"the data set has no vocabulary of its own: set captions\.vocabulary=train and"
    ):
        run_stage(small(tmp_path / "workspace", captions=given), "tensorise")
    with pytest.raises(AttendError, match="set tokeniser=whitespace and units=words"):
        small(tmp_path / "workspace", data=data, captions={"vocabulary": "given"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_captions": torch.tensor([[1, 99, 2]] * 3)},
            r"train_captions\[0\]: token id 99 is not in the file's vocabulary of 7",
        ),
        ({"train_images": torch.zeros(3, 3, 8, 8)}, r"train_images is \(3, 3, 8, 8\) torch.float32"),
        ({"val_captions": None}, "val_captions: is missing"),
        ({"vocab": {"idx_to_token": ["a"]}}, "vocab.idx_to_token: a list that begins with <NULL>"),
    ],
)
def test_a_coco_pt_of_another_shape_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = coco_pt(tmp_path / "coco.pt", **changes)
    with pytest.raises(AttendError, match=message):
        list(ADAPTERS["coco_pt"].model_validate({"path": path}).rows(tmp_path / "out"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.txt": b"a dog"}, r"00000\.tar: 1: has no picture among its files \(txt\)"),
        ({"1.png": b"x"}, r"1: has no \.txt with its caption next to it: pack .* or set data\.caption_field"),
        ({"1.png": b"x", "1.txt": b"  "}, r"1\.txt: caption: is"),
    ],
)
def test_a_sample_that_lacks_something_is_refused(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    tar_of(tmp_path / "00000.tar", members)
    with pytest.raises(AttendError, match=message):
        rows_of("webdataset", tmp_path)


def test_a_tar_cut_short_is_refused(tmp_path: Path) -> None:
    webdataset(tmp_path)
    whole = (tmp_path / "00000.tar").read_bytes()
    (tmp_path / "00000.tar").write_bytes(whole[: len(whole) // 3 + 100])
    with pytest.raises(AttendError, match=r"00000\.tar: is not a valid tar file"):
        rows_of("webdataset", tmp_path)


def test_unpacked_pictures_reach_the_manifest(tmp_path: Path, workspace: Path) -> None:
    config = small(
        workspace,
        data={"adapter": "webdataset", "path": str(webdataset(tmp_path / "tars")), "dev_share": 0.4, "test_share": 0},
        evaluation__split="dev",
    )
    run_stage(config, "ingest")
    run_stage(config, "extract")
    assert artifacts(config)["extract"].ledger.counts["extracted"] == 6


Spoil = Callable[[Path], None]


def text(name: str, content: str | bytes) -> Spoil:
    def write(folder: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)

    return write


def changed(name: str, old: str, new: str) -> Spoil:
    def write(folder: Path) -> None:
        path = folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return write


MALFORMED: list[tuple[str, str, Spoil, str]] = [
    ("flickr8k", "", text("Flickr8k.token.txt", "a.jpg#0 no tab\n"), r"Flickr8k.token.txt:1: no tab"),
    (
        "flickr8k",
        "",
        text("Flickr8k.token.txt", "ok.jpg#0\tfine\na.jpg\tx\n"),
        r"token.txt:2: picture: 'a.jpg' does not",
    ),
    ("flickr8k", "", text("Flickr8k.token.txt", "a.jpg#0\t  \n"), r"token.txt:1: caption: is empty"),
    ("flickr8k", "", text("Flickr8k.token.txt", "a.jpg#0\tx\na.jpg#0\ty\n"), r"token.txt:2: picture: .* already"),
    ("flickr8k", "", text("Flickr8k.token.txt", b"a.jpg#0\t\xff\xfe\n"), r"token.txt:1: is not UTF-8"),
    ("flickr8k", "", text("Flickr_8k.devImages.txt", "0_a1b2.jpg\n"), r"devImages.txt:1: 0_a1b2.jpg is already listed"),
    ("flickr8k", "", text("Flickr_8k.devImages.txt", "nobody.jpg\n"), r"devImages.txt:1: nobody.jpg has no caption"),
    ("karpathy", "", text("dataset_coco.json", '{"images": [\n{]}'), r"dataset_coco.json:2: is not JSON"),
    ("karpathy", "", text("dataset_coco.json", '{"dataset": 1}'), r"dataset_coco.json: images: is missing"),
    ("karpathy", "", changed("dataset_coco.json", '"val"', '"vall"'), r"images\[2\]: split: 'vall' is none of"),
    ("karpathy", "", changed("dataset_coco.json", '"raw"', '"row"'), r"images\[0\].sentences\[0\]: raw: is empty"),
    (
        "coco",
        "",
        changed("annotations/captions_val2017.json", '"file_name"', '"name"'),
        r"images\[0\].file_name: is missing",
    ),
    (
        "coco",
        "",
        changed("annotations/captions_val2017.json", '"image_id": 7', '"image_id": 8'),
        r"annotations\[0\].image_id: 8",
    ),
    (
        "coco",
        "",
        text(
            "annotations/captions_val2017.json",
            '{"images": [], "annotations": [{"id": 1, "image_id": 1, "text": "x"}]}',
        ),
        r"captions_val2017.json: annotations: have no field caption; there are: text: name theirs `caption`",
    ),
    ("coco", "", changed("annotations/captions_val2017.json", '"second"', "3"), r"annotations\[0\]: caption: is 3"),
    ("table", "t.csv", text("t.csv", "image,text\na.jpg,x\n"), r"t.csv:2: no column 'caption'; there are: image, text"),
    ("table", "t.csv", text("t.csv", "image,caption\na.jpg,x,y\n"), r"t.csv:2: has 3 fields, the first line names 2"),
    ("table", "t.csv", text("t.csv", "image,caption,caption\na.jpg,x,y\n"), r"t.csv: the column 'caption' .* 2 times"),
    ("table", "t.csv", text("t.csv", "image,caption\na.jpg,\n"), r"t.csv:2: caption: is empty"),
    ("table", "t.csv", text("t.csv", 'image,caption\na.jpg,"x\n'), r"t.csv:\d: is not well-formed"),
    (
        "table",
        "t.csv",
        text("t.csv", 'image,caption\na.jpg, "x" says y\n'),
        r"t.csv:2: .*: enclose the field in quotation",
    ),
    ("table", "t.csv", text("t.csv", b"image,caption\na.jpg,\xff\n"), r"t.csv:\d: is not UTF-8"),
    ("table", "t.csv", text("t.csv", "image,caption,split\na,x,train\na,y,dev\n"), r"t.csv:3: split: a is in dev here"),
    ("table", "t.csv", text("t.csv", "image,caption,split\na,x,trian\n"), r"t.csv:2: split: 'trian'"),
    ("table", "t.parquet", text("t.parquet", "no"), r"t.parquet: is not a Parquet file"),
    ("table", "t.xls", text("t.xls", "no"), r"a table ends in .csv"),
    ("imagefolder", "", text("metadata.jsonl", '{"file_name": "a"}\n'), r"metadata.jsonl:1: no column 'text'"),
    ("imagefolder", "", text("metadata.jsonl", '{"file_name": "a", "text": 3}\n'), r"metadata.jsonl:1: text: is 3"),
    ("imagefolder", "", text("metadata.jsonl", '{}\n{"a\n'), r"metadata.jsonl:\d"),
    ("flickr30k", "", text("other.txt", ""), r"results_20130124.token: no such file"),
]


@pytest.mark.parametrize(("adapter", "file", "spoil", "message"), MALFORMED, ids=[case[3][:40] for case in MALFORMED])
def test_malformed_is_refused_by_file_line_and_field(
    tmp_path: Path, adapter: str, file: str, spoil: Spoil, message: str
) -> None:
    if adapter in ("flickr8k", "karpathy", "coco"):
        {"flickr8k": flickr8k, "karpathy": karpathy, "coco": coco}[adapter](tmp_path)
    spoil(tmp_path)
    with pytest.raises(AttendError, match=message) as caught:
        rows_of(adapter, tmp_path / file)
    assert "\n" not in str(caught.value)


def manifest_of(config: Config, out: Path) -> dict[str, str]:
    out.mkdir(parents=True, exist_ok=True)
    return write_manifest(config.data, config.machine, digests_of(config.data, config.machine), out).products


def splits_in(out: Path) -> dict[str, str]:
    return {picture.digest: split for split in ("train", "dev", "test") for picture in read_pictures(out, split)}


def test_the_workspace_is_no_part_of_the_pictures_whichever_way_it_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    picture(folder / "a.png")
    picture(folder / "workspace" / "b.png")
    (folder / "workspace" / "digests.sqlite").touch()
    (tmp_path / "link").symlink_to(folder)
    for named in (folder, tmp_path / "link", folder / ".." / "photos"):
        assert [found.name for found in find_pictures(named)] == ["a.png"]


@pytest.mark.parametrize("kind", ["fifo", "socket", "link to a device"])
def test_special_files_are_reported_and_never_read(tmp_path: Path, kind: str) -> None:
    """Reading a FIFO would wait for ever."""
    path = tmp_path / "x.jpg"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(AttendError, match=r"x\.jpg: is no regular file: move it out of the folder of pictures"):
        find_pictures(tmp_path)


def test_a_split_column_that_is_named_must_be_there(tmp_path: Path, workspace: Path) -> None:
    """Else test pictures would go into training. One that is not named is told of, with how the pictures are divided."""
    folder = tmp_path / "data"
    folder.mkdir()
    lines = ["image,caption"]
    for number in range(30):
        (folder / f"{number}.png").write_bytes(b"picture %d" % number)
        lines.append(f"{number}.png,a shape")
    (folder / "captions.csv").write_text("\n".join(lines))
    named = small(workspace, data={"adapter": "table", "path": folder / "captions.csv", "split_column": "subset"})
    with pytest.raises(
        AttendError, match=r"data\.split_column: .*captions\.csv has no column 'subset': correct it, or"
    ):
        run_stage(named, "ingest")
    config = small(workspace, data={"adapter": "table", "path": folder / "captions.csv"})
    run_stage(config, "ingest")
    (note,) = artifacts(config, "ingest")["ingest"].ledger.notes
    assert re.fullmatch(r"30 pictures without a split, divided by content: \d+ train, \d+ dev(, \d+ test)?", note)


def test_hashed_splits_do_not_move_when_pictures_are_added(tmp_path: Path, workspace: Path) -> None:
    manifest_of(tabled(tmp_path / "data", 30, workspace), tmp_path / "before")
    manifest_of(tabled(tmp_path / "data", 60, workspace), tmp_path / "after")
    before, after = splits_in(tmp_path / "before"), splits_in(tmp_path / "after")
    assert len(before) == 30
    assert before.items() <= after.items()
    assert set(after.values()) == {"train", "dev", "test"}


def test_hashed_shares_are_about_as_asked(workspace: Path) -> None:
    data = small(workspace, data__dev_share=0.2, data__test_share=0.3).data
    splits = [hashed_split(f"{n:064x}", data) for n in range(4000)]
    assert splits.count("dev") / 4000 == pytest.approx(0.2, abs=0.03)
    assert splits.count("test") / 4000 == pytest.approx(0.3, abs=0.03)


def test_a_renamed_picture_changes_the_manifest_alone(tmp_path: Path, workspace: Path) -> None:
    config = tabled(tmp_path / "data", 30, workspace)
    before = manifest_of(config, tmp_path / "before")
    (tmp_path / "data" / "3.png").rename(tmp_path / "data" / "zebra.png")
    table = tmp_path / "data" / "captions.csv"
    table.write_text(table.read_text().replace("\n3.png,", "\nzebra.png,"))
    assert manifest_of(config, tmp_path / "after") == before


def test_the_same_content_in_two_splits_is_reported(tmp_path: Path, workspace: Path) -> None:
    folder = flickr8k(tmp_path / "data")
    (folder / "images" / "5_a1b2.jpg").write_bytes((folder / "images" / "0_a1b2.jpg").read_bytes())
    config = small(workspace, data={"adapter": "flickr8k", "path": folder})
    (tmp_path / "out").mkdir()
    outcome = write_manifest(config.data, config.machine, digests_of(config.data, config.machine), tmp_path / "out")
    assert any("0_a1b2.jpg (train) = 5_a1b2.jpg (test)" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: (f / "images" / "2_a1b2.jpg").unlink(),
            r"trainImages.txt:3: 2_a1b2.jpg is captioned, but there is no",
        ),
        (lambda f: (f / "Flickr_8k.devImages.txt").write_text(""), r"the split 'dev' is empty"),
        (lambda f: (f / "images").rename(f / "pictures"), r"no image folder: looked for .*set data.images"),
    ],
)
def test_data_that_does_not_fit_together_is_refused(
    tmp_path: Path, workspace: Path, spoil: Callable[[Path], None], message: str
) -> None:
    folder = flickr8k(tmp_path / "data")
    spoil(folder)
    config = small(workspace, data={"adapter": "flickr8k", "path": folder})
    with pytest.raises(AttendError, match=message):
        manifest_of(config, tmp_path / "out")


def test_a_picture_without_captions_is_refused(tmp_path: Path, workspace: Path) -> None:
    folder = coco(tmp_path)
    path = folder / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "annotations": []}))
    config = small(workspace, data={"adapter": "coco", "path": folder})
    with pytest.raises(AttendError, match=r"images\[0\]: val2017/000000000007.jpg has no caption"):
        manifest_of(config, tmp_path / "out")


def test_links_that_lead_back_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos" / "old").mkdir(parents=True)
    (tmp_path / "more").mkdir()
    (tmp_path / "photos" / "more").symlink_to(tmp_path / "more")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "more")  # twice, but not within itself
    assert find_pictures(tmp_path / "photos") == []
    (tmp_path / "photos" / "old" / "latest").symlink_to(tmp_path / "photos")
    with pytest.raises(AttendError, match=r"old/latest: is a link to a folder that contains it: remove the link"):
        find_pictures(tmp_path / "photos")


def test_a_name_that_no_caption_can_say_changes_nothing(tmp_path: Path, workspace: Path) -> None:
    config = tabled(tmp_path / "data", 3, workspace)
    before = digests_of(config.data, config.machine)
    shutil.copy(os.fsencode(tmp_path / "data" / "0.png"), os.fsencode(tmp_path) + b"/data/caf\xe9.png")
    assert digests_of(config.data, config.machine) == before
