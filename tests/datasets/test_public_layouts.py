"""Data sets as their makers publish them, recreated small, are read by `attend init` without an edit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.schema import load
from tasks.datasets.base import paths_of
from tasks.datasets.faults import Faults
from tests.cli import Capture, attend
from tests.layouts import PICTURES, THINGS, save

NUMBER = 30
Captions = dict[int, list[str]]
Splits = dict[int, str | None]


def text(number: int, k: int = 0) -> str:
    return f"A {THINGS[number % 8]} and picture {number} are seen here , view {k} ."


def texts(each: int) -> Captions:
    return {number: [text(number, k) for k in range(each)] for number in range(NUMBER)}


def split_of(number: int) -> str:
    return ("train", "train", "train", "dev", "test")[number % 5]


SPLITS: Splits = {number: split_of(number) for number in range(NUMBER)}
WITHOUT: Splits = dict.fromkeys(range(NUMBER))


def flickr8k(folder: Path) -> tuple[Captions, Splits]:
    """Two archives: Flickr8k_Dataset.zip and Flickr8k_text.zip, each in a folder of its own."""
    names = [f"{1000268201 + number}_693b08cb0e.jpg" for number in range(NUMBER)]
    for number, name in enumerate(names):
        save(folder / "Flicker8k_Dataset" / name, number)
    (folder / "Flickr8k_text").mkdir()
    lines = [f"{name}#{k}\t{text(number, k)}" for number, name in enumerate(names) for k in range(5)]
    (folder / "Flickr8k_text" / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    (folder / "Flickr8k_text" / "Flickr8k.lemma.token.txt").write_text("\n".join(lines).lower() + "\n")
    (folder / "Flickr8k_text" / "readme.txt").write_text("If you use this corpus, please cite it.\n")
    for split in ("train", "dev", "test"):
        members = [name for number, name in enumerate(names) if split_of(number) == split]
        (folder / "Flickr8k_text" / f"Flickr_8k.{split}Images.txt").write_text("\n".join(members) + "\n")
    return texts(5), SPLITS


def flickr30k(folder: Path) -> tuple[Captions, Splits]:
    lines = []
    for number in range(NUMBER):
        save(folder / "flickr30k-images" / f"{1000092795 + number}.jpg", number)
        lines += [f"{1000092795 + number}.jpg#{k}\t{text(number, k)}" for k in range(5)]
    (folder / "results_20130124.token").write_text("\n".join(lines) + "\n")
    (folder / "readme.txt").write_text("Flickr30k\n")
    return texts(5), WITHOUT


def kaggle_flickr8k(folder: Path) -> tuple[Captions, Splits]:
    lines = ["image,caption"]
    for number in range(NUMBER):
        save(folder / "Images" / f"{1000268201 + number}_69.jpg", number)
        lines += [f'{1000268201 + number}_69.jpg,"{text(number, k)}"' for k in range(5)]
    (folder / "captions.txt").write_text("\n".join(lines) + "\n")
    return texts(5), WITHOUT


def kaggle_flickr30k(folder: Path) -> tuple[Captions, Splits]:
    """Bars and spaces between the columns, and a row that lacks one, as in the published file."""
    lines = ["image_name| comment_number| comment"]
    for number in range(NUMBER):
        save(folder / "flickr30k_images" / f"{1000092795 + number}.jpg", number)
        lines += [f"{1000092795 + number}.jpg| {k}| {text(number, k)}" for k in range(5)]
    lines.insert(9, "1000092797.jpg| 4   A dog runs across the grass .")
    (folder / "results.csv").write_text("\n".join(lines) + "\n")
    return texts(5), WITHOUT


def coco_document(numbers: list[int], name: Callable[[int], str], each: int = 5) -> dict[str, Any]:
    images = [
        {
            "license": 3,
            "file_name": name(n),
            "coco_url": f"http://images.example.org/{name(n)}",
            "height": 20,
            "id": 9 + n,
        }
        for n in numbers
    ]
    notes = [{"image_id": 9 + n, "id": 100 * n + k, "caption": text(n, k)} for n in numbers for k in range(each)]
    return {"info": {"year": 2017}, "licenses": [], "images": images, "annotations": notes}


def coco(folder: Path) -> tuple[Captions, Splits]:
    """The annotations of objects and of people lie with those of captions."""
    (folder / "annotations").mkdir()
    splits: Splits = {number: "dev" if number % 3 == 2 else "train" for number in range(NUMBER)}
    for word, split in (("train2017", "train"), ("val2017", "dev")):
        members = [number for number in range(NUMBER) if splits[number] == split]
        document = coco_document(members, lambda n: f"{9 + n:012d}.jpg")
        (folder / "annotations" / f"captions_{word}.json").write_text(json.dumps(document))
        boxes = [{"image_id": 9 + n, "id": n, "bbox": [0, 0, 5, 5], "category_id": 1} for n in members]
        for kind in ("instances", "person_keypoints"):
            (folder / "annotations" / f"{kind}_{word}.json").write_text(json.dumps({**document, "annotations": boxes}))
        for number in members:
            save(folder / word / f"{9 + number:012d}.jpg", number)
    return texts(5), splits


def vizwiz(folder: Path) -> tuple[Captions, Splits]:
    """The test set has pictures and no captions."""
    (folder / "annotations").mkdir()
    splits: Splits = {n: "dev" if n % 3 == 2 else "train" for n in range(NUMBER)}
    for word, split in (("train", "train"), ("val", "dev")):
        members = [number for number in range(NUMBER) if splits[number] == split]
        document = coco_document(members, lambda n, word=word: f"VizWiz_{word}_{n:08d}.jpg")  # type: ignore[misc]
        for note in document["annotations"]:
            note |= {"is_precanned": False, "is_rejected": note["id"] % 9 == 0, "text_detected": True}
        (folder / "annotations" / f"{word}.json").write_text(json.dumps(document))
        for number in members:
            save(folder / word / f"VizWiz_{word}_{number:08d}.jpg", number)
    unknown = coco_document([NUMBER, NUMBER + 1], lambda n: f"VizWiz_test_{n:08d}.jpg")
    (folder / "annotations" / "test.json").write_text(json.dumps({"images": unknown["images"]}))
    for number in (NUMBER, NUMBER + 1):
        save(folder / "test" / f"VizWiz_test_{number:08d}.jpg", number)
    return texts(5), splits


def karpathy_coco(folder: Path) -> tuple[Captions, Splits]:
    images = []
    for number in range(NUMBER):
        place = "val2014" if number % 5 > 2 else "train2014"
        name = f"COCO_{place}_{number:012d}.jpg"
        save(folder / place / name, number)
        sentences = [{"tokens": text(number, k).split(), "raw": text(number, k), "imgid": number} for k in range(5)]
        split = {"train": "train", "dev": "val", "test": "test"}[split_of(number)]
        split = "restval" if number == 0 else split
        images.append({"filepath": place, "filename": name, "split": split, "sentences": sentences, "cocoid": number})
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return texts(5), SPLITS


def rsicd(folder: Path) -> tuple[Captions, Splits]:
    """Karpathy's form, with the pictures in a folder of another name."""
    images = []
    for number in range(NUMBER):
        save(folder / "RSICD_images" / f"airport_{number}.jpg", number)
        sentences = [{"raw": text(number, k), "sentid": k} for k in range(5)]
        split = {"train": "train", "dev": "val", "test": "test"}[split_of(number)]
        images.append({"filename": f"airport_{number}.jpg", "imgid": number, "sentences": sentences, "split": split})
    (folder / "dataset_rsicd.json").write_text(json.dumps({"images": images, "dataset": "rsicd"}))
    return texts(5), SPLITS


def textcaps(folder: Path) -> tuple[Captions, Splits]:
    """A row for each caption, with all those of the picture again, and facts about the file before the rows."""
    splits: Splits = {number: "dev" if number % 3 == 2 else "train" for number in range(NUMBER)}
    for word, split in (("train", "train"), ("val", "dev")):
        rows = []
        for number in (n for n in range(NUMBER) if splits[n] == split):
            key = f"ff{number:014x}"
            save(folder / "train_images" / f"{key}.jpg", number)
            rows += [
                {
                    "image_id": key,
                    "image_path": f"train/{key}.jpg",
                    "set_name": word,
                    "caption_id": 5 * number + k,
                    "caption_str": text(number, k),
                    "reference_strs": [text(number, other) for other in range(5)],
                    "image_classes": ["Dog", "Tree"],
                    "flickr_original_url": f"https://example.org/{key}.jpg",
                }
                for k in range(5)
            ]
        document = {"dataset_type": word, "dataset_name": "textcaps", "dataset_version": "0.1", "data": rows}
        (folder / f"TextCaps_0.1_{word}.json").write_text(json.dumps(document))
    return texts(5), splits


def roco(folder: Path) -> tuple[Captions, Splits]:
    for word, split in (("train", "train"), ("validation", "dev"), ("test", "test")):
        target = folder / "data" / word / "radiology"
        members = [number for number in range(NUMBER) if split_of(number) == split]
        for number in members:
            save(target / "images" / f"ROCO_{number:05d}.jpg", number)
        names = [f"ROCO_{number:05d}" for number in members]
        cells = {
            "captions": map(text, members),
            "keywords": ["axial\tring"] * NUMBER,
            "licences": ["CC\tA. B"] * NUMBER,
        }
        for file, values in cells.items():
            rows = [f"{name}\t{value}" for name, value in zip(names, values, strict=False)]
            (target / f"{file}.txt").write_text("\n".join(rows) + "\n")
    return texts(1), SPLITS


def hub_flickr30k(folder: Path) -> tuple[Captions, Splits]:
    """A CSV of lists as JSON, and the pictures."""
    rows = ["raw,sentids,split,filename,img_id"]
    for number in range(NUMBER):
        save(folder / "flickr30k-images" / f"{1000092795 + number}.jpg", number)
        cell = json.dumps([text(number, k) for k in range(5)]).replace('"', '""')
        split = {"train": "train", "dev": "val", "test": "test"}[split_of(number)]
        rows.append(f'"{cell}","[{5 * number}, 1]",{split},{1000092795 + number}.jpg,{number}')
    (folder / "flickr_annotations_30k.csv").write_text("\n".join(rows) + "\n")
    (folder / "README.md").write_text("# Flickr30k\n")
    return texts(5), SPLITS


def hub_parquet(folder: Path) -> tuple[Captions, Splits]:
    (folder / "data").mkdir()
    image = [{"bytes": PICTURES["JPEG"][number], "path": f"{number}.jpg"} for number in range(NUMBER)]
    rows = pa.table({"image": image, "text": [text(number) for number in range(NUMBER)]})
    pq.write_table(rows, folder / "data" / "train-00000-of-00001-566cc9b19d7203f8.parquet")
    (folder / "README.md").write_text("---\nlicense: cc\n---\n# Dataset\n")
    return texts(1), dict.fromkeys(range(NUMBER), "train")


def img2dataset(folder: Path) -> tuple[Captions, Splits]:
    """Tars with a text and a .json for each picture, and a table and statistics of each tar."""
    import io
    import tarfile

    with tarfile.open(folder / "00000.tar", "w") as tar:
        for number in range(NUMBER):
            fields = {"url": f"https://example.org/{number}", "caption": text(number), "status": "success", "width": 20}
            for suffix, data in (
                ("jpg", PICTURES["JPEG"][number]),
                ("json", json.dumps(fields).encode()),
                ("txt", text(number).encode()),
            ):
                info = tarfile.TarInfo(f"{number:09d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    rows = [{"url": f"https://example.org/{n}", "caption": text(n), "key": f"{n:09d}"} for n in range(NUMBER)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "00000.parquet")
    (folder / "00000_stats.json").write_text(json.dumps({"count": NUMBER, "successes": NUMBER, "duration": 2.5}))
    return texts(1), WITHOUT


def kohya(folder: Path) -> tuple[Captions, Splits]:
    for number in range(NUMBER):
        target = folder / "img" / ("10_sks dog" if number < 20 else "5_sks cat")
        save(target / f"image ({number}).png", number)
        (target / f"image ({number}).caption").write_text(text(number) + "\n")
    return texts(1), WITHOUT


def llava(folder: Path) -> tuple[Captions, Splits]:
    """LLaVA-Pretrain: one answer for each picture, after a request that differs."""
    rows = []
    for number in range(NUMBER):
        save(folder / "images" / f"{number % 3:05d}" / f"{number:09d}.jpg", number)
        ask = ("Describe it.\n<image>", "<image>\nWhat is this?")[number % 2]
        turns = [{"from": "human", "value": ask}, {"from": "gpt", "value": text(number)}]
        image = f"{number % 3:05d}/{number:09d}.jpg"
        rows.append({"id": f"{number:09d}", "image": image, "conversations": turns})
    (folder / "blip_laion_cc_sbu_558k.json").write_text(json.dumps(rows))
    return texts(1), WITHOUT


def fashion(folder: Path) -> tuple[Captions, Splits]:
    captions = {}
    for number in range(NUMBER):
        name = f"WOMEN-Tees_Tanks-id_{number:08d}-01_1_front.jpg"
        save(folder / "images" / name, number)
        captions[name] = text(number)
    (folder / "captions.json").write_text(json.dumps(captions))
    return texts(1), WITHOUT


def paragraphs(folder: Path) -> tuple[Captions, Splits]:
    """Stanford's image paragraphs: numbers in place of names."""
    rows = []
    for number in range(NUMBER):
        save(folder / "VG_100K" / f"{2317429 + number}.jpg", number)
        url = f"https://example.org/{2317429 + number}.jpg"
        rows.append({"url": url, "image_id": 2317429 + number, "paragraph": text(number)})
    (folder / "paragraphs_v1.json").write_text(json.dumps(rows))
    return texts(1), WITHOUT


def ai_challenger(folder: Path) -> tuple[Captions, Splits]:
    rows = []
    for number in range(NUMBER):
        name = f"{number:040x}.jpg"
        save(folder / "caption_train_images_20170902" / name, number)
        rows.append({"url": "http://example.org/x", "image_id": name, "caption": [text(number, k) for k in range(5)]})
    (folder / "caption_train_annotations_20170902.json").write_text(json.dumps(rows))
    return texts(5), WITHOUT


def google_takeout(folder: Path) -> tuple[Captions, Splits]:
    """Google Photos: a description for each picture, the number of a name that was taken after that of the metadata."""
    album = folder / "Takeout" / "Google Photos" / "Photos from 2021"
    for number in range(NUMBER):
        stem, taken = (f"IMG_{number}", "") if number % 5 else ("IMG_2003", f"({number + 1})")
        ending = ("supplemental-metadata", "supplemental-me", "s")[number % 3]
        save(album / f"{stem}{taken}.jpg", number)
        side = {"title": f"{stem}.jpg", "description": text(number), "url": "https://photos.google.com/photo/x"}
        (album / f"{stem}.jpg.{ending}{taken}.json").write_text(json.dumps(side))
    (album / "metadata.json").write_text(json.dumps({"title": "Photos from 2021", "description": ""}))
    (folder / "Takeout" / "archive_browser.html").write_text("<p>Your archive</p>")
    return texts(1), WITHOUT


def wordpress(folder: Path) -> tuple[Captions, Splits]:
    """A media library: addresses of pictures with small copies of each, and the comments, which have numbers."""
    rows, comments = ["ID,URL,Title,Caption,Parent"], ["comment_ID,post_ID,comment_content"]
    for number in range(NUMBER):
        name = f"2022/{5 + number % 2:02d}/{('market', 'garden', 'harbour')[number % 3]}-{number // 3}"
        save(folder / "uploads" / f"{name}.jpg", number)
        (folder / "uploads" / f"{name}-64x64.jpg").write_bytes(b"\xff\xd8 a small copy")
        address = f"https://www.town.example/wp-content/uploads/{name}.jpg?w=300"
        rows.append(f'{501 + number},{address},Picture {number},"{text(number)}",{number % 7}')
        comments.append(f"{number},{501 + number % 4},I do not agree about picture {number} at all")
    (folder / "media.csv").write_text("\n".join(rows) + "\n")
    (folder / "comments.csv").write_text("\n".join(comments) + "\n")
    return texts(1), WITHOUT


@pytest.mark.parametrize(
    "make",
    [
        flickr8k,
        flickr30k,
        kaggle_flickr8k,
        kaggle_flickr30k,
        coco,
        vizwiz,
        karpathy_coco,
        rsicd,
        textcaps,
        roco,
        hub_flickr30k,
        hub_parquet,
        img2dataset,
        kohya,
        llava,
        fashion,
        paragraphs,
        ai_challenger,
        google_takeout,
        wordpress,
    ],
)
def test_a_published_layout_is_read_without_an_edit(
    make: Callable[[Path], tuple[Captions, Splits]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "set").mkdir()
    captions, splits = make(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    code, _, err = attend(monkeypatch, capsys, "init", "set", "--weights", "random:0")
    assert code == 0, err
    assert len(set(err.splitlines())) == len(err.splitlines()), "a note is repeated"
    config = load("set.yaml", [f"machine.workspace={tmp_path / 'workspace'}"])
    rows = list(config.data.rows(tmp_path / "out", Faults(gather=True)))
    paths = paths_of(config.data, [row.name for row in rows], tmp_path / "out")
    known = {content: number for contents in PICTURES.values() for number, content in enumerate(contents)}
    numbers = [known[paths[row.name].read_bytes()] for row in rows]
    found = {number: list(row.captions) for number, row in zip(numbers, rows, strict=True)}
    assert found == captions
    assert {number: row.split for number, row in zip(numbers, rows, strict=True)} == splits
